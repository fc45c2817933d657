"""`python -m semel.controller` as a process: settings, signals, a kill, what it refuses."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.protos.levels import own_levels
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.common_pb2 import NodeAddress
from tests.kit.controller_process import Process, one_line, run


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


def test_a_killed_controller_comes_back_with_everything(
    tmp_path: Path, started: list[Process]
) -> None:
    first = Process(tmp_path)
    started.append(first)
    assert first.ready["event"] == "ready"
    assert first.ready["pid"] == first.process.pid
    report = pb.ReportNodeRequest(
        levels=own_levels(),
        group_id=1,
        node=NodeAddress(node_id=1, address="127.0.0.1:1"),
        role="master",
        term=3,
        members=[NodeAddress(node_id=1, address="127.0.0.1:1")],
    )
    version = first.stub.ReportNode(report, timeout=10).route_version
    opened = first.stub.OpenProducer(pb.OpenProducerRequest(name="p", open_id=b"1"), timeout=10)
    ids = {
        first.stub.OpenProducer(pb.OpenProducerRequest(open_id=bytes([n])), timeout=10).producer_id
        for n in range(1, 5)
    }
    first.end(signal.SIGKILL)

    second = Process(tmp_path)
    started.append(second)
    assert second.ready["cluster_id"] == first.ready["cluster_id"]
    routes = second.stub.GetRoutes(pb.GetRoutesRequest(), timeout=10)
    assert routes.version > version
    assert [(g.group_id, g.master_id, g.term) for g in routes.groups] == [(1, 1, 3)]
    again = second.stub.OpenProducer(pb.OpenProducerRequest(name="p", open_id=b"2"), timeout=10)
    assert (again.producer_id, again.epoch) == (opened.producer_id, opened.epoch + 1)
    other = second.stub.OpenProducer(pb.OpenProducerRequest(open_id=b"9"), timeout=10)
    assert other.producer_id not in ids | {opened.producer_id}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_also_under_a_watch(
    tmp_path: Path, started: list[Process], number: int
) -> None:
    process = Process(tmp_path)
    started.append(process)
    watch = process.stub.WatchRoutes(pb.GetRoutesRequest())
    next(watch)
    start = time.monotonic()
    process.process.send_signal(number)
    status = process.process.wait(10)
    assert time.monotonic() - start < 2
    assert status == 0
    _, stderr = process.end()
    assert "Traceback" not in stderr
    assert "loopback" not in stderr


def test_a_directory_in_use_and_one_of_another_cluster_are_refused(
    tmp_path: Path, started: list[Process]
) -> None:
    process = Process(tmp_path, "--cluster-id", "mine")
    started.append(process)
    assert process.ready["cluster_id"] == "mine"
    line = one_line(run("--data", str(tmp_path), "--listen", "127.0.0.1:0"))
    assert f"in use by process {process.process.pid}" in line
    process.end()
    flags = ("--data", str(tmp_path), "--listen", "127.0.0.1:0", "--cluster-id", "yours")
    assert "belongs to cluster mine" in one_line(run(*flags))


def test_a_damaged_file_is_refused(tmp_path: Path, started: list[Process]) -> None:
    started.append(Process(tmp_path))
    started[0].end()
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])
    assert "metadata.sqlite" in one_line(run("--data", str(tmp_path), "--listen", "127.0.0.1:0"))


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = one_line(run("--data", str(tmp_path), "--listen", address))
    reason = "Address already in use; choose another one with --listen"
    assert line.endswith(f"cannot listen on {address}: {reason}")


def test_settings_come_from_flags_then_environment_then_file(
    tmp_path: Path, started: list[Process]
) -> None:
    file = tmp_path / "controller.toml"
    file.write_text('controller_id = 5\ncluster_id = "file"\nadvertise = "file:1"\n')
    process = Process(
        tmp_path / "data",
        "--config",
        str(file),
        "--controller-id",
        "7",
        SEMEL_CONTROLLER_CLUSTER_ID="environment",
        SEMEL_CONTROLLER_CONTROLLER_ID="6",
    )
    started.append(process)
    process.channel.close()
    ready = process.ready
    assert (ready["id"], ready["cluster_id"], ready["address"]) == (7, "environment", "file:1")


def test_a_wrong_setting_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text("colour = 1\n")
    data = ("--data", str(tmp_path / "data"))
    for flags, told in (
        (("--config", str(file), *data), "colour"),
        (("--config", str(tmp_path / "none.toml"), *data), "none.toml"),
        (("--listen", "nowhere", *data), "HOST:PORT"),
        (("--stop-ms", "0", *data), "stop_ms"),
        (("--colour", *data), "--colour"),
        ((), "--data"),
    ):
        result = run(*flags)
        assert result.returncode == 2
        assert result.stdout == ""
        assert told in result.stderr


def test_listening_to_everybody_is_said_loudly(tmp_path: Path, started: list[Process]) -> None:
    everybody = ("--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:9")
    process = Process(tmp_path, *everybody, "--insecure")
    started.append(process)
    _, stderr = process.end()
    assert "INSECURE: anybody who reaches 0.0.0.0:0 can read, write and delete everything" in stderr
