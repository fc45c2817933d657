"""A send window and a queue, behind a network that loses, repeats, delays and reorders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from semel.client.core.batching import Chunk, Part
from semel.client.core.encoding import encode_part
from semel.client.core.sequences import (
    Failed,
    Fatal,
    Fence,
    InFlight,
    Known,
    Moved,
    Retry,
    SendWindow,
    Settled,
)
from semel.protos.batch import Codec, decode_header
from semel.protos.columns import Columns
from semel.protos.errors import DedupStateExpired, NotMaster, Throttled, Unavailable
from semel.protos.ids import ProducerId, QueueId, QueueKey, TopicId
from tests.kit.simulated_broker import Answer, SimulatedQueue

QUEUE = QueueKey(TopicId(1), QueueId(0))
PRODUCER = ProducerId(7)


class World:
    """A window, a queue and the streams between them."""

    def __init__(self, *, positions: bool, window_class: type[SendWindow] = SendWindow) -> None:
        self.queue = SimulatedQueue()
        self.positions = positions
        self.epoch = 1
        self.session = 1
        row = self.queue.fence(1, 1)
        self.window = window_class(
            producer_id=PRODUCER,
            epoch=1,
            session=1,
            last_sequence=row.last,
            max_in_flight=8,
            positions=positions,
        )
        self.sent: list[bytes] = []
        self.outcome: dict[bytes, str] = {}
        self.offsets: dict[bytes, int] = {}
        self.next_position = 0
        self.wire: deque[bytes] = deque()
        """Batches on the present stream, towards the broker."""
        self.old_wire: list[bytes] = []
        """Batches on streams that are gone, which may still arrive in any order."""
        self.answers: list[Answer] = []
        self.rewind_due = False
        self.fence_due: Fence | None = None
        self.fatal: Exception | None = None

    def add(self, count: int, gap: int) -> None:
        if not self.window.room:
            return
        values = [b"m%d" % (len(self.sent) + row) for row in range(count)]
        chunk = Chunk("t", 1, 0.0)
        part = Part(chunk, QUEUE, 0, count, 0)
        part.columns = Columns.from_arrow(values)
        if self.positions:
            first = self.next_position + gap
            part.positions = np.arange(first, first + count * 2, 2)[:count]
            self.next_position = int(part.positions[-1]) + 1
        window = self.window
        payload, base, last = encode_part(
            part,
            producer_id=window.producer_id,
            epoch=window.epoch,
            session=window.session,
            previous_sequence=window.last_assigned,
            codec=Codec.NONE,
        )
        previous = window.last_assigned
        window.add(
            InFlight(
                previous=previous, base=base, last=last, count=count, payload=payload, tag=values
            )
        )
        self.sent += values

    def transmit(self, limit: int) -> None:
        if self.rewind_due or self.fence_due is not None:
            return
        for _ in range(limit):
            batch = self.window.next_to_send()
            if batch is None:
                return
            self.wire.append(batch.payload)

    def arrive(self) -> None:
        """The broker judges the next batch of the present stream."""
        if self.wire:
            self.answers.append(self.queue.produce(self.wire.popleft()))

    def arrive_late(self, place: int) -> None:
        """A batch of a stream that is gone arrives; its answer is lost."""
        if self.old_wire:
            self.queue.produce(self.old_wire.pop(place % len(self.old_wire)))

    def answer(self, place: int) -> None:
        if not self.answers:
            return
        answer = self.answers.pop(place % len(self.answers))
        if answer.error is None:
            decisions = self.window.on_stored(
                answer.base, answer.last, answer.offset, 0, answer.duplicate
            )
        else:
            decisions = self.window.on_refused(answer.base, answer.last, answer.error)
        self.perform(decisions)

    def refuse_first(self, error: Any) -> None:
        """The broker answers the next batch with an error, without judging it."""
        if self.wire:
            header = decode_header(self.wire.popleft())
            self.answers.append(Answer(header.base_sequence, header.last_sequence, error))

    def lose_stream(self) -> None:
        self.old_wire += self.wire
        self.wire.clear()
        self.answers.clear()
        self.rewind_due = False
        self.window.on_stream_lost()

    def rewind(self) -> None:
        if self.rewind_due:
            self.rewind_due = False
            self.window.rewind()

    def fence(self) -> None:
        if self.fence_due is None:
            return
        reopen = self.fence_due.reopen
        self.fence_due = None
        if reopen:
            self.epoch, self.session = self.epoch + 1, 1
        else:
            self.session += 1
        self.window.claimed = (self.epoch, self.session)
        row = self.queue.fence(self.epoch, self.session)
        decisions = self.window.on_fenced(
            producer_id=PRODUCER,
            epoch=self.epoch,
            session=self.session,
            last_sequence=row.last,
            known=[Known(base, last, offset, count) for base, last, offset, count, _ in row.window],
        )
        self.lose_stream()
        self.perform(decisions)

    def perform(self, decisions: list[Any]) -> None:
        for decision in decisions:
            match decision:
                case Settled(batch=batch):
                    values: Any = batch.tag
                    for row, value in enumerate(values):
                        assert value not in self.outcome, "settled twice"
                        self.outcome[value] = "stored"
                        if decision.base_offset >= 0 and row >= batch.trimmed:
                            self.offsets[value] = decision.base_offset + row - batch.trimmed
                case Failed(batch=batch, error=error):
                    kind = "unknown" if isinstance(error, DedupStateExpired) else "failed"
                    values = batch.tag
                    for value in values:
                        assert value not in self.outcome, "settled twice"
                        self.outcome[value] = kind
                case Retry():
                    self.rewind_due = True
                case Moved():
                    self.lose_stream()
                case Fence():
                    self.fence_due = decision
                case Fatal(error=error):
                    self.fatal = error

    def settle_all(self) -> None:
        """Calms the network: everything must come to its end."""
        for _ in range(400):
            if not self.window.in_flight:
                break
            self.fence()
            self.rewind()
            self.transmit(8)
            while self.wire:
                self.arrive()
            while self.answers:
                self.answer(0)
        self.check()
        assert not self.window.in_flight, "does not come to an end"

    def check(self) -> None:
        assert self.fatal is None, self.fatal
        stored = self.queue.stored
        assert len(set(stored)) == len(stored), "stored twice"
        order = {value: row for row, value in enumerate(self.sent)}
        places = [order[value] for value in stored]
        assert places == sorted(places), "reordered"
        where = {value: offset for offset, value in enumerate(stored)}
        for value, outcome in self.outcome.items():
            if outcome == "stored":
                assert value in where, "lost"
                assert self.offsets.get(value, where[value]) == where[value], "wrong offset"
            elif outcome == "failed":
                assert value not in where, "failed, and yet stored"


NAMES = (
    *("add", "add", "add", "transmit", "transmit", "transmit", "arrive", "arrive", "arrive"),
    *("arrive", "answer", "answer", "answer", "answer", "rewind", "fence", "lose_stream"),
    *("arrive_late", "throttle", "unavailable", "not_master"),
)


STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 7)), max_size=50)


def run(world: World, steps: list[Any], after: Callable[[World], None] | None = None) -> None:
    errors = {
        "throttle": Throttled("busy", retry_after_ms=5),
        "unavailable": Unavailable("lost"),
        "not_master": NotMaster("elsewhere"),
    }
    for name, number in steps:
        match name:
            case "add":
                world.add(1 + number % 4, number % 3)
            case "transmit" | "arrive_late" | "answer":
                getattr(world, name)(number)
            case "throttle" | "unavailable" | "not_master":
                world.refuse_first(errors[name])
            case _:
                getattr(world, name)()
        world.check()
        if after is not None:
            after(world)
    world.settle_all()


class RenamesInDoubt(SendWindow):
    """Gives what is in doubt new sequences without a fence."""

    def on_stream_lost(self) -> int:
        batches = self.batches()
        self._in_flight.clear()
        self._outgoing.clear()
        chain = self.last_assigned
        for batch in batches:
            chain = self._chain(batch, chain)
        self.last_assigned = chain
        return len(batches)
