"""A supervisor of processes that are no nodes, whose events are kept."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from semel.console.cluster_file import ClusterPlan, NodePlan, plan_cluster
from semel.console.supervisor import NodeEvent, Supervisor
from semel.protos import compat

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP
PLAN = plan_cluster(controllers=1, groups=1, brokers=1, host="127.0.0.1", port=20_000)


def program(code: str) -> Callable[[ClusterPlan, NodePlan, Path], list[str]]:
    return lambda plan, node, directory: [sys.executable, "-S", "-c", code]


class Watched:
    """A supervisor whose events are kept, with every node already serving."""

    def __init__(self, directory: Path, code: str, *, restart: bool = True) -> None:
        self.events: list[NodeEvent] = []
        self.nodes = Supervisor(
            PLAN, directory, restart=restart, on_event=self.events.append, command=program(code)
        )
        self.nodes.serving = True

    async def count(self, event: str, number: int) -> list[int]:
        """Waits for so many events and returns their pids."""
        async with compat.timeout(60):
            while len(pids := [e.pid for e in self.events if e.event == event]) < number:
                await asyncio.sleep(0.01)
        return pids
