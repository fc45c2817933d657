"""The figures of `growth` at one point: a cluster of real processes, and how it is measured.

How it works. A `Site` is a cluster (three brokers, one controller) and the ways to measure it,
always the same ones: how fast 1 KiB messages are produced to a fresh topic of four queues, how long
one awaited message of 1 KiB takes, memory, a snapshot, a restart. All messages written before the
awaited ones are synced first; otherwise the awaited ones would measure a disk that is busy with the
load before them.

A snapshot is provoked as by a slave that has fallen behind: the benchmark asks the master, as
another member of its group, for a checkpoint of its newest index; size and times are the node's own
metrics.

Not here: what grows (`growers.py`), points and promises (`curves.py`).
"""

from __future__ import annotations

import itertools
import json
import os
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.curves import MIB
from benchmarks.side_by_side_client import ACK_S, produce, sync_latency
from benchmarks.workloads import CONNECT_MS, SERVE_S, memory, restarted
from semel.client import Client, connect
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.v1 import raft_pb2, raft_pb2_grpc
from tests.kit.cluster import Cluster, Node

Figures = dict[str, float]
HOT = "hot"
"""Topic of single messages, for a new entry or after a restart."""
HOT_QUEUES = 4
LOAD_BYTES, LOAD_MESSAGES = 640 << 20, 6_000_000
"""Load of one rate figure at scale 1, whichever comes first. It exceeds the growth of the log
after which a broker writes a snapshot, so that each rate includes one."""
AWAITED, AWAITED_LEAST = 2_000, 50
AWAITED_BYTES = 512 << 20
"""Limit in bytes that makes large awaited messages fewer."""
WARM = 20
SIZE = 1_024
REQUEST_MS = 300_000


