"""Disks that fail and hang under real processes: the node ends or yields, the group goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import connect
from tests.integration.cluster import Cluster, Node
from tests.integration.faulty_node import Faults, Rule, faults_of

TOPIC = "t"


class FaultyCluster(Cluster):
    """Three brokers whose disks obey `faults`, and what was stored so far."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.faults: dict[int, Faults] = {node.id: faults_of(node) for node in self.brokers}
        self.stored: list[bytes] = []

    def load(self, count: int, size: int = 1_000) -> float:
        """Stores so many messages more; returns the longest wait for one, in seconds."""
        longest = 0.0
        with connect(self.bootstrap) as client, client.producer("loader") as producer:
            for _ in range(count):
                value = str(len(self.stored)).encode().rjust(size, b".")
                began = time.monotonic()
                producer.send(TOPIC, value).result(30)
                longest = max(longest, time.monotonic() - began)
                self.stored.append(value)
        return longest

    def check(self) -> None:
        """All nodes hold what was stored, once, in order."""
        assert all(node.running for node in self.nodes)
        self.wait_caught_up()
        with connect(self.bootstrap) as client:
            result = client.admin.verify(TOPIC)
            assert result.ok, result.problems
            assert result.nodes_compared == 3
            with client.reader(TOPIC, end="latest") as reader:
                assert [message.value for message in reader] == self.stored

    def wait_ended(self, node: Node, timeout_s: float = 15) -> int:
        """The exit status of a process that ends by itself."""
        assert node.process is not None
        return node.process.wait(timeout_s)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultyCluster]:
    running = FaultyCluster(tmp_path / "cluster")
    with running:
        with connect(running.bootstrap) as client:
            client.admin.create_topic(TOPIC, queues=1)
        yield running


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_write_ends_the_process_and_it_rejoins(
    cluster: FaultyCluster, operation: str
) -> None:
    """Never retried: after a failed fsync the kernel may have forgotten what it was told."""
    cluster.load(5)
    master = cluster.master()
    faults = cluster.faults[master.id]
    faults.set(Rule(operation=operation, path="segment-*", error="EIO", times=1))
    cluster.load(5)
    assert cluster.wait_ended(master) == 1
    assert len(faults.bites()) == 1
    last = master.log_file.read_text().splitlines()[-1]
    assert last.startswith(f"error: the log of node {master.id} cannot be written: [Errno 5]")
    assert "its data is whole up to the last sync" in last
    assert cluster.master() != master
    faults.clear()
    cluster.start_node(master)
    cluster.load(5)
    cluster.check()


def test_a_failed_vote_ends_the_process_and_it_rejoins(cluster: FaultyCluster) -> None:
    """Before anybody hears of the vote."""
    cluster.load(3)
    master, slaves = cluster.master(), cluster.slaves()
    hurt = slaves[0]
    cluster.faults[hurt.id].set(Rule(operation="sync", path="hard_state", error="EIO"))
    cluster.kill(master)
    assert cluster.wait_ended(hurt) == 1
    assert cluster.faults[hurt.id].bites()
    last = hurt.log_file.read_text().splitlines()[-1]
    assert last.startswith(f"error: node {hurt.id} halts: OSError: [Errno 5]")
    cluster.faults[hurt.id].clear()
    cluster.start_node(hurt)
    cluster.start_node(master)
    cluster.load(3)
    cluster.check()


def test_a_disk_that_hangs_costs_the_mastership(cluster: FaultyCluster) -> None:
    """A master whose writes hang stops beating; when its disk wakes up, it follows."""
    cluster.load(5)
    master = cluster.master()
    faults = cluster.faults[master.id]
    faults.set(Rule(operation="sync", path="segment-*", hang=True))
    gap_s = 0.0
    deadline = time.monotonic() + 15
    while cluster.master() == master:  # the others are a majority: stored is stored even now
        gap_s = max(gap_s, cluster.load(1))
        assert time.monotonic() < deadline, "a master that cannot write stays master"
    assert faults.bites()
    gap_s = max(gap_s, cluster.load(5))
    assert gap_s < 10
    assert cluster.status(master).role != "master"
    faults.clear()
    cluster.load(5)
    cluster.check()


def test_a_slow_disk_slows_nobody_else(cluster: FaultyCluster) -> None:
    """A slave whose syncs take long is outvoted; a majority is as fast as its own disks."""
    cluster.load(5)
    slow = cluster.slaves()[0]
    faults = cluster.faults[slow.id]
    faults.set(Rule(operation="sync", path="segment-*", delay_ms=700))
    gap_s = cluster.load(20)
    assert faults.bites()
    assert gap_s < 0.7, "the group waited for its slowest disk"
    faults.clear()
    cluster.check()
