"""`semel up --tier`: the directory remembers the object store, and brokers are told of it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from semel.console import cluster_file
from semel.console.supervisor import node_command
from semel.console.up import _check_tier, _plan
from semel.protos.errors import InvalidRequest

URL = "file:///mnt/store/semel"


def plan_of(directory: Path, tier: str | None) -> cluster_file.ClusterPlan:
    return _plan(directory, 3, 1, 1, None, tier, 0, None)


def test_a_directory_remembers_its_store(tmp_path: Path) -> None:
    made = plan_of(tmp_path, URL)
    assert "version = 4\n" in (tmp_path / cluster_file.FILE_NAME).read_text()
    again = plan_of(tmp_path, None)
    assert again == made == plan_of(tmp_path, URL)
    told = node_command(again, again.brokers[0], tmp_path)
    assert told[told.index("--tier") + 1] == URL
    assert "--tier" not in node_command(again, again.controllers[0], tmp_path)


def test_a_store_may_come_later_and_stays_then(tmp_path: Path) -> None:
    before = plan_of(tmp_path, None)
    assert "--tier" not in node_command(before, before.brokers[0], tmp_path)
    plan_of(tmp_path, URL)
    with pytest.raises(InvalidRequest, match=f"holds a cluster with tier {URL}, not s3://other"):
        plan_of(tmp_path, "s3://other/prefix")
    assert plan_of(tmp_path, None).tier == URL


@pytest.mark.parametrize("wrong", ["", "/mnt/store", "file://mnt/store", "ftp://host/path"])
def test_what_is_no_store_is_refused(wrong: str) -> None:
    with pytest.raises(click.UsageError, match="write s3://BUCKET/PREFIX"):
        _check_tier(wrong)
    _check_tier(URL)
    _check_tier(None)


def test_a_new_cluster_may_wait_for_the_store_of_a_lost_one(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    plan_of(tmp_path / "old", URL)
    with pytest.raises(InvalidRequest, match="restored in a new one"):
        _plan(tmp_path / "old", 3, 1, 1, None, URL, 0, None, tier_restore=True)
    made = _plan(tmp_path / "new", 3, 1, 1, None, URL, 0, None, tier_restore=True)
    assert "--tier-restore" in node_command(made, made.brokers[0], tmp_path)
    assert plan_of(tmp_path / "new", None) == made
