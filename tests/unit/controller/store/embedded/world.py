"""Members of a group on one event queue: simulated disks, network and clock; a seed replays a run.

How it works. `World` owns time. Members are ticked by hand, their messages travel as bytes with
delays, losses, repeats and cuts. Nodes are killed at any operation of their disks and find their
page cache again, lose their power and find what the disk had, meet syncs that fail, are paused,
resign, lose their disks. Clients on every node write and read as `embedded_store.py` does;
invariants are checked after every event, everything else when the world has been healed.

Invariants
1. At most one master a term; one vote of a controller a term, over all its lives.
2. Two members that have applied the same index hold the same state.
3. A write's revision is above, a read's not below, everything that had returned before it began.
4. What was acknowledged is there at the end, once; what conflicts was not written by its asker.
5. When a message leaves, a power failure would take nothing of its sender's journal, term and vote.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any

import pysyncobj.syncobj as library

from semel.controller.store import Transaction
from semel.controller.store.embedded import consensus
from semel.controller.store.embedded.hard_state import FILE_NAME as HARD_STATE
from semel.controller.store.embedded.identity import Identity
from semel.controller.store.embedded.journal import FILE_NAMES
from semel.controller.store.embedded.machine import (
    Applied,
    Result,
    State,
    barrier_command,
    transaction_command,
)
from semel.controller.store.embedded.member import Member
from semel.controller.store.embedded.messages import check
from semel.protos.v1.metadata_store_pb2 import (
    CONTROLLER_MEMBERSHIP_NON_COUNTING,
    CONTROLLER_MEMBERSHIP_UNFORMED,
    CONTROLLER_MEMBERSHIP_VOTER,
    GroupMessage,
    MembershipReply,
)
from tests.unit.controller.store.embedded.disk import Crash, SimDisk

TICK_S = 0.03
LINK_S = 0.05
GIVE_UP_S = 3.0
COMPACT_ENTRIES = 25


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Link:
    """A stream from one node to another."""

    hello_non_counting: bool
    welcome_non_counting: bool
    boots: tuple[int, int]


@dataclass
class Call:
    """A client's request."""

    began: float
    floor: int
    """Newest revision that had returned anywhere when it began."""
    key: str = ""
    """What it writes; empty for a read."""


@dataclass
class SimNode:
    """One controller over all its lives."""

    number: int
    disk: SimDisk = field(default_factory=SimDisk)
    member: Member | None = None
    boot: int = 0
    paused_until: float = 0.0
    incarnation: int = 0
    sequence: int = 1
    calls: dict[object, Call] = field(default_factory=dict)
    counter: tuple[int | None, int] = (None, 0)
    """Version and value of /n, as applied here."""
    replies: dict[int, MembershipReply] = field(default_factory=dict)
    aside: list[Callable[[], None]] = field(default_factory=list)


