"""The console as a process: its exit codes, its lines of JSON, its one line of error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.kit import forking


class Console:
    """`semel` with SEMEL_BOOTSTRAP set."""

    def __init__(self, bootstrap: str) -> None:
        self._environment = {**os.environ, "SEMEL_BOOTSTRAP": bootstrap}

    def __call__(
        self, *arguments: str | Path, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        words = [*map(str, arguments)]
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as errors:
            given.write(stdin)
            given.seek(0)
            files = (given.fileno(), out.fileno(), errors.fileno())
            forked = forking.begin("semel.console", words, 0, files, self._environment)
            if forked is not None:
                try:
                    status = forked.wait(60)
                finally:
                    forked.kill()
                out.seek(0)
                errors.seek(0)
                return subprocess.CompletedProcess(words, status, out.read(), errors.read())
        return subprocess.run(
            [sys.executable, "-m", "semel.console", *words],
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
