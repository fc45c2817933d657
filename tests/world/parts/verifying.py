"""The topic is verified when all programs have ended, as `semel verify` does it.

Verification shares no rule with what stored the messages: it reads batches, and recomputes the
table of sequences. So in a world that the checker finds good it must find nothing either, wherever
queues were split, moved or cancelled in before.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from semel.client import connect_async
from semel.protos.errors import SemelError
from semel.protos.security.identity import ADMIN, Identity
from tests.checking.raw_log import Fold
from tests.world.clients import AUDITS, TOPIC, ClientHost
from tests.world.identities import security
from tests.world.plan import Plan, with_clients
from tests.world.registry import Part, add_part, program
from tests.world.run import Run

_TRIES: Final = 60
"""A node may be down or under repair for a while when all programs have ended."""


class Verifier(ClientHost):
    """Verifies until nothing is wrong, or it is enough."""

    stage: ClassVar[int] = AUDITS
    _wrong = ""

    async def work(self, client: Any) -> None:
        while not (self.stopping and self.quiet()):
            await asyncio.sleep(0.1)
        if self.security is None:
            await self._verify(client)
            return
        operator = Identity(ADMIN, self.name, self.security.cluster)
        async with connect_async(
            self.bootstrap, keep_routes=False, security=security(operator)
        ) as own:
            await self._verify(own)

    async def _verify(self, client: Any) -> None:
        for _ in range(_TRIES):
            try:
                found = await client.admin.verify(TOPIC, timeout=3.0)
            except SemelError as error:
                self._wrong = error.message
            else:
                self._wrong = "" if found.ok else f"verification: {found}"
            if not self._wrong:
                self.world.count("topic verified")
                break
            await asyncio.sleep(0.2)
        self.done = True

    async def wind_up(self) -> None:
        """Goes on: it begins when the others have ended."""

    def verdict(self, fold: Fold) -> str:
        return self._wrong


@program("verifier", host="vf")
def _verifier(run: Run, host: str) -> Verifier:
    return Verifier(run.world, host)


def with_verifier(plan: Plan) -> Plan:
    return with_clients(plan, ("verifier 1",))


add_part(Part(name="verifying", help="the topic is verified at the end", add=with_verifier))
