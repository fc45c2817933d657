"""A stream's progress: every message once, in order over splits, and what is lost is told.

The model below is a topic whose queues grow, are trimmed and split, and that is deleted and made
again, under a stream that knows nothing but its last stored end.
"""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from semel.protos.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    SemelError,
    UnknownQueue,
    UnknownTopic,
)
from semel.spark_connector.limits import share
from semel.spark_connector.offsets import QueueState, raise_loss
from semel.spark_connector.progress import Progress, backlog

ORDERS = QueueState(topic="orders", topic_id=7, queue=0, log_start_offset=0, log_end_offset=9)
OTHER = dataclasses.replace(ORDERS, queue=1, log_start_offset=2, log_end_offset=5)


def began(*states: QueueState) -> Progress:
    return Progress.beginning(states, {state.place: state.log_start_offset for state in states})


def step(
    done: Progress, states: Sequence[QueueState], limit: int | None = None, **more: Any
) -> Any:
    left = backlog(done, states, more.pop("on_loss", raise_loss), **more)
    return left.take(share(left.available, limit, left.turn))


def read(done: Progress) -> list[tuple[int, int, int]]:
    return [(each.queue, each.start, each.end) for each in done.ranges()]


def test_an_end_carries_its_start_and_survives_its_text() -> None:
    first = step(began(ORDERS, OTHER), [ORDERS, OTHER])
    assert first is not None
    assert read(first) == [(0, 0, 9), (1, 2, 5)]
    assert Progress.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_equal_progress_is_equal_text_whatever_the_order() -> None:
    one, two = began(ORDERS, OTHER).to_json(), began(OTHER, ORDERS).to_json()
    assert json.dumps(one) == json.dumps(two)


def test_the_first_trigger_is_stored_even_without_a_message() -> None:
    empty = dataclasses.replace(ORDERS, log_end_offset=0)
    first = step(began(empty), [empty])
    assert first is not None
    assert first.ranges() == []
    assert first.to_json() != began(empty).to_json()
    assert step(first, [empty]) is None


def test_nothing_new_is_nothing() -> None:
    first = step(began(ORDERS), [ORDERS])
    assert first is not None
    assert step(first, [ORDERS]) is None


def test_a_new_topic_begins_at_its_start() -> None:
    first = step(began(ORDERS), [ORDERS])
    new = dataclasses.replace(OTHER, topic="more", topic_id=8)
    second = step(first, [ORDERS, new])
    assert read(second) == [(1, 2, 5)]


def test_children_wait_until_the_parent_lies_behind_the_stream() -> None:
    parent, child = ORDERS, dataclasses.replace(OTHER, queue=2, parent=0, log_start_offset=0)
    first = step(began(parent), [parent, child], limit=6)
    assert read(first) == [(0, 0, 6)]
    second = step(first, [parent, child])
    assert read(second) == [(0, 6, 9)]
    third = step(second, [parent, child])
    assert read(third) == [(2, 0, 5)]


def test_a_trigger_available_now_ends_where_the_queues_ended() -> None:
    until = {(7, 0): 4}
    later = dataclasses.replace(OTHER, topic="later", topic_id=9)
    first = step(began(ORDERS), [ORDERS, OTHER, later], until=until)
    assert read(first) == [(0, 0, 4)]
    assert step(first, [ORDERS, OTHER, later], until=until) is None


STORED = step(began(ORDERS, OTHER), [ORDERS, OTHER])


