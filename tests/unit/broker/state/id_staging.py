"""A broker group whose topic compares message ids, and that takes part in transactions."""

from __future__ import annotations

from typing import Any

import numpy as np

from semel.broker.dedup.pinned_ids import PinnedIds, PinnedRecord
from semel.broker.state import (
    Accepted,
    KnownIds,
    Published,
    Refused,
    Staged,
    State,
    TransactionIds,
    batch_record_parts,
)
from semel.protos.batch import check_batch
from semel.protos.columns import Columns, encode_batch
from semel.protos.dropped import DROPPED
from semel.protos.errors import SemelError
from semel.protos.frames import RecordKind
from semel.protos.ids import Offset, QueueKey, Term
from semel.protos.staging import STAGER_EPOCH
from semel.protos.v1 import transaction_records_pb2
from tests.kit.id_checks import verify
from tests.kit.id_group import OTHER, IdGroup, Message
from tests.kit.state_log import KEY, control
from tests.unit.broker.state.staging import A, Stage, winner


class IdStage(IdGroup, Stage):
    """Stagers open both queues; their batches have real contents."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.staged: dict[int, dict[QueueKey, list[Any]]] = {}
        self.published: Published

    def stage_ids(
        self,
        messages: list[Message],
        *,
        stager: int = A,
        txn: str = "t",
        key: QueueKey = KEY,
        due_us: int = 0,
    ) -> SemelError | str:
        if stager not in self.staged:
            assert self.open(stager, txn=txn, keys=(KEY, OTHER)) == (-1, -1)
        held = self.staged.setdefault(stager, {KEY: [], OTHER: []})
        previous = held[key][-1].last_sequence if held[key] else -1
        ids, values = [each for each, _ in messages], [value for _, value in messages]
        data = encode_batch(
            Columns.from_arrow(values, message_ids=ids if any(ids) else None),
            topic_id=key.topic_id,
            queue_id=key.queue_id,
            producer_id=stager,
            epoch=STAGER_EPOCH,
            session=1,
            previous_sequence=previous,
            base_sequence=previous + 1,
            last_sequence=previous + len(messages),
            timestamp_us=1,
            deliver_at_us=due_us,
        )
        head = check_batch(data)
        decision = self.admission.admit_staged(head, time_us=self.now_us)
        if isinstance(decision, Refused):
            return decision.error
        parts = batch_record_parts(
            data,
            base_offset=Offset(-1),
            append_time_us=self.now_us,
            term=Term(self.term),
        )
        self.entry.append((RecordKind.STAGED, parts))
        result = self.commit()[-1]
        assert isinstance(result, Staged)
        if result.error is None:
            held[key].append(head)
        return result.error or "staged"

    def pin_ids(self, stager: int = A, *, txn: str = "t") -> Any:
        held = {key: heads for key, heads in self.staged[stager].items() if heads}
        return self.pin(winner(stager, held), txn=txn)

    def look_up_pinned(self, txn: str = "t", *, small: bool = True) -> TransactionIds:
        """What the replica does: reads the batches from the log and asks the index."""
        staging = self.state.transactions.staging
        extents = [
            PinnedRecord(*extent[:3])
            for held in staging.pinned_extents(staging.pins[txn]).values()
            for extent in held
        ]
        pinned = PinnedIds(self.index, self.fingerprints, extents, small=small)
        found = pinned.look_up(self.read, self.known)
        return TransactionIds(topics={int(KEY.topic_id): found})

    @property
    def known(self) -> KnownIds:
        window = self.window
        return KnownIds(window.first_arrival, [window.cancelled[:]], window.settings.keep_first)

    def read(self, entry: int, position: int, length: int) -> bytes:
        payload = self.payload(entry, position)
        assert len(payload) == length
        return payload

    def rewrite_ids(self, txn: str, looked_up: TransactionIds, bytes_max: int = 1) -> int:
        """Rewrites the batches that lose messages, each in an entry of its own; how many entries
        there were, or -1 if they must be looked up again."""
        (pinned,) = looked_up.topics.values()
        assert isinstance(pinned, PinnedIds)
        entries = 0
        for rewrites in pinned.rewrites(self.read, self.known, bytes_max):
            record = transaction_records_pb2.TransactionRecord(
                rewrite=transaction_records_pb2.RewriteBatches(transaction_id=txn, attempt=1)
            )
            if not self.take(record, TransactionIds(rewrites=rewrites))[0]:
                return -1
            self.commit()
            entries += 1
        return entries

    def take(
        self, record: transaction_records_pb2.TransactionRecord, looked_up: TransactionIds
    ) -> tuple[bool, Any, list[Any]]:
        """Whether the step is accepted, the decision, and what stands in front of the step."""
        kept: list[Any] = []
        decision = self.admission.admit_transaction(record, looked_up, kept, self.next_index)
        if not isinstance(decision, Accepted):
            return False, decision, kept
        for batch in kept:
            self.entry.append(control(check_ids=batch.record))
            parts = batch_record_parts(
                batch.batch,
                base_offset=batch.base_offset,
                append_time_us=self.now_us,
                term=Term(self.term),
            )
            self.entry.append((RecordKind.STAGED, parts))
        self.entry.append(control(transaction=record))
        return True, decision, kept

    def publish_ids(
        self, txn: str = "t", looked_up: Any = None, *, commit: bool = True, small: bool = True
    ) -> tuple[Any, list[Any]]:
        """Returns the decision, and what is kept of the batches."""
        looked_up = self.look_up_pinned(txn, small=small) if looked_up is None else looked_up
        record = transaction_records_pb2.TransactionRecord(
            publish=transaction_records_pb2.PublishTransaction(transaction_id=txn, attempt=1)
        )
        accepted, decision, kept = self.take(record, looked_up)
        if accepted and commit:
            (self.published,) = [each for each in self.commit() if isinstance(each, Published)]
        return decision, kept

    def publish_large(self, txn: str = "t") -> int:
        """Rewrites until nothing is left to be dropped, and publishes; how many entries came in
        front."""
        entries = 0
        while written := self.rewrite_ids(txn, self.look_up_pinned(txn, small=False)):
            assert written > 0
            entries += written
        decision, kept = self.publish_ids(txn, small=False)
        assert isinstance(decision, Accepted)
        assert not kept
        return entries


Lost = tuple[int, int]


def dropped(kept: list[Any]) -> list[list[Lost]]:
    """Sequence of each dropped message and arrival of the first, of a conflict -1 minus that."""
    return [np.frombuffer(batch.record.dropped, DROPPED).tolist() for batch in kept]


def staged_extents(group: IdStage, txn: str = "t") -> list[Any]:
    """The pinned batches."""
    staging = group.state.transactions.staging
    return [
        extent for held in staging.pinned_extents(staging.pins[txn]).values() for extent in held
    ]


def same(group: IdStage) -> None:
    """A state that is read from its bytes goes on, and all verifiers agree."""
    data = b"".join(group.state.to_parts())
    assert b"".join(State.from_bytes(data).to_parts()) == data
    for start in (0, len(group.frames) - 1):
        verify(group, start)
