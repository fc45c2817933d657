"""`semel up` as scripts and people meet it: its contract, its end, its refusals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from semel.client import connect
from tests.kit.loading import semel
from tests.kit.up_process import UpProcess, is_alive
from tests.kit.waiting import until


def up_fails(directory: Path, *options: str) -> str:
    """The one line of error of an `up` that must not start."""
    done = subprocess.run(
        [sys.executable, "-m", "semel.console", "up", "--data", str(directory), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def pids_of(up: UpProcess) -> list[int]:
    pids = [node.pid for node in up.nodes]
    assert all(pid is not None and is_alive(pid) for pid in pids)
    return [pid for pid in pids if pid is not None]


def test_a_cluster_serves_restarts_its_dead_and_comes_back_as_itself(tmp_path: Path) -> None:
    up = UpProcess(tmp_path / "cluster")
    with up:
        kinds = [(node.kind, node.group, node.id) for node in up.nodes]
        assert kinds == [("controller", None, 1), *(("broker", 1, n) for n in (1, 2, 3))]
        assert all(node.data.is_dir() for node in up.nodes)
        addresses = [node.address for node in up.nodes]
        assert semel(up.bootstrap, "topic", "create", "kept").returncode == 0
        slave = next(node for node in up.brokers if node.id != up.master())
        pid = up.kill(slave)
        gone = up.wait_event("exited", kind="broker", id=slave.id, pid=pid, timeout=5)
        assert gone["status"] == -9
        back = up.wait_event("started", kind="broker", id=slave.id, timeout=10)
        assert back["pid"] != pid
        pids = pids_of(up)
        began = time.monotonic()
        assert up.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < 10
        assert not any(is_alive(pid) for pid in pids)
    with up:
        assert [node.address for node in up.nodes] == addresses
        assert '"kept"' in semel(up.bootstrap, "topic", "list", "--json").stdout


def test_its_nodes_die_with_it_and_the_next_up_starts_at_once(tmp_path: Path) -> None:
    up = UpProcess(tmp_path / "cluster", "--brokers", "1")
    up.start()
    pids = pids_of(up)
    os.kill(up.process.pid, signal.SIGKILL)
    until(lambda: not any(is_alive(pid) for pid in pids), 5, "the nodes' end")
    up.stop()
    with up:
        assert semel(up.bootstrap, "cluster", "status").returncode == 0


def test_it_refuses_what_cannot_be(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with UpProcess(directory, "--brokers", "1"):
        assert f"{directory} is in use by another `semel up`" in up_fails(directory)
    assert "holds a cluster with brokers 1, not 3" in up_fails(directory, "--brokers", "3")
    assert "holds a cluster with port" in up_fails(directory, "--port", "19999")
    (directory / "cluster.toml").write_text("version = 1\n")
    assert "cluster.toml is damaged" in up_fails(directory)
    file = tmp_path / "file"
    file.touch()
    assert "file" in up_fails(file / "below")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = up_fails(tmp_path / "cluster", "--port", str(port), "--brokers", "1")
    assert f"127.0.0.1:{port} is in use, controller-1 cannot listen there" in line
    assert not (tmp_path / "cluster" / "cluster.toml").exists()


def test_a_node_that_cannot_start_is_the_error(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with UpProcess(directory, "--brokers", "1"):
        pass
    text = (directory / "cluster.toml").read_text()
    old = text.partition('cluster_id = "')[2].partition('"')[0]
    (directory / "cluster.toml").write_text(text.replace(old, "0123456789abcdef"))
    line = up_fails(directory)
    assert "did not start" in line
    assert ".log" in line


def test_listening_beyond_loopback_is_warned_of(tmp_path: Path) -> None:
    up = UpProcess(tmp_path / "cluster", "--brokers", "1", "--host", "0.0.0.0", "--insecure")
    with up:
        pass
    warnings = (up.directory / "up.stderr").read_text()
    assert warnings.startswith("warning: the cluster listens on 0.0.0.0:")


def test_on_a_terminal_it_draws_a_table_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "semel.console", "up", "--data", str(tmp_path / "cluster")),
            *("--port", "0", "--brokers", "1"),
        ],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(slave)
    seen = b""
    deadline = time.monotonic() + 60
    while b"broker-1" not in seen:
        assert time.monotonic() < deadline, seen
        seen += os.read(master, 65_536)
    assert b"serving at 127.0.0.1:" in seen
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the terminal's end of file
        while data := os.read(master, 65_536):
            seen += data
    assert process.wait(10) == 0
    os.close(master)
    assert b"stopped" in seen
    assert b"Traceback" not in seen


def test_a_broker_group_is_added_while_the_cluster_runs(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "cluster", "--brokers", "1") as up:
        where = ("--up", str(up.directory))
        assert semel(up.bootstrap, "topic", "create", "before", "--queues", "2").returncode == 0
        for _ in range(2):  # the second call finds what the first one did
            added = semel(
                up.bootstrap, "cluster", "add-group", "2", "--brokers", "1", "--json", *where
            )
            assert added.returncode == 0, added.stderr
            done = json.loads(added.stdout)
            assert [node["id"] for node in done["nodes"]] == [2]
            assert done["master"] == 2
        assert semel(up.bootstrap, "topic", "create", "after", "--queues", "2").returncode == 0
        chosen = ("topic", "create", "chosen", "--queues", "1", "--groups", "1")
        assert semel(up.bootstrap, *chosen).returncode == 0
        with connect(up.bootstrap) as client:
            with client.producer() as producer:
                for topic in ("before", "after", "chosen"):
                    producer.send(topic, b"x").result(30)
            queues = {group.id: group.queues for group in client.admin.cluster_status().groups}
            assert queues == {1: 3, 2: 2}
        refused = semel(
            up.bootstrap, "cluster", "add-group", "2", "--brokers", "3", "--json", *where
        )
        assert refused.returncode == 1
    assert "began with 1 nodes" in refused.stderr
