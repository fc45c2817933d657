"""The rule for moving the mastership of a broker group to the preferred rack.

How it works. A group whose master is elsewhere gets a master in the preferred rack as soon as a
node there has been fit for `settled_ms` without a break. A fit node is a slave that reports, is
caught up, has room and has no damage. Every change of a group's term starts that time again, so
that an election, a drained node or a transfer that did not last is followed by a pause and not by
the next transfer.

Invariants
1. At most one transfer of a group in `settled_ms`.
2. A master in the preferred rack is never moved.

Not here: asking the broker (`calls.py`), which hands over only to a slave that has the whole log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from semel.protos.v1.controller_pb2 import GroupStatus, NodeStatus

SLAVE: Final = "slave"
CLOSE_ENTRIES: Final = 512
"""A slave counts as caught up when it is at most this far behind the commit index, because the
reports are from different moments."""


class MasterPreference:
    """Decides for all groups. Times are milliseconds of one monotonic clock."""

    def __init__(self, rack: str, *, settled_ms: int) -> None:
        """`rack` is the preferred one; empty prefers none."""
        self._rack = rack
        self._settled_ms = settled_ms
        self._terms: dict[int, int] = {}
        self._fit_since_ms: dict[tuple[int, int], int] = {}
        """By group and node."""

    def on_status(self, groups: Iterable[GroupStatus], now_ms: int) -> list[tuple[int, int]]:
        """The groups to move now, each with its new master."""
        moves = []
        for group in groups if self._rack else ():
            if self._terms.get(group.group_id) != group.term:
                self._terms[group.group_id] = group.term
                self._forget(group)
            ready = [node for node in group.nodes if self._ready(group, node, now_ms)]
            masters = [node for node in group.nodes if node.node_id == group.master_id]
            away = [node for node in masters if node.alive and node.rack != self._rack]
            if ready and away:
                best = max(ready, key=lambda node: (node.log_end_index, -node.node_id))
                moves.append((group.group_id, best.node_id))
                self._forget(group)
        return moves

    def _ready(self, group: GroupStatus, node: NodeStatus, now_ms: int) -> bool:
        key = (group.group_id, node.node_id)
        if not self._fit(group, node):
            self._fit_since_ms.pop(key, None)
            return False
        return now_ms - self._fit_since_ms.setdefault(key, now_ms) >= self._settled_ms

    def _fit(self, group: GroupStatus, node: NodeStatus) -> bool:
        return (
            node.rack == self._rack
            and node.alive
            and node.role == SLAVE
            and node.log_end_index + CLOSE_ENTRIES >= group.commit_index
            and not (node.damaged or node.lost or node.disk_full)
        )

    def _forget(self, group: GroupStatus) -> None:
        for node in group.nodes:
            self._fit_since_ms.pop((group.group_id, node.node_id), None)
