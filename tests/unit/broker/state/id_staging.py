"""A broker group whose topic compares message ids, and that takes part in transactions."""

from __future__ import annotations

from typing import Any

from semel.broker.dedup.looked_up import LookedUp
from semel.broker.state import Accepted, Refused, Staged, StagedIds, batch_record_parts
from semel.protos.batch import BROKER_HEADER_BYTES, BatchFlags, check_batch
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import SemelError
from semel.protos.frames import RecordKind
from semel.protos.ids import Offset, QueueKey, Term
from semel.protos.staging import STAGER_EPOCH
from semel.protos.v1 import transaction_records_pb2
from tests.kit.id_group import OTHER, IdGroup, Message
from tests.kit.state_log import KEY, control
from tests.unit.broker.state.staging import A, Stage, winner


class IdStage(IdGroup, Stage):
    """Stagers open both queues; their batches have real contents."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.staged: dict[int, dict[QueueKey, list[Any]]] = {}

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

    def look_up_pinned(self, txn: str = "t") -> dict[tuple[int, int], StagedIds | None]:
        """What the replica does: reads the batches from the log and asks the index."""
        staging = self.state.transactions.staging
        found: dict[tuple[int, int], StagedIds | None] = {}
        for extents in staging.pinned_extents(staging.pins[txn]).values():
            for extent in extents:
                data = self.payload(extent.entry, extent.position)[BROKER_HEADER_BYTES:]
                head = check_batch(data)
                found[extent.entry, extent.position] = None
                if head.flags & BatchFlags.MESSAGE_ID:
                    looked_up: LookedUp = self.look_up(data)
                    found[extent.entry, extent.position] = StagedIds(head, looked_up)
        return found

    def publish_ids(
        self, txn: str = "t", looked_up: Any = None, *, commit: bool = True
    ) -> tuple[Any, list[Any]]:
        """Returns the decision, and what is kept of the batches."""
        looked_up = self.look_up_pinned(txn) if looked_up is None else looked_up
        record = transaction_records_pb2.TransactionRecord(
            publish=transaction_records_pb2.PublishTransaction(transaction_id=txn, attempt=1)
        )
        kept: list[Any] = []
        decision = self.admission.admit_transaction(record, looked_up, kept)
        if isinstance(decision, Accepted):
            for batch in kept:
                self.entry.append(control(check_ids=batch.checked.record))
                parts = batch_record_parts(
                    batch.checked.decision.batch,
                    base_offset=batch.base_offset,
                    append_time_us=self.now_us,
                    term=Term(self.term),
                )
                self.entry.append((RecordKind.STAGED, parts))
            self.entry.append(control(transaction=record))
            if commit:
                self.commit()
        return decision, kept
