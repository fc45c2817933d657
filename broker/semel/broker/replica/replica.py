"""One replica at work: its parts, its role in its group, and the calls that other rooms make.

How it works. `Replica` builds the parts of one node and ties them together. Requests go to the
`Proposer` of the present mastership, and the `Driver` makes entries of them; reads that a quorum
has to confirm wait for a round of heartbeats.

Invariants
1. Everything here runs on one event loop; the core, the log's index, the state and the proposer are
   touched by nobody else. Reader threads see immutable bytes only.
2. Every request is answered once: by its applied entry, or by an error when mastership is lost.

Not here: the order in which things persist, sync and leave (`replica/driver.py`), gRPC (`server/`),
start and end (`node.py`), snapshots and checkpoints (`snapshots/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import TypeVar

from semel.broker.compaction import CompactedBatch
from semel.broker.config import BrokerConfig
from semel.broker.dedup.id_store import IdStore
from semel.broker.log import HardStateFile, Log
from semel.broker.memory import BodyStore
from semel.broker.memory.bounds import is_crowded
from semel.broker.raft import RaftCore, Role
from semel.broker.replica.ack_sink import AckSink
from semel.broker.replica.applier import Applier
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.driver import Driver
from semel.broker.replica.feature_levels import FeatureLevels
from semel.broker.replica.fetch_waiters import QueueWatchers
from semel.broker.replica.log_time import LogTime
from semel.broker.replica.log_view import CoreLog
from semel.broker.replica.mastership import Mastership
from semel.broker.replica.member_book import Members
from semel.broker.replica.message_ids import MessageIds
from semel.broker.replica.peers import Peers
from semel.broker.replica.pinned_look_up import PinnedLookUp
from semel.broker.replica.pools import Pools
from semel.broker.replica.proposer import Proposer
from semel.broker.replica.term_and_vote import TermAndVote
from semel.broker.state import ApplyResult, LockClock, State, TransactionIds
from semel.protos.batch import BatchHeader
from semel.protos.errors import NotMaster, SemelError, Throttled
from semel.protos.ids import NodeId, QueueKey
from semel.protos.v1.common_pb2 import Levels
from semel.protos.v1.control_pb2 import ControlRecord

T = TypeVar("T")

_RETRY_AFTER_MS = 100


class Replica:
    """Core, log and state of one node, and the parts that work on them."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        log: Log,
        hard_state: HardStateFile,
        state: State,
        founding: Members,
        logged_members: dict[int, Members],
        readers: Executor,
        pools: Pools | None = None,
        on_fatal: Callable[[str], None],
        open_id_store: Callable[[], IdStore],
    ) -> None:
        """`founding` are the members before any were logged, `logged_members` those that the log
        names behind `state`, by index. `readers` are for what the group needs to go on, and
        `pools` for all other work; None for the same."""
        self.config = config
        self.log = log
        self.state = state
        self.readers = readers
        self.pools = pools or Pools.of_one(readers)
        self.on_fatal = on_fatal
        self.lost_entries: frozenset[int] = frozenset()
        """Entries that are damaged on every node (`set_lost`): nobody can fetch their messages."""
        self.removed_at = 0
        """Index of the entry that removed this node, as a member says; 0 while none is known."""
        self.on_role_changed: Callable[[], None] = lambda: None
        self._unfit: set[str] = set()
        self._role_waiters: list[asyncio.Future[None]] = []
        self.peers = Peers(config, founding, state.membership, logged_members)
        self.bodies = BodyStore(log.last_index)
        term_and_vote = self._term_and_vote = TermAndVote(hard_state)
        core_log = self._core_log = CoreLog(
            log,
            {index: members.membership for index, members in logged_members.items()},
            self.bodies,
        )
        core = self.core = RaftCore(
            config.raft,
            node_id=config.node_id,
            hard_state=term_and_vote.load(),
            membership=self.peers.members_of(state.membership).membership,
            log=core_log,
            applied_index=state.applied_index,
            random=Random(),
            now_ms=monotonic_ms(),
        )
        self.log_time = LogTime(config.node_id, log, lambda reason: self.on_fatal(reason))
        self.ids = MessageIds(
            self,
            open_id_store,
            on_behind=self._on_ids_behind,
        )
        self.mastership = Mastership(config, core, self.not_master, self.ids)
        self.feature_levels = FeatureLevels(self)
        self.applier = Applier(
            self,
            log=log,
            core=core,
            peers=self.peers,
            mastership=self.mastership,
            readers=readers,
            ids=self.ids,
            bodies=self.bodies,
        )
        self.watchers: QueueWatchers = self.applier.watchers
        self.driver = Driver(
            self,
            log=log,
            core=core,
            core_log=core_log,
            term_and_vote=term_and_vote,
            peers=self.peers,
            log_time=self.log_time,
            mastership=self.mastership,
            feature_levels=self.feature_levels,
            applier=self.applier,
            bodies=self.bodies,
        )

    # ------------------------------------------------------------------ what this node is

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def proposer(self) -> Proposer | None:
        """The proposer of this mastership; None unless it serves."""
        return self.mastership.proposer

    def schedule_turn(self) -> None:
        """Makes an entry of what waits soon."""
        self.driver.schedule_turn()

    @property
    def is_master(self) -> bool:
        """Master, with everything before its term applied: it may admit requests."""
        return self.mastership.proposer is not None

    @property
    def lock_clock(self) -> LockClock | None:
        """The clock of the locks that this master has granted; None unless it serves."""
        return self.mastership.lock_clock

    @property
    def role(self) -> str:
        """master, slave, candidate, learner, joining or removed."""
        own, membership = self.config.node_id, self.core.membership
        if self.core.role is Role.MASTER:
            return "master"
        if self.removed_at or (own not in membership.nodes and not self.non_counting):
            return "removed"
        if own not in membership.nodes:
            return "joining"
        if own in membership.learners:
            return "learner"
        return "slave" if self.core.role is Role.SLAVE else "candidate"

    @property
    def non_counting(self) -> bool:
        """True while this node's data directory is newer than its group: nobody may count it."""
        return self.core.non_counting

    @property
    def disk_full(self) -> bool:
        """There is no room for another segment, or for term and vote."""
        return self.log.disk_full or self._term_and_vote.unsaved is not None

    def set_fit(self, reason: str, fit: bool) -> None:
        """Sets or ends a reason why this node must not become master."""
        if fit:
            self._unfit.discard(reason)
        else:
            self._unfit.add(reason)
        self.core.set_electable(not self._unfit)

    def _on_ids_behind(self, behind: bool) -> None:
        self.set_fit("message ids", not behind)
        if behind and self.core.role is Role.MASTER:
            asyncio.get_running_loop().call_soon(self._resign_unfit)

    def _resign_unfit(self) -> None:
        """Leaves the mastership to a node that is fit for it."""
        if self._unfit and self.core.role is Role.MASTER:
            self.resign()

    @property
    def electable(self) -> bool:
        """Whether it would take mastership that is handed over to it."""
        return not self._unfit and not self.non_counting

    def not_master(self) -> NotMaster:
        """The error that sends a client to the master, if one is known."""
        master = self.core.master_id
        if master == self.config.node_id and self.core.role is not Role.MASTER:
            master = None
        address = self.peers.reachable.get(master, "") if master is not None else ""
        if self.role in ("joining", "removed"):
            return NotMaster(
                f"node {self.config.node_id} is no member of group {self.config.group_id}; "
                "refresh the routes and ask another node",
                term=self.core.term,
            )
        where = f"ask node {master} at {address}" if address else "an election is on; try again"
        return NotMaster(
            f"node {self.config.node_id} is not the master of group {self.config.group_id}; "
            + where,
            master_address=address,
            master_id=master or 0,
            term=self.core.term,
        )

    def role_change(self) -> asyncio.Future[None]:
        """Done at the next change of role, term or master, or when this node begins to serve.

        This is no coroutine, which would begin to listen a turn after the caller looked at the
        role.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._role_waiters.append(future)
        return future

    def tell_role(self) -> None:
        """Wakes all callers that wait for a change of role (see `driver.py`)."""
        if self.ids.behind and self.core.role is Role.MASTER:  # it lost ids while it stood
            asyncio.get_running_loop().call_soon(self._resign_unfit)
        waiters, self._role_waiters = self._role_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.on_role_changed()

    def levels(self) -> Levels:
        """The feature levels that this node names to its clients and peers."""
        return self.feature_levels.told()

    def log_time_us(self) -> int:
        """The time that the next entry would get: the clock of retention and expiry."""
        return self.log_time.now_us() if self.log_time.has_begun else self.state.log_time_us

    # ------------------------------------------------------------------ what a master is asked

    def check_master(self) -> None:
        """Raises NotMaster unless this node serves as master."""
        if self.mastership.proposer is None:
            raise self.not_master()

    async def wait_master(self) -> None:
        """Waits for a master that is about to be ready. Raises NotMaster."""
        await self.mastership.wait()

    async def require_level(self, level: int) -> None:
        """Raises UnsupportedVersion while the group's log is below `level`; and NotMaster."""
        await self.feature_levels.require(level)

    async def confirm_read(self) -> None:
        """Returns once a quorum confirmed that everything committed before this call is applied.

        One heartbeat round serves all who ask before it starts. Raises NotMaster.
        """
        await self.wait_master()
        await self.driver.reads.wait()

    async def produce_room(self) -> None:
        """Waits while too many bytes wait to be proposed."""
        while self.mastership.is_full:
            self.mastership.room.clear()
            await self.mastership.room.wait()

    def submit_batch(self, header: BatchHeader, data: bytes, sink: AckSink) -> None:
        """Answers through `sink`."""
        if self.mastership.proposer is None:
            sink.refuse(header, self.not_master())
            return
        if self.bodies.bytes and self._is_crowded(header):
            sink.refuse(
                header,
                Throttled(
                    f"topic {header.topic_id} has more bytes in memory than it may, and its oldest"
                    " messages are about to go; send again",
                    retry_after_ms=_RETRY_AFTER_MS,
                ),
            )
            return
        if self.ids.compares(header.topic_id):
            self.ids.submit(header, data, sink)
            return
        self.mastership.proposer.submit_batch(header, data, sink)
        self.driver.schedule_turn()

    def _is_crowded(self, header: BatchHeader) -> bool:
        """Whether a batch must wait until there is room in memory; one that is stored need not."""
        bodies = self.bodies
        bound = bodies.bounds.get(header.topic_id)
        if bound is None:
            return False
        crowded = is_crowded(bodies.topics[header.topic_id], bound)
        crowded = crowded or is_crowded(bodies.bytes, self.config.memory_topic_bytes_max)
        assert self.mastership.proposer is not None
        return crowded and not self.mastership.proposer.is_stored(header)

    def look_up_pinned(self, transaction_id: str, attempt: int) -> PinnedLookUp:
        """What looks up the pinned batches of topics that compare message ids. Raises NotMaster and
        Throttled."""
        self.check_master()
        staging = self.state.transactions.staging
        pin = staging.pin_of(transaction_id, attempt)
        topics = self.ids.pinned({} if pin is None else staging.pinned_extents(pin))
        return PinnedLookUp(self.ids, self.log, self.readers, self.mastership.term, topics)

    def hold_ids(self, topics: frozenset[int]) -> None:
        """Takes no batches with message ids of these topics until `release_ids`, or in another
        term."""
        if self.mastership.proposer is not None:
            self.mastership.proposer.admission.ids.hold(topics)

    def release_ids(self, topics: frozenset[int]) -> None:
        """Ends one `hold_ids`."""
        if self.mastership.proposer is not None:
            self.mastership.proposer.admission.ids.release(topics)

    async def submit_control(
        self,
        record: ControlRecord,
        looked_up: TransactionIds | None = None,
        compacted: tuple[CompactedBatch, ...] = (),
        parted: tuple[tuple[int, bytes], ...] = (),
    ) -> ApplyResult:
        """The record's result, once it is applied. `looked_up` is for a publication or a rewrite,
        `compacted` for a COMPACT record, `parted` for a PART_DELAYED record.

        Raises NotMaster, Throttled, or the error with which admission refused it.
        """
        await self.wait_master()
        if looked_up and looked_up.term != self.mastership.term:
            raise Throttled(
                "the message ids of the transaction were looked up in an older term; look again",
                retry_after_ms=0,
            )
        proposer = self.mastership.proposer
        assert proposer is not None
        waiting_bytes, bytes_max = proposer.pending_control_bytes, self.config.pending_bytes_max
        if proposer.waiting >= self.config.requests_waiting_max or (
            # A single record may wait in any case: a small limit must not forbid it for ever.
            waiting_bytes > 0 and waiting_bytes + record.ByteSize() > bytes_max
        ):
            raise Throttled(
                f"{proposer.waiting} requests wait on node {self.config.node_id} already, and"
                f" {waiting_bytes:,} bytes of control records; send again",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        future = proposer.submit_control(record, looked_up, compacted, parted)
        self.driver.schedule_turn()
        return await future

    @property
    def memory_room(self) -> int:
        """How many more bytes of topics in memory this node may have."""
        return self.config.memory_topic_bytes_max - self.bodies.bytes

    async def submit_copy(self, stored: bytes, *, in_memory: bool = False) -> ApplyResult:
        """The result of a copied batch, once it is applied. Raises NotMaster."""
        await self.wait_master()
        assert self.mastership.proposer is not None
        future = self.mastership.proposer.submit_copy(stored, in_memory=in_memory)
        self.driver.schedule_turn()
        return await future

    def release_due(self, queues_max: int) -> None:
        """Gives offsets to what is due by log time in up to `queues_max` queues."""
        proposer = self.mastership.proposer
        if proposer is None:
            return
        due = self.state.delays.due(self.log_time_us(), queues_max)
        for key in due:
            proposer.submit_release(key)
        if due:
            self.driver.schedule_turn()

    def expire_producers(self, queue_key: QueueKey) -> None:
        """Ends idle and surplus rows of one queue's sequence table."""
        if self.mastership.proposer is not None:
            self.mastership.proposer.submit_expiry(
                queue_key,
                now_us=self.log_time_us(),
                idle_ms=self.config.producer_idle_ms,
                rows_max=self.config.producers_per_queue_max,
            )
            self.driver.schedule_turn()

    def on_delivered(self, group: str, queue_key: QueueKey, token: int, end_offset: int) -> None:
        """Messages below `end_offset` are sent to the holder of `token`."""
        if self.mastership.lock_clock is not None:
            self.mastership.lock_clock.on_delivered(
                group, queue_key, token, end_offset, monotonic_ms()
            )

    def hand_over(self, successor: NodeId) -> None:
        """Takes no more proposals, and tells `successor` to stand once it has every entry.

        The hand-over is given up after RaftConfig.transfer_ms. Raises NotMaster, InvalidRequest,
        Throttled.
        """
        self.core.transfer_mastership(successor, monotonic_ms())
        self.driver.drain()

    def resign(self) -> None:
        """Steps down at once, whether or not another node is ready to become master."""
        self.core.resign(monotonic_ms())
        self.driver.drain()

    # ------------------------------------------------------------------ log and state

    async def in_reader(self, work: Callable[[], T], pool: Executor | None = None) -> T:
        """Runs blocking `work` in a pool, by default that of the background."""
        within = pool or self.pools.background
        return await asyncio.get_running_loop().run_in_executor(within, work)

    async def wait_applied(self, index: int, timeout_s: float | None) -> None:
        """Waits until entry `index` is applied. Raises Unavailable if that takes too long."""
        await self.applier.wait_applied(index, timeout_s)

    def install_state(self, state: State) -> None:
        """A snapshot has taken the place of log and state."""
        self.state = state
        self._core_log.truncated(0)
        self.bodies.clear(self.log.last_index)
        self.peers.install(state)
        self.ids.follow(installed=True)

    def set_lost(self, entries: frozenset[int]) -> None:
        """These entries are damaged on every node.

        A slave that lacks one which is applied here gets a snapshot instead of the entry.
        """
        self.lost_entries = entries
        applied = (index for index in entries if index <= self.state.applied_index)
        self._core_log.unreadable_through = max(applied, default=0)

    def stop(self, error: Callable[[], SemelError]) -> None:
        """The node stops: every waiting request gets an error, and nothing more is proposed.

        Entries that are on their way to the disk are still applied, but this node does not serve as
        master again.
        """
        self.mastership.stop(error)
        self.driver.reads.fail(self.not_master)
