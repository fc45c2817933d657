"""systemd hears what sd_notify(3) defines, from whoever it waits for."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.protos import compat
from semel.protos.systemd import ServiceManager


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """At an abstract address: one in a directory may be too long for a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind("")
        found.settimeout(20)
        yield found


def address_of(listener: socket.socket) -> str:
    name: bytes = listener.getsockname()
    return "@" + name[1:].decode("ascii")


def test_without_a_manager_nothing_is_told() -> None:
    manager = ServiceManager({})
    manager.tell("READY=1")
    assert manager.beat_s is None


def test_assignments_are_lines_of_one_datagram(listener: socket.socket) -> None:
    ServiceManager({"NOTIFY_SOCKET": address_of(listener)}).tell("READY=1", "STATUS=it listens")
    assert listener.recv(1_024) == b"READY=1\nSTATUS=it listens"


def test_a_path_is_an_address_as_well() -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named,
    ):
        named.bind(f"{directory}/notify")
        named.settimeout(20)
        ServiceManager({"NOTIFY_SOCKET": f"{directory}/notify"}).tell("READY=1")
        assert named.recv(1_024) == b"READY=1"


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).tell("READY=1")


@pytest.mark.parametrize(
    ("variables", "beat_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),  # another process is meant
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_beats_come_twice_in_the_time_that_is_allowed(
    variables: dict[str, str], beat_s: float | None
) -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", **variables}
    assert ServiceManager(environment, pid=7).beat_s == beat_s


async def test_a_program_that_serves_is_ready_beats_and_stops(listener: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": address_of(listener), "WATCHDOG_USEC": "20000"}
    listener.setblocking(False)
    loop = asyncio.get_running_loop()

    async def heard() -> bytes:
        async with compat.timeout(20):
            return await loop.sock_recv(listener, 1_024)

    async with ServiceManager(environment).serving("it listens"):
        assert await heard() == b"READY=1\nSTATUS=it listens\nWATCHDOG_USEC=20000"
        assert await heard() == b"WATCHDOG=1"
        assert await heard() == b"WATCHDOG=1"
    while (last := await heard()) == b"WATCHDOG=1":
        pass
    assert last == b"STOPPING=1"


async def test_a_program_that_starts_anew_is_not_stopping_and_owes_no_beat(
    listener: socket.socket,
) -> None:
    environment = {"NOTIFY_SOCKET": address_of(listener), "WATCHDOG_USEC": "60000000"}
    async with ServiceManager(environment).serving("it listens", ends=lambda: False):
        assert listener.recv(1_024).endswith(b"WATCHDOG_USEC=60000000")
    told = listener.recv(1_024)
    if told == b"WATCHDOG=1":
        told = listener.recv(1_024)
    first, at, watch = told.decode().split("\n")
    assert (first, watch) == ("RELOADING=1", "WATCHDOG_USEC=0")
    assert int(at.removeprefix("MONOTONIC_USEC=")) > 0
