"""One broker group of a world: its machines, and what is known of it as a whole.

Not here: a machine (`nodes.py`), what must hold of the group (`invariants.py`), who begins it
(`run.py`).
"""

from __future__ import annotations

from semel.broker.raft import Role
from semel.broker.replica.replica import Replica
from semel.protos.ids import GroupId, NodeId
from tests.checking.moves import Journeys
from tests.world.consumption import Told
from tests.world.invariants import Invariants
from tests.world.nodes import BrokerHost
from tests.world.world import World


class BrokerGroup:
    """Nodes have numbers of their own over all groups."""

    def __init__(self, world: World, group_id: GroupId, founders: range) -> None:
        self.world = world
        self.group_id = group_id
        self.founders = founders
        self.hosts: dict[NodeId, BrokerHost] = {}
        """All nodes that ever belonged to it, or wait to be added."""
        self.invariants: Invariants

    def begin(self, told: Told, journeys: Journeys) -> None:
        """All founders are there, and none has started."""
        self.invariants = Invariants(self.world, self.hosts, self.group_id, told, journeys)

    def members(self) -> list[BrokerHost]:
        """The voters, by the newest committed membership."""
        return [self.hosts[number] for number in sorted(self.invariants.voters)]

    def master(self) -> BrokerHost | None:
        """A node that takes itself for the master and has not left the group."""
        for host in self.hosts.values():
            replica = host.replica
            if not host.retired and replica is not None and replica.core.role is Role.MASTER:
                return host
        return None

    def judge(self) -> Replica | None:
        """The master's replica, which has applied all that is committed; None while there is none.

        A master that was stopped or cut off may still take itself for the master: it knows only the
        past.
        """
        for host in self.hosts.values():
            replica = host.replica
            if (
                replica is not None
                and replica.is_master
                and replica.state.applied_index == self.invariants.newest
            ):
                return replica
        return None
