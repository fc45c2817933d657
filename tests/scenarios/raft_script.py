"""Runs the text scenarios in `tests/scenarios/raft/`: commands, and what they must print.

How it works. A script is blocks, divided by blank lines: command lines, then `----`, then the
output of all of them. Real cores stand on simulated disks (`tests/sim`), and nothing happens by
itself: messages wait on their link until `deliver`, disks sync when `sync` says so (or at once,
after `disks auto`, the default). The checker of the simulator watches. Rewrite the expected
output, and then *read* it, with `python -m tests.scenarios.raft_script FILE…`.

Commands (A, B are node ids; `*` stands for all)

    group 1 2 3 [learners 4] [standby 5]   the nodes; logs are empty, nothing runs
    log A 1 1 2 [hard TERM]                A's log begins durably with entries of these terms
    start [A…]                             from disk (all nodes without a name)
    crash A                                what is not synced is lost
    wipe A                                 A lost its disk: it starts non-counting
    count A                                A's shell has found all that was committed again
    config FIELD VALUE                     before the nodes start
    disks auto|manual [A…]                 sync at once, or on `sync` only (all, or these)
    sync A [log|hard|notice]               one thing of that kind, or all that waits
    wait MS                                time goes by, without ticks
    tick A…                                tick these nodes now
    timeout A                              time goes by to A's election deadline, then A ticks;
                                           nobody beats meanwhile
    deliver A B [KIND] [again]             messages of the link, in order; `again` keeps them
    drop A B [KIND]                        they are lost
    settle [ticks N]                       deliver and sync all until quiet, after N rounds of beats
    cut A B… | oneway A B | heal           nothing passes between them; nothing from A to B
    pause A | resume A                     SIGSTOP and SIGCONT: what came meanwhile comes then
    propose A N                            N entries (default 1)
    change A add|promote|remove B          a change of membership
    transfer A B | unreachable A B | read A | stall A MS | electable A yes|no
    compact A INDEX                        checkpoint, and entries below INDEX go
    pull A | install A                     the snapshot that was offered to A: pulled; switched to
    status [A…]                            role, term, master, commit, synced, terms of the log
    progress A                             the peers as master A sees them
    pending                                messages that wait, in short
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

from semel.broker.raft import (
    EntryMeta,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftConfig,
    RaftCore,
    Role,
)
from semel.broker.raft.membership_history import add_learner, promote, remove
from semel.protos.errors import SemelError
from semel.protos.ids import NodeId
from tests.sim.checker import Checker
from tests.sim.disk import SimDisk, SimEntry
from tests.sim.node import ENTRY_BYTES, SimNode, Work

Link = tuple[NodeId, NodeId]
Packet = tuple[bytes, Message, tuple[int, ...]]

_DISK = {"hard": Work.HARD_STATE, "log": Work.FLUSH, "notice": Work.NOTICE}


class Script:
    """One script's world; commands are its methods named `do_…`, which return their output."""

    def __init__(
        self, core_class: type[RaftCore] = RaftCore, *, trust_completions: bool = False
    ) -> None:
        self.checker = Checker()
        self.random = Random(0)
        self.config = RaftConfig(append_bytes_max=4 * ENTRY_BYTES, promote_lag_max=3)
        self.core_class = core_class
        self.now_ms = 0
        self.nodes: dict[NodeId, SimNode] = {}
        self.disks: dict[NodeId, SimDisk] = {}
        self._links: dict[Link, deque[Packet]] = {}
        self._waiting: dict[tuple[NodeId, Work], deque[Callable[[], None]]] = {}
        self._cut: set[Link] = set()
        self._manual: set[NodeId] = set()
        self._trust_completions = trust_completions
        self._payload = 0
        self._offers: dict[NodeId, Message] = {}
        self._contexts = 0

    # --- the world of the nodes

    def schedule(self, node: SimNode, what: Work, action: Callable[[], None]) -> None:
        if what is not Work.TICK:
            self._waiting.setdefault((node.node_id, what), deque()).append(action)

    def transmit(self, data: bytes, message: Message, payloads: tuple[int, ...]) -> None:
        link = (message.source, message.target)
        if link not in self._cut:
            self._links.setdefault(link, deque()).append((data, message, payloads))

    def pull_snapshot(self, puller: SimNode, offer: Message) -> None:
        self._offers[puller.node_id] = offer

    def _do_disks(self) -> bool:
        """All that waits for disks that sync by themselves happens; true when something did."""
        worked = False
        again = True
        while again:
            again = False
            for (node, what), actions in list(self._waiting.items()):
                while what in _DISK.values() and node not in self._manual and actions:
                    actions.popleft()()
                    worked = again = True
        return worked

    # --- running scripts

    def run(self, text: str) -> str:
        """The script with the output that it really has."""
        blocks = []
        for block in text.strip("\n").split("\n\n"):
            commands, divider, _ = block.partition("\n----")
            if not divider:
                blocks.append(block)  # a comment, or commands that print nothing
            output = [line for command in commands.splitlines() for line in self._execute(command)]
            if divider:
                blocks.append("\n".join([commands, "----", *output]))
            elif output:
                blocks[-1] = "\n".join([commands, "----", *output])
        return "\n\n".join(blocks) + "\n"

    def _execute(self, command: str) -> list[str]:
        words = command.partition("#")[0].split()
        if not words:
            return []
        method: Callable[..., list[str]] = getattr(self, f"do_{words[0]}")
        try:
            output = method(*words[1:])
        except SemelError as error:
            output = [f"{type(error).__name__}: {error.message}"]
        except Exception as error:
            error.add_note(f"in: {command}")
            raise
        self._do_disks()
        return output

    def _some(self, names: tuple[str, ...]) -> list[SimNode]:
        if not names or names == ("*",):
            return list(self.nodes.values())
        return [self.nodes[NodeId(int(name))] for name in names]

    def _node(self, name: str) -> SimNode:
        return self.nodes[NodeId(int(name))]

    # --- commands

    def do_group(self, *words: str) -> list[str]:
        members: dict[str, list[NodeId]] = {"voters": [], "learners": [], "standby": []}
        kind = "voters"
        for word in words:
            if word in members:
                kind = word
            else:
                members[kind].append(NodeId(int(word)))
        founding = Membership(
            voters=frozenset(members["voters"]), learners=frozenset(members["learners"])
        )
        for node_id in sorted(chain(*members.values())):
            self.disks[node_id] = SimDisk(founding, trust_completions=self._trust_completions)
            self.nodes[node_id] = SimNode(self, node_id, self.disks[node_id])
        return []

    def do_log(self, name: str, *words: str) -> list[str]:
        node = self._node(name)
        terms = [int(word) for word in words if word != "hard"]
        hard = terms.pop() if "hard" in words else max(terms, default=0)
        entries = tuple(
            SimEntry(EntryMeta(index=index, term=term, size=ENTRY_BYTES), 100 * term + index)
            for index, term in enumerate(terms, 1)
        )
        node.disk.durable.entries.extend(entries)
        node.disk.hard_state = HardState(term=hard)
        self.checker.on_append(entries, 0)
        return []

    def do_start(self, *names: str) -> list[str]:
        for node in self._some(names):
            node.start()
        return []

    def do_crash(self, name: str) -> list[str]:
        node = self._node(name)
        node.disk.waiting.clear()
        node.disk.waiting_hard_states.clear()
        node.crash()
        return []

    def do_config(self, field: str, value: str) -> list[str]:
        self.config = replace(self.config, **{field: int(value)})
        return []

    def do_disks(self, how: str, *names: str) -> list[str]:
        nodes = {node.node_id for node in self._some(names)}
        self._manual = {"auto": self._manual - nodes, "manual": self._manual | nodes}[how]
        return []

    def do_sync(self, name: str, kind: str | None = None) -> list[str]:
        node_id = NodeId(int(name))
        if kind is None:
            works = [self._waiting.get((node_id, what), deque()) for what in _DISK.values()]
            while any(works):
                for actions in works:
                    if actions:
                        actions.popleft()()
                works = [self._waiting.get((node_id, what), deque()) for what in _DISK.values()]
        else:
            self._waiting[node_id, _DISK[kind]].popleft()()
        return []

    def do_wait(self, ms: str) -> list[str]:
        self.now_ms += int(ms)
        return []

    def do_tick(self, *names: str) -> list[str]:
        for node in self._some(names):
            if node.up and not node.paused:
                node.core.tick(self.now_ms)
                node.perform()
        return []

    def do_timeout(self, name: str) -> list[str]:
        """In steps, so that nobody takes the wait for a stopped process."""
        node = self._node(name)
        while self.now_ms < node.core._election_deadline_ms:
            self.now_ms = min(self.now_ms + 100, node.core._election_deadline_ms)
            for other in self.nodes.values():
                if other.up and not other.paused:
                    other.core._observe(self.now_ms)
        return self.do_tick(name)

    def do_deliver(self, source: str, target: str, *words: str) -> list[str]:
        return self._packets(source, target, words, deliver=True)

    def do_drop(self, source: str, target: str, *words: str) -> list[str]:
        return self._packets(source, target, words, deliver=False)

    def _packets(
        self, source: str, target: str, words: tuple[str, ...], *, deliver: bool
    ) -> list[str]:
        kinds = {MessageKind[word] for word in words if word != "again"}
        output = []
        for a in self._some((source,)):
            for b in self._some((target,)):
                link = (a.node_id, b.node_id)
                waiting = self._links.pop(link, deque())
                keep = deque(p for p in waiting if kinds and p[1].kind not in kinds)
                if "again" in words:
                    keep = deque(waiting)
                self._links[link] = keep
                for packet in waiting:
                    if kinds and packet[1].kind not in kinds:
                        continue
                    output.append(("" if deliver else "lost: ") + describe(packet[1]))
                    if deliver:
                        self._hand_over(packet)
        return output

    def _hand_over(self, packet: Packet) -> None:
        data, message, payloads = packet
        target = self.nodes[message.target]
        target.receive(data, message.entries, payloads)
        self._do_disks()

    def do_settle(self, *words: str) -> list[str]:
        rounds = int(words[1]) if words else 0
        self._deliver_all()
        for _ in range(rounds):
            self.now_ms += self.config.heartbeat_ms
            self.do_tick()
            self._deliver_all()
        return []

    def _deliver_all(self) -> None:
        again = True
        while again:
            again = self._do_disks()
            for link in sorted(self._links):
                while self._links[link]:
                    self._hand_over(self._links[link].popleft())
                    again = True

    def do_cut(self, name: str, *others: str) -> list[str]:
        node_id = NodeId(int(name))
        for other in self._some(others):
            if other.node_id != node_id:
                self._cut |= {(node_id, other.node_id), (other.node_id, node_id)}
        return []

    def do_oneway(self, source: str, target: str) -> list[str]:
        self._cut.add((NodeId(int(source)), NodeId(int(target))))
        return []

    def do_pause(self, name: str) -> list[str]:
        self._node(name).pause()
        return []

    def do_resume(self, name: str) -> list[str]:
        self._node(name).resume()
        return []

    def do_heal(self) -> list[str]:
        self._cut.clear()
        return []

    def do_propose(self, name: str, times: str = "1") -> list[str]:
        node = self._node(name)
        node.core.next_index()
        for _ in range(int(times)):
            self._payload += 1
            node.propose(self._payload)
        return []

    def do_change(self, name: str, how: str, who: str) -> list[str]:
        node = self._node(name)
        step = {"add": add_learner, "promote": promote, "remove": remove}[how]
        membership = step(node.core.membership, NodeId(int(who)))
        node.core.propose_membership_allowed(membership)
        self._payload += 1
        node.propose(self._payload, membership)
        return []

    def do_transfer(self, name: str, target: str) -> list[str]:
        node = self._node(name)
        node.core.transfer_mastership(NodeId(int(target)), self.now_ms)
        node.perform()
        return []

    def do_unreachable(self, name: str, peer: str) -> list[str]:
        node = self._node(name)
        node.core.on_peer_unreachable(NodeId(int(peer)), self.now_ms)
        node.perform()
        return []

    def do_read(self, name: str) -> list[str]:
        node = self._node(name)
        self._contexts += 1
        self.checker.on_read_asked(self._contexts)
        node.core.read_index(self._contexts, self.now_ms)
        node.perform()
        return []

    def do_reads(self) -> list[str]:
        seen = self.checker.seen
        return [f"served {seen['read']}, failed {seen['read failed']}"]

    def do_stall(self, name: str, ms: str) -> list[str]:
        node = self._node(name)
        node.core.on_log_stalled(int(ms))
        node.perform()
        return []

    def do_wipe(self, name: str) -> list[str]:
        node = self._node(name)
        assert not node.up
        founding, lost = node.disk.checkpoint.mark.membership, node.disk.durable
        self.disks[node.node_id] = SimDisk(founding, trust_completions=self._trust_completions)
        self.nodes[node.node_id] = SimNode(self, node.node_id, self.disks[node.node_id])
        self.checker.on_disk_lost(node.node_id, lost)
        self.do_start(name)
        self._node(name).core.set_non_counting(True)
        return []

    def do_count(self, name: str) -> list[str]:
        self._node(name).core.set_non_counting(False)
        return []

    def do_electable(self, name: str, word: str) -> list[str]:
        self._node(name).core.set_electable({"yes": True, "no": False}[word])
        return []

    def do_compact(self, name: str, index: str) -> list[str]:
        return [] if self._node(name).compact(int(index)) else ["refused"]

    def do_pull(self, name: str) -> list[str]:
        node = self._node(name)
        offer = self._offers.pop(node.node_id)
        checkpoint = self.disks[offer.source].checkpoint
        node.snapshot_pulled(checkpoint)
        return [f"snapshot {checkpoint.mark.index}, term {checkpoint.mark.term}"]

    def do_install(self, name: str) -> list[str]:
        self._waiting[NodeId(int(name)), Work.INSTALL].popleft()()
        return []

    def do_status(self, *names: str) -> list[str]:
        return [self._describe_node(node) for node in self._some(names)]

    def _describe_node(self, node: SimNode) -> str:
        if not node.up:
            return f"{node.node_id} down"
        core, view = node.core, node.disk.view
        terms = " ".join(str(entry.meta.term) for entry in view.entries)
        log = f"{view.first_index}: {terms}" if terms else f"{view.first_index}: empty"
        return (
            f"{node.node_id} {core.role.name.lower()} term={core.term} "
            f"master={core.master_id or '-'} commit={core.commit_index} "
            f"synced={core.synced_index} log {log}"
        )

    def do_progress(self, name: str) -> list[str]:
        node = self._node(name)
        assert node.core.role is Role.MASTER
        return [
            f"{peer} {seen.state} match={seen.match_index} next={seen.next_index} "
            f"inflight={seen.inflight_bytes}{'' if seen.counts else ' non-counting'}"
            for peer, seen in sorted(node.core.status().progress.items())
        ]

    def do_members(self, *names: str) -> list[str]:
        return [
            f"{node.node_id} voters {sorted(node.core.membership.voters)} "
            f"learners {sorted(node.core.membership.learners)}"
            for node in self._some(names)
            if node.up
        ]

    def do_pending(self) -> list[str]:
        return [
            describe(message) for _, link in sorted(self._links.items()) for _, message, _ in link
        ]


def describe(message: Message) -> str:
    """One line with what counts in a message."""
    parts = [f"{message.source}->{message.target} {message.kind.name} term={message.term}"]
    if message.log_index or message.log_term:
        term = f"/{message.log_term}" if message.log_term else ""
        parts.append(f"at={message.log_index}{term}")
    if message.entries:
        terms = " ".join(str(entry.term) for entry in message.entries)
        parts.append(f"entries={message.entries[0].index}: {terms}")
    if message.kind in (MessageKind.APPEND, MessageKind.HEARTBEAT):
        parts.append(f"commit={message.commit_index}")
    if message.rejected:
        parts.append("rejected")
    if message.hint_index or message.hint_term:
        parts.append(f"hint={message.hint_index}/{message.hint_term}")
    if message.snapshot is not None:
        parts.append(f"snapshot={message.snapshot.index}/{message.snapshot.term}")
    if message.force:
        parts.append("force")
    if message.non_counting:
        parts.append("non-counting")
    return " ".join(parts)


def main(paths: list[str]) -> int:
    for path in map(Path, paths):
        path.write_text(Script().run(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
