"""What the batches of a produce stream wait for, in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.quotas.write_pace import STREAM_HELD_MAX, WritePace
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.security.quotas import QuotaKind
from tests.kit.quota_node import QuotaNode
from tests.kit.virtual_time import run_virtually

RATE = 10_000
SIZE = 1_000
SLOW, FREE = TopicId(1), TopicId(2)
NAMES = {SLOW: "slow", FREE: "free"}


class Node(QuotaNode):
    """The quotas of one broker, and what its streams were told."""

    def __init__(self, **quotas: int) -> None:
        """`quotas` are bytes a second, by user ("alice") or, beginning with "topic_", by topic."""
        self.now = asyncio.get_running_loop().time
        super().__init__(self.now, NAMES)
        self.told_ms = 0
        self.away: set[QueueKey] = set()
        """Queues that are not here."""
        self.submitted: list[tuple[float, TopicId, int]] = []
        self.limit(**quotas)

    def limit(self, **quotas: int) -> None:
        """From now on these are the quotas."""
        before = {quota.subject for quota in self._record.quotas}
        for name, limit in quotas.items():
            subject = name.replace("_", ":") if name.startswith("topic_") else f"user:{name}"
            self.set(subject, {QuotaKind.WRITE_BYTES: limit})
            before.discard(subject)
        for subject in before:
            self.remove(subject)

    def stream(self, user: str = "alice") -> WritePace:
        quotas: Any = self
        return WritePace(quotas, f"user:{user}", self._tell)

    def _tell(self, milliseconds: int) -> None:
        self.told_ms += milliseconds

    def topic_of(self, key: QueueKey) -> str | None:
        return None if key in self.away else super().topic_of(key)

    def send(
        self, stream: WritePace, topic: TopicId, number: int, size: int = SIZE, queue: int = 0
    ) -> None:
        """Holds a batch, or submits it at once, as a produce stream does."""
        key = QueueKey(topic, QueueId(queue))
        header: Any = SimpleNamespace(topic_id=topic, queue_key=key, count=1)
        submit = partial(self._submit, topic, number)
        if not stream.hold(header, size, submit):
            submit()

    def _submit(self, topic: TopicId, number: int) -> None:
        self.submitted.append((self.now(), topic, number))

    def numbers(self, topic: TopicId) -> list[int]:
        return [number for _, of, number in self.submitted if of == topic]


def test_a_user_gets_its_rate_and_hears_how_long_it_waited() -> None:
    async def passes() -> None:
        node = Node(alice=RATE)
        alice, bob = node.stream(), node.stream("bob")
        passed: list[float] = []
        for _ in range(50):
            await alice.before([b""], SIZE)
            passed.append(node.now())
            await bob.before([b""], 100 * SIZE)
        # The first second's are there at once, and one that takes the bucket below zero.
        assert passed[10] < 0.01
        assert passed[-1] == pytest.approx((50 * SIZE - RATE - SIZE) / RATE, abs=0.01)
        assert node.told_ms == pytest.approx(passed[-1] * 1000, abs=50)

    run_virtually(passes())


def test_what_a_topic_holds_passes_in_order_and_others_do_not_wait() -> None:
    async def passes() -> None:
        node = Node(topic_slow=RATE)
        stream = node.stream()
        for number in range(40):
            node.send(stream, SLOW, number)
            node.send(stream, FREE, number)
        assert node.numbers(FREE) == list(range(40))
        assert node.numbers(SLOW) == list(range(11))
        assert stream.held_bytes == node.held_bytes == 29 * SIZE
        await asyncio.sleep(60)
        assert node.numbers(SLOW) == list(range(40))
        last = max(at for at, _, _ in node.submitted)
        assert last == pytest.approx((40 * SIZE - RATE - SIZE) / RATE, abs=0.01)
        assert stream.held_bytes == node.held_bytes == 0
        assert not stream.slows or node.meters.active

    run_virtually(passes())


def test_streams_of_one_topic_share_its_rate() -> None:
    async def passes() -> None:
        node = Node(topic_slow=RATE)
        streams = [node.stream("alice"), node.stream("bob")]
        for number in range(40):
            node.send(streams[number % 2], SLOW, number)
        await asyncio.sleep(60)
        assert sorted(node.numbers(SLOW)) == list(range(40))
        last = max(at for at, _, _ in node.submitted)
        assert last == pytest.approx((40 * SIZE - RATE - SIZE) / RATE, abs=0.01)

    run_virtually(passes())


def test_a_stream_that_ends_submits_nothing_more_and_owes_nothing() -> None:
    async def ends() -> None:
        node = Node(topic_slow=RATE)
        first = node.stream()
        for number in range(40):
            node.send(first, SLOW, number)
        first.close()
        assert node.held_bytes == 0
        await asyncio.sleep(2)
        assert node.numbers(SLOW) == list(range(11))
        again = node.stream()
        for number in range(11, 21):
            node.send(again, SLOW, number)
        assert node.numbers(SLOW) == list(range(21)), "what was not submitted cost nothing"

    run_virtually(ends())


def test_what_is_sent_to_a_queue_that_has_moved_away_makes_nobody_wait() -> None:
    """It is refused, and clients with old routes may send much of it."""

    async def passes() -> None:
        node = Node(topic_slow=RATE)
        stream = node.stream()
        node.send(stream, SLOW, 0)  # the topic's rate is known from here on
        node.away = {QueueKey(SLOW, QueueId(1))}
        for _ in range(3):
            node.send(stream, SLOW, 1, RATE, queue=1)
        node.send(stream, SLOW, 2)
        assert node.numbers(SLOW) == [0, 1, 1, 1, 2]
        node.send(stream, SLOW, 3, RATE)
        node.send(stream, SLOW, 4)
        node.send(stream, SLOW, 5, RATE, queue=1)
        assert node.numbers(SLOW)[5:] == [3], "what comes behind one that waits keeps its place"
        await asyncio.sleep(1)
        assert node.numbers(SLOW)[5:] == [3, 4, 5]
        stream.close()

    run_virtually(passes())


def test_what_a_stream_drops_makes_nobody_wait_who_came_behind_it() -> None:
    async def is_dropped() -> None:
        node = Node(topic_slow=RATE)
        alice, bob = node.stream("alice"), node.stream("bob")
        node.send(alice, SLOW, 0, RATE + SIZE)  # takes the bucket below zero
        node.send(alice, SLOW, 1, 100 * RATE)
        node.send(alice, SLOW, 2)
        node.send(bob, SLOW, 3)
        node.send(bob, SLOW, 4)
        alice.close()
        await asyncio.sleep(1)
        assert node.numbers(SLOW) == [0, 3, 4]
        last = max(at for at, _, _ in node.submitted)
        assert last == pytest.approx(0.2, abs=0.01), "they look again every 0.2 s"

    run_virtually(is_dropped())


def test_a_caller_who_gives_up_owes_nothing() -> None:
    async def gives_up() -> None:
        node = Node(alice=RATE)
        stream = node.stream()
        await stream.before([b""], 2 * RATE)
        waiting = asyncio.ensure_future(stream.before([b""], 1_000 * RATE))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await stream.before([b""], SIZE)
        assert node.now() == pytest.approx(1.0, abs=0.01)

    run_virtually(gives_up())


def test_nobody_waits_for_a_quota_that_is_gone_or_higher() -> None:
    async def is_gone() -> None:
        node = Node(topic_slow=1_024, alice=1_024)
        stream = node.stream()
        node.send(stream, SLOW, 0, 1 << 20)
        node.send(stream, SLOW, 1)
        await stream.before([b""], 1 << 20)
        waiting = asyncio.ensure_future(stream.before([b""], SIZE))
        await asyncio.sleep(1)
        assert not waiting.done()
        assert node.numbers(SLOW) == [0]
        node.limit(alice=1_000_000)
        await waiting
        await asyncio.sleep(1)
        assert node.numbers(SLOW) == [0, 1]
        # What is owed stays owed, at the new rate: a second, and 17 minutes at the old one.
        assert node.now() < 4

    run_virtually(is_gone())


def test_a_stream_that_holds_much_is_not_read() -> None:
    async def waits() -> None:
        node = Node(topic_slow=STREAM_HELD_MAX // 4)
        stream = node.stream()
        for number in range(8):
            node.send(stream, SLOW, number, STREAM_HELD_MAX // 4)
        assert stream.held_bytes > STREAM_HELD_MAX
        await stream.room()
        assert stream.held_bytes <= STREAM_HELD_MAX
        assert node.now() == pytest.approx(2.0, abs=0.01)

    run_virtually(waits())
