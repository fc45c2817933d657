"""Broker groups are founded once: lost disks, lost metadata; real processes and disks."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from semel.client import Client, connect
from semel.console.main import run as console
from semel.protos.errors import InvalidRequest
from tests.kit.cluster import Cluster, Node
from tests.kit.waiting import until

MESSAGES = 30


def wipe(node: Node) -> None:
    """Its disk is lost; only while it is down."""
    assert not node.running
    shutil.rmtree(node.data)


def founding(cluster: Cluster, node: Node) -> str:
    return cluster.status(node).founding_id


def send(client: Client, topic: str = "orders", start: int = 0, count: int = MESSAGES) -> None:
    with client.producer() as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number).result()


def stored(client: Client, topic: str = "orders") -> list[bytes]:
    found: list[bytes] = []
    with client.reader(topic, end="latest") as reader:
        found += [bytes(message.value) for message in reader]
    return found


def stays(cluster: Cluster, seconds: float = 2.5) -> None:
    """No master for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for node in cluster.brokers:
            if node.running:
                try:
                    assert cluster.status(node, timeout=0.5).role != "master"
                except grpc.RpcError:
                    continue
        time.sleep(0.1)


def until_counted(cluster: Cluster, node: Node) -> None:
    until(lambda: not cluster.status(node).non_counting, within_s=20, what="being counted")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "c") as cluster:
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic("orders", queues=1)
            send(client)
        cluster.wait_synced()
        yield cluster


def test_all_nodes_and_the_controllers_know_one_founding(three: Cluster) -> None:
    (name,) = {founding(three, node) for node in three.brokers}
    assert name
    assert all(f"founding={name}\n" in (n.data / "IDENTITY").read_text() for n in three.brokers)