class Site:
    """A running cluster."""

    def __init__(self, cluster: Cluster, client: Client, scale: float) -> None:
        self.cluster = cluster
        self.client = client
        self._scale = scale
        self._numbers = itertools.count(1)
        client.admin.create_topic(HOT, queues=HOT_QUEUES)

    def term(self) -> int:
        """The broker group's term, which each election raises."""
        term: int = self.cluster.status(self.cluster.master(), timeout=SERVE_S).term
        return term

    def scaled(self, count: int, least: int) -> int:
        """Number of messages of one figure."""
        return max(least, int(count * self._scale))

    @contextmanager
    def topic(self, queues: int) -> Iterator[str]:
        """Creates a fresh topic and deletes it afterwards."""
        name = f"load-{next(self._numbers)}"
        self.client.admin.create_topic(name, queues=queues)
        yield name
        self.client.admin.delete_topic(name)

    def rate(self, size: int = SIZE, queues: int = HOT_QUEUES, **options: Any) -> Figures:
        """Produces messages of `size` to a fresh topic; `options` are the producer's."""
        with self.topic(queues) as topic:
            return self.load(topic, size, **options)

    def load(
        self, topic: str, size: int = SIZE, *, volume: int = LOAD_BYTES, **options: Any
    ) -> Figures:
        """Produces messages of `size`, together `volume` bytes, to an existing topic."""
        records = self.scaled(min(volume // size, LOAD_MESSAGES), 20)
        bootstrap = self.cluster.bootstrap
        found = produce(bootstrap, topic, records=records, size=size, how="arrow", **options)
        rate = found["messages"] / found["seconds"]
        return {"msg_s": rate, "mb_s": rate * size / 1e6}

    def latency(self, size: int = SIZE) -> Figures:
        """Sends one awaited message at a time to a fresh topic."""
        with self.topic(HOT_QUEUES) as topic:
            return self.awaited(topic, size)

    def awaited(self, topic: str, size: int = SIZE) -> Figures:
        """Sends one awaited message at a time to an existing topic."""
        records = self.scaled(min(AWAITED, AWAITED_BYTES // size), AWAITED_LEAST)
        os.sync()
        found = sync_latency(self.cluster.bootstrap, topic, records=records, warm=WARM, size=size)
        return {name: found[name] for name in ("p50_ms", "p99_ms")}

    def memory(self) -> Figures:
        """Resident MiB: all nodes together, and the master."""
        total = memory(self.cluster)["rss_mib"]
        return {"rss_mib": total, "master_mib": self.cluster.master().resident_bytes() / MIB}

    def snapshot(self) -> Figures:
        """Makes the master write a checkpoint: its bytes, its seconds, and the seconds without
        service. The others write one afterwards, so that a restart finds a fresh one."""
        master = self.cluster.master()
        before = figures_of(_page(master), "semel_broker_checkpoint_")
        with self.client.producer() as producer:
            producer.send(HOT, b"one more entry").result(ACK_S)
        length = self._checkpoint(master)
        after = figures_of(_page(master), "semel_broker_checkpoint_")
        written = after["seconds_count"] - before["seconds_count"]
        took = after["seconds_sum"] - before["seconds_sum"]
        paused = after["pause_seconds_sum"] - before["pause_seconds_sum"]
        for node in self.cluster.brokers:
            if node is not master:
                self._checkpoint(node)
        return {
            "snapshot_bytes": length,
            "snapshot_s": took / written,
            "snapshot_pause_s": paused / written,
        }

    def _checkpoint(self, node: Node) -> int:
        """Makes a broker write a checkpoint unless it has just done so; returns its bytes."""
        status = self.cluster.status(node, timeout=SERVE_S)
        other = next(each for each in status.members if each.node.node_id != status.node_id)
        caller = raft_pb2.PeerCaller(
            cluster_id=status.cluster_id,
            group_id=status.group_id,
            node_id=other.node.node_id,
            founding_id=status.founding_id,
            to_node_id=status.node_id,
        )
        with grpc.insecure_channel(node.address, options=CHANNEL_OPTIONS) as channel:
            request = raft_pb2.PullCheckpointRequest(index=status.applied_index, caller=caller)
            call = raft_pb2_grpc.SnapshotsStub(channel).PullCheckpoint(request, timeout=SERVE_S)
            try:
                first = next(call)
            except grpc.RpcError as error:
                raise error_from_rpc(error) from None
            call.cancel()
            length: int = first.total_bytes
            return length

    def messages(self, topic: str) -> int:
        """The number of stored messages of a topic; 0 while there is no master."""
        page = _page(self.cluster.master())
        found = figures_of(page, "semel_broker_topic_messages", topic=topic)
        return int(sum(found.values()))

    def restart(self) -> float:
        """Kills all nodes and starts them; returns the seconds until a message is stored."""
        return restarted(self.cluster, HOT, 1)[0]

    def hot(self, figures: Collection[str], **options: Any) -> Figures:
        """Rate and latency, as far as asked for; latency first, before there is data to clean."""
        found = self.latency() if "latency" in figures else {}
        return found | (self.rate(**options) if "rate" in figures else {})

    def weight(self, figures: Collection[str]) -> Figures:
        """Memory and snapshot, as far as asked for."""
        found = self.memory() if "memory" in figures else {}
        return found | (self.snapshot() if "snapshot" in figures else {})


@contextmanager
def site(data: Path, scale: float) -> Iterator[Site]:
    """Starts a new cluster and stops it afterwards."""
    with ExitStack() as stack:
        cluster = Cluster(data, broker_flags=["--metrics-port", "0"])
        stack.callback(cluster.stop)
        cluster.start(SERVE_S)
        client = stack.enter_context(
            connect(
                cluster.bootstrap,
                keep_routes=False,
                connect_timeout_ms=CONNECT_MS,
                request_timeout_ms=REQUEST_MS,
            )
        )
        yield Site(cluster, client, scale)


def _page(node: Node) -> str:
    """The text of a broker's metrics page."""
    address = json.loads(node.output_file.read_text().partition("\n")[0])["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=SERVE_S) as answer:
        text: str = answer.read().decode()
        return text


def figures_of(page: str, prefix: str, **labels: str) -> Figures:
    """The labelled figures of a metrics page whose names begin with `prefix`, by the rest.

    Buckets are left out; a figure counts only if `labels` are among its own.
    """
    return {
        sample.name.removeprefix(prefix): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith(prefix)
        and not sample.name.endswith("_bucket")
        and sample.labels
        and labels.items() <= sample.labels.items()
    }
