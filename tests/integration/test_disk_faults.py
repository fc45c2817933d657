"""Disks that fail and hang under real processes: the node ends or yields, the group goes on."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from semel.client import connect
from semel.protos.errors import DiskFull, SemelError, TimedOut
from tests.kit.cluster import Cluster, Node
from tests.kit.faulty_node import Faults, Rule, faults_of
from tests.kit.waiting import until

TOPIC = "t"


class FaultyCluster(Cluster):
    """Three brokers whose disks obey `faults`, and what was stored so far."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        for node in self.brokers:  # three MiB of frames a segment
            node.command += ["--segment-bytes", str(4 << 20)]
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


@pytest.fixture(scope="module")
def started(module_path: Path) -> Iterator[FaultyCluster]:
    """One cluster for all: every test leaves it whole, which the next one's `check` proves too."""
    running = FaultyCluster(module_path / "cluster")
    with running:
        with connect(running.bootstrap) as client:
            client.admin.create_topic(TOPIC, queues=1)
        yield running


@pytest.fixture
def cluster(started: FaultyCluster) -> Iterator[FaultyCluster]:
    for faults in started.faults.values():
        faults.clear()
        faults.forget_bites()
    yield started
    for faults in started.faults.values():
        faults.clear()


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


def test_a_master_without_room_yields_and_comes_back(cluster: FaultyCluster) -> None:
    """No producer sees anything of it as long as a majority has room."""
    cluster.load(5)
    full = cluster.master()
    faults = cluster.faults[full.id]
    # The spare that is ready is the last one that it gets.
    faults.set(
        Rule(operation="create", path="spare-*", error="ENOSPC"),
        Rule(operation="allocate", error="ENOSPC"),
    )
    cluster.load(60, size=60_000)
    faults.wait_bite()
    deadline = time.monotonic() + 10
    while cluster.master() == full:
        assert time.monotonic() < deadline, "a master without room stays master"
        cluster.load(1)
    assert "disk full, mastership handed over" in full.log_file.read_text()
    # It does not take part any more once its last segment is full, and the others go on.
    target = cluster.status(cluster.master()).commit_index
    cluster.load(60, size=60_000)
    assert cluster.status(full).log_end_index < cluster.status(cluster.master()).log_end_index
    assert cluster.status(full).log_end_index >= target - 5
    assert full.running
    faults.clear()
    cluster.check()  # it catches up by itself


def test_when_nobody_has_room_producers_are_told_and_served_again(cluster: FaultyCluster) -> None:
    cluster.load(5)
    for faults in cluster.faults.values():
        faults.set(
            Rule(operation="create", path="spare-*", error="ENOSPC"),
            Rule(operation="allocate", error="ENOSPC"),
        )
    refused = None
    with connect(cluster.bootstrap, request_timeout_ms=1_000) as client:
        producer = client.producer("loader", delivery_timeout_ms=3_000)
        sent: list[bytes] = []
        for _ in range(200):
            value = str(len(cluster.stored) + len(sent)).encode().rjust(60_000, b".")
            try:
                producer.send(TOPIC, value).result(20)
            except SemelError as error:
                refused = error
                break
            sent.append(value)
        assert isinstance(refused, (DiskFull, TimedOut)), refused
        assert "full" in str(refused)
        cluster.stored += sent
        with client.reader(TOPIC, end="latest") as reader:
            assert len(list(reader)) >= len(cluster.stored), "what is stored is served"
        for faults in cluster.faults.values():
            assert faults.bites()
            faults.clear()
        with contextlib.suppress(SemelError):
            producer.close(5)
    # What the refused call became is its producer's to find out; this one starts behind it.
    with connect(cluster.bootstrap) as client, client.reader(TOPIC, end="latest") as reader:
        found = [message.value for message in reader]
    assert found[: len(cluster.stored)] == cluster.stored
    assert len(found) <= len(cluster.stored) + 1
    cluster.stored = found
    cluster.load(5)
    cluster.check()


