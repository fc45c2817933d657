"""When a node tells controllers of itself: at once what changes, soon who was away, else rarely.

The node's own interval is an hour here: what comes sooner comes for another reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from semel.protos import compat
from semel.protos.errors import NotMaster
from semel.protos.rpc import ServerInterceptor
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.controller_pb2_grpc import (
    ControllerServicer,
    add_ControllerServicer_to_server,
)
from tests.kit.brokers import BrokerGroup
from tests.kit.ports import free_ports

PATIENCE_S = 30.0
HOUR_MS = 3_600_000


class Told(ControllerServicer):
    """Keeps every report, and takes them or stands by."""

    def __init__(self, *, active: bool) -> None:
        self.reports: asyncio.Queue[pb.ReportNodeRequest] = asyncio.Queue()
        self._active = active

    async def ReportNode(self, request: Any, context: Any) -> pb.ReportNodeReply:  # noqa: N802
        self.reports.put_nowait(request)
        if not self._active:
            raise NotMaster("a standby")
        return pb.ReportNodeReply()

    async def next(self) -> pb.ReportNodeRequest:
        async with compat.timeout(PATIENCE_S):
            return await self.reports.get()

    async def next_master(self) -> pb.ReportNodeRequest:
        """The first report of a master. One that was written before the node was it may have
        waited in gRPC for the connection; the change is told behind it, at once."""
        while (report := await self.next()).role != "master":
            assert report.role in ("slave", "candidate")
        return report


@asynccontextmanager
async def controller(port: int, *, active: bool = True) -> AsyncIterator[Told]:
    told = Told(active=active)
    server = grpc.aio.server(interceptors=[ServerInterceptor()])
    add_ControllerServicer_to_server(told, server)
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    await server.start()
    try:
        yield told
    finally:
        await server.stop(None)


def group(directory: Path, *ports: int) -> BrokerGroup:
    controllers = tuple(f"127.0.0.1:{port}" for port in ports)
    return BrokerGroup(directory, nodes=1, controllers=controllers, report_ms=HOUR_MS)


@asynccontextmanager
async def an_active_one_and_a_standby(directory: Path) -> AsyncIterator[tuple[Told, Told]]:
    """Controllers of a group that has a master."""
    ports = free_ports(2)
    async with (
        controller(ports[0]) as first,
        controller(ports[1], active=False) as standby,
        group(directory, *ports) as running,
    ):
        await running.master()
        yield first, standby


async def test_a_controller_that_was_away_is_told_soon(tmp_path: Path) -> None:
    [port] = free_ports(1)
    async with group(tmp_path, port) as running:
        node = await running.master()
        async with controller(port) as told:
            report = await told.next_master()
        assert (report.role, report.node.address) == ("master", node.address)
        async with controller(port) as told:
            node.registration.report_now()  # meets the one that went, or the one that came
            assert (await told.next()).role == "master"


async def test_a_change_of_role_is_told_at_once_to_standbys_too(tmp_path: Path) -> None:
    async with an_active_one_and_a_standby(tmp_path) as controllers:
        for each in controllers:
            assert (await each.next_master()).queues == 0


async def test_who_was_told_and_who_stands_by_is_left_alone(tmp_path: Path) -> None:
    async with an_active_one_and_a_standby(tmp_path) as controllers:
        for each in controllers:
            await each.next_master()
        await asyncio.sleep(1)  # a node that tried again would have done so five times
        assert [each.reports.qsize() for each in controllers] == [0, 0]
