"""What topics with a quota may have delayed and staged on a broker group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from semel.broker.quotas import topic_amounts
from semel.broker.quotas.topic_amounts import TopicAmounts
from semel.protos.errors import Throttled
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.security.quotas import QuotaKind
from semel.protos.staging import STAGER_ID_MIN
from tests.kit.quota_node import Clock, QuotaNode

SMALL, LARGE, FREE = TopicId(1), TopicId(2), TopicId(3)
NAMES = {SMALL: "small", LARGE: "large", FREE: "free"}
LIMIT = 1_000
FRESH_S = topic_amounts._FRESH_S


class Broker:
    """One broker's quotas of two topics, and what its log has of them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.delayed: dict[QueueKey, int] = {}
        self.newest = {topic: QueueKey(topic, QueueId(0)) for topic in NAMES}
        self.staged: dict[int, int] = {}
        self.stored: list[Any] = []
        node = QuotaNode(self.clock, NAMES)
        self.node = node
        kinds = (QuotaKind.DELAYED_BYTES, QuotaKind.STAGED_BYTES)
        node.set("topic:small", dict.fromkeys(kinds, LIMIT))
        node.set("topic:large", dict.fromkeys(kinds, 10 * LIMIT))
        self.amounts = TopicAmounts(
            node.meters, self._state, node.topic_of, lambda header: header in self.stored
        )

    def _state(self) -> Any:
        delayed = {key: SimpleNamespace(bytes=size) for key, size in self.delayed.items()}
        staging = SimpleNamespace(bytes_of=lambda topic_id: self.staged.get(topic_id, 0))
        return SimpleNamespace(
            delays=SimpleNamespace(queues=delayed),
            queues=SimpleNamespace(newest_of=self.newest.get),
            transactions=SimpleNamespace(staging=staging),
        )

    def refusal(self, header: Any) -> Throttled | None:
        return self.amounts.refusal(header)

    def takes(self, topic: TopicId, size: int, *, staged: bool = False) -> bool:
        return self.refusal(batch(topic, size, staged=staged)) is None


def batch(topic: TopicId, size: int, *, staged: bool = False, delayed: bool = True) -> Any:
    """The header of a batch that is staged, delayed, or neither, and takes `size` in the log."""
    return SimpleNamespace(
        topic_id=topic,
        queue_key=QueueKey(topic, QueueId(0)),
        producer_id=STAGER_ID_MIN if staged else 7,
        deliver_at_us=0 if staged or not delayed else 1,
        stored_length=size,
    )


@pytest.mark.parametrize("staged", [False, True])
def test_a_topic_takes_as_much_as_its_quota_and_no_more(staged: bool) -> None:
    broker = Broker()
    assert broker.takes(SMALL, LIMIT - 100, staged=staged)
    assert not broker.takes(SMALL, 101, staged=staged)
    assert broker.takes(SMALL, 100, staged=staged)
    assert not broker.takes(SMALL, 1, staged=staged)
    assert broker.takes(LARGE, 9 * LIMIT, staged=staged)
    assert broker.takes(FREE, 1 << 40, staged=staged)
    assert broker.takes(SMALL, LIMIT, staged=not staged), "the other kind has its own quota"


def test_what_is_delivered_at_once_has_no_such_quota() -> None:
    broker = Broker()
    assert broker.refusal(batch(SMALL, 1 << 40, delayed=False)) is None


def test_the_refusal_says_how_much_there_is_and_when_to_come_back() -> None:
    broker = Broker()
    assert broker.takes(SMALL, 800)
    refused = broker.refusal(batch(SMALL, 300))
    assert refused is not None
    assert "topic 'small' has 800 delayed-bytes on this broker group" in refused.message
    assert "its quota is 1,000" in refused.message
    assert refused.retry_after_ms > 0


def test_what_the_log_has_counts_and_what_is_gone_makes_room() -> None:
    broker = Broker()
    broker.delayed = {
        QueueKey(SMALL, QueueId(0)): 600,
        QueueKey(SMALL, QueueId(1)): 400,
        QueueKey(LARGE, QueueId(0)): 5_000,
    }
    assert not broker.takes(SMALL, 1)
    broker.delayed[QueueKey(SMALL, QueueId(0))] = 0
    broker.clock.now_s += FRESH_S * 1.01
    assert broker.takes(SMALL, 600)
    broker.staged = {SMALL: LIMIT}
    assert not broker.takes(SMALL, 1, staged=True)


def test_a_repetition_of_what_is_stored_is_taken_from_a_full_topic() -> None:
    broker = Broker()
    broker.delayed[QueueKey(SMALL, QueueId(0))] = LIMIT
    again = batch(SMALL, 500)
    assert broker.refusal(again) is not None
    broker.stored.append(again)
    assert broker.refusal(again) is None


