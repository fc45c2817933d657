"""The simulator's cluster, whose slaves also put a snapshot in place of their whole log.

How it works. As after damage that nobody repairs (`broker/…/repair.py`): the core says how much the
snapshot must cover and stops acknowledging; some time later a node that can be reached and has
applied as much gives a checkpoint of its state, or nobody does and the log stays.

Not here: the other faults (`cluster.py`), snapshots that a master offers (`node.py`).
"""

from __future__ import annotations

from semel.broker.raft import RaftCore, SnapshotMark
from tests.sim.cluster import Cluster
from tests.sim.disk import Checkpoint
from tests.sim.node import SimNode, Work


class Rebuilds(Cluster):
    """`Cluster(seed)` with one more fault."""

    def __init__(self, seed: int, *, core_class: type[RaftCore] = RaftCore) -> None:
        super().__init__(seed, core_class=core_class)
        self._actions.append(self._rebuild)
        self._weights.append(40)

    def _rebuild(self) -> None:
        ready = [node for node in self.nodes.values() if node.up and not node.paused]
        if not ready:
            return
        node = self.random.choice(ready)
        if node.node_id in self._pulling:
            return
        least = node.core.begin_rebuild()
        if least is None:
            return
        self.checker.seen["rebuild"] += 1
        self._pulling.add(node.node_id)
        node.later(Work.PULL, lambda: self._pulled(node, least))

    def _pulled(self, node: SimNode, least: int) -> None:
        self._pulling.discard(node.node_id)
        givers = [
            giver
            for giver in self.nodes.values()
            if giver is not node
            and giver.up
            and not giver.paused
            and giver.applied_index >= least
            and not {(node.node_id, giver.node_id), (giver.node_id, node.node_id)} & self._cut
        ]
        if not givers:
            node.core.on_snapshot_failed(self.now_ms)
            node.perform()
            return
        giver = self.random.choice(givers)
        index = giver.applied_index
        term = giver.disk.term_at(index)
        assert term is not None
        mark = SnapshotMark(index=index, term=term, membership=giver.applied_membership)
        self.checker.seen["rebuilt"] += 1
        node.install(Checkpoint(mark, giver.digest))


def run_rebuilds(seed: int, *, core_class: type[RaftCore] = RaftCore) -> Cluster:
    """One whole run. Raises AssertionError when anything is wrong."""
    cluster = Rebuilds(seed, core_class=core_class)
    cluster.run(4000)
    return cluster
