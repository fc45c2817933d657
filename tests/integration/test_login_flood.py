"""A flood at the port for logins: it is bounded, refused at once, and the controller goes on."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from semel.client import Login, connect
from semel.client.certified import new_request
from semel.controller.login.attempt_rates import PER_ADDRESS
from semel.controller.login.login_port import CONNECTIONS_PER_ADDRESS_MAX, MESSAGE_BYTES_MAX
from semel.protos.errors import (
    InvalidRequest,
    MessageTooLarge,
    SemelError,
    Throttled,
    Unauthenticated,
)
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.buckets import BURST_S
from semel.protos.security.credentials import login_channel
from semel.protos.security.tokens import new_token
from semel.protos.v1.login_pb2 import LogInRequest
from semel.protos.v1.login_pb2_grpc import LoginStub
from tests.kit.cluster import CLUSTER_ID
from tests.kit.ruled_cluster import RuledCluster
from tests.kit.waiting import until

FLOOD_S = 3.0
CALLERS = 48
OWN_CALLS = 20
SETTINGS, CALLS_AT_ONCE, WINDOW_BYTES, HEADER_BYTES = 4, 3, 4, 6
"""Numbers of HTTP/2."""
GROWTH_BYTES_MAX = 256 << 20
"""Each of two passwords that are checked takes 64 MiB."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuledCluster]:
    with RuledCluster(tmp_path_factory.mktemp("flood"), brokers=1) as running:
        with running.connect() as client:
            client.admin.add_user("alice", "correct horse battery")
        yield running


def ca_of(cluster: RuledCluster) -> bytes:
    return cluster.authority.ca_path.read_bytes()


class Flood:
    """Logins that prove nothing, as many as there can be, in a thread of its own."""

    def __init__(self, cluster: RuledCluster) -> None:
        self.answers: Counter[type[SemelError]] = Counter()
        self.took_s = 0.0
        """From before the first call to after the last one."""
        self._began_s = time.monotonic()
        self._address = cluster.login_address(cluster.controller)
        self._ca = ca_of(cluster)
        self._request = new_request()[1]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self.took_s = time.monotonic() - self._began_s

    async def _run(self) -> None:
        await asyncio.gather(*(self._call(number) for number in range(CALLERS)))

    async def _call(self, number: int) -> None:
        proofs = ({"user": f"u{number}", "password": "wrong horse"}, {"token": "a.b.c"})
        async with login_channel(self._address, self._ca, CLUSTER_ID, CHANNEL_OPTIONS) as channel:
            stub: Any = LoginStub(channel)
            request = LogInRequest(signing_request=self._request, **proofs[number % 2])
            while time.monotonic() < self._began_s + FLOOD_S:
                try:
                    await stub.LogIn(request, timeout=20)
                except grpc.aio.AioRpcError as error:
                    self.answers[type(error_from_rpc(error))] += 1
                else:
                    raise AssertionError("it proves nothing")


def test_a_flood_of_logins_is_refused_and_the_controller_goes_on(cluster: RuledCluster) -> None:
    controller = cluster.controller
    before = controller.resident_bytes()
    most = 0
    with cluster.connect() as client, Flood(cluster) as flood:
        began = time.monotonic()
        for number in range(OWN_CALLS):
            client.admin.create_topic(f"t{number}", queues=1)
            most = max(most, controller.resident_bytes() - before)
        took_s = time.monotonic() - began
    assert set(flood.answers) <= {Throttled, Unauthenticated}
    # How many are throttled depends on how fast the machine calls; how many are looked at does not.
    assert flood.answers[Throttled] > 0
    assert 0 < flood.answers[Unauthenticated] <= PER_ADDRESS * (flood.took_s + BURST_S) + 1
    assert took_s < OWN_CALLS * 1.0, "each of its own calls takes tens of milliseconds else"
    assert most < GROWTH_BYTES_MAX
    log = controller.log_file.read_text()
    assert "Traceback" not in log
    assert " ERROR " not in log
    token = new_token(
        cluster.authority.token_key(),
        user="alice",
        cluster=CLUSTER_ID,
        expires_s=int(time.time()) + 60,
    )
    login = Login(
        addresses=cluster.login_address(controller), ca=cluster.authority.ca_path, token=token
    )
    with connect(cluster.bootstrap, login=login, keep_routes=False) as client:
        assert client.admin.who_am_i().principal == "user:alice"


@pytest.mark.parametrize(
    ("token_bytes", "compression", "error"),
    [
        (MESSAGE_BYTES_MAX - 64, None, InvalidRequest),
        (MESSAGE_BYTES_MAX, None, MessageTooLarge),
        (16 << 20, grpc.Compression.Gzip, MessageTooLarge),
    ],
)
async def test_a_stranger_s_message_is_small_or_refused_unread(
    cluster: RuledCluster, token_bytes: int, compression: Any, error: type[SemelError]
) -> None:
    assert MESSAGE_BYTES_MAX <= 64 << 10
    address = cluster.login_address(cluster.controller)
    request = LogInRequest(token="x" * token_bytes)
    async with login_channel(address, ca_of(cluster), CLUSTER_ID, CHANNEL_OPTIONS) as channel:
        stub: Any = LoginStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.LogIn(request, timeout=20, compression=compression)
    assert type(error_from_rpc(refused.value)) is error


async def test_the_port_reads_no_more_ahead_than_a_message_is(cluster: RuledCluster) -> None:
    """A stranger's calls, headers and bytes on one connection, as HTTP/2's settings tell them."""
    context = ssl.create_default_context(cadata=ca_of(cluster).decode())
    context.set_alpn_protocols(["h2"])
    host, _, port = cluster.login_address(cluster.controller).rpartition(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname=cluster.security.tls_name()
    )
    head = await reader.readexactly(9)
    assert head[3] == SETTINGS
    told = dict(struct.iter_unpack(">HI", await reader.readexactly(int.from_bytes(head[:3]))))
    writer.transport.abort()
    assert told[CALLS_AT_ONCE] == 4
    assert told[WINDOW_BYTES] <= MESSAGE_BYTES_MAX
    assert told[HEADER_BYTES] <= 8 << 10


def test_one_address_does_not_take_all_connections(cluster: RuledCluster) -> None:
    host, _, port = cluster.login_address(cluster.controller).rpartition(":")
    found = [
        socket.create_connection((host, int(port))) for _ in range(2 * CONNECTIONS_PER_ADDRESS_MAX)
    ]
    try:
        for each in found:
            each.setblocking(False)
        until(lambda: sum(map(_is_open, found)) <= CONNECTIONS_PER_ADDRESS_MAX, 4)
        assert "connections refused port=logins" in cluster.controller.log_file.read_text()
    finally:
        for each in found:
            each.close()


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False
