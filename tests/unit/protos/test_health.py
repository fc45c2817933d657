"""gRPC's health service says what the node says of itself, at once and to those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthStub

from semel.protos import health
from semel.protos.call_classes import LIMITS, class_of, is_counted
from semel.protos.call_gates import CallGates
from semel.protos.errors import Unauthenticated
from semel.protos.foreign_calls import FOREIGN
from semel.protos.health import serve_health
from semel.protos.rpc import ServerInterceptor
from semel.protos.security.call_quotas import CallQuotas
from semel.protos.security.declared import declared
from semel.protos.security.enforcement import Caller, CallGuard, Enforcer
from semel.protos.security.meters import Meters
from semel.protos.security.rules import Kind
from tests.kit.declared_calls import METHODS, path_of
from tests.kit.waiting import until_async

SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN
NAMED = ("semel.protos.v1.Broker", "semel.protos.v1.Members")

pytestmark = pytest.mark.both_loops


class Names:
    def name_of(self, kind: Kind, number: int) -> str | None:
        return None


async def nobody(context: Any) -> Caller:
    raise Unauthenticated("nobody is let in here")


class Node:
    """A server that lets nobody in, and its health."""

    def __init__(self) -> None:
        self.missing = ""
        """What the node lacks to be ready."""
        self.guard = CallGuard(Enforcer(Names(), lambda refusal: None), nobody)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Any]:
        """A stub for it."""
        meters = Meters(asyncio.get_running_loop().time)
        checks = CallQuotas(meters, self.guard)
        server = grpc.aio.server(interceptors=[ServerInterceptor(checks=checks, gates=CallGates())])
        self.running = asyncio.ensure_future(serve_health(server, lambda: self.missing, NAMED)())
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield HealthStub(channel)
        finally:
            await self.end()
            await server.stop(0)

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


async def status(stub: Any, service: str = "") -> int:
    reply = await stub.Check(pb.HealthCheckRequest(service=service), timeout=30)
    return int(reply.status)


class Watching:
    """What one watcher was told."""

    def __init__(self, stub: Any, service: str = "") -> None:
        self.told: list[int] = []
        self.task = asyncio.ensure_future(self._watch(stub, service))

    async def _watch(self, stub: Any, service: str) -> None:
        async for reply in stub.Watch(pb.HealthCheckRequest(service=service)):
            self.told.append(reply.status)


async def test_who_asks_gets_the_answer_of_the_moment_without_a_login() -> None:
    node = Node()
    async with node.serving() as stub:
        for missing, expected in (("", SERVING), ("no master", NOT_SERVING), ("", SERVING)):
            node.missing = missing
            assert [await status(stub, name) for name in ("", *NAMED)] == [expected] * 3
            listed = (await stub.List(pb.HealthListRequest(), timeout=30)).statuses
            assert {name: each.status for name, each in listed.items()} == dict.fromkeys(
                ("", *NAMED), expected
            )


async def test_an_unknown_service_is_not_there() -> None:
    node = Node()
    async with node.serving() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await status(stub, "semel.protos.v1.Nothing")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watching = Watching(stub, "semel.protos.v1.Nothing")
        await until_async(lambda: watching.told == [UNKNOWN])
        node.missing = "no master"
        assert await status(stub) == NOT_SERVING
        assert not watching.task.done()
        assert watching.told == [UNKNOWN]
        watching.task.cancel()


async def test_who_watches_is_told_each_change_and_the_end() -> None:
    node = Node()
    async with node.serving() as stub:
        watchers = [Watching(stub), Watching(stub, NAMED[0])]
        expected = [SERVING]
        await until_async(lambda: all(each.told == expected for each in watchers))
        for missing in ("no master", "", "drained"):
            node.missing = missing
            expected.append(NOT_SERVING if missing else SERVING)
            await until_async(lambda: all(each.told == expected for each in watchers))
        node.missing = ""
        expected.append(SERVING)
        await until_async(lambda: all(each.told == expected for each in watchers))
        await node.end()
        await asyncio.gather(*(each.task for each in watchers))
        assert [each.told for each in watchers] == [[*expected, NOT_SERVING]] * 2
        assert await status(stub) == NOT_SERVING


async def test_a_change_between_two_looks_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller of `Check` sees a change before the task does; watchers hear of its end, too."""
    monkeypatch.setattr(health, "LOOK_S", 0.02)
    node = Node()
    async with node.serving() as stub:
        watching = Watching(stub)
        await until_async(lambda: watching.told == [SERVING])
        for _ in range(20):
            node.missing = "for a moment"
            assert await status(stub) == NOT_SERVING
            node.missing = ""
            await until_async(lambda: watching.told[-1] == SERVING)
        watching.task.cancel()


async def test_nobody_looks_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOK_S", 0.001)
    looks = 0

    def why_not_ready() -> str:
        nonlocal looks
        looks += 1
        return ""

    service = health.HealthService(why_not_ready, ())
    running = asyncio.ensure_future(service.run())
    watch = service.Watch(pb.HealthCheckRequest(), None)
    assert (await anext(watch)).status == SERVING
    await until_async(lambda: looks > 10)
    await watch.aclose()
    await until_async(lambda: not service._watched.is_set())
    await asyncio.sleep(0.01)  # a look that had begun
    before = looks
    await asyncio.sleep(0.05)
    assert looks == before
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_health_alone_is_public_and_stands_in_no_line_with_clients_calls() -> None:
    assert all(declared(method).public for method in FOREIGN)
    assert not any(declared(method).for_nodes_only for method in FOREIGN)
    assert not any(map(is_counted, FOREIGN))
    assert not any(declared(path_of(method)).public for method in METHODS)
    ours = {class_of(path_of(method)) for method in METHODS}
    assert class_of("/grpc.health.v1.Health/Check") not in ours
    assert LIMITS[class_of("/grpc.health.v1.Health/Watch")].name == "watch"


def test_the_methods_are_those_of_grpc_s_own_file() -> None:
    (service,) = pb.DESCRIPTOR.services_by_name.values()
    assert {f"/{service.full_name}/{method.name}" for method in service.methods} == set(FOREIGN)
