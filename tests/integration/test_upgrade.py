"""A cluster of processes is upgraded one by one while a client writes, then told to rise.

The older programs are played by `--level-max`, which each process loses when its turn comes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from semel.client import connect
from semel.protos.errors import TransactionAborted, UnsupportedVersion
from semel.protos.levels import DELAY_LEVEL, LEVEL_MAX
from tests.kit.cluster import Cluster, Node
from tests.kit.steady_sends import steady_sends

OLD = DELAY_LEVEL - 1


def console(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """Exit status, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "semel.console", *arguments],
        capture_output=True,
        env={**os.environ, "SEMEL_BOOTSTRAP": cluster.bootstrap},
        timeout=60,
        check=False,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def upgraded(cluster: Cluster, node: Node) -> None:
    """The same node with the newest program."""
    cluster.kill(node)
    at = node.command.index("--level-max")
    del node.command[at : at + 2]
    cluster.start_node(node)
    cluster.wait_ready()


def levels(cluster: Cluster) -> tuple[set[int], int]:
    """Those of the groups' logs, and of the metadata."""
    code, text = console(cluster, "cluster", "status", "--json")
    assert code == 0, text
    found: dict[str, Any] = json.loads(text)
    groups = {node["level"] for node in found["node_reports"] if node["level"]}
    return groups, max(each["level"] for each in found["controller_reports"])


def check(cluster: Cluster, *arguments: str, status: int = 0) -> dict[str, Any]:
    """What `semel cluster upgrade --check` tells."""
    code, text = console(cluster, "cluster", "upgrade", "--check", "--json", *arguments)
    assert code == status, text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_cluster_is_upgraded_under_load_and_rises_when_it_is_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", broker_flags=["--level-max", str(OLD)])
    cluster.controller.command += ["--level-max", str(OLD)]
    later = datetime.now(UTC) + timedelta(hours=1)
    with cluster, connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=2)
        with steady_sends(client, "orders", "loader") as load:
            with client.producer() as producer:
                began = time.monotonic()
                with pytest.raises(UnsupportedVersion, match="semel cluster upgrade") as caught:
                    producer.send("orders", b"later", deliver_at=later).result(timeout=60)
                assert caught.value.level == DELAY_LEVEL
                assert time.monotonic() - began < 30, "not by its delivery timeout"
                assert producer.send("orders", b"now").result(timeout=60).offset >= 0
                with (
                    pytest.raises(TransactionAborted, match="semel cluster upgrade"),
                    producer.transaction("t") as staged,
                ):
                    staged.send("orders", b"later", deliver_at=later)
            assert levels(cluster) == ({OLD}, OLD)
            for node in (cluster.controller, *cluster.brokers):
                code, text = console(
                    cluster, "cluster", "upgrade", "--finish", "--level", str(LEVEL_MAX)
                )
                assert code == 1, text
                assert f"knows up to {OLD}; upgrade them first" in text
                told = check(cluster, "--level", str(LEVEL_MAX), status=1)
                subject = f"controller {node.address}" if node.group == 0 else f"broker {node.id}"
                assert ("too-old", subject) in [
                    (each["kind"], each["subject"]) for each in told["obstacles"]
                ]
                upgraded(cluster, node)
                assert levels(cluster) == ({OLD}, OLD)
            code, text = console(cluster, "doctor")
            assert "semel cluster upgrade --check" in text
            for node in cluster.brokers:
                cluster._wait_counted(node, time.monotonic() + 20)
            cluster.wait_caught_up()
            for _ in range(2):
                told = check(cluster)
                assert (told["ready"], told["changes"], told["level"]) == (True, True, LEVEL_MAX)
                assert told["obstacles"] == []
                assert [text.split(" ", 2)[1] for text in told["allows"]] == [
                    f"{level}:" for level in range(OLD + 1, LEVEL_MAX + 1)
                ]
                code, text = console(cluster, "cluster", "upgrade", "--check")
                assert (code, "there is no way back afterwards" in text) == (0, True), text
                assert levels(cluster) == ({OLD}, OLD)
            code, text = console(cluster, "cluster", "upgrade", "--finish")
            assert (code, f"raised to feature level {LEVEL_MAX}" in text) == (0, True), text
            assert levels(cluster) == ({LEVEL_MAX}, LEVEL_MAX)
            code, text = console(cluster, "cluster", "upgrade", "--finish")
            assert (code, "everything is at feature level" in text) == (0, True), text
            with client.producer() as producer:  # of the client that was refused before
                producer.send("orders", b"later", deliver_at=later).result(timeout=60)
        with client.reader("orders", end="latest") as reader:
            found = [message.value for message in reader]
        assert sorted(value for value in found if value != b"now") == sorted(load.sent)
        cluster.kill(cluster.controller)
        cluster.controller.command += ["--level-max", str(OLD)]
        cluster._spawn(cluster.controller)
        assert cluster.controller.process is not None
        assert cluster.controller.process.wait(30) == 1
        text = cluster.controller.log_file.read_text()
        assert f"the metadata is at feature level {LEVEL_MAX}" in text
        assert "upgrade this controller" in text
