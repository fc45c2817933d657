"""A group whose queue is in memory: its log has headers, and the bodies are kept beside it."""

from __future__ import annotations

from semel.broker.state import RECORD_BYTES, Accepted, ApplyResult
from semel.protos.batch import BatchHeader
from semel.protos.frames import RecordKind
from semel.protos.levels import MEMORY_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, Group, batch_record, control, header, ref

SETTINGS = common_pb2.TopicSettings(storage=common_pb2.STORAGE_MEMORY, memory_bytes=1 << 20)


class MemoryRecords(Group):
    """What happens to a queue in memory."""

    bodies: dict[tuple[int, int], bytes]
    """Headers and bodies of all batches, by entry and position."""

    def create_in_memory(self, settings: common_pb2.TopicSettings = SETTINGS) -> None:
        record = control_pb2.CreateQueue(
            queue=ref(), topic="t", slot_start=0, slot_end=65_536, settings=settings
        )
        assert isinstance(self.admission.queues.admit_create_queue(record), Accepted)
        assert self.admission.in_memory(KEY)
        self.entry.append(control(create_queue=record))
        self.commit()
        self.fence()

    def send(self, previous: int, count: int = 1) -> BatchHeader:
        head = header(previous, last=previous + count)
        decision = self.admission.admit_batch(head, 0, time_us=self.now_us)
        assert isinstance(decision, Accepted)
        kind, parts = batch_record(head, decision.base_offset, self.now_us, self.term)
        stored = b"".join(parts)
        assert kind is RecordKind.BATCH
        self.entry.append((RecordKind.MEMORY, [stored[:RECORD_BYTES]]))
        self.commit()
        extent = self.state.queues[KEY].extents_from(decision.base_offset, 1)[0]
        self.bodies[extent.index, extent.position] = stored
        return head

    def lose(self, from_offset: int, to_offset: int) -> list[ApplyResult]:
        record = control_pb2.LoseMemory(queue=ref(), from_offset=from_offset, to_offset=to_offset)
        assert isinstance(self.admission.queues.admit_lose_memory(record), Accepted)
        self.entry.append(control(lose_memory=record))
        return self.commit()

    def trim(self, log_start_offset: int) -> list[ApplyResult]:
        record = control_pb2.Trim(queue=ref(), log_start_offset=log_start_offset)
        self.entry.append(control(trim=record))
        return self.commit()


class MemoryGroup(MemoryRecords):
    """A group whose queue is in memory."""

    def __init__(self, settings: common_pb2.TopicSettings = SETTINGS) -> None:
        super().__init__(queues=())
        self.bodies = {}
        self.raise_level(MEMORY_LEVEL)
        self.create_in_memory(settings)
