"""What fetches wait for: the quotas of their principal and of the topics that they read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.quotas.read_pace import ReadPace
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.security.buckets import BURST_S
from semel.protos.security.quotas import QuotaKind
from tests.kit.quota_node import Clock, QuotaNode

RATE = 1 << 20
SLOW, FREE = (QueueKey(TopicId(number), QueueId(0)) for number in (1, 2))
GONE = QueueKey(TopicId(9), QueueId(0))
NAMES = {TopicId(1): "slow", TopicId(2): "free"}
ALICE, BOB = "user:alice", "user:bob"


class Broker(QuotaNode):
    """One broker's quotas, and streams of fetches."""

    def __init__(self, **limits: int) -> None:
        """`limits` are bytes a second of alice or of the topic "slow"."""
        self.clock = Clock()
        super().__init__(self.clock, NAMES)
        for name, limit in limits.items():
            subject = "topic:slow" if name == "slow" else f"user:{name}"
            self.set(subject, {QuotaKind.READ_BYTES: limit})

    def stream(self, principal: str = ALICE) -> ReadPace:
        quotas: Any = self
        return ReadPace(quotas, principal)


def wait_s(pace: ReadPace, *keys: QueueKey) -> float:
    """How long a fetch of the queues waits; 0 for not at all."""
    if not pace.limits:
        return 0.0
    wait = pace.wait(keys or (FREE,))
    return 0.0 if wait is None else wait.seconds


def test_without_a_quota_nothing_is_limited() -> None:
    broker = Broker()
    pace = broker.stream()
    pace.on_request()
    assert not pace.limits
    broker.set(BOB, {QuotaKind.READ_BYTES: 1_024})
    assert not pace.limits, "somebody else's"
    assert pace.room([FREE]) > 1 << 30


def test_what_was_read_is_waited_for_afterwards_and_belongs_to_the_user() -> None:
    broker = Broker(alice=RATE)
    first, other, bob = broker.stream(), broker.stream(), broker.stream(BOB)
    assert wait_s(first) == 0
    first.on_read(FREE, 3 * RATE)
    assert wait_s(first) == wait_s(other) == pytest.approx(3 - BURST_S)
    assert wait_s(bob) == 0
    first.close()
    assert wait_s(broker.stream()) == pytest.approx(3 - BURST_S), "who connects again waits on"
    broker.clock.now_s = 3 - BURST_S
    assert wait_s(other) == 0


def test_a_topic_that_is_used_up_holds_nothing_but_itself() -> None:
    broker = Broker(slow=RATE)
    pace, other = broker.stream(), broker.stream(BOB)
    assert pace.limits
    pace.on_read(SLOW, 2 * RATE)
    assert wait_s(pace, SLOW) == wait_s(other, SLOW) == pytest.approx(2 - BURST_S)
    assert wait_s(pace, SLOW, FREE) == wait_s(pace, FREE) == 0
    assert pace.holds(SLOW)
    assert not pace.holds(FREE)
    assert not pace.holds(GONE), "a queue that is not here"
    pace.on_read(FREE, 100 * RATE)
    assert wait_s(pace, FREE) == 0


def test_of_several_topics_that_are_used_up_the_first_that_is_filled_counts() -> None:
    broker = Broker(slow=RATE)
    broker.set("topic:free", {QuotaKind.READ_BYTES: RATE})
    pace = broker.stream()
    assert pace.limits
    pace.on_read(SLOW, 4 * RATE)
    pace.on_read(FREE, 2 * RATE)
    wait = pace.wait([SLOW, FREE])
    assert wait is not None
    assert wait.seconds == pytest.approx(2 - BURST_S)
    assert wait.meter.owner == "topic:free"


def test_the_longest_wait_of_the_user_counts() -> None:
    broker = Broker(alice=RATE)
    broker.set(ALICE, {QuotaKind.REQUESTS: 1})
    pace = broker.stream()
    for _ in range(5):
        pace.on_request()
    assert pace.limits
    pace.on_read(FREE, 2 * RATE)
    wait = pace.wait([FREE])
    assert wait is not None
    assert wait.meter.kind is QuotaKind.REQUESTS
    assert wait.seconds == pytest.approx(4)


def test_an_answer_has_what_comes_in_a_quarter_of_a_second_and_not_too_little() -> None:
    broker = Broker(slow=RATE, alice=8 * RATE)
    pace = broker.stream()
    assert pace.limits
    assert pace.room([FREE]) == 2 * RATE
    assert pace.room([FREE, SLOW]) == RATE // 4
    broker.set("topic:slow", {QuotaKind.READ_BYTES: 1_024})
    assert pace.limits
    assert pace.room([SLOW]) == 64 << 10


def test_a_changed_quota_counts_from_the_next_look_on() -> None:
    broker = Broker(alice=RATE)
    pace = broker.stream()
    assert pace.limits
    pace.on_read(FREE, 11 * RATE)
    assert wait_s(pace) == pytest.approx(10)
    broker.set(ALICE, {QuotaKind.READ_BYTES: 10 * RATE})
    assert wait_s(pace) == pytest.approx(1), "what is owed stays owed, at the new rate"
    broker.remove(ALICE)
    assert not pace.limits
    broker.set("topic:slow", {QuotaKind.READ_BYTES: RATE})
    assert pace.limits
    pace.on_read(SLOW, 2 * RATE)
    assert wait_s(pace, SLOW) > 0
    assert wait_s(pace, FREE) == 0


def test_streams_of_two_users_take_turns_while_both_are_open() -> None:
    broker = Broker()
    alice, again, bob = broker.stream(), broker.stream(), broker.stream(BOB)
    assert broker.read_turns.contended
    bob.close()
    assert not broker.read_turns.contended
    alice.close()
    again.close()


FETCHES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from((SLOW, FREE)),
        st.floats(0, 2),
        st.integers(1, 3 * RATE),
    ),
    max_size=50,
)
"""The stream, the queue, seconds since the one before, and the bytes that there are."""


@given(FETCHES, st.booleans())
def test_nobody_reads_more_than_the_rate_and_nobody_within_it_waits(
    fetches: list[tuple[int, QueueKey, float, int]], of_user: bool
) -> None:
    """Three streams, of alice, alice and bob, as a fetch handler serves them, one after the other,
    beside tokens that are counted by hand."""
    broker = Broker(**({"alice": RATE} if of_user else {"slow": RATE}))
    streams = [broker.stream(), broker.stream(), broker.stream(BOB)]
    tokens, filled_s, total = RATE * BURST_S, 0.0, 0
    for at, key, pause_s, there in fetches:
        broker.clock.now_s += pause_s
        pace = streams[at]
        counts = at < 2 if of_user else key is SLOW
        waited_s = wait_s(pace, key)
        tokens = min(tokens + (broker.clock.now_s - filled_s) * RATE, RATE * BURST_S)
        filled_s = broker.clock.now_s
        owed_s = max(0.0, -tokens / RATE) if counts else 0.0
        assert waited_s == pytest.approx(owed_s, abs=1e-6)
        if waited_s == 0 or waited_s > 1e-6:
            assert pace.holds(key) == (not of_user and waited_s > 0)
        broker.clock.now_s += waited_s
        if waited_s:
            tokens, filled_s = 0.0, broker.clock.now_s
        if pace.limits:
            size = min(there, pace.room([key]))
            pace.on_read(key, size)
            if counts:
                tokens -= size
                total += size
                assert total <= (broker.clock.now_s + BURST_S) * RATE + pace.room([key]) + 1e-3
