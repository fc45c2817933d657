"""A copy of the rules of who may do what, and of the quotas, which the controllers tell.

How it works. The node watches the rules at each controller that it knows; only the active one
tells them, at once when they change, and as long as it is the active one its watch lasts. So the
copy is confirmed as long as there is a watch that has told the newest version. While no controller
tells anything, the node goes on by its newest copy, until that was not confirmed for
`rights_age_max_ms`: then it lets only administrators in, as a node does that has never heard the
rules. The copy is on the disk, too, and a node that was restarted goes by it if no controller tells
anything for a moment: usually one does, and what has changed meanwhile is in force from the first
call on.

A node that checks no rules watches the same, for the quotas, from when a controller has said that
there are any. It keeps no file, and goes on by the newest quotas that it has heard.

Invariants
1. No version is followed by a lower one, but for a copy that was forgotten for its age.
2. The copy on the disk is never taken for younger than it is.

Not here: the decision (`protos/security/`), the store (the controllers'), the file
(`kept_rights.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Final, Protocol

import grpc.aio

from semel.broker.config import BrokerConfig
from semel.broker.control_plane.kept_rights import KeptRights, RightsFile
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.log import FileLayer
from semel.broker.replica.replica import Replica
from semel.protos import compat
from semel.protos.errors import DiskFull, InvalidRequest, NotMaster
from semel.protos.levels import levels_metadata
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.access import AccessControl
from semel.protos.security.audit import AuditLog
from semel.protos.security.credentials import Security, channel
from semel.protos.security.guard import Guard
from semel.protos.security.meters import Meters
from semel.protos.security.rules import Kind
from semel.protos.v1 import controller_pb2, controller_pb2_grpc
from semel.protos.v1.metadata_pb2 import RightsRecord

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 2.0
"""A node that was restarted waits so long for a controller before it goes by its copy."""
_RETRY_S: Final = 0.2
_SAVED_SHARE: Final = 1 / 16
"""Share of the greatest age by which the file may be behind what was confirmed."""


class RightsTaker(Protocol):
    """Decides by the rules."""

    @property
    def version(self) -> int:
        """Version of those that decide; -1 for none."""
        ...

    def take(self, record: RightsRecord) -> None:
        """From now on these decide. Raises InvalidRequest."""
        ...

    def forget(self, why: str) -> None:
        """Lets only administrators in."""
        ...


class NodeRights:
    """Tells a node's check of rules, if it has one, and its quotas."""

    def __init__(self, access: AccessControl | None, meters: Meters) -> None:
        self._access = access
        self._meters = meters

    @property
    def version(self) -> int:
        return self._meters.record_version if self._access is None else self._access.version

    def take(self, record: RightsRecord) -> None:
        if self._access is not None:
            self._access.take(record)
        try:
            self._meters.take(record)
        except InvalidRequest as error:
            logger.error("quotas are not understood, those of before apply error=%s", error)

    def forget(self, why: str) -> None:
        """Quotas stay: an old limit is better than none."""
        if self._access is not None:
            self._access.forget(why)


