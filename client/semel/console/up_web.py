"""The web console beside `semel up --web`: a process of its own, which ends with the cluster.

How it works. It is `semel web` on a port of this machine, started through `launcher.py` like a
node. In a cluster with TLS it has the client file of those who log in, so that visitors have their
own rights, or without ports for logins that of the administrator, and then prints a URL with a key.

Not here: the console itself (`semel.web`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from semel.console import cluster_file
from semel.console.cluster_file import CLIENT_FILE, ClusterPlan
from semel.protos import compat
from semel.protos.errors import InvalidRequest, Unavailable
from semel.protos.security.identity import ADMIN

NEEDED: Final = ("starlette", "jinja2", "uvicorn")
START_S: Final = 30.0
STOP_S: Final = 5.0


def check() -> None:
    """Raises InvalidRequest if what the web console needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidRequest(
            f"the web console needs {', '.join(missing)}: pip install 'semel[web]'"
        )


class WebBeside:
    """The process; `async with` starts and ends it."""

    def __init__(self, plan: ClusterPlan, directory: Path, port: int) -> None:
        self._plan = plan
        self._directory = directory
        self._port = port
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""
        """Its address, once it is entered."""

    async def __aenter__(self) -> Self:
        """Raises Unavailable if it does not start."""
        launcher = Path(__file__).with_name("launcher.py")
        log_path = self._directory / "logs" / "web.log"
        with log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(launcher), str(os.getpid())),
                *(sys.executable, "-m", "semel.console", "web", "--json"),
                *("--listen", f"127.0.0.1:{self._port}", "--bootstrap", self._plan.bootstrap),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=self._environment(),
            )
        assert self._process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(START_S):
                line = await self._process.stdout.readline()
        if not line:
            await self._end()
            raise Unavailable(f"the web console did not start: see {log_path}")
        self.url = json.loads(line)["url"]
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

    def _environment(self) -> dict[str, str]:
        """Nothing of this process says which cluster it is, or who asks."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
        if not self._plan.secure:
            return clean
        who = "login" if self._plan.logins else ADMIN
        path = self._directory / cluster_file.SECURITY / who / CLIENT_FILE
        return clean | {"SEMEL_CLIENT_CONFIG": str(path)}
