"""The console as a process: its exit codes, its lines of JSON, its one line of error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Console:
    """`semel` with SEMEL_BOOTSTRAP set."""

    def __init__(self, bootstrap: str) -> None:
        self._environment = {**os.environ, "SEMEL_BOOTSTRAP": bootstrap}

    def __call__(
        self, *arguments: str | Path, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "semel.console", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=self._environment,
            timeout=60,
            check=False,
        )

    def json(self, *arguments: str | Path, stdin: bytes = b"") -> Any:
        """The last line of a call that must succeed; every line must be JSON."""
        done = self(*arguments, "--json", stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b"")
        return [json.loads(line) for line in done.stdout.splitlines()][-1]

    def fails(self, *arguments: str | Path, status: int = 1, stdin: bytes = b"") -> str:
        """The one line of error of a call that must fail."""
        done = self(*arguments, stdin=stdin)
        assert (done.returncode, done.stdout) == (status, b""), done.stderr
        [line] = done.stderr.decode().splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")


def read_json(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
