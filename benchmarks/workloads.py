"""Semel's side of `side_by_side`: the peers' workloads on a cluster of real processes.

How it works. A round starts a new cluster (three brokers, one controller), warms it up, runs the
workloads one after the other and removes it. Sizes are those of the peers' scripts: four queues,
three replicas, and a new client process for each figure. CPU is user plus system time of
all nodes while the client runs, and of the client over its whole life, start-up included. Memory is
read when the client has ended: `rss_mib` is the sum over brokers and controller.

`scale` is a factor on the counts of messages of W1, W2, W2b, W5 and W8, as in the peers' scripts;
W3, W4 and W6 keep their length.

Not here: what the client does (`side_by_side_client.py`), the raw floors (`raw_floors.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from benchmarks.figures import Cell, Figures
from benchmarks.goals import SEMEL
from benchmarks.harness import progress, temporary_directory
from semel.client import Client, connect
from tests.kit.cluster import Cluster, Node

ROOT = Path(__file__).resolve().parent.parent
QUEUES = 4
REPLICAS = 3
MIB = 1 << 20
CLIENT_S = 600
BEFORE_S = 4.0
"""How long messages flow before the master is taken away."""
AFTER_S = 6.0
"""How long messages flow afterwards, at least."""
SERVE_S = 120.0
CONNECT_MS = 60_000
RATE = 1_000
PRODUCED: Mapping[str, tuple[int, int]] = {
    "warm-up": (6_000_000, 100),
    "W1": (6_000_000, 100),
    "W2": (1_000_000, 1_024),
    "W2b": (6_000_000, 100),
    "W5": (5_000_000, 100),
}
"""Number of messages of one figure at scale 1, and their size."""
WAYS = {"list": "send_many, list", "arrow": "send_many, Arrow", "send": "send()"}
LEAST = 1_000
"""Smallest number of messages of any workload at any scale."""


class ClientError(Exception):
    """A client process gave no result; the message of one line says why."""


def scaled(workload: str, scale: float) -> int:
    """Number of messages of one figure."""
    return max(LEAST, int(PRODUCED[workload][0] * scale))


def disk_bytes(workloads: Sequence[str], scale: float) -> int:
    """Disk space that a round may need at most if nothing is removed before its end."""
    times = {"warm-up": 1, **dict.fromkeys(workloads, len(WAYS)), "W5": 1}
    if not {"W5", "W8"} & set(workloads):
        times.pop("W5")
    stored = sum(
        scaled(name, scale) * size * times.get(name, 0) for name, (_, size) in PRODUCED.items()
    )
    return int(stored * REPLICAS * 1.25) + (1 << 30)


class ClientProcess:
    """One client; a context manager that leaves no process behind."""

    MODULE = "benchmarks.side_by_side_client"

    def __init__(self, role: str, **settings: Any) -> None:
        settings = {"limit_s": CLIENT_S, **settings}
        self.role = role
        self.cpu_s = 0.0
        """User and system time of its whole life, set by `result`."""
        command = [sys.executable, "-m", self.MODULE, role]
        self._process = subprocess.Popen(
            [*command, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # it may have ended with unread input
                stream.close()

    def wait_ready(self) -> None:
        """Waits until the client is ready. Raises ClientError."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.result()
            raise ClientError(f"the client of {self.role} ended before it was ready")

    def tell(self) -> None:
        """Tells the client to go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Waits for the client's end; returns what it printed last. Raises ClientError."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        printed = self._process.stdout.read()
        errors = self._process.stderr.read().strip()
        _, status, used = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = used.ru_utime + used.ru_stime
        if self._process.returncode == -signal.SIGALRM:
            raise ClientError(f"the client of {self.role} was not done in time")
        if self._process.returncode or not printed:
            last = errors.splitlines()[-1] if errors else f"exit {self._process.returncode}"
            raise ClientError(f"the client of {self.role} failed: {last}")
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found


class Workloads:
    """The workloads on one running cluster."""

    def __init__(self, cluster: Cluster, client: Client, scale: float) -> None:
        self._cluster = cluster
        self._client = client
        self._scale = scale
        self._stored = ""
        """The filled topic that W5 reads and W8 restarts with; empty until it is filled."""

    def warm_up(self) -> None:
        """Makes every node write for a while."""
        with self._topic("warm-up") as topic:
            self._produced("warm-up", topic, "list")

    def run(self, workload: str) -> Iterator[tuple[str, dict[str, float]]]:
        """Runs one workload; yields its variants with their figures."""
        if workload in ("W1", "W2", "W2b"):
            for how, variant in WAYS.items():
                with self._topic(f"{workload}-{how}") as topic:
                    yield variant, self._produced(workload, topic, how)
        elif workload == "W3":
            for role, variant in (("sync_latency", "sync"), ("async_latency", "asyncio")):
                with self._topic(f"W3-{variant}") as topic:
                    yield variant, self._awaited(topic, role)
        elif workload == "W4":
            with self._topic("W4") as topic:
                yield "send()", self._open_loop(topic)
        elif workload == "W5":
            topic = self._filled()
            for how, variant in (("arrow", "poll_arrow"), ("messages", "for message in consumer")):
                yield variant, self._consumed(topic, how)
        elif workload == "W6":
            for number, times in ((signal.SIGKILL, 5), (signal.SIGSTOP, 3)):
                with self._topic(f"W6-{number}", queues=1) as topic:
                    found = [self._without_master(topic, number) for _ in range(times)]
                    yield number.name, medians(found)
        else:
            assert workload == "W8"
            topic = self._filled()
            yield "", medians([self._restarted(topic) for _ in range(3)])

    @contextmanager
    def _topic(self, name: str, queues: int = QUEUES) -> Iterator[str]:
        self._client.admin.create_topic(name, queues=queues)
        yield name
        self._client.admin.delete_topic(name)

    def _filled(self) -> str:
        """Returns the topic with the messages of W5, filled once."""
        if not self._stored:
            self._client.admin.create_topic("W5", queues=QUEUES)
            self._produced("W5", "W5", "list")
            self._stored = "W5"
        return self._stored

    def _measured(self, role: str, **settings: Any) -> tuple[dict[str, Any], float]:
        """Runs a client; returns its result, and the CPU seconds of it and the nodes."""
        client = ClientProcess(role, bootstrap=self._cluster.bootstrap, **settings)
        return measured(self._cluster, client)

    def _rate(self, result: Mapping[str, Any], cpu_s: float, size: int) -> dict[str, float]:
        rate = result["messages"] / max(result["seconds"], 1e-9)
        return {
            "msg_s": rate,
            "mb_s": rate * size / 1e6,
            "cpu_s_per_million": cpu_s / result["messages"] * 1e6,
            **memory(self._cluster),
        }

    def _produced(self, workload: str, topic: str, how: str) -> dict[str, float]:
        records, size = scaled(workload, self._scale), PRODUCED[workload][1]
        lines = workload == "W2b"
        result, cpu_s = self._measured(
            "produce",
            topic=topic,
            records=records,
            size=size,
            how=how,
            lines=lines,
            compression="lz4" if lines else "none",
        )
        return self._rate(result, cpu_s, size)

    def _consumed(self, topic: str, how: str) -> dict[str, float]:
        records = scaled("W5", self._scale)
        result, cpu_s = self._measured("consume", topic=topic, records=records, how=how)
        return self._rate(result, cpu_s, PRODUCED["W5"][1])

    def _awaited(self, topic: str, role: str) -> dict[str, float]:
        records, warm = 3_000, 100
        result, cpu_s = self._measured(role, topic=topic, records=records, warm=warm, size=1_024)
        per_million = cpu_s / (records + warm) * 1e6
        return {**result, "cpu_s_per_million": per_million, **memory(self._cluster)}

    def _open_loop(self, topic: str) -> dict[str, float]:
        records = 20 * RATE
        shared = {"topic": topic, "records": records, "warm": RATE}
        with ClientProcess("tail", bootstrap=self._cluster.bootstrap, **shared) as reader:
            reader.wait_ready()
            acks, cpu_s = self._measured("paced", size=1_024, rate=RATE, **shared)
            arrivals = reader.result()
        return {
            **{f"ack_{name}": value for name, value in acks.items()},
            **{f"end_to_end_{name}": value for name, value in arrivals.items()},
            "cpu_s_per_million_no_consumer": cpu_s / records * 1e6,
            **memory(self._cluster),
        }

    def _without_master(self, topic: str, number: signal.Signals) -> dict[str, float]:
        """Longest gap between acknowledgements when the master is killed, or frozen."""
        settings = {"bootstrap": self._cluster.bootstrap, "topic": topic, "size": 100}
        with ClientProcess("acknowledgements", **settings) as client:
            client.wait_ready()
            time.sleep(BEFORE_S)
            master = self._cluster.master()
            hit = time.monotonic()
            self._take(master, number)
            time.sleep(AFTER_S)
            client.tell()
            result = client.result()
        if number == signal.SIGKILL:
            self._cluster.start_node(master)
        else:
            self._cluster.resume(master)
        self._cluster.wait_caught_up(timeout=SERVE_S)
        acks = result["acks"]
        return {
            "longest_gap_s": max(after - before for before, after in pairwise(acks)),
            "first_ack_after_s": next(ack for ack in acks if ack > hit) - hit,
            "failed": result["failed"],
            **memory(self._cluster),
        }

    def _take(self, master: Node, number: signal.Signals) -> None:
        if number == signal.SIGKILL:
            self._cluster.kill(master)
        else:
            self._cluster.pause(master)

    def _restarted(self, topic: str) -> dict[str, float]:
        """Seconds to the first message stored, and to one in every queue."""
        acks = restarted(self._cluster, topic, QUEUES)
        return {
            "first_ack_s": acks[0],
            "all_four_partitions_s": acks[-1],
            **memory(self._cluster),
        }


def measured(cluster: Cluster, client: ClientProcess) -> tuple[dict[str, Any], float]:
    """A client's result, and the CPU seconds that it and the nodes used until then."""

    def nodes_cpu_s() -> float:
        times = [psutil.Process(node.pid).cpu_times() for node in cluster.nodes]
        return sum(each.user + each.system for each in times)

    with client:
        before = nodes_cpu_s()
        result = client.result()
        return result, nodes_cpu_s() - before + client.cpu_s


