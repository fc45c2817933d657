"""What a console command prints when the server it asks says why it goes: one line of ours.

gRPC's C core would log each refusal to stderr by itself, between our lines.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SETTINGS, _GOAWAY, _INTERNAL_ERROR = 4, 7, 2
"""Frame types and an error code, RFC 9113 sections 6.5, 6.8 and 7."""


def frame(kind: int, payload: bytes) -> bytes:
    """An HTTP/2 frame of stream 0 without flags."""
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + bytes(4) + payload


FAREWELL = frame(_SETTINGS, b"") + frame(
    _GOAWAY, bytes(4) + _INTERNAL_ERROR.to_bytes(4, "big") + b"down"
)


@pytest.fixture
def leaver() -> Iterator[int]:
    """The port of a server that greets everybody with GOAWAY."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # closed: the test has ended
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(ConnectionError):
                        connection.sendall(FAREWELL)
                        while connection.recv(4096):
                            pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def environment(**more: str) -> dict[str, str]:
    """Ours without what the person who runs the tests wants of gRPC."""
    kept = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    return kept | more


def asked(port: int, **more: str) -> list[str]:
    """The lines that a command leaves on stderr."""
    command = [sys.executable, "-m", "semel.console", "topic", "list"]
    done = subprocess.run(
        [*command, "--bootstrap", f"127.0.0.1:{port}"],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


def test_grpc_says_nothing_between_the_lines_of_a_command(leaver: int) -> None:
    [line] = asked(leaver)
    assert line.startswith(f"error: no controller answers at 127.0.0.1:{leaver} ")
    assert "GOAWAY" in line  # it did come


def test_who_wants_to_hear_grpc_does(leaver: int) -> None:
    *said, line = asked(leaver, GRPC_VERBOSITY="INFO")
    assert line.startswith("error: ")
    assert any("Got goaway" in each for each in said)


@pytest.mark.parametrize("module", ["benchmarks.growth_client", "benchmarks.floor_client"])
def test_programs_that_measure_keep_grpc_quiet_too(module: str) -> None:
    code = f"import {module}, os, sys; print('grpc' in sys.modules, os.environ['GRPC_VERBOSITY'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("True ERROR\n", "")
