"""Too many calls of one class, and too many connections, are refused; all else goes on."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from semel.client import Client, connect
from semel.protos.addresses import Address
from semel.protos.call_classes import LIMITS
from semel.protos.errors import Throttled
from semel.protos.grpc_port import HANDSHAKE_MS
from semel.protos.rpc import error_from_rpc
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, isolation_pb2
from tests.kit.cluster import Cluster
from tests.kit.secure_cluster import SecureCluster
from tests.kit.waiting import until

FEW = 16
"""Connections that an address may have at each port."""
FLAGS = ("--calls-waiting-max", "1", "--connections-per-address-max", str(FEW))
LET_IN = LIMITS[isolation_pb2.CALL_CLASS_SCAN].running_max + 1
"""Verifications that go on, and one that waits."""
FAR = 1 << 40
"""An entry that nobody will have applied."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("isolation")
    with Cluster(data, brokers=1, broker_flags=FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster.bootstrap, keep_routes=False) as client:
        client.admin.create_topic("t", queues=1)
        yield client


@pytest.fixture
def stub(cluster: Cluster) -> Iterator[broker_pb2_grpc.BrokerStub]:
    with grpc.insecure_channel(cluster.brokers[0].address) as channel:
        yield broker_pb2_grpc.BrokerStub(channel)


def is_let_in(stub: broker_pb2_grpc.BrokerStub) -> bool:
    """Whether a verification of what is there goes on to its end."""
    try:
        return bool(list(stub.VerifyQueues(broker_pb2.VerifyQueuesRequest(), timeout=10)))
    except grpc.RpcError:
        return False


def test_calls_beyond_a_full_line_are_refused_and_all_else_goes_on(
    cluster: Cluster, client: Client, stub: broker_pb2_grpc.BrokerStub
) -> None:
    request = broker_pb2.VerifyQueuesRequest(index=FAR)
    calls = [stub.VerifyQueues(request) for _ in range(8)]
    until(lambda: sum(call.is_active() for call in calls) == LET_IN)
    for call in calls:
        if not call.is_active():
            error = error_from_rpc(call)
            assert isinstance(error, Throttled)
            assert "the class 'scan'" in error.message
            assert error.retry_after_ms > 0
    with client.producer() as producer:
        for _ in range(20):
            producer.send("t", b"x").result(10)
    assert client.admin.describe_topic("t").queues[0].log_end_offset >= 20
    assert cluster.status(cluster.brokers[0]).role == "master"
    for call in calls:
        call.cancel()
    until(partial(is_let_in, stub))  # their places are free again
    assert "calls refused class=scan" in cluster.brokers[0].log_file.read_text()


def open_connections(stack: contextlib.ExitStack, port: int, count: int) -> list[socket.socket]:
    found = [
        stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)
    ]
    for each in found:
        each.setblocking(False)
    return found


def is_open(connection: socket.socket) -> bool:
    try:
        while data := connection.recv(1 << 16):  # gRPC sends its settings at once
            del data
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def fewer_than(count: int, connections: list[socket.socket]) -> bool:
    return sum(map(is_open, connections)) < count


def test_an_address_gets_so_many_connections_and_those_that_are_there_go_on(
    cluster: Cluster, client: Client
) -> None:
    node = cluster.brokers[0]
    with grpc.insecure_channel(node.address) as channel:
        streams = broker_pb2_grpc.BrokerStreamStub(channel)
        request = broker_pb2.OpenDirectRequest(stream=broker_pb2.DIRECT_STREAM_FETCH)
        ports = {
            "streams": streams.OpenDirect(request, timeout=10).port,
            "gRPC": Address.parse(node.address).port,
        }
        with client.producer() as producer:
            producer.send("t", b"before").result(10)
            for name, port in ports.items():
                with contextlib.ExitStack() as stack:
                    found = open_connections(stack, port, 3 * FEW)
                    until(partial(fewer_than, FEW, found))
                    # Those who were there before notice nothing.
                    producer.send("t", b"meanwhile").result(10)
                    streams.OpenDirect(request, timeout=10)
                assert f"connections refused port={name}" in node.log_file.read_text()


@pytest.mark.parametrize("secure", [False, True])
def test_who_says_nothing_is_sent_away_by_every_port_of_grpc(tmp_path: Path, secure: bool) -> None:
    kind = SecureCluster if secure else Cluster
    with kind(tmp_path, brokers=1) as cluster, contextlib.ExitStack() as stack:
        began = time.monotonic()
        ports = [Address.parse(node.address).port for node in cluster.nodes]
        found = [open_connections(stack, port, 1)[0] for port in ports]
        until(lambda: not any(map(is_open, found)), 3 * HANDSHAKE_MS / 1000)
        assert time.monotonic() - began > HANDSHAKE_MS / 1000 - 1, "it had time to speak"