def memory(cluster: Cluster) -> dict[str, float]:
    """Resident MiB of all nodes together, and of each."""
    each = {f"rss_mib_{node.kind}_{node.id}": node.resident_bytes() / MIB for node in cluster.nodes}
    return {"rss_mib": sum(each.values()), **each}


def restarted(cluster: Cluster, topic: str, queues: int) -> list[float]:
    """Kills all nodes and starts them.

    Returns the seconds from the start to the acknowledgement of a message in each of the first
    `queues` queues, in the order of arrival.
    """
    with ClientProcess(
        "first_acks", bootstrap=cluster.bootstrap, topic=topic, queues=queues
    ) as client:
        client.wait_ready()
        for node in cluster.nodes:
            os.kill(node.pid, signal.SIGKILL)
        for node in cluster.nodes:
            cluster.kill(node)
        start = time.monotonic()
        client.tell()
        cluster.start(SERVE_S)
        acks = client.result()["acks"]
    cluster.wait_caught_up(timeout=SERVE_S)
    return [ack - start for ack in acks]


def medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


class Semel:
    """Runs rounds, each on a cluster of its own."""

    def __init__(self, workloads: Sequence[str], scale: float, data: Path) -> None:
        self._workloads = workloads
        self._scale = scale
        self._data = data

    def run(self) -> Figures:
        """Runs one round."""
        found: Figures = {}
        with temporary_directory(self._data) as data, ExitStack() as stack:
            cluster = Cluster(data / "cluster")
            stack.callback(cluster.stop)
            cluster.start(SERVE_S)
            client = stack.enter_context(
                connect(cluster.bootstrap, keep_routes=False, connect_timeout_ms=CONNECT_MS)
            )
            workloads = Workloads(cluster, client, self._scale)
            workloads.warm_up()
            for workload in self._workloads:
                for variant, figures in workloads.run(workload):
                    progress(f"  {SEMEL}: {workload} {variant} is done …")
                    found[Cell(SEMEL, workload, variant)] = figures
        return found
