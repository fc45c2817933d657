"""Programs between two sites: the mirror, and the operator who promotes what it has copied.

How it works. Both run the SDK's own code. A mirror that another one has taken over from ends, and
so does one whose topics are promoted; otherwise it is started again when it dies. The operator
repeats the call until it succeeds.

Not here: the sites (`two_sites.py`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from semel.client import connect_async
from semel.client.mirror.ending import MirrorEnd
from semel.client.mirror.topic_copy import MirrorWork
from semel.protos.errors import InvalidRequest, StaleGeneration
from tests.world.clients import AUDITS, TOPIC, ClientHost
from tests.world.nodes import CONTROLLER
from tests.world.world import World

NEAR: Final = CONTROLLER
FAR: Final = "c2:7070"
FAR_CLUSTER: Final = "standby"


class MirrorProgram(ClientHost):
    """Copies the topic of the near site to the far one."""

    stage: ClassVar[int] = AUDITS

    def __init__(self, world: World, name: str, settle_s: float) -> None:
        super().__init__(world, name)
        self._settle_s = settle_s

    async def work(self, client: Any) -> None:
        async with connect_async(
            FAR, request_timeout_ms=4_000, connect_timeout_ms=3_000, keep_routes=False
        ) as far:
            work = MirrorWork(
                client._session.cluster,
                far._session.cluster,
                [TOPIC],
                settle_s=self._settle_s,
                progress_s=0.5,
                once=False,
                note=lambda _: None,
            )
            try:
                await work.run()
            except StaleGeneration:
                self.world.count("mirror ended by another one")
                self.done = True
            except InvalidRequest as error:
                if "promoted" not in error.message:
                    raise
                self.world.count("mirror ended by a promotion")
                self.done = True

    async def wind_up(self) -> None:
        """Goes on: what is stored at the end is to be copied, too."""


class Promoter(ClientHost):
    """The operator of the far site, who promotes what is there."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.bootstrap = FAR
        self.nothing = False
        """Nothing could be promoted: no queue, or not each queue, is there whole."""
        self.ends: dict[int, int] = {}
        """Where each queue goes on, as far as the operator is told."""

    async def work(self, client: Any) -> None:
        end = MirrorEnd(client._session.cluster, [TOPIC])
        try:
            found = await end.promote(forget_producers=False)
        except InvalidRequest as error:
            never = "no mirrored topic" in error.message or "not copied whole" in error.message
            if not never:
                raise
            self.nothing = True
        else:
            self.world.count("promoted")
            (topic,) = found.topics
            self.ends = {queue.queue: queue.end for queue in topic.queues}
        self.done = True
