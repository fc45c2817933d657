"""Checks, after every event, what must hold in a broker group whatever the faults.

How it works. The checker sees sent messages, appends and truncations as they pass, and looks at a
broker's role and applied index after each of its events. All checks are incremental. The durable
state is read from the disk's own durable image, and not from what the node believes.

Invariants
1. Election safety: one master a term.
2. Log matching: an (index, term) has one frame and one predecessor, everywhere and for ever.
3. Leader completeness: a new master has all that was committed in earlier terms.
4. State-machine safety: one frame per applied index; a committed one is never truncated.
5. One durable vote per (node, term); nothing is said in a term that is not durable, and terms never
   fall.
6. What an acknowledgement names is durable on its sender, and what is applied is durable on a
   quorum; what the writer of a log takes for durable is durable.
7. A broker obeys no controller epoch that is older than one it has obeyed, and its routes never
   fall back.
8. A node's sequence table, with its windows, is what the log says up to the entry that it has
   applied (`folded.py`); so are its locks and its groups' progress (`consumption.py`).
9. A queue that moves belongs to one broker group at a time, and only that group stores anything in
   it. A queue that is activated has the end, the rows and the locks that were sealed, and a move is
   decided once (`tests/checking/moves.py`).
10. A log loses its beginning only when a checkpoint that covers it is durable.
. What a node takes for due in a second is what its delayed batches say.

This is one file because all checks take place at the same few moments of a node: it sends a
message, its role changes, it applies an entry.

Not here: what the log says that a node must know (`folded.py`), what clients see
(`tests/checking`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import google_crc32c

from semel.broker.log import DamagedEntry, HardStateFile, IndexUnavailable, Log
from semel.broker.log.hard_state import BLOCK_BYTES, RECORD_STRUCT
from semel.broker.raft import Message, MessageKind, Role
from semel.broker.replica.replica import Replica
from semel.protos.control_records import membership_nodes
from semel.protos.errors import SemelError
from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.ids import GroupId, NodeId
from tests.checking.history import Delivered, Granted, Mastered, Voted
from tests.checking.moves import At, Journeys
from tests.kit.due_counts import counted
from tests.world.consumption import ConsumptionError, Told
from tests.world.folded import Folded, InvariantError, require

if TYPE_CHECKING:
    from tests.world.nodes import BrokerHost
    from tests.world.world import World

COUNTED_EVERY = 10
"""Entries after which delayed batches are counted anew."""
_ACKNOWLEDGES = frozenset({MessageKind.APPEND_REPLY, MessageKind.HEARTBEAT_REPLY})
_PROMISES_NOTHING = frozenset({MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_REPLY})


class Invariants:
    """The memory of a whole broker group."""

    def __init__(
        self,
        world: World,
        hosts: dict[NodeId, BrokerHost],
        group_id: GroupId,
        told: Told,
        journeys: Journeys,
    ) -> None:
        """`told` and `journeys` are shared by all groups."""
        self.world = world
        self.hosts = hosts
        self.group_id = group_id
        self.committed: dict[int, bytes] = {}
        self.committed_s: dict[int, float] = {}
        """When the first node had applied each entry."""
        self.newest = 0
        """Index of the newest committed entry."""
        self.failure: InvariantError | None = None
        self._committed_in: dict[int, int] = {}
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}
        self.voters: frozenset[NodeId] = frozenset(hosts)
        """The voters of the newest committed membership."""
        self._masters: dict[int, NodeId] = {}
        self._votes: dict[tuple[NodeId, int], int] = {}
        self._terms: dict[NodeId, int] = {}
        self._durable_to: dict[NodeId, int] = {}
        self._was_durable_to: dict[NodeId, int] = {}
        """Entries on disks that are lost since: they may have been counted and be committed."""
        self._applied: dict[NodeId, int] = {}
        self._first: dict[NodeId, int] = {}
        self.folded = Folded(world, group_id, told, journeys)
        self._role: dict[NodeId, tuple[Role, int]] = {}
        for host in hosts.values():
            self.watch(host)

    def demand(self, truth: bool, message: str) -> None:
        """Ends the run when the result of a check is false; for checks in other modules."""
        if not truth:
            self._fail(InvariantError(message))

    def watch(self, host: BrokerHost) -> None:
        """Begins to check a new node."""
        for index in (self._durable_to, self._was_durable_to, self._applied, self._first):
            index[host.number] = 0
        host.on_send = self._guarded_send(host)
        host.on_started = self.on_started

    def _fail(self, error: InvariantError) -> None:
        if self.failure is None:
            self.failure = error
            self.world.loop.broken = True
            self.world.tell(f"INVARIANT: {error}")

    def _guarded_send(self, host: BrokerHost) -> Callable[[Message, Replica], None]:
        def on_send(message: Message, replica: Replica) -> None:
            try:
                self.on_send(host, message, replica)
            except InvariantError as error:
                self._fail(error)

        return on_send

    def on_started(self, host: BrokerHost) -> None:
        """A node has opened its data: it is checked from here on."""
        assert host.node is not None
        assert host.process is not None
        replica = host.node.replica
        log = replica.log
        append, truncate, members = log.append, log.truncate, replica.peers.book

        def watched_append(frames: Sequence[bytes], **options: Any) -> None:
            previous = log.last_term
            append(frames, **options)
            try:
                self.on_append(frames, previous)
                self._check_writer(host, replica)
            except InvariantError as error:
                self._fail(error)

        def watched_truncate(from_index: int) -> None:
            try:
                self.on_truncate(host, replica, from_index)
            except InvariantError as error:
                self._fail(error)
            truncate(from_index)

        repair = log.repair

        def watched_repair(frame: bytes) -> None:
            before = len(log.damaged)
            repair(frame)
            if len(log.damaged) < before:
                self.world.count("entry repaired")

        resign, begin_rebuild, hear = replica.resign, replica.core.begin_rebuild, members.hear

        def watched_resign() -> None:
            self.world.count("mastership resigned")
            resign()

        def watched_rebuild() -> int | None:
            least = begin_rebuild()
            if least is not None:
                self.world.count("log rebuilt")
            return least

        def watched_hear(index: int, addresses: Mapping[NodeId, str]) -> bool:
            news = hear(index, addresses)
            if news and index > 1:  # not the controllers' word to one that came back empty
                self.world.count("members heard of")
            return news

        replica.resign = watched_resign  # type: ignore[method-assign]
        replica.core.begin_rebuild = watched_rebuild  # type: ignore[method-assign]
        members.hear = watched_hear  # type: ignore[method-assign]
        log.repair = watched_repair  # type: ignore[method-assign]
        log.append = watched_append  # type: ignore[method-assign]
        log.truncate = watched_truncate  # type: ignore[method-assign]
        self._applied[host.number] = replica.state.applied_index
        if host.damaged and log.last_index < self._durable_to[host.number]:
            self._lose(host)  # it has set its log aside
        self._durable_to[host.number] = min(self._durable_to[host.number], log.synced_index)
        self._role[host.number] = (replica.core.role, replica.core.term)
        self._first[host.number] = log.first_index
        try:
            self.folded.check(host, replica, full=True)
            self._see_hard_state(host)
        except InvariantError as error:
            self._fail(error)

        self._watch_routes(host)
        role, term, first, applied = Role.SLAVE, -1, -1, -1

        def after_event() -> None:
            """Called after each event of the host; most events change nothing that is checked."""
            nonlocal role, term, first, applied
            core, state = replica.core, replica.state
            if (
                core.role is role
                and core.term == term
                and state.applied_index == applied
                and log.first_index == first
                and (replica.mastership.proposer is None or not replica.mastership.proposer._parked)
            ):
                return
            role, term = core.role, core.term
            applied, first = state.applied_index, log.first_index
            try:
                self.after_event(host, replica)
            except InvariantError as error:
                self._fail(error)

        host.process.after_event = after_event

    def _watch_routes(self, host: BrokerHost) -> None:
        """Checks that what a broker has from controllers never falls back to an older state."""
        assert host.node is not None
        copy = host.node._routes
        check_epoch, on_routes = copy.check_epoch, copy.on_routes
        newest = 0

        def watched_check(number: int) -> None:
            nonlocal newest
            check_epoch(number)
            self.demand(
                number == 0 or number >= newest,
                f"{host.name} obeys controller epoch {number} after {newest}",
            )
            newest = max(newest, number)
            self.folded.controller_epoch = max(self.folded.controller_epoch, number)

        def watched_routes(routes: Any) -> None:
            version = copy.version
            on_routes(routes)
            self.demand(
                copy.version >= version,
                f"the routes of {host.name} fall back to {copy.version} from {version}",
            )

        copy.check_epoch = watched_check  # type: ignore[method-assign]
        copy.on_routes = watched_routes  # type: ignore[method-assign]

    def forget(self, host: BrokerHost) -> None:
        """The node's disk is lost: its promises stand, and its entries are gone."""
        self._lose(host)
        self._terms.pop(host.number, None)

    def _lose(self, host: BrokerHost) -> None:
        """The entries that were durable on the node are no more."""
        self._was_durable_to[host.number] = self._durable_to[host.number]
        self._durable_to[host.number] = 0

    # --- what passes

    def on_append(self, frames: Sequence[bytes], previous: int) -> None:
        for frame in frames:
            index = int.from_bytes(frame[8:16], "little")
            term = int.from_bytes(frame[16:24], "little")
            mark = (google_crc32c.value(frame), previous)
            known = self._entries.setdefault((index, term), mark)
            require(known == mark, f"entry {index} of term {term} exists in two versions")
            previous = term

    def on_truncate(self, host: BrokerHost, replica: Replica, from_index: int) -> None:
        self.world.count("truncation")
        log = replica.log
        self._durable_to[host.number] = min(self._durable_to[host.number], from_index - 1)
        for index in range(from_index, log.last_index + 1):
            frame = self.committed.get(index)
            require(
                frame is None or decode_frame_header(frame).term != log.term_at(index),
                f"{host.name} truncates the committed entry {index}",
            )

    def on_send(self, host: BrokerHost, message: Message, replica: Replica) -> None:
        kind, term = message.kind, message.term
        if host.damaged:
            # Its disk lies: an entry that it took for synced may be counted, and be gone later.
            believed = max(self._was_durable_to[host.number], replica.log.synced_index)
            self._was_durable_to[host.number] = believed
        if kind in _PROMISES_NOTHING:
            return
        if term > self._terms.get(host.number, 0) or kind in (
            MessageKind.VOTE,
            MessageKind.VOTE_REPLY,
        ):
            found = self._see_hard_state(host)
            if found is None and host.disk.first_vote_lost:
                # The node cannot know that its disk has nothing, so its word counts all the same.
                found = (term, message.target if kind is MessageKind.VOTE_REPLY else host.number)
            require(
                found is not None and term <= found[0],
                f"{host.name} says {kind.name} in term {term}, durable is {found}",
            )
            if kind is MessageKind.VOTE_REPLY and not message.rejected:
                require(
                    found == (term, message.target),
                    f"{host.name} tells a vote for {message.target} in term {term}, durable is "
                    f"{found}",
                )
                self._see_vote(host.number, term, message.target)
            elif kind is MessageKind.VOTE:
                require(
                    found == (term, host.number),
                    f"{host.name} stands in term {term}, durable is {found}",
                )
                self._see_vote(host.number, term, host.number)
        if kind in _ACKNOWLEDGES and not message.rejected:
            self._check_durable(host, replica, message.log_index)

    def _check_durable(self, host: BrokerHost, replica: Replica, index: int) -> None:
        for one in range(self._durable_to[host.number] + 1, index + 1):
            require(
                self.is_durable(host, replica, one),
                f"{host.name} acknowledges entry {one}, which is not durable there",
            )
            self._durable_to[host.number] = one

    def _check_writer(self, host: BrokerHost, replica: Replica) -> None:
        """Checks that what the log's writer calls durable is durable: its next IDs will say so,
        and a restart believes them."""
        store = replica.log._store
        active = store.writer.active
        index = active.durable_index
        try:
            written_here = store.index.locate(index) is active.segment
        except IndexUnavailable:
            return  # truncated; the next segment begins anew
        require(
            not written_here or self.is_durable(host, replica, index),
            f"the writer of {host.name} calls entry {index} durable, which it is not",
        )

    def is_durable(self, host: BrokerHost, replica: Replica, index: int) -> bool:
        """Whether the entry's bytes lie in the disk's durable image."""
        if host.damaged:
            return True  # that image is not what was written any more; `Repair` is at work
        store = replica.log._store
        if index < store.index.first_index:
            return True
        term = store.index.term_at(index)
        if term is None:
            return False
        segment = store.index.locate(index)
        start, end = segment.place(index)
        inode = host.disk.files.names_durable.get(store.directory / segment.file_name)
        if inode is None:
            return False
        mark = self._entries.get((index, term))
        raw = inode.durable[start:end]
        return mark is None or google_crc32c.value(bytes(raw)) == mark[0]

    def _see_hard_state(self, host: BrokerHost) -> tuple[int, int | None] | None:
        """The durable (term, vote); None when there is none, or it is damaged."""
        path = host.config.data / "hard_state"
        inode = host.disk.files.names_durable.get(path)
        if inode is None:
            return None
        file = HardStateFile(path)
        copies = []
        for block in range(4):
            at = block * BLOCK_BYTES
            with contextlib.suppress(SemelError):
                copies.append(file._decode(bytes(inode.durable[at : at + RECORD_STRUCT.size])))
        good = [copy for copy in copies if copy is not None]
        if not good:
            return None
        _, term, vote = max(good, key=lambda copy: copy[0])
        node = host.number
        require(
            term >= self._terms.get(node, 0),
            f"{host.name} falls back to term {term} from {self._terms.get(node)}",
        )
        self._terms[node] = term
        if vote is not None:
            self._see_vote(node, term, vote)
        return term, vote

    def _see_vote(self, node: NodeId, term: int, vote: int) -> None:
        known = self._votes.get((node, term))
        if known is None:
            self._votes[node, term] = vote
            self.world.history.add(Voted(node=node, term=term, vote=vote))
        else:
            require(known == vote, f"node {node} votes for {known} and {vote} in term {term}")

    # --- after each event

    def after_event(self, host: BrokerHost, replica: Replica) -> None:
        core = replica.core
        now = (core.role, core.term)
        if now != self._role[host.number]:
            self._role[host.number] = now
            if core.role is Role.MASTER:
                self._on_master(host, replica)
        require(
            replica.mastership.proposer is None
            or (core.role is Role.MASTER and replica.mastership.term == core.term),
            f"{host.name} judges as master of term {replica.mastership.term}, and is "
            f"{core.role.name} in term {core.term}",
        )
        if replica.mastership.proposer is not None and replica.mastership.proposer._parked:
            self.world.seen["batch parked"] += 1
        first = replica.log.first_index
        if first != self._first[host.number]:
            if self._first[host.number]:
                self.world.count("log cleaned")
                self._check_checkpoint(host, replica, first)
            self._first[host.number] = first
        applied = replica.state.applied_index
        if applied != self._applied[host.number]:
            self._on_applied(host, replica, applied)

    def _check_checkpoint(self, host: BrokerHost, replica: Replica, first: int) -> None:
        """Checks that a durable checkpoint covers the entries that are gone from the log."""
        if host.damaged:
            return
        directory = replica.log._store.directory
        covered = 0
        for path, inode in host.disk.files.names_durable.items():
            if path.parent == directory and path.name.startswith("checkpoint-") and inode:
                index = int(path.name.removeprefix("checkpoint-").partition(".")[0])
                if not path.name.endswith(".tmp") and inode.durable == inode.data:
                    covered = max(covered, index)
        require(
            covered >= first - 1,
            f"the log of {host.name} begins at {first}, its durable checkpoints end at {covered}",
        )

    def _on_master(self, host: BrokerHost, replica: Replica) -> None:
        term = replica.core.term
        known = self._masters.get(term)
        if known is None:
            self._masters[term] = host.number
            self.world.count("election")
            if replica.state.delays.queues:
                self.world.count("election while something is delayed")
            note = Mastered(group=self.group_id, node=host.number, term=term, at_s=self.world.now)
            self.world.history.add(note)
            for at in {at for at, _ in self.folded.places.places.values()} & {
                At.INCOMING,
                At.FROZEN,
            }:
                self.world.count(f"election while a queue is {at}")
        require(known in (None, host.number), f"term {term} has masters {known} and {host.number}")
        for index in range(self.newest, 0, -1):
            if self._committed_in[index] < term:
                wanted = decode_frame_header(self.committed[index]).term
                found = replica.log.term_at(index)
                require(
                    found == wanted or index < replica.log.first_index,
                    f"master {host.name} of term {term} has term {found} at {index}, where "
                    f"term {wanted} was committed",
                )
                break

    def _on_applied(self, host: BrokerHost, replica: Replica, applied: int) -> None:
        before = self._applied[host.number]
        self._applied[host.number] = applied
        log = replica.log
        if applied < before:
            raise InvariantError(f"{host.name} applied {before}, and then {applied}")
        if log.first_index > before + 1:
            self.world.count("snapshot installed")
            if replica.state.delays.queues:
                self.world.count("snapshot with something delayed")
            self._first[host.number] = log.first_index
            self._durable_to[host.number] = max(self._durable_to[host.number], log.first_index - 1)
            self.folded.check(host, replica, full=True)
            return
        for index in range(before + 1, applied + 1):
            frame = self._applied_frame(host, log, index)
            known = self.committed.get(index)
            if known is None:
                require(index == self.newest + 1, f"entry {index} is applied behind a hole")
                self._commit(host, replica, index, frame)
            else:
                require(known == frame, f"{host.name} applies another entry {index} than others")
        self.folded.check(host, replica, since=before)
        if before // COUNTED_EVERY != applied // COUNTED_EVERY:
            delays = replica.state.delays
            require(
                delays.seconds.all() == counted(delays),
                f"{host.name} has {delays.seconds.all()} as due in its seconds at index {applied},"
                f" the batches say {counted(delays)}",
            )

    def _applied_frame(self, host: BrokerHost, log: Log, index: int) -> bytes:
        """The frame that a node has just applied: another node's, if the node's own disk has
        damaged it since."""
        try:
            return (log.cached_frames(index, index + 1) or log.read_frames(index, index + 1))[0]
        except DamagedEntry:
            require(host.damaged, f"{host.name} cannot read entry {index}, and its disk is well")
        term = log.term_at(index)
        for other in self.hosts.values():
            theirs = None if other is host or other.replica is None else other.replica.log
            if theirs is None or theirs.term_at(index) != term or index in theirs.damaged:
                continue
            with contextlib.suppress(DamagedEntry, IndexUnavailable):
                return theirs.read_frames(index, index + 1)[0]
        raise InvariantError(f"nobody has the entry {index} that {host.name} has applied")

    def _commit(self, host: BrokerHost, replica: Replica, index: int, frame: bytes) -> None:
        durable: set[NodeId] = set()
        for other in self.hosts.values():
            live = other.replica
            if live is not None and live.log.term_at(index) is not None:
                same = live.log.term_at(index) == decode_frame_header(frame).term
                there = same and self.is_durable(other, live, index)
            else:
                known = max(self._durable_to[other.number], self._was_durable_to[other.number])
                there = known >= index
            if there:
                durable.add(other.number)
        # A master counts by the newest membership in its log, committed or not.
        counted_by = {self.voters, replica.core.membership.voters} | {
            other.replica.core.membership.voters
            for other in self.hosts.values()
            if other.replica is not None and other.replica.core.role is Role.MASTER
        }
        require(
            any(len(durable & voters) > len(voters) // 2 for voters in counted_by),
            f"entry {index} is applied on {host.name} with copies durable on {sorted(durable)}",
        )
        self.committed[index] = frame
        self.committed_s[index] = self.world.now
        self.newest = index
        self._committed_in[index] = replica.core.term
        if decode_frame_header(frame).term < replica.core.term:
            self.world.count("prior-term entry committed")
        for _, kind, payload in iter_records(frame):
            if kind is RecordKind.MEMBERSHIP:
                self.voters = frozenset(map(NodeId, membership_nodes(payload)[0]))
                self.world.count("membership changed")
        self.folded.fold(index, frame)

    def told(self, note: Granted | Delivered) -> None:
        """A member was granted a lock, or given a message."""
        try:
            if isinstance(note, Granted):
                self.folded.consumption.told.on_granted(note)
            else:
                self.folded.consumption.told.on_delivered(note)
        except ConsumptionError as error:
            self._fail(InvariantError(str(error)))
