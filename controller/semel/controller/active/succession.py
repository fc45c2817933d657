"""The succession: this controller becomes active, and ends that, as the store's hints say.

How it works. The store says which controller should be active (`MetadataStore.mastership`). When it
names this controller, `begin` begins an epoch and loads. When it names this controller no longer,
or a write shows that another controller has taken over, or the outcome of a write is unknown, the
active controller ends at once, and this controller is a standby that can come back. If `begin`
fails, or the epoch is lost although the store still names this controller, it is tried again after
a pause: the store only gives a hint, which two controllers may have for a moment. If this
controller's disk is full, it resigns, so that a controller with room can be active, and pauses for
longer.

Invariants
1. This controller has at most one active controller at a time; the next begins after the last has
   ended.
2. An active controller ends in the same step in which the store's hint is received; if it was about
   to begin, it never does, even if the hint has come back since.
3. Only errors that will not go away by themselves end `run`: a failed store, another cluster's
   store, metadata of a newer feature level, a bug. A full disk does not: this controller's vote is
   needed as before.

Not here: what the active controller consists of (`active_controller.py`), electing (`store/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

from semel.controller.active.active_controller import ActiveController
from semel.controller.epoch import stored_cluster_id
from semel.controller.store import ControllerAddress, Mastership, MetadataStore, StoreFailed
from semel.protos import compat
from semel.protos.errors import DiskFull, NotMaster, RetriableError, SemelError
from semel.protos.levels import LEVEL_MAX
from semel.protos.v1.controller_pb2 import ControllerStatus

log = logging.getLogger(__name__)

RETRY_S: Final = 0.3
"""Pause before the next attempt, when an epoch was lost or could not begin."""
RESIGNED_S: Final = 5.0
"""Pause before the next attempt after this controller resigned: longer than an election, so that
another one comes first."""
IDENTIFY_S: Final = 2.0
"""Pause between two checks that the store belongs to this controller's cluster."""
CONTROLLERS_TIMEOUT_S: Final = 1.0
MASTER: Final = "master"
STANDBY: Final = "standby"


class Succession:
    """Whether this controller is the active one; `active()` is what it runs then."""

    def __init__(
        self,
        store: MetadataStore,
        begin: Callable[[], Awaitable[ActiveController]],
        *,
        cluster_id: str,
        level_max: int = LEVEL_MAX,
    ) -> None:
        """`begin` begins an epoch and loads. `cluster_id`, if it is given, is the only cluster that
        is allowed. Metadata of a higher feature level than `level_max` end `run`."""
        self._level_max = level_max
        self.cluster_id = cluster_id
        """The id that is stored, once it is known."""
        self.decided = asyncio.Event()
        """Set once the store's first hint was received and acted upon."""
        self._store = store
        self._begin = begin
        self._expected_id = cluster_id
        self._hint = Mastership(master=None, mine=False)
        self._heard = asyncio.Event()
        self._lost = asyncio.Event()
        """Set in the step in which the hint goes; `_hold` makes a new one for each term."""
        self._active: ActiveController | None = None
        self._known: dict[ControllerAddress, bool] = {}

    def active(self) -> ActiveController:
        """The active controller, if this one is active. Raises NotMaster, which names the one that
        should be."""
        active = self.active_or_none()
        if active is None:
            raise self._not_master()
        return active

    def active_or_none(self) -> ActiveController | None:
        """The active controller, or None while this controller is a standby."""
        return None if self._active is None or self._active.ended else self._active

    @property
    def is_active(self) -> bool:
        """Whether this controller is the active one."""
        return self.active_or_none() is not None

    def close_watches(self) -> None:
        """Ends the watches without an error, because the controller stops."""
        if self._active is not None:
            self._active.changes.close()

    async def controllers(self) -> list[ControllerStatus]:
        """All controllers as the store knows them; the newest known ones while it does not
        answer."""
        with contextlib.suppress(SemelError, TimeoutError):
            async with compat.timeout(CONTROLLERS_TIMEOUT_S):
                self._known = await self._store.controllers()
        master = self._hint.master.controller_id if self._hint.master is not None else 0
        return [
            ControllerStatus(
                controller_id=one.controller_id,
                address=one.address,
                role=MASTER if one.controller_id == master else STANDBY,
                alive=alive,
            )
            for one, alive in sorted(self._known.items(), key=lambda item: item[0].controller_id)
        ]

    async def run(self) -> None:
        """Follows the store's hints until cancelled. Raises SemelError when that is pointless."""
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._identify())
            tasks.create_task(self._hold())

    async def _follow(self) -> None:
        async with aclosing(self._store.mastership()) as hints:
            async for hint in hints:
                self._hint = hint
                if not hint.mine:
                    self._lost.set()
                    if self._active is not None:
                        self._active.end(self._not_master())
                    self.decided.set()
                self._wake()

    async def _identify(self) -> None:
        """Learns the cluster's id and refuses another cluster's store, also while a standby."""
        while True:
            heard = self._heard
            with contextlib.suppress(RetriableError):
                found = await stored_cluster_id(self._store, self._expected_id, self._level_max)
                self.cluster_id = found or self.cluster_id
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(IDENTIFY_S):
                    await heard.wait()

    async def _hold(self) -> None:
        while True:
            while not self._hint.mine:
                await self._heard.wait()
            self._lost = asyncio.Event()
            term = asyncio.ensure_future(self._term(self._lost))
            lost = asyncio.ensure_future(self._lost.wait())
            try:
                await asyncio.wait({term, lost}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._active = None
                for task in (term, lost):
                    task.cancel()
                await asyncio.gather(term, lost, return_exceptions=True)
            if term.cancelled():
                continue
            if (error := term.exception()) is not None:
                raise error
            await asyncio.sleep(term.result())

    async def _term(self, lost: asyncio.Event) -> float:
        """One epoch of this controller, from its beginning to its end; returns the pause in seconds
        before the next one. Nothing is active once `lost` is set."""
        pause_s = RETRY_S
        try:
            beginning = await self._begin()
            if lost.is_set():
                return 0.0
            async with beginning as active:
                self._active = active
                self.cluster_id = active.routes.cluster_id
                self.decided.set()
                log.info(
                    "controller is active cluster=%s epoch=%d", self.cluster_id, active.epoch.number
                )
                await active.run()
        except* StoreFailed:
            raise
        except* DiskFull as errors:
            log.error(
                "controller cannot be active, because its disk is full; it goes on as a standby, "
                "and another controller takes over if there is one reason=%s",
                _leaf(errors),
            )
            self.decided.set()
            self._store.resign()
            pause_s = RESIGNED_S
        except* RetriableError as errors:
            log.warning("controller is not active reason=%s", _leaf(errors))
            self.decided.set()
        return 0.0 if lost.is_set() else pause_s

    def _wake(self) -> None:
        self._heard.set()
        self._heard = asyncio.Event()

    def _not_master(self) -> NotMaster:
        master = None if self._hint.mine else self._hint.master
        if master is None:
            return NotMaster(
                "this controller is not active, and knows no controller that is; ask again"
            )
        return NotMaster(
            f"this controller is a standby; controller {master.controller_id} at "
            f"{master.address} is active",
            master_address=master.address,
            master_id=master.controller_id,
        )


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
