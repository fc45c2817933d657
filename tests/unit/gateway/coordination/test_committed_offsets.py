"""Committed offsets of Kafka groups, on the state that real brokers replicate.

A gateway that was deposed without knowing it commits late, twice, and backwards; none of it counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from semel.broker.state import Accepted, progress
from semel.broker.state.apply.splits import split_record_of
from semel.client.core.routing import RouteTable
from semel.gateway.coordination.committed_offsets import CommittedOffsets
from semel.gateway.coordination.group_locks import OWNER, Deposed, GroupLocks
from semel.gateway.coordination.line_progress import Progress
from semel.gateway.coordination.offset_reads import read_offsets
from semel.gateway.coordination.staged_in import StagedIn
from semel.gateway.topic_book import TopicBook
from semel.gateway.transactions.numbers import stager_id_of
from semel.protos.errors import (
    OffsetOutOfRange,
    ParentUnread,
    SemelError,
    StaleGeneration,
    Throttled,
    TimedOut,
    UnknownQueue,
    UnknownTopic,
    to_detail,
)
from semel.protos.ids import GroupId, QueueId, QueueKey
from semel.protos.levels import KAFKA_LEVEL, STAGED_COMMITS_LEVEL
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import (
    broker_pb2,
    control_pb2,
    controller_pb2,
    transaction_records_pb2,
    transactions_pb2,
)
from tests.kit.state_log import KEY, Group, control, header, ref

PLACE = ("orders", KEY.queue_id)
ERA = 1


class OneGroup:
    """A cluster of one broker group, whose log's state answers; what a client calls `Cluster`."""

    def __init__(self) -> None:
        self.log = Group()
        self.log.raise_level(KAFKA_LEVEL)
        self.log.fence()
        self.log.produce(header(-1, last=99))
        self.routes = RouteTable()
        self.calls: list[str] = []
        self.before: Callable[[str, Any], Awaitable[None]] | None = None
        """Runs before a call is carried out, and may raise."""
        self.after: Callable[[str, Any], Awaitable[None]] | None = None
        self.published = True
        """The controllers know of splits."""
        self.tells_splits = True
        """Locks tell of them."""
        self.splits: list[control_pb2.SplitQueue] = []
        self.routes.on_routes(self._routes())

    def split(self) -> None:
        """Splits the queue into 1 and 2."""
        record = control_pb2.SplitQueue(queue=ref())
        record.children.add(queue_id=1, slot_start=0, slot_end=30_000)
        record.children.add(queue_id=2, slot_start=30_000, slot_end=65_536)
        assert isinstance(self.log.admission.queues.admit_split(record), Accepted)
        self.log.entry.append(control(split_queue=record))
        self.log.commit()
        self.splits.append(record)

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[Any]:
        return asyncio.create_task(coroutine, name=name)

    def _routes(self) -> controller_pb2.Routes:
        topic = controller_pb2.TopicRoute(name="orders", topic_id=KEY.topic_id)
        sealed = bool(self.splits) and self.published
        queues = topic.sealed if sealed else topic.queues
        queues.add(queue_id=KEY.queue_id, group_id=1, slot_start=0, slot_end=65_536)
        for split in self.splits if sealed else ():
            for child in split.children:
                topic.queues.add(
                    queue_id=child.queue_id,
                    group_id=1,
                    slot_start=child.slot_start,
                    slot_end=child.slot_end,
                    parent_id=split.queue.queue_id,
                )
        routes = controller_pb2.Routes(version=1, topics=[topic])
        routes.groups.add(group_id=1)
        return routes

    async def controller(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        assert method == "GetRoutes"
        return self._routes()

    async def topic(self, name: str, *, refresh: bool = False) -> Any:
        if refresh:
            self.routes.on_routes(self._routes())
        found = self.routes.topic(name)
        if found is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return found

    async def call_master(
        self,
        group_id: GroupId,
        method: str,
        request: Any,
        timeout_s: float | None = None,
        *,
        service: Any = None,
    ) -> Any:
        self.calls.append(method)
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(method, request)
        reply = getattr(self, method)(request)
        if self.after is not None:
            await self.after(method, request)
        return reply

    def AcquireLocks(self, request: Any) -> Any:  # noqa: N802
        reply = broker_pb2.AcquireLocksReply()
        for queue in request.queues:
            record = control_pb2.AcquireLock(
                group=request.group,
                queue=queue,
                member_id=request.member_id,
                generation=request.generation,
                lock_ms=request.lock_ms,
                session_ms=request.session_ms,
                beside_parents=request.beside_parents,
                drop_staged=request.drop_staged
                and self.log.state.feature_level >= STAGED_COMMITS_LEVEL,
            )
            result: Any = self.log.apply(control(acquire_lock=record))[0]
            error = getattr(result, "error", None)
            if error is not None:
                reply.grants.add(queue=queue, error=to_detail(error))
                continue
            reply.grants.add(
                queue=queue,
                token=result.token,
                committed_offset=result.committed_offset,
                metadata=result.metadata,
            )
            queue_state = self.log.state.queues[queue_key_of(queue)]
            if self.tells_splits and queue_state.sealed:
                reply.grants[-1].split.CopyFrom(split_record_of(queue_state))
        return reply

    def Commit(self, request: Any) -> Any:  # noqa: N802
        record = control_pb2.CommitOffsets(group=request.group, commits=request.commits)
        result: Any = self.log.apply(control(commit_offsets=record))[0]
        reply = broker_pb2.CommitReply()
        for commit, outcome in zip(request.commits, result.outcomes, strict=True):
            error = None if outcome.error is None else to_detail(outcome.error)
            reply.outcomes.add(queue=commit.queue, error=error)
        return reply

    def Open(self, request: Any) -> Any:  # noqa: N802
        result = self._step(open_stager=request)
        assert result.error is None, result.error
        return transactions_pb2.OpenStagerReply()

    def StageCommits(self, request: Any) -> Any:  # noqa: N802
        result = self._step(stage_commits=request)
        reply = transactions_pb2.StageCommitsReply()
        for commit, outcome in zip(request.commits, result.outcomes, strict=True):
            error = None if outcome.error is None else to_detail(outcome.error)
            reply.outcomes.add(queue=commit.queue, error=error)
        return reply

    def _step(self, **step: Any) -> Any:
        record = transaction_records_pb2.TransactionRecord(**step)
        return self.log.apply(control(transaction=record))[0]

    def RenewLocks(self, request: Any) -> Any:  # noqa: N802
        reply = broker_pb2.RenewLocksReply()
        for lock in request.locks:
            held = self.log.state.groups.lookup(request.group, queue_key_of(lock.queue))
            if held is None or (held.token, held.owner) != (lock.token, request.member_id):
                reply.lost.append(lock)
        return reply

    def ReleaseLocks(self, request: Any) -> Any:  # noqa: N802
        for lock in request.locks:
            record = control_pb2.ReleaseLock(
                group=request.group, queue=lock.queue, token=lock.token
            )
            self.log.apply(control(release_lock=record))
        return broker_pb2.ReleaseLocksReply()

    def DescribeGroupOffsets(self, request: Any) -> Any:  # noqa: N802
        reply = broker_pb2.DescribeGroupOffsetsReply()
        for queue, row in progress(self.log.state.queues, self.log.state.groups, request.group):
            reply.states.add(
                group=request.group,
                queue=queue_ref(queue.key),
                committed_offset=row.committed_offset,
                metadata=row.metadata,
                high_watermark=queue.log_end_offset,
                unsettled=bool(
                    self.log.state.transactions.staging.places.at((request.group, queue.key))
                ),
            )
        return reply

    def ListOffsets(self, request: Any) -> Any:  # noqa: N802
        reply = broker_pb2.ListOffsetsReply()
        for queue in request.queues:
            end = self.log.state.queues[queue_key_of(queue)].log_end_offset
            reply.queues.add(queue=queue, high_watermark=end)
        return reply

    def offsets(self, generation: int) -> CommittedOffsets:
        topics = TopicBook(self)  # type: ignore[arg-type]
        locks = GroupLocks(self, "k", generation)  # type: ignore[arg-type]
        return CommittedOffsets(self, topics, locks)  # type: ignore[arg-type]

    @property
    def committed(self) -> int:
        found = self.log.state.groups.lookup("k", KEY)
        return -1 if found is None else found.committed_offset


@pytest.fixture
def cluster() -> OneGroup:
    return OneGroup()


async def stored(offsets: CommittedOffsets, offset: int, metadata: bytes = b"") -> Any:
    return await offsets.commit({PLACE: Progress(offset, metadata)})


async def test_what_is_committed_is_found_with_its_metadata(cluster: OneGroup) -> None:
    offsets = cluster.offsets(1)
    assert await offsets.fetch([PLACE], ERA) == {PLACE: Progress(-1, b"")}
    assert await stored(offsets, 10, b"ten") == {}
    assert await stored(offsets, 20, b"") == {}
    assert await offsets.fetch([PLACE], ERA) == {PLACE: Progress(20, b"")}
    assert await stored(offsets, 30, b"thirty") == {}
    assert await read_offsets(cluster, "k") == {PLACE: Progress(30, b"thirty")}  # type: ignore[arg-type]


async def test_a_lock_is_acquired_once_and_serves_all_commits(cluster: OneGroup) -> None:
    offsets = cluster.offsets(1)
    for offset in (1, 2, 3):
        await stored(offsets, offset)
    assert cluster.calls == ["AcquireLocks", "Commit", "Commit", "Commit"]


async def test_the_next_coordinator_gets_the_locks_at_once_and_fences_the_one_before(
    cluster: OneGroup,
) -> None:
    before, after = cluster.offsets(1), cluster.offsets(2)
    await stored(before, 10, b"old")
    assert await after.fetch([PLACE], ERA) == {PLACE: Progress(10, b"old")}
    with pytest.raises(Deposed):
        await stored(before, 90)
    with pytest.raises(Deposed):
        await before.fetch([PLACE], ERA)
    assert cluster.committed == 10
    assert await stored(after, 11) == {}


async def test_a_deposed_coordinator_hears_of_it_when_it_renews(cluster: OneGroup) -> None:
    before, after = cluster.offsets(1), cluster.offsets(2)
    await stored(before, 10)
    await before.locks.renew()
    await after.fetch([PLACE], ERA)
    with pytest.raises(Deposed):
        await before.locks.renew()
    await after.locks.renew()


async def test_a_commit_may_go_back_and_a_late_copy_of_it_undoes_nothing(
    cluster: OneGroup,
) -> None:
    offsets = cluster.offsets(1)
    sent: list[Any] = []

    async def note(method: str, request: Any) -> None:
        if method == "Commit":
            sent.append(broker_pb2.CommitRequest.FromString(request.SerializeToString()))

    cluster.before = note
    await stored(offsets, 50)
    assert await stored(offsets, 20) == {}
    assert cluster.committed == 20
    assert await stored(offsets, 60) == {}
    for copy in sent:  # they arrive once more
        cluster.Commit(copy)
    assert cluster.committed == 60


async def test_a_commit_without_an_answer_is_followed_under_another_token(
    cluster: OneGroup,
) -> None:
    offsets = cluster.offsets(1)
    await stored(offsets, 10)

    async def lose(method: str, request: Any) -> None:
        if method == "Commit":
            cluster.after = None
            raise TimedOut("no answer")

    cluster.after = lose
    failed = await stored(offsets, 40)
    assert isinstance(failed[PLACE], TimedOut)
    assert await stored(offsets, 30) == {}, "it goes back, because 40 was stored"
    assert cluster.committed == 30


async def test_a_reset_from_outside_is_followed(cluster: OneGroup) -> None:
    offsets = cluster.offsets(1)
    await stored(offsets, 50)
    cluster.log.apply(
        control(reset_offset=control_pb2.ResetOffset(group="k", queue=ref(), offset=5))
    )
    await offsets.locks.renew()
    assert await offsets.fetch([PLACE], ERA) == {PLACE: Progress(5, b"")}
    assert await stored(offsets, 6) == {}


async def test_what_cannot_be_stored_is_told_by_place(cluster: OneGroup) -> None:
    wanted: Sequence[tuple[tuple[str, int], int, type[SemelError]]] = [
        (("orders", 9), 1, UnknownQueue),
        (("nothing", 0), 1, UnknownTopic),
        (PLACE, 101, OffsetOutOfRange),
        (PLACE, -1, OffsetOutOfRange),
    ]
    for place, offset, kind in wanted:
        failed = await cluster.offsets(1).commit({place: Progress(offset, b"")})
        assert isinstance(failed[place], kind)
    assert cluster.committed == -1


async def test_locks_are_given_back(cluster: OneGroup) -> None:
    offsets = cluster.offsets(1)
    await stored(offsets, 50)
    found = cluster.log.state.groups.lookup("k", KEY)
    assert found is not None
    assert found.owner == OWNER
    await offsets.locks.release()
    assert not found.owner
    assert await stored(offsets, 51) == {}


async def test_commits_and_fetches_side_by_side_all_count(cluster: OneGroup) -> None:
    offsets = cluster.offsets(1)
    results = await asyncio.gather(
        stored(offsets, 10),
        offsets.fetch([PLACE], ERA),
        stored(offsets, 11),
        offsets.fetch([PLACE], ERA),
    )
    assert not any(isinstance(result.get(PLACE), SemelError) for result in results)
    assert cluster.committed in (10, 11)


HEIR, OTHER = (QueueKey(KEY.topic_id, QueueId(number)) for number in (1, 2))
NEW = ("orders", 1)


def on(cluster: OneGroup, key: QueueKey) -> int:
    found = cluster.log.state.groups.lookup("k", key)
    return -1 if found is None else found.committed_offset


async def test_a_split_partition_goes_on_and_goes_back(cluster: OneGroup) -> None:
    offsets = cluster.offsets(1)
    await stored(offsets, 60)
    cluster.split()
    cluster.log.produce(header(99, last=149, key=HEIR))
    later = cluster.offsets(2)
    assert await later.fetch([PLACE, NEW], ERA) == {PLACE: Progress(60, b""), NEW: Progress(0, b"")}
    assert await stored(later, 130, b"on") == {}
    assert (cluster.committed, on(cluster, HEIR)) == (100, 30)
    assert await later.fetch([PLACE], ERA) == {PLACE: Progress(130, b"on")}
    assert await read_offsets(cluster, "k") == {  # type: ignore[arg-type]
        PLACE: Progress(130, b"on"),
        NEW: Progress(0, b""),
    }
    assert await stored(later, 40) == {}
    assert (cluster.committed, on(cluster, HEIR)) == (40, 0)
    assert await cluster.offsets(3).fetch([PLACE], ERA) == {PLACE: Progress(40, b"")}


async def test_a_new_partition_is_read_beside_the_one_that_it_comes_from(
    cluster: OneGroup,
) -> None:
    await stored(cluster.offsets(1), 60)
    cluster.split()
    cluster.log.produce(header(99, last=149, key=OTHER))
    offsets = cluster.offsets(2)
    assert await offsets.commit({NEW: Progress(20, b"")}) == {}
    assert (cluster.committed, on(cluster, OTHER)) == (60, 20)


async def test_a_coordinator_that_knows_nothing_of_a_split_finds_out(cluster: OneGroup) -> None:
    """Its member has read on at another gateway, and commits beyond the end of the queue."""
    offsets = cluster.offsets(1)
    await stored(offsets, 60)
    cluster.split()
    cluster.log.produce(header(99, last=149, key=HEIR))
    assert await stored(offsets, 120) == {}
    assert (cluster.committed, on(cluster, HEIR)) == (100, 20)


@pytest.mark.parametrize("tells", [True, False])
async def test_a_coordinator_hears_of_a_split_before_the_controllers_tell(
    cluster: OneGroup, tells: bool
) -> None:
    """The one before it has committed in the heir; progress there must not be left out, and the
    planted bug does that."""
    before = cluster.offsets(1)
    cluster.split()
    cluster.log.produce(header(99, last=149, key=HEIR))
    assert await stored(before, 120) == {}
    cluster.published, cluster.tells_splits = False, tells
    after = cluster.offsets(2)
    found = await after.fetch([PLACE], ERA)
    assert found == {PLACE: Progress(120 if tells else 100, b"")}
    if tells:
        assert await stored(cluster.offsets(3), 100) == {}
        assert (cluster.committed, on(cluster, HEIR)) == (100, 0), "it goes back over the split"


async def test_the_order_of_a_group_of_the_sdk_stays(cluster: OneGroup) -> None:
    cluster.split()
    lock = control_pb2.AcquireLock(
        group="sdk", queue=queue_ref(HEIR), member_id="m", lock_ms=1000, session_ms=1000
    )
    result: Any = cluster.log.apply(control(acquire_lock=lock))[0]
    assert isinstance(result.error, ParentUnread)


async def test_a_planted_bug_is_caught(cluster: OneGroup) -> None:
    before = cluster.offsets(0)  # as if it did not know its generation
    await stored(before, 10)
    await cluster.offsets(2).fetch([PLACE], ERA)
    assert await stored(before, 90) == {}, "nobody fenced it: the tests above would fail"
    assert cluster.committed == 90


TRANSACTION = StagedIn("copier", 5, timeout_ms=60_000, ttl_ms=70_000)
STAGER = stager_id_of("copier", 5, KEY, "k")


def staged(cluster: OneGroup) -> list[int]:
    """The offsets that the transaction will store."""
    stagers = cluster.log.state.transactions.staging.stagers.values()
    return [commit.offset for stager in stagers for commit in stager.commits.values()]


async def test_what_is_staged_is_not_committed_and_the_last_counts(cluster: OneGroup) -> None:
    cluster.log.raise_level(STAGED_COMMITS_LEVEL)
    offsets = cluster.offsets(1)
    assert await offsets.commit({PLACE: Progress(10, b"")}) == {}
    for offset in (30, 20, 5):
        assert await offsets.stage({PLACE: Progress(offset, b"m")}, TRANSACTION) == {}
        assert staged(cluster) == [offset]
    assert cluster.committed == 10
    assert await read_offsets(cluster, "k") == {PLACE: Progress(10, b"")}  # type: ignore[arg-type]
    found = await read_offsets(cluster, "k", stable=True)  # type: ignore[arg-type]
    assert isinstance(found[PLACE], Throttled)


async def test_who_reads_next_ends_what_the_one_before_has_staged(cluster: OneGroup) -> None:
    cluster.log.raise_level(STAGED_COMMITS_LEVEL)
    offsets = cluster.offsets(1)
    assert await offsets.fetch([PLACE], ERA) == {PLACE: Progress(-1, b"")}
    assert await offsets.stage({PLACE: Progress(30, b"")}, TRANSACTION) == {}
    await offsets.fetch([PLACE], ERA)
    assert staged(cluster) == [30], "whoever has staged it asks again"
    await offsets.fetch([PLACE], ERA + 1)
    assert staged(cluster) == []
    assert await offsets.stage({PLACE: Progress(20, b"")}, TRANSACTION) == {}
    await cluster.offsets(2).fetch([PLACE], ERA + 1)
    assert staged(cluster) == [], "another coordinator knows nothing of eras"


async def test_who_has_left_the_group_stages_nothing_after_the_next_has_read(
    cluster: OneGroup,
) -> None:
    cluster.log.raise_level(STAGED_COMMITS_LEVEL)
    offsets = cluster.offsets(1)
    await offsets.fetch([PLACE], ERA)
    is_in = True

    async def go_on(method: str, request: Any) -> None:
        nonlocal is_in
        if method == "StageCommits" and is_in:
            is_in = False
            await offsets.fetch([PLACE], ERA + 1)

    cluster.before = go_on
    transaction = TRANSACTION._replace(may_stage=lambda: is_in)
    failed = await offsets.stage({PLACE: Progress(30, b"")}, transaction)
    assert isinstance(failed[PLACE], StaleGeneration)
    assert staged(cluster) == []


async def test_nobody_reads_while_progress_is_about_to_be_stored(cluster: OneGroup) -> None:
    cluster.log.raise_level(STAGED_COMMITS_LEVEL)
    offsets = cluster.offsets(1)
    await offsets.fetch([PLACE], ERA)
    assert await offsets.stage({PLACE: Progress(30, b"")}, TRANSACTION) == {}
    cluster.log.state.transactions.staging.stagers[STAGER].pinned = True
    found = await offsets.fetch([PLACE], ERA + 1)
    assert isinstance(found[PLACE], Throttled)
    assert staged(cluster) == [30]


async def test_offsets_that_do_not_exist_are_not_staged(cluster: OneGroup) -> None:
    cluster.log.raise_level(STAGED_COMMITS_LEVEL)
    failed = await cluster.offsets(1).stage(
        {PLACE: Progress(-1, b""), ("orders", 7): Progress(1, b"")}, TRANSACTION
    )
    assert isinstance(failed[PLACE], OffsetOutOfRange)
    assert isinstance(failed["orders", 7], UnknownQueue)
    assert STAGER not in cluster.log.state.transactions.staging.stagers


async def test_a_deposed_gateway_stages_nothing(cluster: OneGroup) -> None:
    cluster.log.raise_level(STAGED_COMMITS_LEVEL)
    old = cluster.offsets(1)
    assert await old.commit({PLACE: Progress(10, b"")}) == {}
    await cluster.offsets(2).fetch([PLACE], ERA)
    with pytest.raises(Deposed):
        await old.stage({PLACE: Progress(50, b"")}, TRANSACTION)
    assert staged(cluster) == []


async def test_a_partition_that_was_split_is_staged_as_a_line(cluster: OneGroup) -> None:
    cluster.log.raise_level(STAGED_COMMITS_LEVEL)
    assert await cluster.offsets(1).commit({PLACE: Progress(10, b"")}) == {}
    cluster.split()
    assert await cluster.offsets(2).stage({PLACE: Progress(100, b"")}, TRANSACTION) == {}
    assert sorted(staged(cluster)) == [0, 100]
    assert cluster.committed == 10