def test_a_write_torn_on_every_node_is_cut_and_sent_again(cluster: FaultyCluster) -> None:
    """The power fails everywhere while an entry is on its way to all three disks."""
    cluster.load(5)
    value = random.Random(1).randbytes(50_000)  # nothing to compress
    with connect(cluster.bootstrap) as client, client.producer("loader") as producer:
        producer.send(TOPIC, b"first").result(30)  # it is known to the log
        cluster.stored.append(b"first")
        cluster.wait_synced()  # a node whose sync of this one hung would not write the next
        for faults in cluster.faults.values():
            faults.set(Rule(operation="sync", path="segment-*", hang=True))
        future = producer.send(TOPIC, value)
        segments = [(node, _segment_with(node, value)) for node in cluster.brokers]
        assert not future.done(), "it was acknowledged: nobody may cut it"
        for node in cluster.brokers:
            cluster.kill(node)
        for node, segment in segments:
            assert cluster.faults[node.id].bites()
            data = bytearray(segment.read_bytes())
            at = data.index(value) + 512
            data[at : at + 512] = bytes(512)  # a sector that never reached the disk
            segment.write_bytes(data)
            cluster.faults[node.id].clear()
            cluster.faults[node.id].power_failed()
        cluster.start()
        future.result(30)
    cluster.stored.append(value)
    said = [node.log_file.read_text() for node in cluster.brokers]
    assert any("torn write cut" in text for text in said)
    assert all("may be torn" in text or "damaged, asking" in text for text in said)
    cluster.load(3)
    cluster.check()


def _segment_with(node: Node, value: bytes) -> Path:
    """The node's segment file that holds `value`; waits for it."""

    def written() -> Path | None:
        segments = (node.data / "log").glob("log-*/segment-*")
        return next((path for path in segments if value in path.read_bytes()), None)

    return until(written, 10, f"broker {node.id} to write the entry")


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[FaultyCluster]:
    """A cluster whose nodes have 64 MiB each, on file systems of their own."""
    cluster = FaultyCluster(tmp_path / "cluster")
    mounted: list[Path] = []
    try:
        for node in cluster.brokers:
            node.data.mkdir()
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=64m", "semel-test", str(node.data)],
                capture_output=True,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"no small file system can be mounted here: {done.stderr.decode()}")
            mounted.append(node.data)
        with cluster:
            with connect(cluster.bootstrap) as client:
                client.admin.create_topic(TOPIC, queues=1)
            yield cluster
    finally:
        for path in mounted:
            subprocess.run(["umount", str(path)], check=True)


def test_a_real_file_system_that_fills_up(small_disks: FaultyCluster) -> None:
    cluster = small_disks
    cluster.load(5)
    full = cluster.master()
    ballast = full.data / "ballast"
    with ballast.open("wb") as file:
        room = os.statvfs(full.data)
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
    assert not os.statvfs(full.data).f_bavail
    deadline = time.monotonic() + 30
    while cluster.master() == full:  # the room that is left is that of prepared segments
        assert time.monotonic() < deadline, "a master without room stays master"
        cluster.load(10, size=60_000)
    assert "disk full, mastership handed over" in full.log_file.read_text()
    cluster.load(60, size=60_000)
    assert full.running
    ballast.unlink()
    cluster.check()


def test_a_failing_disk_is_reported_to_the_operator(cluster: FaultyCluster) -> None:
    """By `semel node list`: a node without room, until it has some again."""
    full = cluster.slaves()[0]
    faults = cluster.faults[full.id]
    faults.set(
        Rule(operation="create", path="spare-*", error="ENOSPC"),
        Rule(operation="allocate", error="ENOSPC"),
    )
    cluster.load(60, size=60_000)
    faults.wait_bite()

    def told(disk: str) -> bool:
        with connect(cluster.bootstrap) as client:
            (group,) = client.admin.cluster_status().groups
        found = {node.id: node.disk for node in group.nodes}
        assert {found[node.id] for node in cluster.brokers if node is not full} == {"ok"}
        return found[full.id] == disk

    for disk in ("full", "ok"):
        until(partial(told, disk), 10, f"all to be told that the disk is {disk}")
        faults.clear()
    cluster.check()
