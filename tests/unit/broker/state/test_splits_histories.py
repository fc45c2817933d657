"""Splits in random histories: no history stores a message twice, loses one or changes the order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.broker.state import (
    Accepted,
    Admission,
    Duplicate,
    Refused,
    TableVerifier,
)
from semel.broker.state.apply.splits import sealed_error
from semel.protos import errors
from semel.protos.batch import BatchHeader
from semel.protos.ids import ProducerId, QueueId, QueueKey
from tests.kit.state_log import KEY, Group, header
from tests.unit.broker.state.splitting import (
    error_of,
    raise_level,
    split,
    split_of,
)


class Producer:
    """A producer as its client is: a chain a queue, what is open is sent again and again."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sessions: dict[QueueKey, int] = {}
        """The session in each queue: a fence of one queue's children says nothing of the others."""
        self.last: dict[QueueKey, int] = {}
        self.made: list[tuple[BatchHeader, list[int]]] = []
        """Every batch ever made, with the contents it carries."""
        self.open: dict[QueueKey, list[tuple[BatchHeader, list[int]]]] = {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["make", "make", "resend", "old", "lose", "split", "expire", "commit"]),
        st.integers(0, 1),
        st.integers(0, 50),
    ),
    max_size=60,
)


@given(STEPS)
@example(
    [("split", 0, 0), ("make", 0, 0), ("split", 0, 0), *[("resend", 0, 0)] * 2, ("make", 0, 26)]
)
@settings(deadline=None, max_examples=120)
def test_no_history_with_splits_stores_twice_or_loses(steps: list[tuple[str, int, int]]) -> None:
    world = _World(_levelled())
    for step, who, number in steps:
        world.step(step, who, number)
    world.finish()


def test_planted_the_histories_notice_a_seal_that_is_said_before_looking() -> None:
    """A retry of what the parent holds would go to a child, and be stored there once more."""
    original = Admission.admit_batch

    def hasty(admission: Admission, head: BatchHeader, now_ms: float, *, time_us: int) -> Any:
        queue = admission._state.queues.get(head.queue_key)
        if queue is not None and queue.sealed:
            return Refused(sealed_error(queue))
        return original(admission, head, now_ms, time_us=time_us)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admission, "admit_batch", hasty)
        world = _World(_levelled())
        for step in [("make", 0, 3), ("commit", 0, 0), ("split", 0, 0)]:
            world.step(*step)
        with pytest.raises(AssertionError):
            world.finish()


def _levelled() -> Group:
    group = Group()
    raise_level(group)
    return group


