"""The active controller: everything that one controller does and remembers during one controller
epoch.

How it works. `ActiveController.begin` begins an epoch, reads the whole store and builds the parts
that answer calls; `run` goes on until the epoch is over. The state in memory belongs to that epoch
only: the next epoch, of this controller or of another one, starts from what is stored. Calls run
inside `call()`, so that the end of the epoch ends them too.

Invariants
1. After `end` nothing is answered, and nothing is written to the store, under this epoch.
2. `end` is synchronous: 1 holds when it returns, before anything else runs.

Not here: when a controller becomes active and when that ends (`succession.py`), who may write
(`epoch.py`).
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
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.groups.memberships import MembershipService
from semel.controller.moves.moves import MoveService
from semel.controller.producers import ProducerService
from semel.controller.rights import RightsService
from semel.controller.store import MetadataStore
from semel.controller.topics.mirrors import MirrorService
from semel.controller.topics.restores import RestoreService
from semel.controller.topics.topics import TopicService
from semel.controller.users import UserService
from semel.protos import compat
from semel.protos.errors import NotMaster, SemelError, Unavailable
from semel.protos.levels import check_member, own_levels
from semel.protos.v1.controller_pb2 import ControllerStatus
from semel.protos.v1.metadata_pb2 import RightsRecord

log = logging.getLogger(__name__)

RECONCILE_S: Final = 5.0
"""Pause between two searches for unfinished topics and moves without a driver; there should be
none."""
PREFER_S: Final = 1.0
"""Pause between two searches for masters that could be in the preferred rack."""
CONTROLLERS_S: Final = 1.0
"""Pause between two updates of the controllers in the routes."""

Controllers = Callable[[], Awaitable[list[ControllerStatus]]]
"""All controllers of the group, as they are now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clocks of one controller."""

    sessions_ms: Callable[[], int]
    """Monotonic; measures sessions and reports."""
    loop_ms: Callable[[], int]
    """Monotonic; shows whether this process itself stood still."""
    wall_us: Callable[[], int]
    """Wall clock, for people."""


class ActiveController:
    """The parts that work during one epoch; `async with await ActiveController.begin(…) as
    active`."""

    def __init__(
        self,
        epoch: ControllerEpoch,
        config: ControllerConfig,
        clocks: Clocks,
        controllers: Controllers,
        on_rights: Callable[[RightsRecord], None] = lambda record: None,
    ) -> None:
        """`on_rights` gets the rules of who may do what, now and after each change."""
        self.epoch = epoch
        self.rights = RightsService(epoch, on_rights)
        self.users = UserService(epoch, clocks.wall_us)
        self.changes = Changes()
        self.routes = RouteTable(epoch.cluster_id, epoch.number, self.changes.notify)
        self.memberships = MembershipService(
            epoch,
            self.routes,
            clock=clocks.sessions_ms,
            loop_clock=clocks.loop_ms,
            groups_max=lambda: config.groups_max,
            members_max=lambda: config.group_members_max,
        )
        self.registry = BrokerRegistry(
            epoch,
            self.routes,
            report_timeout_ms=config.node_timeout_ms,
            clock=clocks.sessions_ms,
            clock_us=clocks.wall_us,
            placed=lambda: self.topics.placed(),
            on_new_master=self._on_new_master,
        )
        self._brokers = BrokerCaller(
            cluster_id=epoch.cluster_id,
            epoch=epoch.number,
            addresses=self.registry.addresses,
            timeout_s=config.broker_call_timeout_ms / 1000,
            level_max=config.level_max,
            security=config.security,
        )
        self.topics = TopicService(
            epoch,
            self.routes,
            self.registry,
            self._brokers,
            clock_us=clocks.wall_us,
            on_change=self.memberships.on_topic_changed,
            moving=lambda topic_id, queue_id: self.moves.moving(topic_id, queue_id),
            topics_max=lambda: config.topics_max,
            is_taken=lambda name: self.mirrors.is_taken(name),
        )
        self.moves = MoveService(
            epoch, self.topics, self.registry, self._brokers, clock_us=clocks.wall_us
        )
        self.producers = ProducerService(
            epoch, clock_us=clocks.wall_us, producers_max=lambda: config.producers_max
        )
        self.restores = RestoreService(
            epoch, self.topics.table, self.registry, self.producers, clock_us=clocks.wall_us
        )
        self.mirrors = MirrorService(
            epoch, self.topics.table, self.registry, self.producers, clock_us=clocks.wall_us
        )
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
        on_rights: Callable[[RightsRecord], None] = lambda record: None,
    ) -> ActiveController:
        """Begins an epoch and reads everything.

        Raises DataDirectoryError (another cluster's store, a damaged record) and Unavailable.
        """
        epoch = await ControllerEpoch.begin(
            store,
            now_us=clocks.wall_us(),
            cluster_id=config.cluster_id,
            level_max=config.level_max,
        )
        active = cls(epoch, config, clocks, controllers, on_rights)
        await active.rights.load()
        await active.registry.load()
        await active.topics.load()
        await active.moves.load()
        await active.restores.load()
        await active.mirrors.load()
        await active.memberships.load()
        await active._learn_controllers()
        return active

    async def __aenter__(self) -> ActiveController:
        self.topics.start()
        self.moves.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(NotMaster("this controller is not the active one any more"))
        await self.moves.stop()
        await self.topics.stop()
        await self._brokers.close()

    async def run(self) -> None:
        """Runs all background tasks. Raises Unavailable once another controller has taken over."""
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self.memberships.run())
            tasks.create_task(self._reconcile())
            tasks.create_task(self._follow_controllers())
            tasks.create_task(self._prefer())
            tasks.create_task(_raise(self.epoch.wait_over()))

    @property
    def ended(self) -> bool:
        """Whether the epoch is over, so that nothing may be answered any more."""
        return self.epoch.over

    async def raise_level(self, level: int, *, dry_run: bool) -> int:
        """Raises the feature level of the metadata, once every controller knows it and every broker
        group has it, and returns the level after that. `dry_run` only asks the controllers and
        changes nothing.

        Raises UnsupportedVersion, and Unavailable when a controller does not answer or a group has
        not got there.
        """
        if self.epoch.level >= level:
            return self.epoch.level
        check_member("this controller", own_levels(self.epoch.level_max), level)
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
            await unbroken(self.epoch.raise_level(level))
        return self.epoch.level

    def end(self, reason: NotMaster) -> None:
        """Ends the epoch at once; watches end with `reason`, calls with Unavailable."""
        if self._ended is not None:
            return
        self._ended = reason
        self.epoch.end()
        self.changes.close(reason)
        self.rights.changes.close(reason)
        for call in self._calls:
            call.cancel()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Surrounds the work of one call. Raises Unavailable when the epoch ends before the work
        does.

        A change that was being written may still be stored then.
        """
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._ended is None or task.uncancel() > 0:  # the caller hung up
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
                    # The transfer is tried again once the node has been fit for as long again.
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
