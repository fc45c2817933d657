"""Everything one controller does and remembers while it is in office.

How it works. `Duty.begin` takes office, reads the whole store and builds the parts that answer
calls; `run` goes on until the office is over. What it holds is of that office only: the next one,
of this controller or of another, begins with what is stored. Calls run inside `call()`, so that
the end of the office ends them too.

Invariants
1. After `end` nothing is answered, and nothing is written to the store, under this office.
2. `end` is synchronous: who calls it can be sure of 1 before anything else runs.

Not here: when an office begins and ends (`succession.py`), who may write (`epoch.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from semel.controller.brokers.calls import BrokerCaller
from semel.controller.brokers.changes import Changes
from semel.controller.brokers.preference import MasterPreference
from semel.controller.brokers.registry import BrokerRegistry
from semel.controller.brokers.routes import RouteTable
from semel.controller.config import ControllerConfig
from semel.controller.epoch import Office, unbroken
from semel.controller.groups.memberships import MembershipService
from semel.controller.moves.moves import MoveService
from semel.controller.producers import ProducerService
from semel.controller.store import MetadataStore
from semel.controller.topics.topics import TopicService
from semel.protos import compat
from semel.protos.errors import NotMaster, SemelError, Unavailable
from semel.protos.levels import check_member, own_levels
from semel.protos.rpc import client_interceptors
from semel.protos.v1.controller_pb2 import ControllerStatus

log = logging.getLogger(__name__)

RECONCILE_S: Final = 5.0
"""How often unfinished topics without a driver are looked for; there should be none."""
PREFER_S: Final = 1.0
"""How often is looked for masters that could be in the preferred rack."""
CONTROLLERS_S: Final = 1.0
"""How often the routes learn which controllers there are."""

Controllers = Callable[[], Awaitable[list[ControllerStatus]]]
"""All controllers of the group, as they are now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clocks of one controller."""

    sessions_ms: Callable[[], int]
    """Monotonic: sessions and reports."""
    loop_ms: Callable[[], int]
    """Monotonic: whether this process itself stood still."""
    wall_us: Callable[[], int]
    """What people read."""


class Duty:
    """The parts of one office; `async with await Duty.begin(…) as duty`."""

    def __init__(
        self,
        office: Office,
        config: ControllerConfig,
        clocks: Clocks,
        controllers: Controllers,
    ) -> None:
        self.office = office
        self.changes = Changes()
        self.routes = RouteTable(office.cluster_id, office.number, self.changes.notify)
        self.memberships = MembershipService(
            office, self.routes, clock=clocks.sessions_ms, loop_clock=clocks.loop_ms
        )
        self.registry = BrokerRegistry(
            office,
            self.routes,
            report_timeout_ms=config.node_timeout_ms,
            clock=clocks.sessions_ms,
            clock_us=clocks.wall_us,
            placed=lambda: self.topics.placed(),
            on_new_master=self._on_new_master,
        )
        self._brokers = BrokerCaller(
            cluster_id=office.cluster_id,
            office=office.number,
            addresses=self.registry.addresses,
            timeout_s=config.broker_call_timeout_ms / 1000,
            interceptors=client_interceptors(),
            level_max=config.level_max,
        )
        self.topics = TopicService(
            office,
            self.routes,
            self.registry,
            self._brokers,
            clock_us=clocks.wall_us,
            on_change=self.memberships.on_topic_changed,
            moving=lambda topic_id, queue_id: self.moves.moving(topic_id, queue_id),
        )
        self.moves = MoveService(
            office, self.topics, self.registry, self._brokers, clock_us=clocks.wall_us
        )
        self.producers = ProducerService(office, clock_us=clocks.wall_us)
        self._preference = MasterPreference(
            config.preferred_rack, settled_ms=config.preferred_after_ms
        )
        self._clock = clocks.sessions_ms
        self._controllers = controllers
        self._calls: set[asyncio.Task[object]] = set()
        self._ended: SemelError | None = None

    @classmethod
    async def begin(
        cls,
        store: MetadataStore,
        config: ControllerConfig,
        clocks: Clocks,
        controllers: Controllers,
    ) -> Duty:
        """Takes office and reads everything.

        Raises DataDirectoryError (another cluster's store, a damaged record) and Unavailable.
        """
        office = await Office.take(
            store,
            now_us=clocks.wall_us(),
            cluster_id=config.cluster_id,
            level_max=config.level_max,
        )
        duty = cls(office, config, clocks, controllers)
        await duty.registry.load()
        await duty.topics.load()
        await duty.moves.load()
        await duty.memberships.load()
        await duty._learn_controllers()
        return duty

    async def __aenter__(self) -> Duty:
        self.topics.start()
        self.moves.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(NotMaster("this controller is not in office any more"))
        await self.moves.stop()
        await self.topics.stop()
        await self._brokers.close()

    async def run(self) -> None:
        """What goes on all the time. Raises Unavailable once another controller has taken over."""
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self.memberships.run())
            tasks.create_task(self._reconcile())
            tasks.create_task(self._follow_controllers())
            tasks.create_task(self._prefer())
            tasks.create_task(_raise(self.office.wait_over()))

    @property
    def ended(self) -> bool:
        """The office is over: nothing may be answered any more."""
        return self.office.over

    async def raise_level(self, level: int, *, dry_run: bool) -> int:
        """Raises the feature level of the metadata, once every controller knows it and every broker
        group has it; the level as it is then. With `dry_run` changes nothing, and asks the
        controllers only.

        Raises UnsupportedVersion, Unavailable when a controller does not answer.
        """
        if self.office.level >= level:
            return self.office.level
        check_member("this controller", own_levels(self.office.level_max), level)
        for one in await self._controllers():
            told = await self._brokers.controller_levels(one.address)
            check_member(f"controller {one.controller_id} at {one.address}", told, level)
        if not dry_run:
            for group_id in self.registry.group_ids():
                active = self.registry.level(group_id)
                if active is None or active < level:
                    raise Unavailable(
                        f"broker group {group_id} has not reported feature level {level} yet: raise"
                        " it first, then ask again"
                    )
            await unbroken(self.office.raise_level(level))
        return self.office.level

    def end(self, reason: NotMaster) -> None:
        """Ends the office at once; watches end with `reason`, calls with Unavailable."""
        if self._ended is not None:
            return
        self._ended = reason
        self.office.end()
        self.changes.close(reason)
        for call in self._calls:
            call.cancel()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Surrounds one call's work. Raises Unavailable when the office ends before the work.

        A change that was being written may still be stored then.
        """
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._ended is None or task.uncancel() > 0:  # the caller has gone
                raise
            raise Unavailable(
                f"{self._ended.message}; whether the call took effect is unknown"
            ) from None
        finally:
            self._calls.discard(task)

    async def _reconcile(self) -> None:
        while True:
            await asyncio.sleep(RECONCILE_S)
            self.topics.start()
            self.moves.start()

    def _on_new_master(self, group_id: int) -> None:
        self.topics.on_new_master(group_id)
        self.moves.on_new_master()

    async def _prefer(self) -> None:
        while True:
            await asyncio.sleep(PREFER_S)
            for group_id, node_id in self._preference.on_status(
                self.registry.status(), self._clock()
            ):
                log.info(
                    "mastership goes to the preferred rack group=%d node=%d", group_id, node_id
                )
                try:
                    await self._brokers.transfer(group_id, node_id)
                except SemelError as error:
                    # Asked again once the node has been fit for as long again.
                    log.warning("mastership stays where it is group=%d reason=%s", group_id, error)

    async def _follow_controllers(self) -> None:
        while True:
            await asyncio.sleep(CONTROLLERS_S)
            await self._learn_controllers()

    async def _learn_controllers(self) -> None:
        found = await self._controllers()
        self.routes.set_controllers([one.address for one in found])


async def _raise(error: Awaitable[SemelError]) -> None:
    raise await error
