"""`semel doctor` and `semel cluster status` on clusters that are really broken."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.client import SemelError, connect
from tests.faults.skewed_node import Skew, skew_of
from tests.kit.cluster import Cluster
from tests.kit.console_inside import InsideConsole
from tests.kit.faulty_node import Faults, Rule, faults_of
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until

FAULTY, SKEWED = 2, 3
"""Indexes of the brokers whose disk and whose clock the tests have in hand."""


class Patient:
    """Asks the doctor until he says what is expected; the cluster takes a moment to notice."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.semel = InsideConsole(cluster.bootstrap)

    def findings(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit status, and findings by `check subject`."""
        done = self.semel("doctor", "--json")
        [line] = done.out.splitlines()
        found = json.loads(line)
        assert found["healthy"] == (done.status == 0)
        return done.status, {f"{f['check']} {f['subject']}": f for f in found["findings"]}

    def until(self, *expected: str, status: int) -> dict[str, dict[str, Any]]:
        """The findings, once they hold all that are expected and the exit status is right."""
        return self.once(lambda found: set(expected) <= set(found), status, str(expected))

    def once(
        self, good: Callable[[dict[str, Any]], bool], status: int, what: str
    ) -> dict[str, dict[str, Any]]:
        deadline = time.monotonic() + 90
        while True:
            got, found = self.findings()
            if good(found) and got == status:
                return found
            assert time.monotonic() < deadline, f"{what}: status {got}, {found}"

    def well(self) -> None:
        """Waits until nothing is worse than a note; a group that just grew whole may take a
        moment."""
        self.once(
            lambda found: all(
                f["severity"] == "note" or _of_the_machine(f) for f in found.values()
            ),
            0,
            "a healthy cluster",
        )


def _of_the_machine(finding: dict[str, Any]) -> bool:
    """The disk that tests run on may be nearly full."""
    return str(finding["check"]) == "disk-nearly-full" and finding["severity"] == "warning"


@pytest.fixture(scope="module")
def faults() -> dict[str, Any]:
    return {}


@pytest.fixture(scope="module")
def doctor(module_path: Path, faults: dict[str, Any]) -> Iterator[Patient]:
    flags = ("--segment-bytes", str(1 << 20), "--producer-idle-ms", "600000")
    cluster = Cluster(module_path / "cluster", broker_flags=flags)
    faults["disk"] = faults_of(cluster.brokers[FAULTY - 1])
    faults["clock"] = skew_of(cluster.brokers[SKEWED - 1])
    with cluster:
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic("orders", queues=2)
            client.producer("loader").send("orders", b"x").result()
            with client.consumer("idle", ["orders"]):
                pass  # a group that consumers have joined
            client.admin.reset_offsets("idle", "orders", "earliest")
            client.admin.publish_progress("stream", {("orders", queue): 0 for queue in (0, 1)})
        yield Patient(cluster)


def test_a_whole_cluster_is_told_so(doctor: Patient) -> None:
    found = doctor.until("one-controller controller " + doctor.cluster.bootstrap, status=0)
    assert "group-idle group idle" in found
    assert "1 message behind" in found["group-idle group idle"]["text"]
    assert "group-idle group stream" not in found, "it has no consumers that could be started"
    with connect(doctor.cluster.bootstrap) as client:
        client.admin.delete_group("idle")
    doctor.well()
    status = doctor.semel.json("cluster", "status")
    assert (status["masterless_groups"], status["under_replicated_groups"]) == ([], [])
    assert [node["reason"] for node in status["node_reports"]] == ["", "", ""]
    assert sum(node["serving"] for node in status["node_reports"]) == 1
    drawn = doctor.semel("cluster", "status").out
    assert "the broker group is whole" in drawn


def test_a_dead_and_a_stopped_slave_are_named(doctor: Patient) -> None:
    cluster = doctor.cluster
    dead, stopped = cluster.slaves()
    cluster.kill(dead)
    found = doctor.until(f"broker-unreachable broker {dead.id}", status=1)
    assert found[f"broker-unreachable broker {dead.id}"]["text"].endswith(": connection refused")
    advice = found[f"broker-unreachable broker {dead.id}"]["advice"]
    assert f"semel node replace {dead.id}" in advice
    assert doctor.semel.json("cluster", "status")["under_replicated_groups"] == [1]
    assert "under-replicated: group 1" in doctor.semel("cluster", "status").out
    cluster.start_node(dead)
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        found = doctor.until(f"broker-unreachable broker {stopped.id}", status=1)
        assert "no answer within" in found[f"broker-unreachable broker {stopped.id}"]["text"]
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    doctor.well()


def test_without_a_quorum_there_is_no_master_and_a_topic_stays_half_made(doctor: Patient) -> None:
    cluster = doctor.cluster
    slaves = cluster.slaves()
    for node in slaves:
        cluster.kill(node)
    doctor.until("no-master group 1", "not-looked-at group 1", status=1)
    assert doctor.semel.json("cluster", "status")["masterless_groups"] == [1]
    with (
        connect(cluster.bootstrap, request_timeout_ms=1_000) as client,
        contextlib.suppress(SemelError),
    ):
        client.admin.create_topic("half")
    found = doctor.once(
        lambda found: found.get("topic-unfinished topic half", {}).get("severity") == "error",
        1,
        "a topic that is half made",
    )
    assert "is being created" in found["topic-unfinished topic half"]["text"]
    for node in slaves:
        cluster.start_node(node)
    doctor.well()


def test_a_clock_that_is_wrong_is_named(doctor: Patient, faults: dict[str, Any]) -> None:
    clock: Skew = faults["clock"]
    clock.set(90.0)
    found = doctor.until(f"clock-skew broker {SKEWED}", status=0)
    assert "+90." in found[f"clock-skew broker {SKEWED}"]["text"]
    assert clock.bitten
    clock.set(0.0)
    doctor.well()


def test_a_disk_without_room_is_named(doctor: Patient, faults: dict[str, Any]) -> None:
    disk: Faults = faults["disk"]
    disk.set(Rule(operation="allocate", error="ENOSPC"))
    with connect(doctor.cluster.bootstrap) as client, client.producer() as producer:
        for _ in range(6):
            producer.send_many("orders", [bytes(1000)] * 1000)
            producer.flush()
        found = doctor.until(f"disk-full broker {FAULTY}", status=1)
        assert found[f"disk-full broker {FAULTY}"]["severity"] == "error"
        assert disk.bites()
    disk.clear()
    doctor.well()


def test_without_a_controller_that_is_the_one_finding(doctor: Patient) -> None:
    cluster = doctor.cluster
    cluster.kill(cluster.controller)
    status, found = doctor.findings()
    assert status == 1
    [finding] = found.values()
    assert finding["check"] == "no-controller"
    assert cluster.bootstrap in finding["subject"]
    cluster.start_node(cluster.controller)
    cluster.wait_ready()
    doctor.well()


def test_a_group_of_one_with_lost_entries_and_a_producer_that_is_soon_forgotten(
    tmp_path: Path,
) -> None:
    needle = b"a needle in the log"
    flags = ("--producer-idle-ms", "600000", "--checkpoint-records", "1")
    with Cluster(tmp_path, brokers=1, broker_flags=flags) as cluster:
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic("orders", queues=1)
            client.producer("loader").send("orders", needle).result()
            client.producer("later").send("orders", b"x").result()
        doctor = Patient(cluster)
        doctor.until("one-node-group group 1", status=0)
        (node,) = cluster.brokers
        stored = cluster.status(node).commit_index
        # What is to be folded again must be whole in a group of one.
        until(lambda: cluster.status(node).checkpoint_index >= stored)
        cluster.kill(node)
        [(path, at)] = [
            (path, at)
            for path in (node.data / "log").glob("**/segment-*")
            if (at := path.read_bytes().find(needle)) >= 0
        ]
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"A")
        skew_of(node).set(500.0)  # a new mastership's log time begins at the voters' clocks
        cluster.start_node(node)
        lost, expires = f"entries-lost broker {node.id}", "producer-expires producer loader"
        found = doctor.until(lost, expires, status=1)
        assert "1 entry" in found[lost]["text"]
        assert "stored nothing for 8 min" in found[expires]["text"]


def test_a_controller_of_three_that_died_is_named(tmp_path: Path) -> None:
    options = ("--controllers", "3", "--brokers", "1", "--no-restart")
    with UpProcess(tmp_path, *options) as up:
        semel = InsideConsole(up.bootstrap)
        found = {f["check"] for f in semel.json("doctor")["findings"]}
        assert not found & {"controller-unreachable", "one-controller", "version-skew"}
        runtimes = semel.json("doctor")["runtimes"]
        assert len(runtimes) == 4, "three controllers and a broker"
        python = f"CPython {'.'.join(map(str, sys.version_info[:3]))}, "
        assert all(each["runtime"].startswith(python) for each in runtimes)
        status = semel.json("cluster", "status")
        assert [each["reason"] for each in status["controller_reports"]] == [""] * 3
        dead = up.node(2, "controller")
        up.kill(dead)
        up.wait_event("exited", timeout=30, kind="controller", id=2)
        found = semel.json("doctor", status=1)
        assert [f["subject"] for f in found["findings"] if f["severity"] == "error"] == [
            f"controller {dead.address}"
        ]
        assert f"{dead.address} silent" in semel("cluster", "status").out
