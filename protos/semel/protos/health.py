"""gRPC's health service at a node's port: whether the node does its part, and each of its services.

How it works. `Check` and `List` ask the same question as `/readyz` (`metrics.py`), at the moment of
the call, so both always say the same. A node does its part in everything or in nothing, so each of
its services has the node's status. `Watch` tells the status, and then each change of it: while
somebody watches, one task looks every `LOOK_S` for all of them.

Invariants
1. A watcher is told every status that `_look` has found since it came, unless another one followed
   before the first was sent; the last one is always told.
2. Once the task has ended, nothing serves: watchers are told so, and their streams end.

Not here: who may call it (`foreign_calls.py`), what makes a node ready (each part's own code).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

LOOK_S: Final = 0.25


class HealthService:
    """A servicer of grpc.health.v1.Health, while `run` runs. Lives on the event loop."""

    def __init__(self, why_not_ready: Callable[[], str], services: Collection[str]) -> None:
        """`why_not_ready` gives a sentence, or none if the node is ready; `services` are the full
        names of those that the node has."""
        self._why_not_ready = why_not_ready
        self._services = ("", *services)
        self._seen = pb.HealthCheckResponse.UNKNOWN
        """What `_look` has found last."""
        self._changed = asyncio.Event()
        """Set, and replaced, when `_seen` changes."""
        self._watchers = 0
        self._watched = asyncio.Event()
        """Set while there are watchers."""
        self._ended = False

    async def run(self) -> None:
        """Looks for changes for those who watch, until it is cancelled."""
        try:
            while True:
                await self._watched.wait()
                self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._ended = True
            self._look()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The status of the node, or of one service of it."""
        if request.service not in self._services:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"this node has no service {request.service!r}"
            )
        return pb.HealthCheckResponse(status=self._look())

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The status of the node and of all of its services."""
        status = pb.HealthCheckResponse(status=self._look())
        return pb.HealthListResponse(statuses=dict.fromkeys(self._services, status))

    async def Watch(self, request: Any, context: Any) -> AsyncGenerator[Any]:  # noqa: N802
        """The status, and each change of it."""
        if request.service not in self._services:
            yield pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        told = None
        self._watchers += 1
        self._watched.set()
        try:
            self._look()
            while True:
                changed = self._changed
                if request.service in self._services and self._seen != told:
                    told = self._seen
                    yield pb.HealthCheckResponse(status=told)
                if self._ended:
                    return
                await changed.wait()
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._watched.clear()

    def _look(self) -> int:
        """Returns the status now, and wakes the watchers if it has changed."""
        ready = not self._ended and not self._why_not_ready()
        now = pb.HealthCheckResponse.SERVING if ready else pb.HealthCheckResponse.NOT_SERVING
        if now != self._seen or self._ended:
            self._seen = now
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
        return int(now)


def serve_health(
    server: grpc.aio.Server, why_not_ready: Callable[[], str], services: Collection[str]
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Adds the service to a server; what is returned must run as long as the server serves."""
    service = HealthService(why_not_ready, services)
    add_HealthServicer_to_server(service, server)
    return service.run
