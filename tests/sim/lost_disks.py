"""The simulator's cluster, whose nodes also lose their disks, one at a time.

How it works. A founding voter crashes and comes back with an empty disk: non-counting, as its shell
has it. The shell's part is played here as `membership/status.py` and `membership/changes.py` do it:
whoever believes to be master, and does not count the node, writes an entry; once that is committed,
and applied on the node, the node counts again. Everything else but changes of membership goes on:
partitions, crashes, pauses, and late messages of before the loss.

The checker knows what was lost: an entry that the node had on its disk when it acknowledged it was
durable then.

Not here: the other faults (`cluster.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.broker.raft import RaftCore, Role
from semel.protos.ids import NodeId
from tests.sim.cluster import Cluster
from tests.sim.disk import SimDisk
from tests.sim.node import SimNode

LOOK_MS: Final = 40.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """An entry with which the node may count again, once it is committed."""

    master: SimNode
    incarnation: int
    index: int
    term: int


class ForgetfulNode(SimNode):
    """A node that remembers, over crashes, that it has forgotten."""

    began_empty = False

    def start(self) -> None:
        super().start()
        self.core.set_non_counting(self.began_empty)


class LostDisks(Cluster):
    """`Cluster(seed)` with one more fault."""

    def __init__(self, seed: int, *, core_class: type[RaftCore] = RaftCore) -> None:
        super().__init__(seed, core_class=core_class)
        # Of a group that has shrunk to two voters the loss of one disk is the loss of a majority.
        self._weights[self._actions.index(self._change_membership)] = 0
        self._actions.append(self._lose_disk)
        self._weights.append(25)
        self._founding = self.nodes[NodeId(1)].disk.checkpoint.mark.membership
        for node_id, node in self.nodes.items():
            self.nodes[node_id] = ForgetfulNode(self, node_id, node.disk)
        self._empty: ForgetfulNode | None = None
        self._offers: list[_Offer] = []
        self._admitted: int | None = None
        self.later(LOOK_MS, self._look)

    def _lose_disk(self) -> None:
        voters = sorted(self._founding.voters)
        if self._empty is not None or len(voters) < 3:
            return
        node = self.nodes[self.random.choice(voters)]
        assert isinstance(node, ForgetfulNode)
        if node.up:
            node.crash()
            self._pulling.discard(node.node_id)
        self.checker.on_disk_lost(node.node_id, node.disk.durable.copy())
        node.disk = self.disks[node.node_id] = SimDisk(self._founding)
        node.began_empty = True
        self._empty, self._offers, self._admitted = node, [], None
        self.later(self.random.choice((1, 20, 200)), lambda: self._restart(node))

    def _look(self) -> None:
        self.later(LOOK_MS, self._look)
        node = self._empty
        if node is None or not node.up or node.paused:
            return
        if self._admitted is None:
            self._ask(node)
        elif node.applied_index >= self._admitted and node.core.master_id is not None:
            node.began_empty = False
            node.core.set_non_counting(False)
            self._empty = None
            self.checker.seen["readmission"] += 1

    def _ask(self, node: ForgetfulNode) -> None:
        for offer in self._offers:
            master = offer.master
            if (
                master.up
                and master.incarnation == offer.incarnation
                and master.core.commit_index >= offer.index
                and master.disk.term_at(offer.index) == offer.term
            ):
                self._admitted = offer.index
                return
        for master in self.nodes.values():
            if not master.up or master.paused or master.core.role is not Role.MASTER:
                continue
            links = {(master.node_id, node.node_id), (node.node_id, master.node_id)}
            progress = master.core.progress.get(node.node_id)
            if links & self._cut or progress is None or progress.counts:
                continue
            index = master.propose(next(self._payloads))
            if index is not None:
                self._offers.append(_Offer(master, master.incarnation, index, master.core.term))


def run_lost_disks(seed: int, *, core_class: type[RaftCore] = RaftCore) -> Cluster:
    """One whole run. Raises AssertionError when anything is wrong."""
    cluster = LostDisks(seed, core_class=core_class)
    cluster.run(4000)
    return cluster