class RightsCopy:
    """Keeps the node's rules and quotas as the active controller tells them."""

    def __init__(
        self,
        controllers: Callable[[], Iterable[str]],
        security: Security | None,
        access: RightsTaker,
        replica: Replica,
        file: RightsFile | None,
        age_max_s: float,
    ) -> None:
        """`controllers` returns HOST:PORT of all controllers that are known by now. Without a
        `file` nothing is kept on the disk, and nothing is watched before `begin`."""
        self._controllers = controllers
        self._security = security
        self._access = access
        self._replica = replica
        self._file = file
        self._age_max_s = age_max_s
        self._kept: RightsRecord | None = None
        """The copy on the disk, as long as it may still be needed."""
        self._record: RightsRecord | None = None
        """The copy; None for one that is too old, or was never heard."""
        self._confirmed_s = 0.0
        """Monotonic time at which it was last confirmed."""
        self._saved_s = 0.0
        """What the file says of that time."""
        self._unsaved = False
        """A newer record than that of the file is there."""
        self._told: dict[str, int] = {}
        """Versions that watches which last have told, by address."""
        self._begun = asyncio.Event()
        if file is not None:
            self._begun.set()

    def begin(self) -> None:
        """There is something to hear."""
        self._begun.set()

    async def load(self) -> None:
        """Reads the copy on the disk."""
        assert self._file is not None
        kept = await asyncio.get_running_loop().run_in_executor(None, self._file.load)
        if kept is not None:
            # A clock that was set back makes no time in the future of it.
            age_s = max(0.0, time.time() - kept.heard_us / 1e6)
            self._confirmed_s = self._saved_s = time.monotonic() - age_s
            self._kept = kept.record

    async def run(self) -> None:
        """Watches all controllers; ends only by cancellation."""
        await self._begun.wait()
        watched: set[str] = set()
        patient_until_s = time.monotonic() + PATIENCE_S
        async with compat.TaskGroup() as tasks:
            while True:
                for address in self._controllers():
                    if address not in watched:
                        watched.add(address)
                        tasks.create_task(self._watch(address))
                if time.monotonic() >= patient_until_s:
                    self._maybe_go_by_kept()
                self._confirm()
                await self._maybe_save()
                await asyncio.sleep(_RETRY_S)

    def age_s(self) -> float:
        """Seconds since the copy was confirmed; 0 without one."""
        return 0.0 if self._record is None else time.monotonic() - self._confirmed_s

    def _take(self, address: str, record: RightsRecord) -> None:
        self._told[address] = record.version
        if self._kept is not None and record.version < self._kept.version:
            self._maybe_go_by_kept()  # whoever told that was replaced and does not know it
        self._kept = None
        if record.version > self._access.version:
            self._access.take(record)
            self._record, self._unsaved = record, True
        self._confirm()

    def _maybe_go_by_kept(self) -> None:
        """Takes the copy on the disk if nothing was told yet, and it is not too old."""
        record, self._kept = self._kept, None
        if record is None:
            return
        age_s = time.monotonic() - self._confirmed_s
        if age_s >= self._age_max_s:
            logger.error("kept rules are too old age_s=%d version=%d", age_s, record.version)
            return
        try:
            self._access.take(record)
        except InvalidRequest as error:
            logger.error("kept rules are not understood error=%s", error)
            return
        self._record = record
        logger.warning("goes by kept rules version=%d age_s=%d", record.version, age_s)

    def _confirm(self) -> None:
        """Notes that the copy is the newest if a watch says so now; forgets one that is too old."""
        if self._record is None:
            return
        if max(self._told.values(), default=-1) >= self._record.version:
            self._confirmed_s = time.monotonic()
        elif (age_s := self.age_s()) >= self._age_max_s:
            logger.error("rules are too old, only administrators are let in age_s=%d", age_s)
            self._record, self._unsaved = None, False
            self._access.forget(
                f"this node has not heard for {age_s:.0f} s who may do what, and lets only"
                " administrators in"
            )

    async def _maybe_save(self) -> None:
        """Saves a new record at once, and the time at which it was confirmed now and then."""
        record, confirmed_s = self._record, self._confirmed_s
        due = confirmed_s - self._saved_s > self._age_max_s * _SAVED_SHARE
        if record is None or self._file is None or not (self._unsaved or due):
            return
        heard_us = round((time.time() - (time.monotonic() - confirmed_s)) * 1e6)
        self._unsaved, self._saved_s = False, confirmed_s
        try:
            await asyncio.get_running_loop().run_in_executor(
                None, self._file.save, KeptRights(record, heard_us)
            )
        except (DiskFull, OSError) as error:
            self._saved_s = time.monotonic()  # not again at once
            logger.warning("rules cannot be kept on the disk error=%s", error)

    async def _watch(self, address: str) -> None:
        silent = False
        async with channel(address, CHANNEL_OPTIONS, self._security) as opened:
            stub = controller_pb2_grpc.ControllerStub(opened)
            while True:
                try:
                    async for record in stub.WatchRights(
                        controller_pb2.WatchRightsRequest(),
                        metadata=levels_metadata(self._replica.levels()),
                    ):
                        silent = False
                        self._take(address, record)
                except grpc.aio.AioRpcError as error:
                    known = error_from_rpc(error)
                    if not silent and not isinstance(known, NotMaster):
                        logger.warning(
                            "controller tells no rules address=%s error=%s", address, known
                        )
                    silent = not isinstance(known, NotMaster)
                finally:
                    self._told.pop(address, None)
                await asyncio.sleep(_RETRY_S)


class BrokerNames:
    """Names of what messages to a broker name by numbers (`enforcement.Names`)."""

    def __init__(self, replica: Replica, routes: RoutesCopy) -> None:
        self._replica = replica
        self._routes = routes

    def name_of(self, kind: Kind, number: int) -> str | None:
        """The name; None if there is nothing with the number."""
        state = self._replica.state
        if kind is Kind.TRANSACTION:
            stager = state.transactions.staging.stagers.get(number)
            return None if stager is None else stager.transaction_id
        if kind is Kind.PRODUCER:
            return state.producers.name_of(number)
        # The group's own topics are known without a controller.
        for queue in state.queues.of_topic(number):
            return queue.topic
        return self._routes.topic_name(number)


async def open_access(
    config: BrokerConfig,
    guard: Guard,
    replica: Replica,
    routes: RoutesCopy,
    stack: AsyncExitStack,
) -> AccessControl | None:
    """The check of rules at a node, if its settings ask for one; `stack` closes it. Raises OSError
    for its audit log."""
    if not config.authorization:
        return None
    loop = asyncio.get_running_loop()
    names = BrokerNames(replica, routes)
    audit = None
    if config.audit_log is not None:
        audit = await loop.run_in_executor(None, AuditLog, config.audit_log, time.time)
        stack.push_async_callback(loop.run_in_executor, None, audit.close)
    return AccessControl(config.cluster_id, guard, names, audit)


async def rights_copy(
    config: BrokerConfig,
    replica: Replica,
    routes: RoutesCopy,
    access: AccessControl | None,
    meters: Meters,
    files: FileLayer,
) -> RightsCopy:
    """The copy of a node, which tells `access` the rules and `meters` the quotas; `files` keeps
    them where rules are checked."""
    copy = RightsCopy(
        lambda: (*config.controllers, *routes.controllers),
        config.security,
        NodeRights(access, meters),
        replica,
        None if access is None else RightsFile(config.data, files),
        math.inf if access is None else config.rights_age_max_ms / 1000,
    )
    if access is not None:
        await copy.load()
        access.age_s = copy.age_s
    return copy
