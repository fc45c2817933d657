"""A controller as a process of its own: started, ended, and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc

from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.v1.controller_pb2_grpc import ControllerStub

COMMAND = [sys.executable, "-m", "semel.controller"]


class Process:
    """One controller process, ready to serve."""

    def __init__(self, data: Path, *flags: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--data", str(data), "--json", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SEMEL_CONTROLLER_LISTEN": "127.0.0.1:0", **environment},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.end(signal.SIGKILL)[1])
        self.ready: dict[str, Any] = json.loads(line)
        self.channel = grpc.insecure_channel(self.ready["address"], options=CHANNEL_OPTIONS)
        self.stub = ControllerStub(self.channel)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit status and what it wrote to stderr."""
        if hasattr(self, "channel"):
            self.channel.close()
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=10)
        return self.process.returncode, stderr


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *flags],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **environment},
        check=False,
    )


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The only line of a failed start."""
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line
