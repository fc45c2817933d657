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
        (f"version = {cluster_file.VERSION + 1}\n", "newer Semel"),
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
        f" --cluster-id {plan.cluster_id} --group 2 --node 5 --allow-same-machine"
        " --member 4=127.0.0.1:7174 --member 5=127.0.0.1:7175 --member 6=127.0.0.1:7176"
        " --controllers 127.0.0.1:7070 --json"
    )


def test_a_plan_that_nobody_joined_can_be_read_by_the_version_before(tmp_path: Path) -> None:
    cluster_file.save(tmp_path, make_plan(port=0))
    assert "version = 1\n" in (tmp_path / cluster_file.FILE_NAME).read_text()


def test_a_group_takes_in_as_many_as_it_lacks_and_finds_them_again(tmp_path: Path) -> None:
    cluster_file.save(tmp_path, make_plan(port=0, brokers=1, groups=2))
    added = cluster_file.take_in(tmp_path, 2, size=3)
    assert [(node.id, node.group, node.joined) for node in added] == [(3, 2, True), (4, 2, True)]
    assert cluster_file.take_in(tmp_path, 2, size=3) == added
    plan = cluster_file.load(tmp_path)
    assert plan is not None
    assert [node.id for node in plan.members(2)] == [2, 3, 4]
    assert [node.id for node in plan.founders(2)] == [2]
    assert len({node.address for node in plan.nodes}) == len(plan.nodes)
    assert "version = 2\n" in (tmp_path / cluster_file.FILE_NAME).read_text()
    command = " ".join(node_command(plan, added[0], tmp_path))
    others = f"{plan.brokers[1].address},{added[1].address}"
    assert f"--join {others}" in command
    assert "--member" not in command
    # Nobody who founded the group is told of those who joined: their log is.
    assert "--join" not in " ".join(node_command(plan, plan.brokers[1], tmp_path))


def test_a_replaced_node_is_retired_and_its_successor_found_again(tmp_path: Path) -> None:
    cluster_file.save(tmp_path, make_plan(port=0))
    (new,) = cluster_file.take_in(tmp_path, 1, replaces=2)
    assert (new.id, new.replaces) == (4, 2)
    cluster_file.retire(tmp_path, 2)
    assert cluster_file.take_in(tmp_path, 1, replaces=2) == [new]
    plan = cluster_file.load(tmp_path)
    assert plan is not None
    assert [node.id for node in plan.members(1)] == [1, 3, 4]
    assert [node.id for node in plan.founders(1)] == [1, 2, 3]
    assert "broker-2" not in {node.name for node in plan.nodes}
    with pytest.raises(InvalidRequest, match="no broker group 7"):
        cluster_file.take_in(tmp_path, 7, size=3)
    with pytest.raises(DataDirectoryError, match="holds no cluster"):
        cluster_file.take_in(tmp_path / "elsewhere", 1, size=3)
