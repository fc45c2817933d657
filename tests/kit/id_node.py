"""One node that keeps indexes of message ids, whose entries commit when a test says so."""

from __future__ import annotations

import asyncio
from typing import Any

from semel.broker.dedup.id_store import MemoryIdStore
from semel.broker.replica.message_ids import MessageIds
from semel.broker.replica.proposer import Proposer
from semel.broker.state import Admission, State
from semel.protos.batch import check_batch
from semel.protos.columns import Columns, encode_batch
from semel.protos.dropped import read_answer
from semel.protos.errors import NotMaster, SemelError
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import Term
from semel.protos.levels import ID_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, START_US, ref

SEED = b"0123456789abcdef"


class Answers:
    """The answers to batches, by first sequence."""

    def __init__(self) -> None:
        self.acks: dict[int, tuple[str, int, list[Any]]] = {}
        self.refused: dict[int, SemelError] = {}

    def ack(
        self,
        header: Any,
        status: str,
        base_offset: int,
        _: int,
        dropped: bytes = b"",
        due: object = None,
    ) -> None:
        found = read_answer(dropped)
        marks = [(each.sequence, each.offset, each.verdict) for each in found]
        self.acks[header.base_sequence] = status, base_offset, marks

    def refuse(self, header: Any, error: SemelError) -> None:
        self.refused[header.base_sequence] = error


def proposer_of(ids: MessageIds, admission: Admission) -> Proposer:
    return Proposer(admission, look_up=ids.submit, answer_again=ids.answer_again)


class IdNode:
    """One node whose entries commit when a test says so."""

    def __init__(self, store: Any = None, *, state: State | None = None) -> None:
        self.state = state or State()
        self.store = store or MemoryIdStore()
        self.frames: list[bytes] = []
        self.behind: list[bool] = []
        self.proposer: Proposer | None = None
        self.turns = 0
        self.ids = MessageIds(self, lambda: self.store, memory_ids=50, on_behind=self.behind.append)
        self.pending: list[bytes] = []
        self.sink = Answers()
        self.last = -1

    def not_master(self) -> SemelError:
        return NotMaster("no master")

    def schedule_turn(self) -> None:
        self.turns += 1

    def serve(self) -> None:
        self.apply([(RecordKind.NOOP, [])])
        admission = Admission(self.state, term=Term(1))
        self.proposer = proposer_of(self.ids, admission)

    def begin(self, **dedup: Any) -> None:
        """A master of a topic that compares ids, and its producer."""
        self.serve()
        given = {"window_bytes": 1 << 20, "seed": SEED, **dedup}
        settings = common_pb2.TopicSettings(dedup=common_pb2.IdDedup(**given))
        create = control_pb2.CreateQueue(
            queue=ref(KEY), topic="t", slot_end=65_536, settings=settings
        )
        fence = control_pb2.Fence(queues=[ref(KEY)], producer_id=1, epoch=1)
        level = control_pb2.FeatureLevel(level=ID_LEVEL)
        for record in ({"feature_level": level}, {"create_queue": create}, {"fence": fence}):
            assert self.proposer is not None
            self.proposer.submit_control(control_pb2.ControlRecord(**record))
            self.commit()

    def apply(self, records: list[Any]) -> None:
        index = self.state.applied_index + 1
        self.follow(build_frame(index, 1, START_US, records)[0])

    def follow(self, frame: bytes) -> None:
        self.frames.append(frame)
        results = self.state.apply_frame(frame)
        self.ids.on_applied(frame, results)
        if self.proposer is not None:
            self.proposer.on_applied(self.state.applied_index, results)

    def propose(self) -> None:
        """Appends one entry."""
        assert self.proposer is not None
        index = self.state.applied_index + len(self.pending) + 1
        entry = self.proposer.next_entry(index, 1, START_US, 0, 1 << 20)
        if entry is not None:
            self.pending.append(build_frame(index, 1, START_US, entry.records)[0])

    def commit(self) -> None:
        self.propose()
        pending, self.pending = self.pending, []
        for frame in pending:
            self.follow(frame)

    def batch(self, messages: dict[str, str], previous: int | None = None) -> bytes:
        previous = self.last if previous is None else previous
        ids = [each.encode() for each in messages]
        values = [each.encode() for each in messages.values()]
        return encode_batch(
            Columns.from_arrow(values, message_ids=ids),
            topic_id=KEY.topic_id,
            queue_id=0,
            producer_id=1,
            epoch=1,
            session=0,
            previous_sequence=previous,
            base_sequence=previous + 1,
            last_sequence=previous + len(ids),
            timestamp_us=1,
        )

    async def send(self, messages: dict[str, str], *, commit: bool = True) -> bytes:
        data = self.batch(messages)
        self.last += len(messages)
        self.ids.submit(check_batch(data), data, self.sink)
        await settled(self)
        if commit:
            self.commit()
        return data

    @property
    def window(self) -> Any:
        return self.state.id_windows.topics[KEY.topic_id]

    @property
    def index(self) -> Any:
        return self.ids._topics[KEY.topic_id].ids


async def settled(node: IdNode) -> None:
    """Waits for look-ups of the thread."""
    while node.ids._looking_up:
        await asyncio.sleep(0.001)


def numbered(start: int, end: int) -> dict[str, str]:
    return {f"id {number}": "v" for number in range(start, end)}