def test_a_group_waits_for_a_founder_that_has_not_come_yet(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c")
    try:
        late = cluster.brokers[2]
        for node in (*cluster.controllers, *cluster.brokers[:2]):
            cluster.start_node(node)
        stays(cluster)
        assert {founding(cluster, node) for node in cluster.brokers[:2]} == {""}
        cluster.start_node(late)
        cluster.start()
        assert len({founding(cluster, node) for node in cluster.brokers}) == 1
    finally:
        cluster.stop()


def test_a_group_waits_for_the_controllers_before_its_founding_and_never_after(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path / "c", brokers=1)
    try:
        cluster.start_node(cluster.brokers[0])
        stays(cluster)
        cluster.start()
        cluster.kill(cluster.controller)
        cluster.kill(cluster.brokers[0])
        cluster.start_node(cluster.brokers[0])
        cluster.master()
    finally:
        cluster.stop()


@pytest.mark.parametrize("metadata", ["kept", "lost"])
def test_two_empty_nodes_wait_for_the_one_that_has_the_messages(
    three: Cluster, metadata: str
) -> None:
    """One was away since the founding and has nothing, the disk of the other is lost."""
    survivor, one, other = three.brokers
    name = founding(three, survivor)
    for node in three.brokers:
        three.kill(node)
    wipe(one)
    wipe(other)
    if metadata == "lost":
        three.kill(three.controller)
        wipe(three.controller)
        three.start_node(three.controller)
    three.start_node(one)
    three.start_node(other)
    stays(three)
    three.start_node(survivor)
    stays(three, 1.5)  # a majority of disks is lost: an operator is to decide
    with connect(three.bootstrap) as client:
        client.admin.restore_group(1)
        for node in three.brokers:
            until_counted(three, node)
        assert {founding(three, node) for node in three.brokers} != {name}
        if metadata == "kept":  # else nobody knows the topic any more
            assert stored(client) == [b"%d" % number for number in range(MESSAGES)]
        assert {three.status(node).log_end_index > MESSAGES for node in three.brokers} == {True}


def test_the_founder_of_a_group_that_grew_is_fed_when_it_comes_back_empty(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", brokers=1) as cluster, connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=1)
        send(client)
        founder = cluster.brokers[0]
        name = founding(cluster, founder)
        for number in (2, 3):
            cluster.join(number, group=1)
        until(lambda: len(client.admin.cluster_status().groups[0].nodes) == 3, what="the reports")
        client.admin.grow_group(1, 3)
        cluster.kill(founder)
        wipe(founder)
        cluster.start_node(founder)
        until_counted(cluster, founder)
        assert {founding(cluster, node) for node in cluster.brokers} == {name}
        masters = [n.id for n in cluster.brokers if cluster.status(n).role == "master"]
        assert len(masters) == 1
        send(client, start=MESSAGES, count=5)
        assert stored(client) == [b"%d" % number for number in range(MESSAGES + 5)]


def test_a_node_that_was_away_while_all_others_were_replaced_comes_back(three: Cluster) -> None:
    """It keeps its data, and knows nobody who is a member still."""
    away, *others = three.brokers
    with connect(three.bootstrap) as client:
        three.kill(away)
        for number, old in enumerate(others, 4):
            three.join(number, group=1)
            until(
                lambda: len(client.admin.cluster_status().groups[0].nodes) == len(three.brokers),
                what="the report",
            )
            client.admin.replace_node(old.id, number, allow_same_machine=True)
            three.kill(old)
        three.start_node(away)
        until(
            lambda: three.status(away).log_end_index >= three.status(three.master()).log_end_index,
            what="what it has missed",
        )
        assert three.status(away).role in ("slave", "master")
        three.kill(three.brokers[3])
        send(client, start=MESSAGES, count=5)
        assert stored(client) == [b"%d" % number for number in range(MESSAGES + 5)]


def test_a_group_of_one_that_lost_its_disk_does_not_begin_anew_by_itself(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", brokers=1) as cluster, connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=1)
        send(client)
        (node,) = cluster.brokers
        cluster.kill(node)
        wipe(node)
        cluster.start_node(node)
        stays(cluster)
        before = founding(cluster, node)
        found = client.admin.restore_group(1)
        assert (found.changed, found.master) == (True, 1)
        assert founding(cluster, node) == found.founding != before
        again = client.admin.restore_group(1)
        assert (again.changed, again.founding) == (False, found.founding)


def test_a_disk_that_was_given_up_is_refused_when_it_comes_back(
    three: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, gone, empty = three.brokers
    for node in three.brokers:
        three.kill(node)
    wipe(empty)
    three.start_node(kept)
    three.start_node(empty)
    stays(three, 1.0)
    with connect(three.bootstrap) as client:
        with pytest.raises(InvalidRequest, match=r"nodes \[2\] .* do not answer"):
            client.admin.look_at_restore(1)
        plan = client.admin.look_at_restore(1, lost=[2])
        assert (plan.survivors, plan.counted, plan.lost) == ((1,), (3,), (2,))
        command = ["cluster", "restore", "1", "--lost", "2", "--bootstrap", three.bootstrap]
        assert console([*command, "--json"]) == 2  # nobody can be asked
        capsys.readouterr()
        assert console([*command, "--yes", "--json"]) == 0
        said = capsys.readouterr()
        done = json.loads(said.out)
        assert (done["changed"], done["lost"], done["counted"]) == (True, [2], [3])
        assert "gone for good" in said.err
        assert stored(client) == [b"%d" % number for number in range(MESSAGES)]
        three.start_node(gone)
        send(client, start=MESSAGES, count=5)
        deadline = time.monotonic() + 10
        while "begun anew" not in gone.log_file.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert three.status(gone).role != "master"
        assert stored(client) == [b"%d" % number for number in range(MESSAGES + 5)]
        three.kill(gone)
        wipe(gone)
        three.start_node(gone)  # as its message asks
        until_counted(three, gone)
        assert console([*command[:3], *command[5:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["changed"] is False


def test_an_interrupted_restore_goes_on(three: Cluster) -> None:
    kept, *empty = three.brokers
    for node in three.brokers:
        three.kill(node)
    for node in empty:
        wipe(node)
    for node in three.brokers:
        three.start_node(node)
    stays(three, 1.0)
    with connect(three.bootstrap) as client:
        plan = client.admin.look_at_restore(1)
        assert (plan.survivors, plan.counted, plan.fed) == ((1,), (2,), (3,))
        three.pause(kept)
        three.kill(empty[0])  # which is to count: the call fails between two nodes
        three.resume(kept)
        with pytest.raises(InvalidRequest, match=r"\[2\]"):
            client.admin.restore_group(1)
        found: Any = client.admin.restore_group(1, lost=[2])
        assert found.changed
        assert stored(client) == [b"%d" % number for number in range(MESSAGES)]
        three.start_node(empty[0])
        until_counted(three, empty[0])
