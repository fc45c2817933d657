"""The proxies do what they say, and count it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults.proxy import Network, link_host
from tests.kit.waiting import until

A, B = 11, 12


class Echo:
    """A server that sends back what it gets, and keeps it."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.got = bytearray()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    data = connection.recv(4096)
                    if not data:
                        return
                    self.got += data
                    connection.sendall(data)
                except OSError:
                    return

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(5)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def network(echo: Echo) -> Iterator[Network]:
    with Network(seed=1) as running:
        running.expose(A, B, {echo.port})
        yield running


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection((link_host(A, B), port), timeout=5) as connection:
        yield connection


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece, "the connection has ended"
        data += piece
    return data


def test_a_cut_holds_and_a_freed_flow_delivers_in_order(network: Network, echo: Echo) -> None:
    with connected(echo.port) as connection:
        connection.sendall(b"before")
        assert received(connection, 6) == b"before"
        network.cut([(A, B)])
        connection.sendall(b"held")
        until(lambda: network.flow(A, B).held == 1)
        assert echo.got == b"before"
        network.free([(A, B)])
        connection.sendall(b"more")
        assert received(connection, 8) == b"heldmore"


def test_one_way_means_one_way(network: Network, echo: Echo) -> None:
    with connected(echo.port) as connection:
        network.cut([(B, A)])
        connection.sendall(b"heard")
        until(lambda: echo.got == b"heard")
        until(lambda: network.flow(B, A).held == 1)
        assert network.flow(A, B).held == 0
        network.heal()
        assert received(connection, 5) == b"heard"


def test_a_flow_that_two_have_cut_is_free_when_both_have_freed_it(
    network: Network, echo: Echo
) -> None:
    with connected(echo.port) as connection:
        network.cut([(A, B)])
        network.cut([(A, B)])
        network.free([(A, B)])
        connection.sendall(b"x")
        until(lambda: network.flow(A, B).held == 1)
        assert not echo.got
        network.free([(A, B)])
        assert received(connection, 1) == b"x"


def test_delay_throttle_and_damage_are_done_and_counted(network: Network, echo: Echo) -> None:
    with connected(echo.port) as connection:
        network.shape([(A, B)], delay_s=0.1)
        began = time.monotonic()
        connection.sendall(b"late")
        received(connection, 4)
        assert time.monotonic() - began >= 0.1
        assert network.flow(A, B).delayed == 1
        network.shape([(A, B)], delay_s=0, bytes_per_s=1_000)
        began = time.monotonic()
        connection.sendall(bytes(100))
        received(connection, 100)
        assert time.monotonic() - began >= 0.1
        assert network.flow(A, B).throttled >= 1
        network.shape([(A, B)], bytes_per_s=0, corrupt_every=1)
        connection.sendall(bytes(50))
        damaged = received(connection, 50)
        assert 1 <= sum(byte.bit_count() for byte in damaged) == network.flow(A, B).corrupted
        network.shape([(A, B)], corrupt_every=0)
        connection.sendall(b"well")
        assert received(connection, 4) == b"well"


def test_dropped_connections_end_and_new_ones_work(network: Network, echo: Echo) -> None:
    with connected(echo.port) as connection:
        connection.sendall(b"x")
        received(connection, 1)
        assert network.drop(A, B) == 2  # both ends of the one connection
        with pytest.raises((ConnectionResetError, AssertionError)):
            received(connection, 1)
    with connected(echo.port) as connection:
        connection.sendall(b"y")
        assert received(connection, 1) == b"y"


def test_a_connection_to_nobody_ends(network: Network) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    network.expose(A, B, {port})
    with connected(port) as connection, pytest.raises((ConnectionResetError, AssertionError)):
        received(connection, 1)
