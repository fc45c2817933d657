"""Output of `semel up`: JSON events for scripts, or a live table for people.

How it works. `up` tells a view when the cluster serves, when a node comes or goes, and the
controller's newest status; the view draws. On a terminal the table stays in place and changes; in a
pipe the output for people is one line per event.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from semel.console import render, targets
from semel.console.cluster_file import CLIENT_FILE, SECURITY, ClusterPlan, NodePlan

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.console.supervisor import NodeEvent
    from semel.protos.v1.controller_pb2 import ClusterStatusReply

EVENTS_SHOWN = 5
BESIDE = {
    "web": "web console",
    "kafka": "Kafka's clients",
    "kafka_config": "settings of Kafka's clients",
}
"""Programs beside the cluster and what is told about them, as people call it."""


class Pids(Protocol):
    """Gives the process ids of nodes."""

    def pid(self, node: NodePlan) -> int | None:
        """Process id of a node that runs."""


class View(Protocol):
    """Receives the events of `up`, in the order in which they happen."""

    wants_status: bool

    def on_ready(self, pids: Pids, seconds: float, beside: Mapping[str, str]) -> None:
        """The cluster serves now; `beside` has the places of the programs beside it and what
        else is told about them, by name."""

    def on_event(self, event: NodeEvent) -> None:
        """A node came or went, after `on_ready`."""

    def on_plan(self, plan: ClusterPlan) -> None:
        """Brokers joined or left."""

    def on_status(self, status: ClusterStatusReply | None) -> None:
        """The controller's newest status; None while it does not answer."""

    def on_stopping(self) -> None:
        """The nodes are being ended."""


