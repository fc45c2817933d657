"""The feature level of the log: the newest rules that every member of the group knows.

How it works. The level is an entry of the log and rises only, for good. A master raises it once
every member's program is known to support the new one. A log that holds nothing yet begins at the
newest level that all members heard so far know, as its first entry.

Invariants
1. A level is proposed only if this node and every member that was heard know it. `raise_to` needs
   all members to be heard; the first level of an empty log does not, and a member with an older
   program is refused when it connects.
2. While a level rises, `told` names no level of the log, because other nodes may not have applied
   the rise yet.

Not here: what each level allows (`protos/levels.py`), refusing an older peer
(`replication/receiver.py`, `replication/sender.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from semel.broker.config import BrokerConfig
from semel.broker.replica.peers import Peers
from semel.broker.replica.proposer import Proposer
from semel.broker.state import ApplyResult, State
from semel.protos.errors import SemelError, Unavailable
from semel.protos.levels import check_member, lacking, own_levels
from semel.protos.v1.common_pb2 import Levels
from semel.protos.v1.control_pb2 import ControlRecord, FeatureLevel

logger = logging.getLogger(__name__)


class LevelReplica(Protocol):
    """The replica, as this module needs it."""

    config: BrokerConfig
    state: State
    peers: Peers

    @property
    def is_master(self) -> bool: ...

    async def wait_master(self) -> None: ...

    async def submit_control(self, record: ControlRecord) -> ApplyResult: ...


class FeatureLevels:
    """The log's feature level, and raising it."""

    def __init__(self, replica: LevelReplica) -> None:
        self._replica = replica
        self._proposed: list[int] = []
        """The levels to which this master has proposed to raise the log, one of each call that was
        not refused. Each mastership has a list of its own."""
        self._raising: asyncio.Future[ApplyResult] | None = None
        """Done once a log that began here has its first level."""
        self.applied = replica.state.feature_level
        """The level that `on_applied` saw last."""
        self.on_raised: Callable[[], None] = lambda: None

    @property
    def needed(self) -> int:
        """The feature level that every member must know: the log's, or the one that it rises to."""
        replica = self._replica
        return max(replica.state.feature_level, *(self._proposed if replica.is_master else ()), 0)

    def told(self) -> Levels:
        """The levels that this node names to its clients and peers.

        Only a node that serves as master names the level of the log: any other may not know the
        newest one yet. While the level rises, the master does not name it either.
        """
        replica = self._replica
        active = replica.state.feature_level
        known = replica.is_master and active == self.needed
        return own_levels(replica.config.level_max, max(1, active) if known else 0)

    async def require(self, level: int) -> None:
        """Raises UnsupportedVersion while the group's log is below `level`; and NotMaster."""
        replica = self._replica
        await replica.wait_master()
        if self._raising is not None and replica.state.feature_level < level:
            await asyncio.wait({self._raising})
        if replica.state.feature_level < level:
            group = f"broker group {replica.config.group_id}"
            raise lacking(level, replica.state.feature_level, group)

    async def raise_to(self, level: int, *, dry_run: bool = False) -> None:
        """Raises the level of the log for good, if every member's program knows it.

        Does nothing if the log has that level already. A call that is cancelled may still raise it.
        Raises NotMaster, UnsupportedVersion if a member (or this node) does not know the level,
        Unavailable while a member is not connected, and DiskFull or Throttled: then nothing rises.
        """
        replica = self._replica
        await replica.wait_master()
        if replica.state.feature_level >= level:
            return
        for node in replica.peers.addresses:
            link = replica.peers.links.get(node)
            if node == replica.config.node_id:
                told: Levels | None = self.told()
            else:
                told = None if link is None else link.levels
            if told is None:
                raise Unavailable(
                    f"node {node} is not connected, and feature level {level} needs every member:"
                    " start it, or replace it (semel node replace)"
                )
            check_member(f"node {node}", told, level)
        if dry_run:
            return
        proposed = self._proposed
        proposed.append(level)
        try:
            await replica.submit_control(ControlRecord(feature_level=FeatureLevel(level=level)))
        except SemelError:
            proposed.remove(level)  # refused; or its mastership is over, and the list with it
            raise

    def begin(self, proposer: Proposer) -> bool:
        """A mastership begins; True if the log is empty and `proposer` holds its first level."""
        self._proposed = []
        self._raising = None
        replica = self._replica
        if replica.state.feature_level or replica.state.queues:
            return False
        links = replica.peers.links.values()
        heard = [link.levels for link in links if link.levels is not None]
        level = min([replica.config.level_max, *(levels.max for levels in heard)])
        if not level:
            return False
        proposed = self._proposed
        proposed.append(level)

        def on_done(done: asyncio.Future[ApplyResult]) -> None:
            if done.exception() is not None:
                proposed.remove(level)

        record = ControlRecord(feature_level=FeatureLevel(level=level))
        self._raising = proposer.submit_control(record)
        self._raising.add_done_callback(on_done)
        return True

    def on_applied(self) -> None:
        """The state has another level than `applied`."""
        self.applied = self._replica.state.feature_level
        logger.info("feature level of the log is %d", self.applied)
        began, self._raising = self._raising, None
        if began is None:  # else nobody was told a level before
            self.on_raised()
