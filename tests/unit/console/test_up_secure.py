"""`semel up --secure`: the directory remembers it, every node gets its certificate."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from semel.console import cluster_file, targets
from semel.console.supervisor import node_command
from semel.console.up import _plan, _security
from semel.protos.errors import InvalidRequest
from semel.protos.security.credentials import Security


def plan_of(directory: Path, **flags: Any) -> cluster_file.ClusterPlan:
    host = flags.pop("host", None)
    return _plan(directory, 3, 1, 1, None, None, 0, host, **flags)


def test_a_directory_remembers_that_it_is_secure(tmp_path: Path) -> None:
    made = plan_of(tmp_path, secure=True)
    assert "version = 5\n" in (tmp_path / cluster_file.FILE_NAME).read_text()
    assert made == plan_of(tmp_path)
    assert made.secure


def test_a_directory_remembers_that_rules_are_in_force(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--authorization needs --secure"):
        plan_of(tmp_path, authorization=True)
    assert not plan_of(tmp_path, secure=True).authorization
    assert plan_of(tmp_path, authorization=True).authorization
    plan = plan_of(tmp_path)
    assert plan.authorization
    for node in plan.nodes:
        command = node_command(plan, node, tmp_path)
        audit = command[command.index("--audit-log") + 1]
        assert "--authorization" in command
        assert audit == str(tmp_path / "logs" / f"{node.name}.audit.jsonl")


def test_a_cluster_may_become_secure_later(tmp_path: Path) -> None:
    before = plan_of(tmp_path)
    assert "--tls-dir" not in node_command(before, before.brokers[0], tmp_path)
    assert plan_of(tmp_path, secure=True).secure
    assert plan_of(tmp_path).secure


def test_every_node_starts_with_its_own_certificate(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, secure=True)
    admin = _security(plan, tmp_path)
    assert admin is not None
    assert admin.identity.uri == f"semel://{plan.cluster_id}/admin/admin"
    for node in plan.nodes:
        command = node_command(plan, node, tmp_path)
        directory = Path(command[command.index("--tls-dir") + 1])
        Security.of_node(directory, node.kind, node.id, plan.cluster_id)
        assert "--insecure" not in command
    assert _security(dataclasses.replace(plan, secure=False), tmp_path) is None


def test_a_network_needs_tls_or_a_word(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="say --secure for TLS, or --insecure"):
        plan_of(tmp_path, host="0.0.0.0")
    assert cluster_file.load(tmp_path) is None
    with pytest.raises(InvalidRequest, match="not both"):
        plan_of(tmp_path, host="0.0.0.0", secure=True, insecure=True)
    plan = plan_of(tmp_path, host="0.0.0.0", insecure=True)
    for node in plan.nodes:
        assert "--insecure" in node_command(plan, node, tmp_path)
    with pytest.raises(InvalidRequest, match="say --secure"):
        plan_of(tmp_path)


def test_prometheus_is_told_to_use_https(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, secure=True)
    targets.options(plan, plan.brokers[0], tmp_path)
    (row,) = json.loads((tmp_path / targets.FILE_NAME).read_text())
    assert row["labels"]["__scheme__"] == "https"
