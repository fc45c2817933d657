"""What a broker group tells about transactions, as coordinator and as participant.

How it works. A reply about all transactions has sums, and at most so many of each part. A reply
about one transaction is whole and has everything that PIN compares: a coordinator of commits that
has lost its memory can pin what is there.

Not here: the call (`transactions_service.py`).
"""

from __future__ import annotations

from typing import Final

from semel.broker.state import Pin, Stager, Transactions
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import transaction_records_pb2, transactions_pb2

LIMIT_DEFAULT: Final = 10_000


def described(
    state: Transactions,
    request: transactions_pb2.DescribeTransactionsRequest,
    *,
    staged_bytes_max: int,
    log_time_us: int,
    level: int,
) -> transactions_pb2.DescribeTransactionsReply:
    """The reply to a request."""
    wanted = request.transaction_id
    rows, staging = state.coordination.rows, state.staging
    names = sorted(rows) if not wanted else [wanted] if wanted in rows else []
    pins = [pin for name, pin in sorted(staging.pins.items()) if wanted in ("", name)]
    loose = [
        stager
        for _, stager in sorted(staging.stagers.items())
        if not stager.pinned and wanted in ("", stager.transaction_id)
    ]
    limit = None if wanted else request.limit or LIMIT_DEFAULT
    reply = transactions_pb2.DescribeTransactionsReply(
        staged_bytes=staging.bytes,
        staged_bytes_max=staged_bytes_max,
        log_time_us=log_time_us,
        level=level,
        truncated=limit is not None and max(len(names), len(pins), len(loose)) > limit,
    )
    for name in names[:limit]:
        row = rows[name]
        reply.coordinated.add(
            transaction_id=name,
            query_id=row.query_id,
            epoch=row.epoch,
            published=row.published,
            participants=row.participants,
            attempt=row.attempt,
            begun_epoch=row.begun_epoch,
            changed_us=row.changed_us,
        )
    for pin in pins[:limit]:
        reply.pinned.append(_pinned(pin, [staging.stagers[each] for each in pin.winners], wanted))
    reply.staged.extend(_staged(stager, whole=bool(wanted)) for stager in loose[:limit])
    return reply


def _pinned(pin: Pin, stagers: list[Stager], wanted: str) -> transactions_pb2.PinnedTransaction:
    return transactions_pb2.PinnedTransaction(
        transaction_id=pin.transaction_id,
        epoch=pin.epoch,
        attempt=pin.attempt,
        coordinator=pin.coordinator,
        pinned_us=pin.pinned_us,
        bytes=sum(stager.bytes for stager in stagers),
        messages=sum(stager.messages for stager in stagers),
        winners=[_staged(stager, whole=True) for stager in stagers] if wanted else [],
    )


def _staged(stager: Stager, *, whole: bool) -> transactions_pb2.StagedTransaction:
    made = transactions_pb2.StagedTransaction(
        transaction_id=stager.transaction_id,
        epoch=stager.epoch,
        stager_id=stager.stager_id,
        writer=stager.writer,
        bytes=stager.bytes,
        messages=stager.messages,
        expires_us=stager.expires_us,
    )
    if whole:
        queues = sorted(stager.queues.items())
        made.parts.extend(
            transaction_records_pb2.StagedPart(
                queue=queue_ref(key),
                batches=len(staged.extents),
                messages=staged.messages,
                digest=staged.digest,
            )
            for key, staged in queues
            if staged.extents
        )
        made.queues.extend(queue_ref(key) for key, _ in queues)
        made.session = max(stager.session, *(staged.session for _, staged in queues), 0)
        made.commits.extend(
            transactions_pb2.StagedProgress(group=group, queue=queue_ref(key), offset=each.offset)
            for (group, key), each in sorted(stager.commits.items())
        )
    return made
