"""Taking office and leaving it again, as the store's word on the mastership changes.

How it works. The store says who should be in office (`MetadataStore.mastership`). When it is this
controller's turn, `begin` takes office and loads; when it is not any more, or a write shows that
another controller has taken over, the office ends at once and the controller is a standby that can
come back. An office that could not be taken, or was lost although the store still says that it is
ours, is tried again after a pause: the store's word is a hint, and two controllers may have it for
a moment.

Invariants
1. At most one office of this controller at a time; the next begins after the last has ended.
2. An office ends in the same step in which the store's word is heard.
3. Only errors that will not go away by themselves end `run`: a failed store, another cluster's
store, metadata of a newer feature level, a bug.

Not here: what an office consists of (`active_controller.py`), electing (`store/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

from semel.controller.active.active_controller import Duty
from semel.controller.epoch import stored_cluster_id
from semel.controller.store import ControllerAddress, Mastership, MetadataStore, StoreFailed
from semel.protos import compat
from semel.protos.errors import NotMaster, RetriableError, SemelError
from semel.protos.levels import LEVEL_MAX
from semel.protos.v1.controller_pb2 import ControllerStatus

log = logging.getLogger(__name__)

RETAKE_S: Final = 0.3
"""Pause before an office is taken again that was lost or refused."""
IDENTIFY_S: Final = 2.0
"""How often a controller makes sure that the store is its cluster's."""
CONTROLLERS_TIMEOUT_S: Final = 1.0
MASTER: Final = "master"
STANDBY: Final = "standby"


class Succession:
    """Whether this controller is in office; `duty` is the office it has."""

    def __init__(
        self,
        store: MetadataStore,
        begin: Callable[[], Awaitable[Duty]],
        *,
        cluster_id: str,
        level_max: int = LEVEL_MAX,
    ) -> None:
        """`begin` takes office and loads; `cluster_id` is the only one allowed, if it is given;
        metadata of a higher feature level than `level_max` end `run`."""
        self._level_max = level_max
        self.cluster_id = cluster_id
        """As stored, once that is known."""
        self.decided = asyncio.Event()
        """The store's first word has been heard, and acted upon."""
        self._store = store
        self._begin = begin
        self._expected_id = cluster_id
        self._hint = Mastership(master=None, mine=False)
        self._heard = asyncio.Event()
        self._duty: Duty | None = None
        self._known: dict[ControllerAddress, bool] = {}

    def duty(self) -> Duty:
        """The office that this controller has. Raises NotMaster, naming who should have one."""
        duty = self.office_or_none()
        if duty is None:
            raise self._not_master()
        return duty

    def office_or_none(self) -> Duty | None:
        """The office that this controller has, if it has one."""
        return None if self._duty is None or self._duty.ended else self._duty

    @property
    def in_office(self) -> bool:
        """This controller has an office."""
        return self.office_or_none() is not None

    def close_watches(self) -> None:
        """The controller stops: its watches end, without an error."""
        if self._duty is not None:
            self._duty.changes.close()

    async def controllers(self) -> list[ControllerStatus]:
        """All controllers as the store knows them, the newest word when it does not answer now."""
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
        """Follows the store's word until cancelled. Raises SemelError when that is pointless."""
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._identify())
            tasks.create_task(self._hold())

    async def _follow(self) -> None:
        async with aclosing(self._store.mastership()) as hints:
            async for hint in hints:
                if not hint.mine and self._duty is not None:
                    self._hint = hint
                    self._duty.end(self._not_master())
                self._hint = hint
                if not hint.mine:
                    self.decided.set()
                self._wake()

    async def _identify(self) -> None:
        """Learns the cluster's id, and refuses another cluster's store, also as a standby."""
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
            await self._until(mine=True)
            term = asyncio.ensure_future(self._term())
            lost = asyncio.ensure_future(self._until(mine=False))
            try:
                await asyncio.wait({term, lost}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._duty = None
                for task in (term, lost):
                    task.cancel()
                await asyncio.gather(term, lost, return_exceptions=True)
            if not term.cancelled() and (error := term.exception()) is not None:
                raise error
            if self._hint.mine:
                await asyncio.sleep(RETAKE_S)

    async def _term(self) -> None:
        """One term of office, from taking it to losing it."""
        try:
            async with await self._begin() as duty:
                self._duty = duty
                self.cluster_id = duty.routes.cluster_id
                self.decided.set()
                log.info("in office cluster=%s office=%d", self.cluster_id, duty.office.number)
                await duty.run()
        except* StoreFailed:
            raise
        except* RetriableError as trouble:
            log.warning("not in office reason=%s", _leaf(trouble))
            self.decided.set()

    async def _until(self, *, mine: bool) -> None:
        while self._hint.mine is not mine:
            await self._heard.wait()

    def _wake(self) -> None:
        self._heard.set()
        self._heard = asyncio.Event()

    def _not_master(self) -> NotMaster:
        master = None if self._hint.mine else self._hint.master
        if master is None:
            return NotMaster("this controller is not in office, and knows nobody who is; ask again")
        return NotMaster(
            f"this controller is a standby; controller {master.controller_id} at "
            f"{master.address} is in office",
            master_address=master.address,
            master_id=master.controller_id,
        )


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
