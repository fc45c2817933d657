"""How long a node that died waits, what a cluster's plan is, and what nodes are started with."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from semel.console import cluster_file
from semel.console.cluster_file import ClusterPlan, plan_cluster
from semel.console.supervisor import Restarts, node_command
from semel.protos.errors import DataDirectoryError, InvalidRequest


def make_plan(port: int | None = None, groups: int = 1, brokers: int = 3) -> ClusterPlan:
    return plan_cluster(controllers=1, groups=groups, brokers=brokers, host="127.0.0.1", port=port)


def test_a_node_that_keeps_dying_waits_longer_each_time_up_to_a_bound() -> None:
    restarts = Restarts(delay_ms=500, delay_ms_max=10_000)
    delays = []
    for now in range(0, 10_000, 1000):
        restarts.on_started(now)
        delays.append(restarts.on_exited(now + 100))
    assert delays == [500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000, 10_000, 10_000]


def test_a_node_that_ran_long_enough_starts_again_soon() -> None:
    restarts = Restarts(delay_ms=500, settled_ms=10_000)
    for now in range(4):
        restarts.on_started(now)
        restarts.on_exited(now)
    restarts.on_started(100)
    assert restarts.on_exited(100 + 10_000) == 500
    restarts.on_started(200_000)
    assert restarts.on_exited(200_001) == 1000


def test_default_ports_are_those_of_the_manual() -> None:
    plan = make_plan()
    assert plan.bootstrap == "127.0.0.1:7070"
    assert [node.address for node in plan.brokers] == [f"127.0.0.1:{p}" for p in (7171, 7172, 7173)]


def test_brokers_are_numbered_over_all_groups() -> None:
    plan = make_plan(port=20_000, groups=2)
    assert [(node.id, node.group) for node in plan.brokers] == [
        (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2),
    ]  # fmt: skip
    assert plan.groups == [1, 2]
    assert [node.name for node in plan.members(2)] == ["broker-4", "broker-5", "broker-6"]


def test_free_ports_are_different_and_below_the_ephemeral_ones() -> None:
    plan = make_plan(port=0, groups=4)
    ports = [int(node.address.rpartition(":")[2]) for node in plan.nodes]
    assert len(set(ports)) == len(ports)
    assert all(port in cluster_file.PRIVATE_PORTS for port in ports)


def test_a_port_too_high_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="leaves no room"):
        make_plan(port=65_500)


def test_a_taken_port_is_noticed() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert cluster_file.is_taken(address)
    assert not cluster_file.is_taken(address)


def test_a_saved_plan_comes_back(tmp_path: Path) -> None:
    plan = make_plan(port=0, groups=2, brokers=5)
    cluster_file.save(tmp_path, plan)
    assert cluster_file.load(tmp_path) == plan
    assert [path.name for path in tmp_path.iterdir()] == [cluster_file.FILE_NAME]


def test_a_new_directory_has_no_plan(tmp_path: Path) -> None:
    assert cluster_file.load(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is damaged"),
        ("version = ", "is damaged"),
        ("version = 1\ncluster_id = 'x'\nbrokers = 3\ncontrollers = []\n", "is damaged"),
        ("version = 2\n", "newer Semel"),
        ("\x00\xff", "is damaged"),
    ],
)
def test_a_plan_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / cluster_file.FILE_NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataDirectoryError, match=message) as caught:
        cluster_file.load(tmp_path)
    assert str(tmp_path / cluster_file.FILE_NAME) in str(caught.value)


def test_a_broker_is_told_its_whole_group_and_all_controllers() -> None:
    plan = make_plan(groups=2)
    command = node_command(plan, plan.brokers[4], Path("/data"))
    assert command[1:4] == ["-P", "-m", "semel.broker"]
    assert " ".join(command[4:]) == (
        "--data /data/broker-5 --listen 127.0.0.1:7175"
        f" --cluster-id {plan.cluster_id} --group 2 --node 5 --member 4=127.0.0.1:7174"
        " --member 5=127.0.0.1:7175 --member 6=127.0.0.1:7176 --controllers 127.0.0.1:7070 --json"
    )
