"""The nodes that `semel up` keeps: groups that are founded later."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.console import cluster_file
from semel.console.supervisor import node_command
from semel.protos.errors import DataDirectoryError, InvalidRequest


def planned(directory: Path, controllers: int = 1) -> cluster_file.ClusterPlan:
    plan = cluster_file.plan_cluster(
        controllers=controllers, groups=1, brokers=1, host="127.0.0.1", port=0
    )
    cluster_file.save(directory, plan)
    return plan


def test_a_group_is_founded_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    before = planned(tmp_path)
    founders = cluster_file.found_group(tmp_path, 2, 3)
    assert [node.id for node in founders] == [2, 3, 4]
    assert cluster_file.found_group(tmp_path, 2, 3) == founders
    plan = cluster_file.load(tmp_path)
    assert plan is not None
    assert plan.groups == [1, 2]
    assert plan.brokers == (*before.brokers, *founders)
    assert plan.founders(2) == founders
    addresses = [node.address for node in plan.nodes]
    assert len(set(addresses)) == len(addresses)
    with pytest.raises(InvalidRequest, match="3 nodes, not 1"):
        cluster_file.found_group(tmp_path, 2, 1)


def test_a_directory_without_a_cluster_has_no_groups(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="holds no cluster"):
        cluster_file.found_group(tmp_path, 2, 3)


def test_controllers_are_told_of_each_other_and_brokers_of_all(tmp_path: Path) -> None:
    plan = planned(tmp_path, controllers=3)
    peers = ",".join(f"{node.id}={node.address}" for node in plan.controllers)
    for node in plan.controllers:
        command = node_command(plan, node, tmp_path)
        assert command[command.index("--peers") + 1] == peers
        assert command[command.index("--controller-id") + 1] == str(node.id)
    command = node_command(plan, plan.brokers[0], tmp_path)
    assert command[command.index("--controllers") + 1] == plan.bootstrap
    assert "--peers" not in node_command(planned(tmp_path), plan.controllers[0], tmp_path)
