"""Connections of one port: from one address, in all; and those of gRPC, seen from outside."""

from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path

import pytest

from semel.protos.connection_limits import ConnectionLimits, Connections
from semel.protos.grpc_port import GrpcPortWatch


def test_one_address_gets_so_many_and_others_theirs(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(ConnectionLimits(per_address_max=2), "test")
    assert connections.admit(1, "a")
    assert connections.admit(2, "a")
    with caplog.at_level(logging.WARNING):
        assert not connections.admit(3, "a")
        assert not connections.admit(4, "a")
    assert len(caplog.records) == 1, "one line a second, whatever comes"
    assert "from=a" in caplog.text
    assert connections.admit(5, "b")
    connections.release(3)  # it was refused, so nothing is free
    assert not connections.admit(6, "a")
    connections.release(1)
    assert connections.admit(7, "a")
    assert (connections.count, connections.refused) == (3, 3)


def test_there_are_so_many_in_all() -> None:
    connections = Connections(ConnectionLimits(in_all_max=2), "test")
    assert connections.admit(1, "a")
    assert connections.admit(2, "b")
    assert not connections.admit(3, "c")
    connections.release(1)
    assert connections.admit(4, "c")


def test_without_limits_all_may_come() -> None:
    connections = Connections(ConnectionLimits(), "test")
    assert all(connections.admit(number, "a") for number in range(10_000))
    for number in range(10_000):
        connections.release(number)
    assert not connections._counts


class Port:
    """A port of this process whose connections somebody else accepts, as gRPC does."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self._listening.getsockname()[1]
        self.accepted: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """A new connection to it, which it has accepted."""
        client = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        client.settimeout(10)
        self.accepted.append(self._stack.enter_context(self._listening.accept()[0]))
        return client


@pytest.fixture
def port() -> object:
    with contextlib.ExitStack() as stack:
        yield Port(stack)


linux_only = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


@linux_only
def test_too_many_connections_from_one_address_are_cut_and_older_ones_stay(port: Port) -> None:
    watch = GrpcPortWatch(ConnectionLimits(per_address_max=2))
    old = [port.connect(), port.connect()]
    watch.look(port.port)
    new = port.connect()
    watch.look(port.port)
    assert new.recv(1) == b"", "it was shut down"
    assert watch.connections.refused == 1
    for client, there in zip(old, port.accepted, strict=False):
        client.sendall(b"x")
        assert there.recv(1) == b"x"
    # The place of one that has gone is free again.
    old[0].close()
    port.accepted.pop(0).close()
    watch.look(port.port)
    again = port.connect()
    watch.look(port.port)
    again.sendall(b"y")
    assert port.accepted[-1].recv(1) == b"y"
    assert watch.connections.count == 2


@linux_only
def test_connections_at_other_ports_are_left_alone(port: Port) -> None:
    watch = GrpcPortWatch(ConnectionLimits(per_address_max=1, in_all_max=1), strangers_max=0)
    here, there = socket.socketpair()
    with here, there:
        others = [port.connect() for _ in range(3)]
        watch.look(port.port + 1)
        others[2].sendall(b"x")
        assert port.accepted[2].recv(1) == b"x"
        here.sendall(b"x")
        assert there.recv(1) == b"x"
    assert watch.connections.refused == 0


@linux_only
def test_of_those_that_made_no_call_the_oldest_end_and_callers_stay(port: Port) -> None:
    watch = GrpcPortWatch(ConnectionLimits(), strangers_max=2)
    caller = port.connect()
    watch.heard(f"ipv4:127.0.0.1:{caller.getsockname()[1]}")
    silent = [port.connect() for _ in range(3)]
    watch.look(port.port)
    watch.look(port.port)
    ended = sum(_ended(client) for client in silent)
    assert ended == 1
    assert watch.strangers_refused >= 1
    caller.sendall(b"x")
    assert port.accepted[0].recv(1) == b"x"
    # What was heard is forgotten with its connection.
    for each in (*silent, caller, *port.accepted):
        each.close()
    watch.look(port.port)
    watch.look(port.port)
    assert not watch._heard
    assert watch.connections.count == 0


def _ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
