"""How much of each topic waits on this broker group, delayed or staged, for those with a quota.

How it works. The sum is taken from the replicated state when somebody asks, and again after
`_FRESH_S`, a change of quotas, or when a queue of the topic has come, which may bring delayed
messages; what is let in meanwhile is added to it. So it may be too high for that long, and is never
too low by more than what is on its way into the log.

Not here: the limits for all topics together (`state/admission/`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from semel.broker.state import State
from semel.protos.batch import BatchHeader
from semel.protos.errors import Throttled
from semel.protos.ids import QueueKey
from semel.protos.security.meters import Meters
from semel.protos.security.quotas import QuotaKind
from semel.protos.staging import STAGER_ID_MIN

_FRESH_S: Final = 0.5
_RETRY_MS: Final = 1_000
_REMEMBERED_MAX: Final = 1_000


@dataclass(slots=True)
class _Amount:
    at_s: float
    version: int
    newest: QueueKey | None
    """The queue of the topic that had come last."""
    bytes: int


class TopicAmounts:
    """What topics with a quota have delayed and staged."""

    def __init__(
        self,
        meters: Meters,
        state: Callable[[], State],
        topic_of: Callable[[QueueKey], str | None],
        is_stored: Callable[[BatchHeader], bool],
    ) -> None:
        """`is_stored` tells whether a batch is a repetition of one that is stored."""
        self._meters = meters
        self._state = state
        self._topic_of = topic_of
        self._is_stored = is_stored
        self._known: dict[tuple[QuotaKind, int], _Amount] = {}

    def refusal(self, header: BatchHeader) -> Throttled | None:
        """Why a batch cannot be taken now; None if it can."""
        if header.producer_id >= STAGER_ID_MIN:
            kind = QuotaKind.STAGED_BYTES
        elif header.deliver_at_us:
            kind = QuotaKind.DELAYED_BYTES
        else:
            return None
        name = self._topic_of(header.queue_key)
        limit = None if name is None else self._meters.limit_of_topic(name, kind)
        if limit is None:
            return None
        amount = self._amount(kind, header.topic_id)
        length = header.stored_length
        if amount.bytes + length <= limit.limit:
            amount.bytes += length
            return None
        if self._is_stored(header):
            return None
        return Throttled(
            f"topic {name!r} has {amount.bytes:,} {kind.value} on this broker group, and its quota"
            f" is {limit.limit:,}; send again when there is room",
            retry_after_ms=_RETRY_MS,
        )

    def _amount(self, kind: QuotaKind, topic_id: int) -> _Amount:
        now_s, version = self._meters.clock_s(), self._meters.version
        newest = self._state().queues.newest_of(topic_id)
        amount = self._known.get((kind, topic_id))
        # What was let in while there was no quota was not added.
        if (
            amount is None
            or (amount.version, amount.newest) != (version, newest)
            or now_s - amount.at_s > _FRESH_S
        ):
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            found = self._staged if kind is QuotaKind.STAGED_BYTES else self._delayed
            amount = _Amount(now_s, version, newest, found(topic_id))
            self._known[kind, topic_id] = amount
        return amount

    def _delayed(self, topic_id: int) -> int:
        queues = self._state().delays.queues
        return sum(queue.bytes for key, queue in queues.items() if key.topic_id == topic_id)

    def _staged(self, topic_id: int) -> int:
        return self._state().transactions.staging.bytes_of(topic_id)
