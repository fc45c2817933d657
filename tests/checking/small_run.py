"""A small run without faults, made to be spoilt."""

from __future__ import annotations

import pyarrow as pa

from semel.broker.state import State, batch_record_parts
from semel.protos.columns import Columns, encode_batch
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import Offset, Term
from semel.protos.v1 import common_pb2, control_pb2
from tests.checking.exactly_once import Report, check
from tests.checking.history import History, Outcome, Send, digest_of
from tests.checking.raw_log import NodeLog

QUEUE = (7, 0)
REF = common_pb2.QueueRef(topic_id=7, queue_id=0)
PRODUCER = 5
START_US = 1_700_000_000_000_000


class Run:
    """A small run without faults, to be spoilt: frames of one queue, and its clients' history."""

    def __init__(self, *, queues: bool = True) -> None:
        self.frames: list[bytes] = []
        self.history = History()
        self.last = -1
        self.end = 0
        self.append_us = START_US
        self._frame(RecordKind.NOOP)
        if not queues:
            return
        create = control_pb2.CreateQueue(
            queue=REF, topic="t", slot_end=65_536, settings=common_pb2.TopicSettings()
        )
        self.control(create_queue=create)
        self.fence(1)

    def _frame(self, kind: RecordKind, *parts: bytes | memoryview) -> None:
        index = len(self.frames) + 1
        self.frames.append(build_frame(index, 1, START_US + index, [(kind, parts)])[0])

    def control(self, **record: object) -> None:
        message = control_pb2.ControlRecord(**record)  # type: ignore[arg-type]
        self._frame(RecordKind.CONTROL, message.SerializeToString(deterministic=True))

    def fence(self, session: int) -> None:
        self.control(
            fence=control_pb2.Fence(queues=[REF], producer_id=PRODUCER, epoch=1, session=session)
        )

    def split(self) -> None:
        """Queue 0 becomes 1 and 2."""
        self.control(feature_level=control_pb2.FeatureLevel(level=2))
        children = [
            control_pb2.ChildQueue(queue_id=1, slot_start=0, slot_end=9),
            control_pb2.ChildQueue(queue_id=2, slot_start=9, slot_end=65_536),
        ]
        self.control(split_queue=control_pb2.SplitQueue(queue=REF, children=children))

    def store(
        self,
        value: bytes,
        *,
        session: int = 1,
        previous: int | None = None,
        queue: int = 0,
        offset: int | None = None,
    ) -> int:
        previous = self.last if previous is None else previous
        offset = self.end if offset is None else offset
        batch = encode_batch(
            Columns(values=pa.array([value], pa.binary())),
            topic_id=7,
            queue_id=queue,
            producer_id=PRODUCER,
            epoch=1,
            session=session,
            previous_sequence=previous,
            base_sequence=previous + 1,
            last_sequence=previous + 1,
            timestamp_us=START_US,
        )
        self._frame(
            RecordKind.BATCH,
            *batch_record_parts(
                batch, base_offset=Offset(offset), append_time_us=self.append_us, term=Term(1)
            ),
        )
        self.last = previous + 1
        self.end += 1
        return offset

    def send(self, number: int, **changes: object) -> Send:
        value = f"m{number}".encode()
        note = Send(
            client="a",
            number=number,
            digest=digest_of(value),
            began_s=number,
            ended_s=number + 0.5,
            outcome=Outcome.OK,
            queue=QUEUE,
            offset=number,
        )
        for name, change in changes.items():
            setattr(note, name, change)
        self.history.add(note)
        return note

    def both(self, number: int, **changes: object) -> Send:
        self.store(f"m{number}".encode())
        return self.send(number, **changes)

    def logs(self) -> list[NodeLog]:
        frames = dict(enumerate(self.frames, 1))
        last = len(self.frames)
        state: bytes | None = None
        machine = State()
        try:
            for frame in self.frames:
                machine.apply_frame(frame)
            state = b"".join(machine.to_parts())
        except Exception:
            state = None  # the log itself is spoilt: the broker would have halted
        return [
            NodeLog(
                node=node,
                frames=frames,
                commit_index=last,
                applied_index=last if state else 0,
                state=state,
            )
            for node in (1, 2, 3)
        ]

    def check(self) -> Report:
        return check(self.history, self.logs())