@pytest.mark.parametrize(
    ("now", "error", "message", "goes_on"),
    [
        (
            [dataclasses.replace(ORDERS, log_start_offset=12, log_end_offset=15), OTHER],
            OffsetOutOfRange,
            "offsets 9 to 12 of queue 0 of topic 'orders' were trimmed",
            [(0, 12, 15)],
        ),
        (
            [dataclasses.replace(ORDERS, log_end_offset=4), OTHER],
            OffsetOutOfRange,
            "ends at 4, and the stream was at 9",
            None,
        ),
        ([], UnknownTopic, "'orders' of this stream is deleted", []),
        (
            [dataclasses.replace(ORDERS, topic_id=8)],
            UnknownTopic,
            "deleted and created again: the checkpoint is about 7, the topic is 8",
            [(0, 0, 9)],
        ),
        ([ORDERS], UnknownQueue, "has no queue 1 any more", []),
    ],
)
def test_what_is_lost_is_told_and_may_be_done_without(
    now: list[QueueState],
    error: type[SemelError],
    message: str,
    goes_on: list[tuple[int, int, int]] | None,
) -> None:
    with pytest.raises(error, match=message):
        step(STORED, now)
    losses: list[Exception] = []
    found = step(STORED, now, on_loss=losses.append)
    assert [type(loss) for loss in losses] == [error]
    assert (found if goes_on is None else read(found)) == goes_on
    if goes_on is not None:
        assert step(found, now) is None  # told once


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"0": 5}, "not those of a semel stream"),
        ("words", "not those of a semel stream"),
        (None, "not those of a semel stream"),
        ({**STORED.to_json(), "version": 2}, "format 2, this one reads 1"),
        ({**STORED.to_json(), "topics": {"t": {"id": "x", "from": {}, "to": {}}}}, "not those"),
        (
            {**STORED.to_json(), "topics": {"t": {"id": "1", "from": {"0": 5}, "to": {"0": 4}}}},
            "topic 't' are damaged",
        ),
        (
            {**STORED.to_json(), "topics": {"t": {"id": "1", "from": {"0": 5}, "to": {}}}},
            "topic 't' are damaged",
        ),
    ],
)
def test_checkpoints_that_nobody_here_wrote(
    stored: str | dict[str, int] | None, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Progress.from_json(stored)


class Streams(RuleBasedStateMachine):
    """A stream over a topic that lives. `log` is all that was ever stored, `seen` what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, QueueState] = {}
        self.seen: dict[int, list[int]] = {}
        self.lost: dict[int, set[int]] = {}
        self.topic_id = 1
        self.stored: list[str] = []

    @initialize(queues=st.integers(1, 3))
    def begin(self, queues: int) -> None:
        self._create(queues)
        self.start = json.dumps(began(*self.states.values()).to_json())

    def _create(self, queues: int) -> None:
        self.states = {
            queue: QueueState(
                topic="t",
                topic_id=self.topic_id,
                queue=queue,
                log_start_offset=0,
                log_end_offset=0,
            )
            for queue in range(queues)
        }
        self.seen = {queue: [] for queue in range(queues)}
        self.lost = {queue: set() for queue in range(queues)}

    def _sealed(self) -> set[int]:
        return {state.parent for state in self.states.values() if state.parent is not None}

    def _at(self, data: st.DataObject, queues: list[int]) -> QueueState:
        return self.states[data.draw(st.sampled_from(sorted(queues)))]

    @rule(data=st.data(), count=st.integers(1, 9))
    def produce(self, data: st.DataObject, count: int) -> None:
        state = self._at(data, list(set(self.states) - self._sealed()))
        self.states[state.queue] = dataclasses.replace(
            state, log_end_offset=state.log_end_offset + count
        )

    @rule(data=st.data(), count=st.integers(1, 5))
    def trim(self, data: st.DataObject, count: int) -> None:
        state = self._at(data, list(self.states))
        start = min(state.log_end_offset, state.log_start_offset + count)
        self.states[state.queue] = dataclasses.replace(state, log_start_offset=start)

    @precondition(lambda self: len(self.states) < 8)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        parent = self._at(data, list(set(self.states) - self._sealed()))
        for _ in range(2):
            child = len(self.states)
            self.states[child] = dataclasses.replace(
                parent, queue=child, parent=parent.queue, log_start_offset=0, log_end_offset=0
            )
            self.seen[child], self.lost[child] = [], set()

    @precondition(lambda self: len(self.states) > 3)
    @rule(queues=st.integers(1, 2))
    def delete_and_create(self, queues: int) -> None:
        self.topic_id += 1
        self._create(queues)

    @rule(limit=st.none() | st.integers(1, 12))
    def trigger(self, limit: int | None) -> None:
        """Spark stores the end, then runs the trigger from what it has stored."""
        done = Progress.from_json(json.loads(self.stored[-1] if self.stored else self.start))
        left = backlog(done, list(self.states.values()), lambda error: None)
        for state in self.states.values():
            known = done.topics.get("t")
            at = known.ends.get(state.queue, 0) if known and known.topic_id == self.topic_id else 0
            self.lost[state.queue].update(range(at, left.positions[state.place]))
        end = left.take(share(left.available, limit, left.turn))
        if end is None:
            return
        self.stored.append(json.dumps(end.to_json()))
        before = {queue: len(offsets) for queue, offsets in self.seen.items()}
        for each in Progress.from_json(json.loads(self.stored[-1])).ranges():
            assert each.topic_id == self.topic_id
            parent = self.states[each.queue].parent
            if parent is not None:
                whole = self.states[parent].log_end_offset
                assert before[parent] + len(self.lost[parent]) == whole, "order over a split"
            self.seen[each.queue] += range(each.start, each.end)

    @invariant()
    def every_message_once_and_in_order(self) -> None:
        for queue, offsets in self.seen.items():
            assert offsets == sorted({*offsets})
            assert not {*offsets} & self.lost[queue]
            if offsets:
                last = offsets[-1]
                gone = {at for at in self.lost[queue] if at <= last}
                assert {*range(last + 1)} == {*offsets} | gone

    def teardown(self) -> None:
        """Left alone, the stream reads all there is."""
        if not self.states:
            return
        for _ in range(len(self.states) + 1):
            self.trigger(None)
        for queue, state in self.states.items():
            assert len(self.seen[queue]) + len(self.lost[queue]) == state.log_end_offset


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=60, stateful_step_count=20)


def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that do not wait for their parent."""
    from semel.spark_connector import progress

    def hasty(state: QueueState, positions: Any, states: Any, until: Any) -> int:
        offset: int = positions[state.place]
        return state.log_end_offset - offset

    monkeypatch.setattr(progress, "_available", hasty)
    with pytest.raises((AssertionError, ExceptionGroup)) as caught:
        run_state_machine_as_test(
            Streams,
            settings=settings(max_examples=1_000, phases=[Phase.generate], database=None),
        )
    assert "order over a split" in "".join(traceback.format_exception(caught.value))
