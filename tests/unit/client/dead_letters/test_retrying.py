"""Copies of one queue's notes: once, behind their record, and waited for by every commit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.config import RetryPolicy
from semel.client.core.copies import read_record
from semel.client.dead_letters.retrying import Retrying, _Held, _Note
from semel.client.reading.feed_queue import FeedQueue
from semel.protos.errors import LockLost, to_detail
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from semel.protos.v1 import broker_pb2
from semel.protos.v1.copies_pb2 import CopyAttempt


class FakeCluster:
    """Takes commits; each waits for `answering`."""

    def __init__(self, happened: list[Any]) -> None:
        self.happened = happened
        self.answering = asyncio.Event()
        self.answering.set()
        self.lost = False

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    async def call_master(self, group: int, method: str, request: Any) -> Any:
        await self.answering.wait()
        (commit,) = request.commits
        self.happened.append(("record", commit.metadata_version, read_record(commit.metadata)))
        error = to_detail(LockLost("gone")) if self.lost else None
        return broker_pb2.CommitReply(outcomes=[broker_pb2.CommitOutcome(error=error)])


class FakeChunk:
    def __init__(self, topic: str) -> None:
        self.topic = topic


class FakeRelay:
    """Copies are durable when `stored` is set."""

    def __init__(self, happened: list[Any]) -> None:
        self.happened = happened
        self.stored = asyncio.Event()
        self.afresh: list[bool] = []

    async def prepare(self, topics: Any, *, afresh: bool) -> None:
        await asyncio.sleep(0)
        self.afresh.append(afresh)

    def attempt(self, end: int) -> CopyAttempt:
        return CopyAttempt(producer_id=9, epoch=1, end=end)

    def send(self, copies: Any) -> list[Any]:
        self.happened.append(("send", [copy.value for copy in copies]))
        return [FakeChunk(copies[0].topic)]

    async def wait(self, chunks: Any) -> None:
        assert chunks
        await self.stored.wait()

    def close(self) -> None:
        pass


class One:
    """One held queue, with notes of messages that are to be rejected."""

    def __init__(self, *offsets: int) -> None:
        self.happened: list[Any] = []
        self.cluster = FakeCluster(self.happened)
        self.relay = FakeRelay(self.happened)
        key = QueueKey(TopicId(1), QueueId(0))
        self.queue = FeedQueue("t", key, GroupId(1), 0)
        cluster: Any = self.cluster
        relay: Any = self.relay
        runtime: Any = None
        self.retrying = Retrying(cluster, runtime, "g", RetryPolicy(steps_ms=()))
        self.held = _Held(self.queue, relay, recorded=False)
        self.retrying._queues[key] = self.held
        self.note(*offsets)

    def note(self, *offsets: int) -> None:
        for offset in offsets:
            message: Any = SimpleNamespace(
                headers=[],
                carried_headers=[],
                topic="t",
                key=None,
                value=b"%d" % offset,
                offset=offset,
                origin=SimpleNamespace(topic="t", queue=0, offset=offset),
                timestamp_us=1,
                message_id=None,
            )
            self.held.notes[offset] = _Note(message, "", rejected=True)

    def publish(self, offset: int) -> asyncio.Task[int]:
        return asyncio.ensure_future(self.retrying.publish(self.queue, offset))

    @property
    def kinds(self) -> list[str]:
        return [what[0] for what in self.happened]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nothing_is_sent_before_it_is_durable_that_it_may_be() -> None:
    one = One(3, 5)
    one.cluster.answering.clear()
    publishing = one.publish(10)
    await settle()
    assert one.happened == []
    one.cluster.answering.set()
    one.relay.stored.set()
    await publishing
    (_, version, record), sent = one.happened
    assert version == 1
    assert record.attempt.end == 6
    assert sent == ("send", [b"3", b"5"])


async def test_a_message_of_an_older_lock_is_not_copied_under_the_newer_one() -> None:
    """It is given out again under the newer lock, perhaps it was already."""
    one = One()
    one.queue.token = 2

    def message(token: int) -> Any:
        rows = SimpleNamespace(queue=one.queue.key, token=token)
        return SimpleNamespace(rows=rows, queue=0, topic="t", offset=7, value=b"7")

    with pytest.raises(LockLost, match="offset 7 is given out again"):
        one.retrying.note(message(1), "", rejected=True)
    assert not one.held.notes
    one.retrying.note(message(2), "", rejected=True)
    assert list(one.held.notes) == [7]


async def test_an_owner_that_lost_its_lock_sends_nothing() -> None:
    one = One(3)
    one.cluster.lost = True
    with pytest.raises(LockLost):
        await one.publish(10)
    assert one.kinds == ["record"]


@pytest.mark.parametrize("answered", [True, False])
async def test_a_commit_waits_for_the_copies_of_a_cancelled_one(answered: bool) -> None:
    one = One(3)
    if not answered:
        one.cluster.answering.clear()
    first = one.publish(10)
    await settle()
    first.cancel()
    await settle()
    assert first.cancelled()
    second = one.publish(10)
    one.cluster.answering.set()
    await settle()
    assert not second.done(), "the copy is not durable"
    assert one.kinds == ["record", "send"], "and it is made once"
    one.relay.stored.set()
    await second


async def test_commits_at_the_same_time_copy_once_and_number_their_records() -> None:
    one = One(3)
    first = one.publish(4)
    one.note(5)
    second = one.publish(6)
    one.relay.stored.set()
    await asyncio.gather(first, second)
    assert one.kinds == ["record", "send", "record", "send"]
    assert [(v[1], v[2].attempt.end) for v in one.happened if v[0] == "record"] == [(1, 4), (2, 6)]
    assert one.relay.afresh == [True, False], "the first attempt is not over"


async def test_copies_that_a_commit_reaches_over_are_skipped_when_they_are_fetched_later() -> None:
    """A retry topic's batches are fetched when they are due: a commit of the message before them
    is ahead of the fetch, and their originals must not be given out again."""
    one = One()
    one.queue.skip = {6, 7}
    one.queue.delivered = 6
    covered = one.retrying.covered(one.queue, 6)
    assert covered == 8
    one.retrying.on_committed(one.queue, covered)
    assert one.queue.skip == {6, 7}
    one.queue.delivered = 9
    one.retrying.on_committed(one.queue, 9)
    assert not one.queue.skip


async def test_a_commit_leaves_of_the_record_what_is_not_over() -> None:
    one = One(3, 8)
    one.queue.skip = {2, 20}
    one.relay.stored.set()
    await one.publish(10)

    def left(progress: int) -> Any:
        commit = broker_pb2.CommitRequest().commits.add()
        one.retrying.renew_record(commit, one.queue, progress)
        assert commit.HasField("metadata")
        return read_record(commit.metadata)

    assert left(4).copied == {20}
    assert left(4).attempt.end == 9
    assert left(9).attempt is None
    one.queue.done = one.queue.delivered = 9
    one.retrying.on_committed(one.queue, 9)
    assert (one.queue.skip, one.held.notes, one.held.recorded) == ({20}, {}, True)
    one.retrying.on_committed(one.queue, 21)
    commit = broker_pb2.CommitRequest().commits.add()
    one.retrying.renew_record(commit, one.queue, 22)
    assert not commit.HasField("metadata"), "there is nothing to tell, and nothing to take back"
    one.note(30)
    await one.publish(31)
    assert one.relay.afresh == [True, True]


async def test_a_commit_waits_for_a_skipped_message_whose_copy_is_on_its_way() -> None:
    """A commit is cancelled and its messages are given out again, but for the one that is being
    copied: no commit may reach past that before its copy is durable."""
    one = One(5)
    first = one.publish(6)
    await settle()
    first.cancel()
    await settle()
    one.retrying.on_seek(one.queue, 0)
    assert one.queue.skip == {5}
    second = one.publish(5)
    await settle()
    assert not second.done(), "offset 5 follows what is to be committed, and its copy may be lost"
    one.relay.stored.set()
    assert await second == 6


async def test_a_record_names_no_copy_that_is_on_its_way() -> None:
    """The next owner asks the attempt whether it is stored."""
    one = One(5)
    publishing = one.publish(6)
    await settle()
    publishing.cancel()
    await settle()
    one.retrying.on_seek(one.queue, 0)

    def record() -> Any:
        commit = broker_pb2.CommitRequest().commits.add()
        one.retrying.renew_record(commit, one.queue, 2)
        return read_record(commit.metadata)

    assert (record().copied, record().attempt.end) == (frozenset(), 6)
    one.relay.stored.set()
    await one.publish(6)
    assert (record().copied, record().attempt.end) == (frozenset({5}), 6)
