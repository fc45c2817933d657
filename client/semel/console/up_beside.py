"""A program beside the nodes of `semel up`, which ends with the cluster.

How it works. It is a command of this console, started through `launcher.py` like a node. It prints
a line once it serves, which says where.

Not here: which programs (`up_web.py`, `up_kafka.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from semel.protos import compat
from semel.protos.errors import Unavailable

START_S: Final = 30.0
STOP_S: Final = 5.0


class Beside:
    """The process; `async with` starts and ends it."""

    def __init__(
        self,
        what: str,
        log_path: Path,
        command: Sequence[str],
        field: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`what` is its name for people, `field` that of the place in the line that it prints. It
        gets nothing of this process's settings but `environment`."""
        self._what = what
        self._log_path = log_path
        self._command = command
        self._field = field
        self._environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self.place = ""
        """Where it serves, once it is entered."""
        self.facts: dict[str, str] = {}
        """What else is told about it then, by name."""

    async def __aenter__(self) -> Self:
        """Raises Unavailable if it does not start."""
        launcher = Path(__file__).with_name("launcher.py")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(launcher), str(os.getpid())),
                *(sys.executable, "-m", "semel.console", *self._command, "--json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=clean | self._environment,
            )
        assert self._process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(START_S):
                line = await self._process.stdout.readline()
        if not line:
            await self._end()
            raise Unavailable(f"the {self._what} did not start: see {self._log_path}")
        self.place = json.loads(line)[self._field]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with compat.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
