"""Keeps a cluster's nodes running as child processes, and ends them with itself.

How it works. `Restarts` decides, purely, how long to wait before a node that died is started
again. `Supervisor` is the shell around it: one task per node starts the process through
`launcher.py`, waits for its end, reports both as events and starts it again after the delay.

Invariants
1. When `Supervisor` is left, by whatever way, none of its processes lives: SIGTERM first, SIGKILL
   after `STOP_GRACE_S`. When it is killed itself, the kernel kills its nodes (`launcher.py`).
2. A node that gives up by itself (exit status 1 or 2) before the cluster served once is not
   restarted: its last line says why, and becomes the error of `up`.
3. Processes are started from the thread of the event loop, which must be the main thread: the
   kernel binds the request of `launcher.py` to the life of the starting thread.

Not here: ports and ids (`cluster_file.py`), when a cluster counts as serving (`up.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from semel.console import targets, zookeeper
from semel.console.cluster_file import SECURITY, ClusterPlan, NodePlan
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import Unavailable
from semel.protos.logs import JSON, TEXT, reason_in

STOP_GRACE_S: Final = 6.0
Command = Callable[[ClusterPlan, NodePlan, Path], list[str]]
"""The whole command line of one node, program first."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""A node's log larger than this is moved to `.old` when the node is started."""


@dataclass(slots=True, kw_only=True)
class Restarts:
    """How long a node that died waits before it is started again.

    The first restart comes soon; a node that dies again before it has run for `settled_ms` waits
    twice as long each time, up to `delay_ms_max`.
    """

    delay_ms: int = 500
    delay_ms_max: int = 10_000
    settled_ms: int = 10_000
    _failures: int = 0
    _started_ms: int = 0

    def on_started(self, now_ms: int) -> None:
        """Notes that the process was started at `now_ms` (any monotonic clock)."""
        self._started_ms = now_ms

    def on_exited(self, now_ms: int) -> int:
        """Notes that the process ended; returns the milliseconds to wait."""
        if now_ms - self._started_ms >= self.settled_ms:
            self._failures = 0
        delay = min(self.delay_ms << min(self._failures, 16), self.delay_ms_max)
        self._failures += 1
        return delay


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """A node's process came or went."""

    event: Literal["started", "exited"]
    node: NodePlan
    pid: int
    status: int | None = None
    """Exit status, negative for a signal; None for `started`."""


