"""`semel up --metadata zookeeper`: a server beside the cluster, kept alive and ended with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from semel.client import SemelError, connect
from semel.console import cluster_file
from semel.console.main import run
from semel.console.supervisor import node_command
from semel.protos.errors import DataDirectoryError
from tests.kit.up_process import UpProcess, is_alive
from tests.kit.waiting import until

PATIENCE_S = 60.0


def test_the_cluster_outlives_its_zookeeper_and_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with UpProcess(tmp_path / "up", "--brokers", "1", "--metadata", "zookeeper") as up:
        server = up.node(1, "zookeeper")
        controller = up.node(1, "controller")
        first_pid = server.pid
        assert first_pid is not None
        with connect(up.bootstrap) as client:
            client.admin.create_topic("before", queues=2)
            os.kill(first_pid, signal.SIGKILL)
            up.wait_event("exited", timeout=PATIENCE_S)
            producer = client.producer()
            producer.send("before", b"without an active controller").result(PATIENCE_S)

            def created() -> bool:
                try:
                    client.admin.create_topic("after", queues=1, if_not_exists=True)
                except SemelError:
                    return False
                return True

            until(created, PATIENCE_S, "an active controller")
            assert {topic.name for topic in client.admin.list_topics()} == {"before", "after"}
        assert up.node(1, "zookeeper").pid != first_pid
        pids = [node.pid for node in up.nodes]
        assert all(pids)
        assert controller.pid == up.node(1, "controller").pid, "the controller lived on"
        plan = cluster_file.load(tmp_path / "up")
        assert plan is not None
        assert plan.metadata == cluster_file.ZOOKEEPER
        assert up.stop() == 0
        assert not [pid for pid in pids if pid is not None and is_alive(pid)]

    elsewhere = ["--metadata", "zookeeper://elsewhere:1/x"]
    assert run(["up", "--data", str(tmp_path / "up"), *elsewhere]) == 1
    assert "holds a cluster with metadata zookeeper" in capsys.readouterr().err


def test_controllers_are_told_of_somebody_elses_zookeeper(tmp_path: Path) -> None:
    place = 'zookeeper://a:1,b:2/x"y\\z'
    plan = cluster_file.plan_cluster(
        controllers=3, groups=1, brokers=1, host="127.0.0.1", port=7070, metadata=place
    )
    assert not plan.zookeepers
    cluster_file.save(tmp_path, plan)
    assert cluster_file.load(tmp_path) == plan
    command = node_command(plan, plan.controllers[1], tmp_path)
    assert command[command.index("--metadata") + 1] == place
    assert "--peers" not in command
    assert "--metadata" not in node_command(plan, plan.brokers[0], tmp_path)


def test_what_is_no_place_for_metadata_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--data", str(tmp_path / "up"), "--metadata", "etcd://a:1/x"]) == 2
    assert "write zookeeper, or zookeeper://" in capsys.readouterr().err
    assert not (tmp_path / "up").exists()


def _newer(text: str) -> str:
    return text.replace("version = 3", f"version = {cluster_file.VERSION + 1}")


def test_the_port_of_a_zookeeper_is_kept(tmp_path: Path) -> None:
    plan = cluster_file.plan_cluster(
        controllers=1, groups=1, brokers=3, host="0.0.0.0", port=7070, metadata="zookeeper"
    )
    (server,) = plan.zookeepers
    assert server.address == "127.0.0.1:7160"  # its clients are on this machine
    assert plan.nodes[0] is server
    assert plan.metadata_address == "zookeeper://127.0.0.1:7160/semel"
    cluster_file.save(tmp_path, plan)
    assert cluster_file.load(tmp_path) == plan
    text = (tmp_path / cluster_file.FILE_NAME).read_text()
    (tmp_path / cluster_file.FILE_NAME).write_text(_newer(text))
    with pytest.raises(DataDirectoryError, match="newer Semel"):
        cluster_file.load(tmp_path)