def test_a_changed_quota_counts_at_once() -> None:
    broker = Broker()
    assert broker.takes(SMALL, LIMIT)
    assert not broker.takes(SMALL, 1)
    broker.node.set("topic:small", {QuotaKind.DELAYED_BYTES: 2 * LIMIT})
    assert broker.takes(SMALL, LIMIT)
    broker.node.set("topic:small", {QuotaKind.DELAYED_BYTES: 0})
    assert not broker.takes(SMALL, 1)
    broker.node.remove("topic:small")
    assert broker.takes(SMALL, 1 << 40)


def test_what_a_queue_brings_that_moves_here_counts_at_once() -> None:
    broker, arrived = Broker(), QueueKey(SMALL, QueueId(1))
    assert broker.takes(SMALL, 1)
    broker.newest[SMALL] = arrived
    broker.delayed[arrived] = LIMIT
    assert not broker.takes(SMALL, 1)


def test_what_came_while_there_was_no_quota_counts_when_there_is_one_again() -> None:
    broker = Broker()
    assert broker.takes(SMALL, 1)
    broker.node.remove("topic:small")
    assert broker.takes(SMALL, LIMIT)
    broker.delayed[QueueKey(SMALL, QueueId(0))] = 1 + LIMIT
    broker.node.set("topic:small", {QuotaKind.DELAYED_BYTES: LIMIT})
    assert not broker.takes(SMALL, 1)


def test_what_came_while_there_was_no_quota_at_all_counts_when_there_is_one() -> None:
    """Nobody asks here then."""
    broker = Broker()
    assert broker.takes(SMALL, 1)
    broker.node.remove("topic:small")
    broker.delayed[QueueKey(SMALL, QueueId(0))] = 1 + LIMIT
    broker.node.set("topic:small", {QuotaKind.DELAYED_BYTES: LIMIT})
    assert not broker.takes(SMALL, 1)


def test_many_topics_are_not_remembered_for_ever() -> None:
    broker = Broker()
    broker.node.set("topic:*", {QuotaKind.DELAYED_BYTES: LIMIT})
    names: Any = broker.node._topics
    for number in range(topic_amounts._REMEMBERED_MAX + 10):
        names = {**NAMES, TopicId(100 + number): f"t{number}"}
        broker.node._topics = names
        assert broker.takes(TopicId(100 + number), LIMIT)
        assert len(broker.amounts._known) <= topic_amounts._REMEMBERED_MAX


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("sent", "applied", "released")),
        st.integers(1, LIMIT // 2),
        st.sampled_from((0.0, 0.01, FRESH_S / 2, FRESH_S + 0.01)),
    ),
    max_size=60,
)


@example([("sent", 1, 0.01), ("sent", 1, 0.0), ("sent", 499, 0.25), ("sent", 500, 0.25)])
@given(STEPS)
def test_there_is_never_more_than_the_quota_and_what_was_on_its_way(
    steps: list[tuple[str, int, float]],
) -> None:
    """The log gets what was taken some time later; what is due leaves it. Beyond the quota is at
    most what was on its way when the sum was taken, and a refusal has a reason that is no older
    than the sum."""
    broker, key = Broker(), QueueKey(SMALL, QueueId(0))
    on_way: list[int] = []
    seen: list[tuple[float, int, int]] = [(0.0, 0, 0)]
    """What the log had of the topic, and what was on its way, by time."""
    taken: list[tuple[float, int]] = []
    for what, size, pause_s in steps:
        broker.clock.now_s += pause_s
        now_s, present = broker.clock.now_s, broker.delayed.get(key, 0)
        old = [now_s - at_s > FRESH_S for at_s, _, _ in seen]  # told apart as the broker does
        last = max(at for at, is_old in enumerate(old) if at == 0 or is_old)
        recent = seen[last:]
        if what == "applied" and on_way:
            broker.delayed[key] = present + on_way.pop(0)
        elif what == "released":
            broker.delayed[key] = max(0, present - size)
        elif what == "sent" and broker.takes(SMALL, size):
            assert present + size <= LIMIT + max(waiting for _, _, waiting in recent)
            on_way.append(size)
            taken.append((now_s, size))
        elif what == "sent":
            most = max(had for _, had, _ in recent)
            most += sum(length for at_s, length in taken if now_s - at_s <= FRESH_S)
            assert most + size > LIMIT, "it was refused without a reason"
        seen.append((now_s, broker.delayed.get(key, 0), sum(on_way)))