class World:
    """A group in a simulated world."""

    def __init__(self, seed: int, *, size: int = 3, hostile: bool = True) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.hostile = hostile
        self.now = 1_000.0
        self.nodes = {number: SimNode(number) for number in range(1, size + 1)}
        self.links: dict[tuple[int, int], Link] = {}
        self.cut: set[tuple[int, int]] = set()
        self.counts: Counter[str] = Counter()
        self.masters: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.states: dict[int, int] = {}
        self.returned = 0
        self.written: dict[str, int] = {}
        """Revision of every acknowledged write of a key of its own."""
        self.begun: set[str] = set()
        self.increments = Counter[str]()
        self.lossy = hostile
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._keys = itertools.count()

    # --- running --------------------------------------------------------------------------------

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Runs `action` later."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), action))

    def run(self, duration_s: float) -> None:
        """Lets time pass."""
        end = self.now + duration_s
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    def start(self) -> None:
        """Starts all nodes and what goes on for ever."""
        for number in self.nodes:
            self.boot(number)
            self.at(self.rng.random() * TICK_S, partial(self._tick, number))
        self.at(0, self._keep_links)

    def boot(self, number: int) -> None:
        """Starts a node over its disk."""
        node = self.nodes[number]
        node.boot += 1
        node.calls.clear()
        node.replies.clear()
        node.aside.clear()
        node.counter = (None, 0)
        identity = Identity(cluster_id="c", controller_id=number, members=tuple(self.nodes))
        node.disk.open()
        try:
            node.member = Member(
                node.disk,
                identity,
                send=lambda receiver, message: self._send(number, receiver, message),
                run_aside=node.aside.append,
            )
        except Crash:
            self._die(number, power=self.rng.random() < 0.5)

    def crash(self, number: int) -> None:
        """Its power fails, also when its process has ended: its disk keeps what it must, and
        anything else."""
        if self.nodes[number].member is not None:
            self._die(number, power=True)
        else:
            self.nodes[number].disk.crash(self.rng)

    def kill(self, number: int) -> None:
        """Ends a node's process; the machine keeps its page cache."""
        if self.nodes[number].member is not None:
            self._die(number, power=False)

    def resign(self, number: int) -> None:
        """It leaves the mastership to another one, if it has it."""
        self.counts["resigned"] += number == self.master
        self._guarded(number, methodcaller("resign"))

    def pause(self, number: int, duration_s: float) -> None:
        """The process stands still, as by SIGSTOP."""
        self.nodes[number].paused_until = self.now + duration_s

    def lose_disk(self, number: int) -> None:
        """Ends a node and empties its disk."""
        self.crash(number)
        self.nodes[number].disk.lose()

    def isolate(self, *numbers: int) -> None:
        """Cuts these nodes off from the others, both ways."""
        for one in numbers:
            for other in self.nodes.keys() - set(numbers):
                self.cut |= {(one, other), (other, one)}

    def heal(self) -> None:
        """Everybody lives, reaches everybody, and nothing is lost on the way."""
        self.cut.clear()
        self.lossy = False
        for number, node in self.nodes.items():
            node.paused_until = 0.0
            node.disk.crash_at = node.disk.fail_at = None
            if node.member is None:
                self.boot(number)

    @property
    def master(self) -> int | None:
        """The node that leads the newest term and has applied its beginning."""
        leading = [
            (node.member.node.term, number)
            for number, node in self.nodes.items()
            if node.member is not None
            and node.member.node is not None
            and node.member.node.master == number
        ]
        return max(leading)[1] if leading else None

    def voters(self) -> list[int]:
        """Nodes that live and are counted."""
        return [
            number
            for number, node in self.nodes.items()
            if node.member is not None and node.member.membership == CONTROLLER_MEMBERSHIP_VOTER
        ]

    def _die(self, number: int, *, power: bool) -> None:
        node = self.nodes[number]
        if node.member is not None:
            node.member.close()
        node.member = None
        if power:
            node.disk.crash(self.rng)
        else:
            node.disk.kill()
        for call in node.calls.values():
            if call.key == "/n":
                self.increments["unknown"] += 1
        node.calls.clear()
        self.counts["crashes" if power else "kills"] += 1
        if self.hostile:
            self.at(self.rng.uniform(0.05, 3.0), lambda: self._boot_if_dead(number))

    def _boot_if_dead(self, number: int) -> None:
        if self.nodes[number].member is None:
            self.boot(number)

    def _guarded(self, number: int, action: Callable[[Member], Any]) -> Any:
        """Runs something of a node; it may die in it."""
        member = self.nodes[number].member
        if member is None:
            return None
        try:
            return action(member)
        except Crash:
            self._die(number, power=self.rng.random() < 0.5)
        except OSError:
            self.counts["failed syncs"] += 1
            self._die(number, power=False)
        return None

    # --- nodes ----------------------------------------------------------------------------------

    def _tick(self, number: int) -> None:
        self.at(TICK_S * self.rng.uniform(0.8, 1.2), lambda: self._tick(number))
        node = self.nodes[number]
        if node.member is None or self.now < node.paused_until:
            return
        while node.aside and self.rng.random() < 0.3:
            job = node.aside.pop(0)
            job()
        happened = self._guarded(number, lambda member: member.tick(0))
        if happened is None:
            return
        node.incarnation = happened.incarnation
        for event in happened.events:
            self._on_event(node, event)
        self._look(number)
        for key, call in list(node.calls.items()):
            if self.now - call.began > GIVE_UP_S:
                self._forget(node, key)
                if call.key == "/n":
                    self.increments["unknown"] += 1
        if node.member is not None and node.member.must_ask:
            self._ask_memberships(number)

    def _ask_memberships(self, number: int) -> None:
        node = self.nodes[number]
        for other in self.nodes.keys() - {number}:
            member = self.nodes[other].member
            if member is None or {(number, other), (other, number)} & self.cut:
                continue
            if other not in node.replies or self.rng.random() < 0.7:
                node.replies[other] = member.describe()
        if len(node.replies) == len(self.nodes) - 1:
            replies = list(node.replies.values())
            self._guarded(number, lambda member: member.learn(replies))

    def _look(self, number: int) -> None:
        """Invariants 1 and 2, on one node."""
        member = self.nodes[number].member
        if member is None or member.node is None:
            return
        consensus = member.node
        if consensus.is_leader:
            first = self.masters.setdefault(consensus.term, number)
            if first != number:
                raise Violation(f"{first} and {number} both lead term {consensus.term}")
        state = member._machine.state()
        digest = hash(
            (
                state.revision,
                tuple(sorted((k, v.version, v.value) for k, v in state.entries.items())),
                tuple(
                    (one, s.incarnation, s.resolved_below, tuple(sorted(s.results)))
                    for one, s in sorted(state.sessions.items())
                ),
            )
        )
        index = consensus.applied_index
        if self.states.setdefault(index, digest) != digest:
            raise Violation(f"node {number} differs from another one at index {index}")

    # --- network --------------------------------------------------------------------------------

    def _keep_links(self) -> None:
        self.at(LINK_S, self._keep_links)
        for pair in itertools.permutations(self.nodes, 2):
            source, target = (self.nodes[number] for number in pair)
            link = self.links.get(pair)
            up = source.member is not None and target.member is not None and pair not in self.cut
            wanted = None
            if up:
                assert source.member is not None
                assert target.member is not None
                if target.member.membership != CONTROLLER_MEMBERSHIP_UNFORMED:
                    wanted = Link(
                        source.member.membership == CONTROLLER_MEMBERSHIP_NON_COUNTING,
                        target.member.membership == CONTROLLER_MEMBERSHIP_NON_COUNTING,
                        (source.boot, target.boot),
                    )
            if link == wanted:
                continue
            if link is not None:
                del self.links[pair]
                if link.boots[0] == source.boot:
                    peer = (pair[1], link.welcome_non_counting)
                    self._guarded(pair[0], methodcaller("disconnected", peer))
            if wanted is not None and source.member is not None:
                self.links[pair] = wanted
                peer = (pair[1], wanted.welcome_non_counting)
                self._guarded(pair[0], methodcaller("connected", peer))

    def _send(self, sender: int, receiver: int, message: GroupMessage) -> None:
        for name in (*FILE_NAMES, HARD_STATE):
            if not self.nodes[sender].disk.is_certain(name):
                raise Violation(f"{sender} sends a message, and its disk may forget {name}")
        kind = message.WhichOneof("kind")
        if kind in ("grant", "vote"):
            vote = receiver if kind == "grant" else sender
            if self.votes.setdefault((sender, message.term), vote) != vote:
                raise Violation(f"{sender} votes twice in term {message.term}")
        link = self.links.get((sender, receiver))
        if link is None or link.boots[0] != self.nodes[sender].boot:
            return
        raw = message.SerializeToString()
        peer = (sender, link.hello_non_counting)
        copies = 1
        if self.lossy:
            copies = self.rng.choices((0, 1, 2), (2, 96, 2))[0]
        for _ in range(copies):
            delay_s = self.rng.uniform(0.001, 0.01)
            if self.lossy and self.rng.random() < 0.02:
                delay_s = self.rng.uniform(0.1, 4.0)
            self.at(delay_s, lambda: self._deliver(peer, receiver, raw))

    def _deliver(self, peer: tuple[int, bool], receiver: int, raw: bytes) -> None:
        node = self.nodes[receiver]
        if (peer[0], receiver) in self.cut:
            return
        if self.now < node.paused_until:  # it waits in the socket
            self.at(
                node.paused_until - self.now + 0.001, lambda: self._deliver(peer, receiver, raw)
            )
            return
        message = check(GroupMessage.FromString(raw))
        self._guarded(receiver, lambda member: member.receive(peer, message))

    # --- clients --------------------------------------------------------------------------------

    def write(self, number: int, *, counter: bool = False) -> None:
        """Begins a write on a node: of a key of its own, or one more in the common counter."""
        node = self.nodes[number]
        if node.member is None or node.member.membership != CONTROLLER_MEMBERSHIP_VOTER:
            return
        key = "/n" if counter else f"/w/{next(self._keys)}"
        version, value = node.counter if counter else (None, 0)
        transaction = Transaction(checks={key: version}, puts={key: b"%d" % (value + 1)})
        sequence = node.sequence
        node.sequence += 1
        mine = [one for one in node.calls if isinstance(one, int)]
        command = transaction_command(
            transaction,
            controller_id=number,
            incarnation=node.incarnation,
            sequence=sequence,
            resolved_below=min(mine, default=sequence),
        )
        if node.incarnation == 0:
            return
        node.calls[sequence] = Call(self.now, self.returned, key)
        self.begun.add(key)
        node.member.submit(sequence, command)

    def read(self, number: int) -> None:
        """Begins a read on a node."""
        node = self.nodes[number]
        if node.member is None or node.member.membership != CONTROLLER_MEMBERSHIP_VOTER:
            return
        nonce = b"%d-%d" % (number, next(self._keys))
        node.calls[nonce] = Call(self.now, self.returned)
        node.member.submit(nonce, barrier_command(nonce))

    def _forget(self, node: SimNode, key: object) -> None:
        node.calls.pop(key, None)
        if node.member is not None:
            node.member.resolved(key)

    def _on_event(self, node: SimNode, event: Applied | State) -> None:
        if isinstance(event, State):
            entry = event.entries.get("/n")
            node.counter = (None, 0) if entry is None else (entry.version, int(entry.value))
            self.counts["states"] += 1
            session = event.sessions.get(node.number)
            if session is not None and session.incarnation == node.incarnation:
                for sequence, result in session.results.items():
                    self._on_result(node, sequence, result)
            return
        if "/n" in event.puts:
            entry = event.puts["/n"]
            node.counter = (entry.version, int(entry.value))
        mine = (node.number, node.incarnation)
        if event.result is not None and (event.controller_id, event.incarnation) == mine:
            self._on_result(node, event.sequence, event.result)
        call = node.calls.get(event.barrier)
        if call is not None:
            self._forget(node, event.barrier)
            self.counts["reads"] += 1
            if event.revision < call.floor:
                raise Violation(f"a read at {event.revision} came after {call.floor} returned")
            self.returned = max(self.returned, event.revision)

    def _on_result(self, node: SimNode, sequence: int, result: Result) -> None:
        call = node.calls.get(sequence)
        if call is None:
            return
        self._forget(node, sequence)
        if result.conflict:
            self.counts["conflicts"] += 1
            if call.key != "/n":
                raise Violation(f"{call.key} conflicts with itself: {result.conflict}")
            return
        self.counts["writes"] += 1
        if result.revision <= call.floor:
            raise Violation(f"a write at {result.revision} came after {call.floor} returned")
        self.returned = max(self.returned, result.revision)
        if call.key == "/n":
            self.increments["done"] += 1
        else:
            self.written[call.key] = result.revision

    # --- the end --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Heals the world; then everybody must answer, agree, and remember."""
        self.hostile = False
        self.heal()
        self.run(15.0)
        for node in self.nodes.values():
            for key in list(node.calls):
                self._forget(node, key)
        before = self.counts["writes"]
        for number in self.nodes:
            self.write(number)
        self.run(3.0)
        if self.counts["writes"] - before != len(self.nodes):
            raise Violation("a healed group does not answer everybody")
        states = []
        for node in self.nodes.values():
            assert node.member is not None
            states.append(node.member._machine.state())
        if any(state.entries != states[0].entries for state in states):
            raise Violation("members differ")
        entries = states[0].entries
        for key, revision in self.written.items():
            if key not in entries or entries[key].version != revision:
                raise Violation(f"{key} was acknowledged at {revision} and is lost")
        if entries.keys() - self.begun:
            raise Violation("something was invented")
        value = int(entries["/n"].value) if "/n" in entries else 0
        done, unknown = self.increments["done"], self.increments["unknown"]
        if not done <= value <= done + unknown:
            raise Violation(f"the counter is {value} after {done} increments, {unknown} unknown")

    def close(self) -> None:
        """Gives descriptors back."""
        for node in self.nodes.values():
            if node.member is not None:
                node.member.close()


@contextlib.contextmanager
def running(world: World) -> Iterator[World]:
    """Puts the world's clock and chance under pysyncobj, and frequent dumps."""
    replaced = {
        (library, "monotonicTime"): lambda: world.now,
        (library, "random"): world.rng,
        (consensus, "COMPACT_ENTRIES"): COMPACT_ENTRIES,
    }
    before = {place: getattr(*place) for place in replaced}
    for (module, name), value in replaced.items():
        setattr(module, name, value)
    try:
        yield world
    finally:
        world.close()
        for (module, name), value in before.items():
            setattr(module, name, value)
