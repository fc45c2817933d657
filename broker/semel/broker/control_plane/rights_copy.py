"""A copy of the rules of who may do what, which the controllers tell.

How it works. The node watches the rules at each controller that it knows; only the active one
tells them, at once when they change. A node that has never heard them lets no client in yet; one
that has goes on by its newest copy while no controller tells anything.

Not here: the decision (`protos/security/`), the store (the controllers').
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc.aio

from semel.broker.config import BrokerConfig
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.replica.replica import Replica
from semel.protos import compat
from semel.protos.errors import NotMaster, Throttled
from semel.protos.levels import levels_metadata
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.access import AccessControl
from semel.protos.security.credentials import Security, channel
from semel.protos.security.rules import Kind
from semel.protos.v1 import controller_pb2, controller_pb2_grpc
from semel.protos.v1.metadata_pb2 import RightsRecord

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
_NAME_AGAIN_MS: Final = 100


class RightsCopy:
    """Keeps the node's rules as the active controller tells them."""

    def __init__(
        self,
        controllers: Callable[[], Iterable[str]],
        security: Security | None,
        take: Callable[[RightsRecord], None],
        replica: Replica,
    ) -> None:
        """`controllers` returns HOST:PORT of all controllers that are known by now."""
        self._controllers = controllers
        self._security = security
        self._take = take
        self._replica = replica

    async def run(self) -> None:
        """Watches all controllers; ends only by cancellation."""
        watched: set[str] = set()
        async with compat.TaskGroup() as tasks:
            while True:
                for address in self._controllers():
                    if address not in watched:
                        watched.add(address)
                        tasks.create_task(self._watch(address))
                await asyncio.sleep(_RETRY_S)

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
                        self._take(record)
                except grpc.aio.AioRpcError as error:
                    known = error_from_rpc(error)
                    if not silent and not isinstance(known, NotMaster):
                        logger.warning(
                            "controller tells no rules address=%s error=%s", address, known
                        )
                    silent = not isinstance(known, NotMaster)
                await asyncio.sleep(_RETRY_S)


class BrokerNames:
    """Names of what messages to a broker name by numbers (`enforcement.Names`)."""

    def __init__(
        self, replica: Replica, routes: RoutesCopy, report_now: Callable[[], None]
    ) -> None:
        """`report_now` makes the node ask for newer routes."""
        self._replica = replica
        self._routes = routes
        self._report_now = report_now

    def name_of(self, kind: Kind, number: int) -> str | None:
        """The name; None if there is nothing with the number.

        Raises Throttled for a topic that is so new that the routes do not name it yet.
        """
        state = self._replica.state
        if kind is Kind.TRANSACTION:
            stager = state.transactions.staging.stagers.get(number)
            return None if stager is None else stager.transaction_id
        if kind is Kind.PRODUCER:
            return state.producers.name_of(number)
        name = self._routes.topic_name(number)
        if name is None and state.queues.has_topic(number):
            self._report_now()
            raise Throttled(
                f"the name of topic {number:#x} is not known here yet; ask again",
                retry_after_ms=_NAME_AGAIN_MS,
            )
        return name


async def open_access(
    config: BrokerConfig,
    replica: Replica,
    routes: RoutesCopy,
    report_now: Callable[[], None],
    stack: AsyncExitStack,
    start_task: Callable[[Coroutine[Any, Any, None]], object],
) -> AccessControl | None:
    """The check of rules at a node, if its settings ask for one; `stack` closes it. Raises OSError
    for its audit log."""
    if not config.authorization:
        return None
    loop = asyncio.get_running_loop()
    names = BrokerNames(replica, routes, report_now)
    access = await loop.run_in_executor(
        None, AccessControl, config.cluster_id, names, config.audit_log
    )
    stack.push_async_callback(loop.run_in_executor, None, access.close)
    rights = RightsCopy(
        lambda: (*config.controllers, *routes.controllers), config.security, access.take, replica
    )
    start_task(rights.run())
    return access