class JsonView:
    """The output that scripts rely on."""

    wants_status = False

    def __init__(self, plan: ClusterPlan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._out = render.Output(as_json=True)

    def on_ready(self, pids: Pids, seconds: float, beside: Mapping[str, str]) -> None:
        """Prints the `ready` line."""
        metrics = targets.addresses(self._directory)
        nodes = [
            {
                "kind": node.kind,
                "group": node.group,
                "id": node.id,
                "address": node.address,
                "pid": pids.pid(node),
                "data": str(self._directory / node.name),
                "metrics": metrics.get(node.name, ""),
            }
            for node in self._plan.nodes
        ]
        self._out.emit(
            {
                "event": "ready",
                "bootstrap": self._plan.bootstrap,
                "cluster_id": self._plan.cluster_id,
                **_secure(self._plan, self._directory),
                **({"authorization": True} if self._plan.authorization else {}),
                **beside,
                "seconds": round(seconds, 3),
                "nodes": nodes,
            }
        )

    def on_event(self, event: NodeEvent) -> None:
        """Prints a `started` or `exited` line."""
        line: dict[str, Any] = {
            "event": event.event,
            "kind": event.node.kind,
            "group": event.node.group,
            "id": event.node.id,
            "pid": event.pid,
        }
        self._out.emit(line if event.status is None else {**line, "status": event.status})

    def on_plan(self, plan: ClusterPlan) -> None:
        """A no-op: scripts see the `started` and `exited` lines."""

    def on_status(self, status: ClusterStatusReply | None) -> None:
        """A no-op: scripts ask for the status themselves."""

    def on_stopping(self) -> None:
        """A no-op: scripts see the `exited` lines."""


def _secure(plan: ClusterPlan, directory: Path) -> dict[str, str]:
    """The files that a client of a cluster with TLS needs."""
    if not plan.secure:
        return {}
    where = directory / SECURITY
    found = {"ca": str(where / "ca.pem"), "admin_config": str(where / "admin" / CLIENT_FILE)}
    if plan.logins:
        found |= {"login": plan.logins, "login_config": str(where / "login" / CLIENT_FILE)}
    return found


class LiveView:
    """The output for people; `with LiveView(...)` restores the terminal at its end."""

    wants_status = True

    def __init__(self, plan: ClusterPlan, directory: Path) -> None:
        from rich.console import Console
        from rich.live import Live

        self._plan = plan
        self._directory = directory
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._pids: Pids | None = None
        self._status: ClusterStatusReply | None = None
        self._events: list[str] = []
        self._headline = "starting …"
        self._note = ""

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
            self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._headline = "stopped"
            self._draw()
        self._live.stop()

    def on_ready(self, pids: Pids, seconds: float, beside: Mapping[str, str]) -> None:
        """Shows the table."""
        self._pids = pids
        self._headline = (
            f"serving at {self._plan.bootstrap} after {seconds:.1f} s · data in {self._directory}"
            " · Ctrl-C stops it"
        )
        if targets.addresses(self._directory):
            self._note = f"metrics: targets for Prometheus in {self._directory}/{targets.FILE_NAME}"
        for name, place in beside.items():
            text = f"{BESIDE[name]}: {place}"
            self._note = " · ".join(filter(None, (text, self._note)))
            self._say(text)
        for name in _secure(self._plan, self._directory).values():
            self._say(f"TLS: {name}")
        if self._plan.authorization:
            self._say("rules are in force: `semel acl grant` says who may do what")
        self._say(self._headline)
        self._draw()

    def on_event(self, event: NodeEvent) -> None:
        """Adds a line under the table."""
        status = event.status
        if event.event == "started":
            text = f"{event.node.name} started, pid {event.pid}"
        elif status is not None and status < 0:
            text = f"{event.node.name} was killed by signal {-status}"
        else:
            text = f"{event.node.name} exited with status {status}"
        self._events = [*self._events, f"{time.strftime('%H:%M:%S')}  {text}"][-EVENTS_SHOWN:]
        self._say(text)
        self._draw()

    def on_plan(self, plan: ClusterPlan) -> None:
        """Updates the table's rows."""
        self._plan = plan
        self._draw()

    def on_status(self, status: ClusterStatusReply | None) -> None:
        """Updates the table's figures."""
        self._status = status
        self._draw()

    def on_stopping(self) -> None:
        """Shows in the headline that the cluster stops."""
        self._headline = "stopping …"
        self._draw()

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            print(text, file=sys.stdout, flush=True)

    def _draw(self) -> None:
        if self._live.is_started:
            self._live.update(self._table(), refresh=True)

    def _table(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        table = render.table(
            ["node", "group", "role", "address", "pid", "log end", "term"],
            [self._row(node) for node in self._plan.nodes] if self._pids else [],
        )
        parts: list[RenderableType] = [Text(self._headline, style="bold")]
        parts += [table] if self._pids else []
        parts += [Text(line, style="dim") for line in (self._note, *self._events) if line]
        return Group(*parts)

    def _row(self, node: NodePlan) -> list[object]:
        from rich.text import Text

        assert self._pids is not None
        pid = self._pids.pid(node)
        role, log_end, term = self._figures(node)
        style = {
            "master": "bold green",
            "slave": "green",
            "standby": "green",
            "runs": "green",
            "down": "bold red",
        }.get(role, "yellow")
        shown = Text(role, style=style)
        return [node.name, node.group, shown, node.address, str(pid or ""), log_end, term]

    def _figures(self, node: NodePlan) -> tuple[str, int | None, int | None]:
        """Role, last index and term of a node; None where they are unknown."""
        assert self._pids is not None
        if self._pids.pid(node) is None:
            return "down", None, None
        if node.kind == "zookeeper":
            return "runs", None, None
        if node.kind == "controller":
            return self._role_of_controller(node), None, None
        for group in self._status.groups if self._status is not None else ():
            for status in group.nodes:
                if group.group_id == node.group and status.node_id == node.id:
                    role = status.role if status.alive else "silent"
                    return role, status.log_end_index, group.term
        return "starting", None, None

    def _role_of_controller(self, node: NodePlan) -> str:
        for status in self._status.controllers if self._status is not None else ():
            if status.controller_id == node.id:
                return status.role if status.alive else "silent"
        return "silent"
