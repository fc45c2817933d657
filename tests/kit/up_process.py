"""`semel up` as a process, for tests of the console: its events, its nodes, its end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from semel.client import SemelError, connect
from semel.client.admin.descriptions import BrokerGroupDescription
from tests.kit.waiting import until

READY_TIMEOUT_S = 60.0


def is_alive(pid: int) -> bool:
    """A process with this id runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@dataclass(slots=True, kw_only=True)
class UpNode:
    """One line of `nodes` in the `ready` event; `pid` follows restarts, None while it is down."""

    kind: str
    group: int | None
    id: int
    address: str
    data: Path
    pid: int | None
    metrics: str


class UpProcess:
    """`with UpProcess(directory) as up:`; leaving the block ends it as SIGTERM would."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.bootstrap = ""
        self.nodes: list[UpNode] = []
        self.events: list[dict[str, Any]] = []
        self._options: Sequence[str] = options
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __enter__(self) -> UpProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def process(self) -> subprocess.Popen[str]:
        """`semel up` itself; asserts that it was started."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Starts it and returns once it is ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "semel.console", "up", "--data", str(self.directory)]
        self.events.clear()
        with (self.directory / "up.stderr").open("a") as stderr:
            self._process = subprocess.Popen(
                [*command, "--port", "0", "--json", *self._options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        try:
            ready = self.wait_event("ready", timeout=READY_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        self.bootstrap = ready["bootstrap"]
        self.nodes = [UpNode(**{**node, "data": Path(node["data"])}) for node in ready["nodes"]]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it and returns the exit status; one that stays is killed and fails the test."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(12)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            self.drain(until_end=True)
            assert process.stdout is not None
            process.stdout.close()

    def node(self, node_id: int, kind: str = "broker") -> UpNode:
        """One node by its number."""
        self.drain()
        return next(node for node in self.nodes if (node.kind, node.id) == (kind, node_id))

    @property
    def brokers(self) -> list[UpNode]:
        """All broker nodes."""
        self.drain()
        return [node for node in self.nodes if node.kind == "broker"]

    def group(self) -> BrokerGroupDescription:
        """Broker group 1, once it has a master that is alive."""

        def found() -> BrokerGroupDescription | None:
            try:
                with connect(self.bootstrap) as client:
                    groups = client.admin.cluster_status().groups
            except SemelError:
                return None
            for group in groups:
                alive = {node.id for node in group.nodes if node.alive}
                if group.id == 1 and group.master in alive:
                    return group
            return None

        return until(found, 20, "a master of group 1")

    def master(self) -> int:
        """Node id of the master of group 1."""
        return self.group().master

    def term(self) -> int:
        """Term of group 1."""
        return self.group().term

    def wait_all_alive(self) -> None:
        """Waits until every broker reports and has caught up with what is committed now."""
        target = self.group().commit_index

        def all_alive() -> bool:
            nodes = self.group().nodes
            good = [node for node in nodes if node.alive and node.log_end_index >= target]
            return len(good) == len(self.brokers)

        until(all_alive, 30, "all brokers to be alive")

    def kill(self, node: UpNode) -> int:
        """SIGKILL to a node's process; returns the id it had."""
        self.drain()
        assert node.pid is not None, f"{node.kind} {node.id} is down already"
        pid = node.pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_event(self, event: str, *, timeout: float, **fields: Any) -> dict[str, Any]:
        """The first event, past or future, with this name and these fields."""
        wanted = {"event": event, **fields}

        def found() -> dict[str, Any] | None:
            self.drain()
            for line in self.events:
                if all(line.get(name) == value for name, value in wanted.items()):
                    return line
            assert self.process.poll() is None or not self._lines.empty(), (
                "semel up ended: " + (self.directory / "up.stderr").read_text()[-2000:]
            )
            return None

        return until(found, timeout, f"event {event} {fields}")

    def drain(self, *, until_end: bool = False) -> None:
        """Takes in the lines that came; a `started` or `exited` event changes its node's pid."""
        while until_end or not self._lines.empty():
            line = self._lines.get()
            if line is None:
                return
            event = json.loads(line)
            self.events.append(event)
            for node in self.nodes:
                if (node.kind, node.id) == (event.get("kind"), event.get("id")):
                    node.pid = event["pid"] if event["event"] == "started" else None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in process.stdout:
                self._lines.put(line)
        self._lines.put(None)