class _World:
    """Contents are numbers; each must be in exactly one queue at the end, if it was acknowledged,
    and each producer's contents of one slot must stand in the order in which they were made."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.leaves = [KEY]
        self.spans: dict[QueueKey, tuple[int, int]] = {KEY: (0, 65_536)}
        self.next_queue = 1
        self.contents = 0
        self.producers = [Producer(1), Producer(2)]
        for producer in self.producers:
            self._fence(producer, KEY, session=0)

    def step(self, step: str, who: int, number: int) -> None:
        producer = self.producers[who]
        match step:
            case "make":
                self._make(producer, number)
            case "resend":
                self._resend(producer)
            case "old" if producer.made:
                batch, _ = producer.made[number % len(producer.made)]
                decision = self.group.produce(batch, commit=False)
                assert not isinstance(decision, Accepted) or self._due(producer, batch)
            case "lose":
                self.group.new_master()
            case "split" if len(self.leaves) < 5:
                self._split(self.leaves[number % len(self.leaves)])
            case "expire":
                self.group.now_us += 1_000
            case "commit":
                self.group.commit()

    def _due(self, producer: Producer, batch: BatchHeader) -> bool:
        return any(batch == head for heads in producer.open.values() for head, _ in heads)

    def _split(self, key: QueueKey) -> None:
        start, end = self.spans[key]
        middle = (start + end) // 2
        numbers = self.next_queue, self.next_queue + 1
        record = split_of(key, ((numbers[0], start, middle), (numbers[1], middle, end)))
        if isinstance(split(self.group, record, commit=False), Accepted):
            self.next_queue += 2
            self.group.commit()
            if not self.group.state.queues[key].sealed:
                return
            self.leaves.remove(key)
            for number, span in zip(numbers, ((start, middle), (middle, end)), strict=True):
                child = QueueKey(key.topic_id, QueueId(number))
                self.leaves.append(child)
                self.spans[child] = span

    def _fence(self, producer: Producer, key: QueueKey, *, session: int) -> int:
        self.group.commit()
        producer.sessions[key] = session
        result = self.group.fence(
            producer=producer.number, session=session, keys=[key], commit=True
        )
        assert not isinstance(result, Refused), result.error
        (row,) = result.rows
        producer.last[key] = row.last_sequence
        return int(row.last_sequence)

    def _leaf(self, slot: int) -> QueueKey:
        return next(key for key in self.leaves if self.spans[key][0] <= slot < self.spans[key][1])

    def _make(self, producer: Producer, number: int) -> None:
        """One batch of one slot, to the queue that the producer believes to own it."""
        slot = number * 1_310
        known = [k for k in producer.last if self.spans[k][0] <= slot < self.spans[k][1]]
        key = max(known, key=lambda k: k.queue_id)
        self.contents += 1
        self._send_new(producer, key, [self.contents * 100 + number])

    def _send_new(self, producer: Producer, key: QueueKey, contents: list[int]) -> None:
        last = producer.last[key]
        head = header(
            last,
            last=last + len(contents),
            producer=producer.number,
            session=producer.sessions[key],
            crc=contents[0],
            key=key,
        )
        producer.last[key] = head.last_sequence
        producer.made.append((head, contents))
        producer.open.setdefault(key, []).append((head, contents))
        self.group.produce(head, commit=False)

    def _resend(self, producer: Producer) -> None:
        """Oldest first; what is refused as sealed goes to the children, in order."""
        for key in list(producer.open):
            self.group.commit()
            left = producer.open[key]
            while left:
                head, _ = left[0]
                decision = self.group.produce(head)
                if isinstance(decision, Accepted | Duplicate):
                    left.pop(0)
                    continue
                error = error_of(decision)
                assert isinstance(error, errors.QueueSealed), error
                self._repartition(producer, key)
                break

    def _repartition(self, producer: Producer, key: QueueKey) -> None:
        moved = producer.open.pop(key)
        queue = self.group.state.queues[key]
        for child in queue.children:
            child_key = QueueKey(key.topic_id, QueueId(child.queue_id))
            self._fence(producer, child_key, session=producer.sessions[key] + 1)
        for _, contents in moved:
            slot = contents[0] % 100 * 1_310
            child_key = next(
                QueueKey(key.topic_id, QueueId(child.queue_id))
                for child in queue.children
                if child.slot_start <= slot < child.slot_end
            )
            self._send_new(producer, child_key, contents)

    def finish(self) -> None:
        for producer in self.producers:
            while any(producer.open.values()):
                self._resend(producer)
        self.group.commit()
        stored = [
            entry.content_crc
            for key in self.group.state.queues
            for producer in self.producers
            for entry in self._entries(key, producer)
        ]
        assert sorted(stored) == sorted({c for p in self.producers for _, cs in p.made for c in cs})
        self._check_order()
        assert self.group.replayed().digest() == self.group.state.digest()
        table = TableVerifier()
        for frame in self.group.frames:
            table.feed(frame)
        assert not table.problems, table.problems
        for key in self.group.state.queues:
            assert table.queue_digest(key) == self.group.state.producers.queue_digest(key)

    def _entries(self, key: QueueKey, producer: Producer) -> list[Any]:
        row = self.group.state.producers.lookup(key, ProducerId(producer.number))
        return [] if row is None else [entry for entry in row.window if not entry.inherited]

    def _check_order(self) -> None:
        """Parent before child, then offset: contents of one producer and slot rise."""
        for producer in self.producers:
            for slot in range(51):
                line: list[int] = []
                for key in sorted(self.group.state.queues):
                    start, end = self.spans.get(key, (0, 0))
                    if start <= slot * 1_310 < end:
                        line += [
                            e.content_crc
                            for e in self._entries(key, producer)
                            if e.content_crc % 100 == slot
                        ]
                assert line == sorted(line), line
