"""The program that makes the topic of a world before all others begin.

Not here: topics that programs make for themselves (`parts/`).
"""

from __future__ import annotations

from typing import Any, Final

from tests.world.clients import TOPIC, ClientHost
from tests.world.plan import Plan
from tests.world.world import World

DUE_IN_SECOND_MAX: Final = 4
"""Messages that may be due in one second in worlds with limits."""


class Creator(ClientHost):
    """Makes the topic, and says who may do what."""

    def __init__(
        self,
        world: World,
        name: str,
        plan: Plan,
        groups: range | None,
        rules: tuple[str, ...],
    ) -> None:
        """`groups` are the topic's broker groups; None for those that the controllers choose."""
        super().__init__(world, name)
        self._plan = plan
        self._groups = groups
        self._rules = rules

    async def work(self, client: Any) -> None:
        plan = self._plan
        await client.admin.create_topic(
            TOPIC,
            queues=plan.queues,
            groups=self._groups,
            retention_bytes=plan.retention_bytes or None,
            delay_per_second_max=_limit(plan),
            if_not_exists=True,
        )
        if self._rules:
            await client.admin.change_access_rules(add=self._rules)
        self.done = True


def _limit(plan: Plan) -> int | None:
    """What may be due in one second; older programs, which are to be upgraded, know no limit."""
    limited = "limits" in plan.parts and "upgrades" not in plan.parts
    return DUE_IN_SECOND_MAX if limited else None