class Supervisor:
    """`async with Supervisor(plan, directory, ...)`: the nodes run inside the block.

    Raises Unavailable (from `check`) when a node cannot start.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        directory: Path,
        *,
        restart: bool,
        on_event: Callable[[NodeEvent], None],
        command: Command | None = None,
        log_format: str = TEXT,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._restart = restart
        self._on_event = on_event
        self._command = command or measured_command
        self._log_format = log_format
        self._tasks: list[asyncio.Task[None]] = []
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        """Running processes by the node's name."""
        self._kept: set[str] = set()
        """Names of the nodes that have a task, and have not been retired."""
        self._failure: str | None = None
        self._stopping = asyncio.Event()
        self.serving = False
        """Set by the owner once the cluster served; from then on every node that dies is restarted
        and every event is reported."""

    async def __aenter__(self) -> Supervisor:
        (self._directory / "logs").mkdir(parents=True, exist_ok=True)
        self.follow(self._plan)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stopping = asyncio.ensure_future(self._stop())
        while not stopping.done():  # a second interrupt must not leave a process behind
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(stopping)
        stopping.result()

    def follow(self, plan: ClusterPlan) -> None:
        """Starts the nodes that are new in `plan`, and ends those that are no longer in it."""
        self._plan = plan
        for node in plan.nodes:
            if node.name not in self._kept and not self._stopping.is_set():
                (self._directory / node.name).mkdir(parents=True, exist_ok=True)
                self._kept.add(node.name)
                self._tasks.append(asyncio.create_task(self._keep(node)))
        for name in self._kept - {node.name for node in plan.nodes}:
            self._kept.discard(name)
            if name in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    self._processes[name].terminate()

    def check(self) -> None:
        """Raises Unavailable when a node gave up, and the error of a task that failed."""
        if self._failure is not None:
            raise Unavailable(self._failure)
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def pid(self, node: NodePlan) -> int | None:
        """Process id of a node; None when it does not run."""
        process = self._processes.get(node.name)
        return process.pid if process is not None else None

    def log_path(self, node: NodePlan) -> Path:
        """The file that receives a node's output."""
        return self._directory / "logs" / f"{node.name}.log"

    def kill_now(self) -> None:
        """Sends SIGKILL to every node, without the grace period."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    async def _keep(self, node: NodePlan) -> None:
        """Runs one node until it must not be started again."""
        restarts = Restarts()
        while not self._stopping.is_set() and node.name in self._kept:
            if not await self._needs_met(node):
                return
            process = await self._start(node)
            restarts.on_started(_now_ms())
            status = await process.wait()
            delay_ms = restarts.on_exited(_now_ms())
            del self._processes[node.name]
            self._tell(NodeEvent(event="exited", node=node, pid=process.pid, status=status))
            if self._stopping.is_set() or not self._restart or node.name not in self._kept:
                return
            if status in (1, 2) and not self.serving:
                self._failure = f"{node.name} did not start: {self._last_line(node)}"
                return
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(delay_ms / 1000):
                    await self._stopping.wait()

    async def _needs_met(self, node: NodePlan) -> bool:
        """Waits until ZooKeeper listens if the node is a controller; False when it must not start.

        A controller by itself waits only some seconds and then gives up; a JVM may take longer.
        """
        for other in self._plan.zookeepers if node.kind == "controller" else ():
            while not await _listens(other.address):
                if self._stopping.is_set() or node.name not in self._kept:
                    return False
                await asyncio.sleep(0.05)
        return True

    async def _start(self, node: NodePlan) -> asyncio.subprocess.Process:
        launcher = Path(__file__).with_name("launcher.py")
        command = [
            *(sys.executable, "-I", "-S", str(launcher), str(os.getpid())),
            *self._command(self._plan, node, self._directory),
        ]
        if self._log_format == JSON and node.kind != "zookeeper":
            command += ["--log-format", JSON]
        with self._open_log(node) as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment(),
            )
        self._processes[node.name] = process
        self._tell(NodeEvent(event="started", node=node, pid=process.pid))
        if self._stopping.is_set() or node.name not in self._kept:
            # The signal was sent while this process was being started.
            process.terminate()
        return process

    def _environment(self) -> dict[str, str] | None:
        """What gRPC's own lines are to be: they say why a TLS handshake failed, and are no JSON."""
        if self._log_format == JSON:
            return {"GRPC_VERBOSITY": "NONE", **os.environ}
        return {**os.environ, "GRPC_VERBOSITY": "INFO"} if self._plan.secure else None

    @contextlib.contextmanager
    def _open_log(self, node: NodePlan) -> Iterator[int]:
        path = self.log_path(node)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.old"))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _last_line(self, node: NodePlan) -> str:
        """The newest line that names an error, or else the newest line."""
        path = self.log_path(node)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]
        lines = [line for line in lines if line.strip()]
        reasons = [reason for line in lines if (reason := reason_in(line)) is not None]
        return f"{(reasons or lines or ['it said nothing'])[-1]} ({path})"

    def _tell(self, event: NodeEvent) -> None:
        if self.serving:
            self._on_event(event)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _stop(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process would sleep through its own end
        _, alive = await asyncio.wait(self._tasks, timeout=STOP_GRACE_S)
        while alive:
            self._signal(signal.SIGKILL)
            _, alive = await asyncio.wait(alive, timeout=0.5)


def node_command(plan: ClusterPlan, node: NodePlan, directory: Path) -> list[str]:
    """The command line of a node's own program."""
    if node.kind == "zookeeper":
        return zookeeper.prepare(directory / node.name, node.address)
    command = [sys.executable, "-P", "-m", f"semel.{node.kind}"]
    command += ["--data", str(directory / node.name), "--listen", node.address]
    command += ["--cluster-id", plan.cluster_id]
    if plan.secure:
        command += ["--tls-dir", str(directory / SECURITY / node.name)]
        if plan.authorization:
            audit = directory / "logs" / f"{node.name}.audit.jsonl"
            command += ["--authorization", "--audit-log", str(audit)]
    elif not Address.parse(node.address).loopback:
        command += ["--insecure"]  # `up` was told so, or would not have started
    if node.kind == "controller":
        command += ["--controller-id", str(node.id)]
        command += ["--login-listen", node.login] if node.login else []
        if plan.metadata_address:
            command += ["--metadata", plan.metadata_address]
        elif len(plan.controllers) > 1:
            peers = ",".join(f"{other.id}={other.address}" for other in plan.controllers)
            command += ["--peers", peers]
    if node.kind == "broker":
        assert node.group is not None
        command += ["--group", str(node.group), "--node", str(node.id), "--allow-same-machine"]
        if node.joined:
            others = [other.address for other in plan.members(node.group) if other != node]
            command += ["--join", ",".join(others)]
        else:
            for member in plan.founders(node.group):
                command += ["--member", f"{member.id}={member.address}"]
        command += ["--controllers", plan.bootstrap]
        command += ["--tier", plan.tier] if plan.tier else []
        command += ["--tier-restore"] if plan.tier_restore else []
    return [*command, "--json"]


def measured_command(plan: ClusterPlan, node: NodePlan, directory: Path) -> list[str]:
    """The command line of a node with a port for its metrics, which the directory remembers."""
    measured = [] if node.kind == "zookeeper" else targets.options(plan, node, directory)
    return [*node_command(plan, node, directory), *measured]


async def _listens(address: str) -> bool:
    """True when some process accepts connections at HOST:PORT."""
    wanted = Address.parse(address)
    try:
        _, writer = await asyncio.open_connection(wanted.host, wanted.port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
