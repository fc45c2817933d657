"""Consumer groups that are made and deleted: once one is gone, nobody may know it any more.

How it works. A *curator* gives a group of a new name some progress, as an operator does, and
deletes it again. It is a client of its own, so it does that while the operator moves queues.

Not here: members of groups (`../clients.py`).
"""

from __future__ import annotations

from typing import Any

from semel.protos.errors import UnknownGroup
from tests.checking.raw_log import Fold
from tests.world.clients import TOPIC, ClientHost
from tests.world.plan import Plan, with_clients
from tests.world.registry import Part, add_part, program
from tests.world.run import Run


class Curator(ClientHost):
    """Makes and deletes one group after the other."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self.run = run
        self.number = 0
        self.present = ""
        """The group that is to be deleted next."""
        self.gone: set[str] = set()
        """Names of the groups whose deletion was confirmed."""

    async def work(self, client: Any) -> None:
        while self.present or not self.stopping:
            if not self.present:
                self.number += 1
                self.present = f"brief-{self.name}-{self.number}"
                await client.admin.reset_offsets(self.present, TOPIC, "earliest")
                await self.pause(0.03)
            try:
                await client.admin.delete_group(self.present)
            except UnknownGroup:
                self.world.count("group deleted before")
            else:
                self.world.count("group deleted")
            self.gone.add(self.present)
            self.present = ""
            await self.pause(0.03)
        self.done = True

    async def wind_up(self) -> None:
        """Deletes what it has made."""

    def verdict(self, fold: Fold) -> str:
        for host in self.run.hosts.values():
            replica = host.replica
            names = set() if replica is None else set(replica.state.groups.names())
            if found := sorted(names & self.gone):
                return f"{host.name} knows deleted groups: {found}"
        return ""


@program("curator", host="g")
def curator(run: Run, host: str) -> Curator:
    return Curator(run, host)


def with_groups(plan: Plan) -> Plan:
    return with_clients(plan, ("curator 1",))


add_part(
    Part(
        name="groups",
        help="consumer groups are made and deleted",
        add=with_groups,
    )
)
