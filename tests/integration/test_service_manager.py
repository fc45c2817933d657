"""Started as systemd starts them, broker and controller tell that they serve, live, and stop."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def arguments(program: str, data: Path) -> list[str]:
    common = ["--data", str(data), "--listen", "127.0.0.1:0"]
    if program == "semel.controller":
        return [*common, "--cluster-id", "c"]
    return [*common, *("--cluster-id", "c", "--group", "1", "--node", "1", "--found", "today")]


@pytest.mark.parametrize("program", ["semel.broker", "semel.controller"])
def test_the_service_manager_hears_of_the_program(program: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # to an abstract address: a path may be too long
        manager.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", program, *arguments(program, tmp_path / "data")],
            env={
                **os.environ,
                "NOTIFY_SOCKET": "@" + manager.getsockname()[1:].decode("ascii"),
                "WATCHDOG_USEC": "200000",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            ready, status, _ = manager.recv(4_096).decode().split("\n")
            assert ready == "READY=1"
            assert status.startswith("STATUS=")
            assert " listens on 127.0.0.1:" in status
            assert manager.recv(4_096) == b"WATCHDOG=1"
            assert manager.recv(4_096) == b"WATCHDOG=1"
            process.terminate()
            while (last := manager.recv(4_096)) == b"WATCHDOG=1":
                pass
            assert last == b"STOPPING=1"
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.communicate()
