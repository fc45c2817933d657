"""The owner of a producer id is asked of the controllers, before somebody fences it.

How it works. A named producer is fenced only by whoever owns the name. The sequence table tells the
name of an id that this broker group has seen, and the check of the call has looked there. For any
other id the active controller knows whether it belongs to a name, to nobody in particular, or was
not given out yet. The answer never changes, so it is remembered.

While no controller answers, an id that the group has not seen may be fenced by whoever may write to
the topic: else no new producer could begin.

Not here: the right itself (`protos/security/`), ids (the controllers').
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Final, Protocol

from semel.broker.config import BrokerConfig
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.replica.replica import Replica
from semel.protos.channels import Channels
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.security.access import AccessControl
from semel.protos.security.declared import Need
from semel.protos.security.enforcement import CALLER, Enforcer
from semel.protos.security.rules import Action, Kind
from semel.protos.v1 import broker_pb2, controller_pb2
from semel.protos.v1.controller_pb2_grpc import ControllerStub

logger = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 100_000
_TIMEOUT_S: Final = 1.0
_METHOD: Final = "/semel.protos.v1.Broker/FenceProducer"


class Seen(Protocol):
    """The producers that the broker group knows."""

    def name_of(self, producer_id: int) -> str | None:
        """The durable name of a producer; None without one."""
        ...


class ProducerOwners:
    """The check of one node's fences. Lives on its event loop."""

    def __init__(
        self,
        controllers: Callable[[], Iterable[str]],
        channels: Channels,
        seen: Callable[[], Seen],
        enforcer: Enforcer,
    ) -> None:
        """`controllers` returns HOST:PORT of all controllers that are known by now."""
        self._controllers = controllers
        self._channels = channels
        self._seen = seen
        self._enforcer = enforcer
        self._owners: OrderedDict[int, str] = OrderedDict()
        """Names by id, empty for producers without a name; the newest answers at the end."""
        self._answering = ""
        """The controller that answered last."""

    async def check(self, request: broker_pb2.FenceProducerRequest) -> None:
        """Checks that the caller may fence the producer. Raises PermissionDenied for one of a name
        that is not its own, InvalidRequest for an id that nobody has."""
        caller = CALLER.get()
        if caller is None or self._seen().name_of(request.producer_id) is not None:
            return
        owner = await self._owner_of(request.producer_id)
        if owner:
            need = Need(Action.OWN_NAME, Kind.PRODUCER, owner)
            self._enforcer.check_needs(_METHOD, (need,), caller)
            if request.name != owner:
                raise InvalidRequest(
                    f"producer {request.producer_id} is {owner!r}: fence it under its name"
                )

    async def _owner_of(self, producer_id: int) -> str:
        """The name that has the id; empty for none, and while no controller answers."""
        known = self._owners.get(producer_id)
        if known is not None:
            return known
        request = controller_pb2.FindProducerOwnerRequest(producer_id=producer_id)
        addresses = dict.fromkeys((self._answering, *self._controllers()))
        for address in filter(None, addresses):
            try:
                reply = await self._channels.call(
                    address, ControllerStub, "FindProducerOwner", request, _TIMEOUT_S
                )
            except SemelError as error:
                logger.info("controller tells no owner address=%s error=%s", address, error)
                continue
            self._answering = address
            if not reply.given:
                raise InvalidRequest(f"nobody has producer id {producer_id}: open the producer")
            self._owners[producer_id] = reply.name
            if len(self._owners) > REMEMBERED_MAX:
                self._owners.popitem(last=False)
            return str(reply.name)
        return ""


def open_owners(
    config: BrokerConfig,
    replica: Replica,
    routes: RoutesCopy,
    access: AccessControl | None,
    stack: AsyncExitStack,
) -> ProducerOwners | None:
    """The check of a node's fences, if it checks rights at all; `stack` closes it."""
    if access is None:
        return None
    channels = Channels(replica.levels, security=config.security)
    stack.push_async_callback(channels.close)
    return ProducerOwners(
        lambda: (*config.controllers, *routes.controllers),
        channels,
        lambda: replica.state.producers,
        access.enforcer,
    )
