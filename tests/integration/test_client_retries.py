"""Retries with delay and dead letters against a real cluster: nothing lost, nothing twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import pytest

from semel.client import Client, Message, Origin, RetryPolicy
from semel.client.consumer.commits import Commits
from semel.client.consumer.consumer import ConsumerCore
from semel.client.core import letters
from semel.client.dead_letters.relay import Copy, Relay, settle
from semel.client.dead_letters.retrying import Retrying
from semel.client.reading.feed_queue import FeedQueue
from semel.protos.errors import InvalidRequest, LockLost, ProducerFenced
from tests.kit.cluster import Cluster
from tests.kit.consuming import fill, take, values_of
from tests.kit.crashing_consumer import sort_out
from tests.kit.waiting import until

CLOCKS_S = 0.01
"""A delay counts by the broker's log time, which is another clock than the test's."""


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=4, if_not_exists=True)
    return name


def read_all(client: Client, topic: str) -> list[Message]:
    with client.reader(topic, end="latest") as reader:
        return list(reader)


def test_a_message_that_fails_is_tried_by_steps_and_then_a_dead_letter(
    client: Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send(topic, b"bad", key=b"k", headers={"mine": b"1"}, timestamp_us=5).result(10)
        producer.send(topic, b"good", key=b"k").result(10)
    policy = RetryPolicy(steps_ms=(300, 600))
    tries: list[tuple[float, Message]] = []
    with client.consumer("steps", topic, retry=policy) as consumer:
        for message in consumer:
            tries.append((time.monotonic(), message))
            if message.value == b"bad":
                consumer.retry(message, f"failure {message.attempt}")
            consumer.commit(message)
            if message.attempt == 3:
                break
    assert [(m.value, m.attempt) for _, m in tries] == [
        (b"bad", 1),
        (b"good", 1),
        (b"bad", 2),
        (b"bad", 3),
    ]
    origin = tries[0][1].origin
    assert origin == Origin(topic, tries[0][1].queue, tries[0][1].offset)
    for (_, message), step in zip(tries[2:], (1, 2), strict=True):
        assert message.topic == letters.retry_topic("steps", step)
        assert (message.origin, message.key, message.timestamp_us) == (origin, b"k", 5)
        assert dict(message.headers)["mine"] == b"1"
    assert tries[2][0] - tries[0][0] >= 0.3 - CLOCKS_S
    assert tries[3][0] - tries[2][0] >= 0.6 - CLOCKS_S
    (dead,) = read_all(client, "steps.dead-letters")
    letter = letters.read(dead.headers)
    assert letter.origin == origin
    assert (letter.group, letter.attempts) == ("steps", 3)
    assert (letter.reason, letter.cause) == ("failure 3", letters.EXHAUSTED)
    assert len(dead.headers) == len(dict(dead.headers)), "headers are replaced, not gathered"
    assert client.admin.describe_group("steps").lag == 0


def test_a_waiting_retry_costs_nobody_a_lock_and_holds_up_nothing(
    client: Client, topic: str
) -> None:
    """The wait is much longer than the lock may be held without a commit."""
    fill(client, topic, 4)
    policy = RetryPolicy(steps_ms=(3_000,))
    with client.consumer("wait", topic, retry=policy, lock_ms=800) as consumer:
        first = take(consumer, 4)
        for message in first:
            consumer.retry(message, "later")
        consumer.commit()
        tokens = {(q.topic, q.queue): q.token for q in client.admin.describe_group("wait").queues}
        fill(client, topic, 4, first=4)
        assert values_of(take(consumer, 4)) == [b"%06d" % number for number in range(4, 8)]
        consumer.commit()
        again = take(consumer, 4)
        assert values_of(again) == values_of(first)
        assert {message.attempt for message in again} == {2}
        consumer.commit()
        after = {(q.topic, q.queue): q.token for q in client.admin.describe_group("wait").queues}
    assert tokens == after


def test_a_rejected_message_that_is_as_large_as_can_be_is_a_dead_letter(
    client: Client, topic: str
) -> None:
    large = bytes(1 << 20)
    with client.producer() as producer:
        producer.send(topic, large).result(10)
    with client.consumer("large", topic, retry=RetryPolicy(steps_ms=())) as consumer:
        (message,) = take(consumer, 1)
        consumer.reject(message, "é" * 4_000)
        consumer.commit()
    (dead,) = read_all(client, "large.dead-letters")
    letter = letters.read(dead.headers)
    assert dead.value == large
    assert letter.cause == letters.REJECTED
    assert letter.reason == "é" * 512


def test_what_is_noted_and_not_committed_leaves_no_copy(client: Client, topic: str) -> None:
    fill(client, topic, 8)
    with client.consumer("notes", topic, retry=RetryPolicy(steps_ms=())) as consumer:
        for message in take(consumer, 8):
            consumer.reject(message)
    assert read_all(client, "notes.dead-letters") == []
    with client.consumer("notes", topic) as consumer:
        again = take(consumer, 8)
        with pytest.raises(InvalidRequest, match="retry policy"):
            consumer.retry(again[0])


def test_an_owner_that_lost_its_lock_copies_nothing(client: Client, topic: str) -> None:
    fill(client, topic, 8)
    policy = RetryPolicy(steps_ms=())
    slow = client.consumer("zombie", topic, retry=policy, lock_ms=500)
    delivered = take(slow, 8)
    for message in delivered:
        slow.reject(message, "too late")
    with client.consumer("zombie", topic, retry=policy) as new:
        until(new.assignment)
        with pytest.raises(LockLost):
            slow.commit()
        slow.close()
        again = take(new, 8)
        assert values_of(again) == values_of(delivered)
        for message in again:
            new.reject(message, "in time")
        new.commit()
    dead = read_all(client, "zombie.dead-letters")
    assert values_of(dead) == values_of(delivered)
    assert {letters.read(message.headers).reason for message in dead} == {"in time"}


def test_a_commit_that_loses_its_lock_while_it_copies_is_no_success(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, topic, 8)
    publish = Retrying.publish
    with client.consumer("between", topic, retry=RetryPolicy(steps_ms=())) as consumer:
        delivered = take(consumer, 8)
        for message in delivered:
            consumer.reject(message)
        core = consumer._core

        async def losing(retrying: Retrying, queue: FeedQueue, offset: int) -> int:
            reach = await publish(retrying, queue, offset)
            core.locks.on_lost(queue.key, queue.token)
            return reach

        with monkeypatch.context() as patched:
            patched.setattr(Retrying, "publish", losing)
            with pytest.raises(LockLost):
                consumer.commit()
        # The copies are durable: whoever acquires the queues next goes on behind them.
        until(lambda: client.admin.describe_group("between").lag == 0)
        assert consumer.poll(timeout=0.2) == []
    assert values_of(read_all(client, "between.dead-letters")) == values_of(delivered)


def test_after_a_reset_messages_may_be_rejected_again(client: Client, topic: str) -> None:
    fill(client, topic, 8)
    for round_number in (1, 2):
        with client.consumer("reset2", topic, retry=RetryPolicy(steps_ms=())) as consumer:
            for message in take(consumer, 8):
                consumer.reject(message, f"round {round_number}")
            consumer.commit()
        assert len(read_all(client, "reset2.dead-letters")) == 8 * round_number
        client.admin.reset_offsets("reset2", topic, "earliest")


def test_an_older_owner_that_knows_nothing_of_the_newer_one_is_fenced(
    client: Client, topic: str
) -> None:
    """What a frozen member does when it wakes up: its copy must not land."""
    session = client._session
    copy = Copy(topic, None, b"late", [], 1)

    async def both() -> list[Message]:
        old = Relay(session.cluster, "zombie-relay")
        await old.prepare([topic], afresh=True)
        attempt = old.attempt(1)
        await old.wait(old.send([copy, copy._replace(value=b"in time")]))
        left = await settle(session.cluster, session.runtime, attempt)
        with pytest.raises(ProducerFenced):
            await old.wait(old.send([copy]))
        again = await settle(session.cluster, session.runtime, attempt)
        assert values_of(again) == values_of(left), "settling may be repeated"
        new = Relay(session.cluster, "zombie-relay")
        await new.prepare([topic], afresh=True)
        assert await settle(session.cluster, session.runtime, new.attempt(1)) == []
        old.close()
        new.close()
        return left

    assert values_of(session.run(both())) == [b"in time", b"late"]
    assert values_of(read_all(client, topic)) == [b"in time", b"late"]


def fill_one(client: Client, topic: str, count: int) -> None:
    """A topic of one queue with so many messages."""
    client.admin.create_topic(topic, queues=1)
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(count)]).result(10)


def copied_and_not_committed(client: Client, topic: str, group: str, policy: RetryPolicy) -> int:
    """An owner copies the last message of a queue, and its commit never comes; where that is."""

    class Cut(Exception):
        pass

    async def cut(*_: object) -> None:
        raise Cut

    consumer = client.consumer(group, topic, retry=policy, session_ms=1_000)
    last = take(consumer, 10)[-1]
    consumer.retry(last, "failed")
    consumer._core.commits.store = cut  # type: ignore[method-assign, assignment]
    with pytest.raises(Cut):
        consumer.commit()
    client._session.run(_die(consumer._core))
    return last.offset


async def _die(core: ConsumerCore) -> None:
    """Nothing is given back."""
    core._retrying.close()
    core.feed.end()
    for task in core._tasks:
        task.cancel()
    core.locks.abandon()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((3_600_000,), ()),
        ((), (3_600_000,)),
        ((3_600_000,), (50, 3_600_000)),
        ((3_600_000,), None),
        ((), None),
    ],
)
def test_copies_are_found_whatever_policy_the_next_owner_has(
    client: Client, old: tuple[int, ...], new: tuple[int, ...] | None
) -> None:
    """A rolling change of steps: the next owner would copy elsewhere, or nothing any more."""
    topic = group = f"policies-{len(old)}-{'none' if new is None else len(new)}"
    fill_one(client, topic, 10)
    offset = copied_and_not_committed(client, topic, group, RetryPolicy(steps_ms=old, queues=1))
    target = letters.retry_topic(group, 1) if old else letters.dead_letter_topic(group)
    policy = None
    if new is not None:
        policy = RetryPolicy(steps_ms=new, queues=1, dead_letter="elsewhere")
    with client.consumer(group, topic, retry=policy, session_ms=1_000) as consumer:
        found: list[Message] = []  # the copy's own topic may be read by now, without a delay
        while len(found) < 9:
            found += [m for m in take(consumer, 1) if m.topic == topic]
        assert offset not in [message.offset for message in found]
        assert [m for m in consumer.poll(timeout=0.3) if m.topic == topic] == []
        consumer.commit()
    copies = read_all(client, target)
    assert [letters.read(m.headers).source_offset for m in copies] == [offset]


def test_copies_that_others_do_not_resolve_are_not_forgotten(client: Client) -> None:
    """The next owner retries many others, one commit each, and dies before it comes so far."""
    topic = group = "many-copies"
    fill_one(client, topic, 200)
    policy = RetryPolicy(steps_ms=(3_600_000,), queues=1)
    consumer = client.consumer(group, topic, retry=policy, session_ms=1_000)
    copied = take(consumer, 200)[-1]
    consumer.retry(copied, "failed")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Commits, "store", _refuse)
        consumer.commit()
        consumer.close()
    with client.consumer(group, topic, retry=policy, session_ms=1_000) as second:
        for message in take(second, 80)[:80]:
            second.retry(message, "failed too")
            second.commit(message)
    with client.consumer(group, topic, retry=policy, session_ms=1_000) as third:
        found = take(third, 119)
        assert copied.offset not in [message.offset for message in found]
        assert third.poll(timeout=0.3) == []
        third.commit()
    copies = [
        letters.read(m.headers).source_offset
        for m in read_all(client, letters.retry_topic(group, 1))
    ]
    assert sorted(copies) == [*range(80), 199]
    assert client.admin.describe_group(group).lag == 81


async def _refuse(commits: Commits, offsets: dict[FeedQueue, int]) -> dict[FeedQueue, Exception]:
    """The owner dies before its commit: nobody hears of it."""
    for queue in offsets:
        commits._locks.on_lost(queue.key, queue.token)
    return {}


def crashing(
    cluster: Cluster, topic: str, group: str, step: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.kit.crashing_consumer"]
    command += [cluster.bootstrap, topic, group, step]
    return subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)


def test_an_owner_that_forgets_what_was_copied_would_be_noticed(
    shared_cluster: Cluster, client: Client, topic: str
) -> None:
    """The planted bug for the next test."""
    fill(client, topic, 120)
    assert crashing(shared_cluster, topic, "forgetful", "commit").returncode == -9
    assert crashing(shared_cluster, topic, "forgetful", "forgetful").returncode == 0
    dead = Counter(int(m.value) for m in read_all(client, "forgetful.dead-letters"))
    assert dead != Counter(range(0, 120, 3))


@pytest.mark.parametrize("step", ["copies", "record", "commit"])
def test_a_consumer_killed_inside_a_commit_loses_and_repeats_no_dead_letter(
    shared_cluster: Cluster, client: Client, topic: str, step: str
) -> None:
    name, group = f"{topic}-{step}", f"killed-{step}"
    client.admin.create_topic(name, queues=4)
    fill(client, name, 120)

    killed = crashing(shared_cluster, name, group, step)
    assert killed.returncode == -9, killed.stderr
    before = len(read_all(client, f"{group}.dead-letters"))
    finished = sort_out(shared_cluster.bootstrap, name, group, "never")
    dead = read_all(client, f"{group}.dead-letters")
    assert Counter(int(message.value) for message in dead) == Counter(range(0, 120, 3))
    processed = {int(line) for line in killed.stdout.split()} | set(finished)
    assert processed == {number for number in range(120) if number % 3}
    assert client.admin.describe_group(group).lag == 0
    again = [m for m in dead if letters.read(m.headers).reason.startswith("never")]
    assert len(again) == 40 - before, "what the killed one had copied was not processed again"
    assert (before > 13) == (step == "commit"), "the copies of the last commit were durable"
