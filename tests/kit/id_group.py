"""A log of one master whose topic compares message ids, with a real index in memory."""

from __future__ import annotations

from typing import Any

from semel.broker.dedup.fingerprints import Fingerprints
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_store import MemoryIdStore
from semel.broker.dedup.looked_up import LookedUp
from semel.broker.state import Accepted, Admission, BatchDecision, batch_record_parts
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.frames import RecordKind
from semel.protos.ids import QueueId, QueueKey, Term, TopicId
from semel.protos.levels import ID_LEVEL
from semel.protos.v1 import common_pb2
from tests.kit.state_log import KEY, Group, control

SEED = b"0123456789abcdef"
OTHER = QueueKey(TopicId(7), QueueId(1))
WINDOW_BYTES = 1 << 20
Message = tuple[bytes | None, bytes]


def dedup(**other: Any) -> common_pb2.IdDedup:
    return common_pb2.IdDedup(**{"window_bytes": WINDOW_BYTES, "seed": SEED, **other})


class IdGroup(Group):
    """A master with an index, and a second node that follows the log with an index of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(queues=())
        self.raise_level(ID_LEVEL)
        self.admission = self._admission()
        self.fingerprints = Fingerprints(SEED)
        self.index = IdIndex(MemoryIdStore(), KEY.topic_id, SEED, memory_ids=100)
        self.last: dict[tuple[QueueKey, int], int] = {}
        self.pending: list[tuple[Any, Any]] = []
        for key in (KEY, OTHER):
            self.create(key, dedup=dedup(**settings))
            for producer in (1, 2):
                self.fence(producer=producer, keys=(key,))

    def _admission(self) -> Admission:
        return Admission(self.state, term=Term(self.term))

    def new_master(self) -> None:
        super().new_master()
        self.admission = self._admission()
        self.index.cut_back(self.window.next_arrival)

    @property
    def next_index(self) -> int:
        """Index of the entry that is made of what is accepted."""
        return len(self.frames) + 1

    @property
    def window(self) -> Any:
        return self.state.id_windows.topics[KEY.topic_id]

    def batch(
        self,
        messages: list[Message],
        *,
        producer: int = 1,
        key: QueueKey = KEY,
        previous: int | None = None,
        due_us: int = 0,
    ) -> bytes:
        if previous is None:
            previous = self.last.get((key, producer), -1)
        ids, values = [each for each, _ in messages], [value for _, value in messages]
        return encode_batch(
            Columns.from_arrow(values, message_ids=ids),
            topic_id=key.topic_id,
            queue_id=key.queue_id,
            producer_id=producer,
            epoch=1,
            session=0,
            previous_sequence=previous,
            base_sequence=previous + 1,
            last_sequence=previous + len(messages),
            timestamp_us=1,
            deliver_at_us=due_us,
        )

    def look_up(self, data: bytes) -> LookedUp:
        header = check_batch(data)
        first = self.window.first_arrival
        found = LookedUp.begin(self.index, self.fingerprints, header, data, first)
        return found.finish()

    def send(self, data: bytes, ids: LookedUp | None = None, *, commit: bool = True) -> Any:
        """Returns the decision, and notes the records of an accepted batch."""
        header = check_batch(data)
        ids = ids or self.look_up(data)
        decision: BatchDecision = self.admission.admit_batch(
            header, 0, time_us=self.now_us, entry=self.next_index, ids=ids
        )
        if isinstance(decision, Accepted):
            assert decision.checked is not None
            self.entry.append(control(check_ids=decision.checked.record))
            parts = batch_record_parts(
                decision.checked.decision.batch,
                base_offset=decision.base_offset,
                append_time_us=self.now_us,
                term=Term(self.term),
            )
            self.entry.append((RecordKind.BATCH, parts))
            self.last[header.queue_key, header.producer_id] = header.last_sequence
            if commit:
                self.commit()
        return decision

    def produce_ids(self, messages: list[Message], **options: Any) -> Any:
        return self.send(self.batch(messages, **options))

    def evict(self) -> None:
        record = self.admission.ids.propose_eviction(KEY.topic_id, self.now_us)
        if record is not None:
            self.entry.append(control(evict_ids=record))

    def stored(self, key: QueueKey = KEY) -> list[Message]:
        """The messages of a queue, read from the log."""
        found: list[Message] = []
        for extent in self.state.queues[key].extents_from(0, 1 << 40):
            data = self.payload(extent.index, extent.position)[BROKER_HEADER_BYTES:]
            columns = decode_columns(data, check_batch(data))
            values = columns.values.to_pylist()
            # A batch none of whose messages has an id may come without the column.
            ids = columns.message_ids
            listed = [None] * len(values) if ids is None else ids.to_pylist()
            found += zip(listed, values, strict=True)
        return found
