"""Ports for metrics under `semel up`."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path

import pytest

from semel.console import targets
from semel.console.cluster_file import ClusterPlan, plan_cluster


def _plan() -> ClusterPlan:
    return plan_cluster(controllers=1, groups=1, brokers=3, host="127.0.0.1", port=0)


def test_every_node_keeps_a_port_of_its_own(tmp_path: Path) -> None:
    plan = _plan()
    given = [targets.options(plan, node, tmp_path) for node in plan.nodes]
    assert [options[0] for options in given] == ["--metrics-port"] * 4
    ports = [options[1] for options in given]
    assert len(set(ports)) == 4
    assert [targets.options(plan, node, tmp_path)[1] for node in plan.nodes] == ports
    assert not {f"127.0.0.1:{port}" for port in ports} & {node.address for node in plan.nodes}


def test_the_file_is_what_prometheus_reads(tmp_path: Path) -> None:
    plan = _plan()
    ports = [targets.options(plan, node, tmp_path)[1] for node in plan.nodes]
    rows = json.loads((tmp_path / "prometheus.json").read_text())
    assert [row["targets"] for row in rows] == [[f"127.0.0.1:{port}"] for port in ports]
    assert all(isinstance(value, str) for row in rows for value in row["labels"].values())
    assert rows[1]["labels"]["node_name"] == "broker-1"


def test_a_port_that_somebody_took_is_given_up_and_a_damaged_file_too(tmp_path: Path) -> None:
    plan = _plan()
    node = plan.nodes[0]
    port = int(targets.options(plan, node, tmp_path)[1])
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert targets.options(plan, node, tmp_path) != ["--metrics-port", str(port)]
    (tmp_path / "prometheus.json").write_text('[{"targets": 7}]')
    assert targets.addresses(tmp_path) == {}
    assert targets.options(plan, node, tmp_path)[0] == "--metrics-port"


def test_nothing_is_measured_where_the_library_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    plan = _plan()
    assert targets.options(plan, plan.nodes[0], tmp_path) == []
    assert not (tmp_path / "prometheus.json").exists()
