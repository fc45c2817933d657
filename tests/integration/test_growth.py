"""Curves of growth on real, small clusters: what is printed is what is there, and nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from benchmarks import growth
from benchmarks.curves import CURVES
from benchmarks.growers import GrowthClient
from benchmarks.growth_client import FIRST_ID
from benchmarks.growth_points import site
from benchmarks.workloads import ClientError
from semel.protos.v1 import broker_pb2, broker_pb2_grpc
from tests.kit import forking

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = (
    *("--points", "2", "--rounds", "1", "--warm-ups", "0"),
    *("--scale", "0.0001", "--seconds", "0.1"),
)


@pytest.fixture(autouse=True)
def programs_are_started() -> Iterator[None]:
    """Benchmarks measure what users start, and leave no process behind."""
    with forking.enabled(False):
        yield


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def run(tmp_path: Path, *given: str) -> dict[str, Any]:
    """The curves of a run that succeeds and leaves nothing but its JSON."""
    before, data, out = children(), tmp_path / "data", tmp_path / "out.json"
    data.mkdir()
    assert growth.main([*SMALL, *given, "--data", str(data), "--json", str(out)]) == 0
    assert children() <= before
    assert not list(data.iterdir())
    curves: dict[str, Any] = json.loads(out.read_text())["curves"]
    return curves


def figure(curve: dict[str, Any], point: int, metric: str) -> float:
    contender = curve["points"][str(point)]["contender"]
    found: float = curve["contenders"][contender][metric]["median"]
    return found


def test_every_curve_is_measured_at_its_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "out.svg"
    found = run(tmp_path, "--figures", "rate,latency,memory,snapshot", "--picture", str(picture))
    assert [*found] == [*CURVES]
    printed = capsys.readouterr().out
    for name, curve in CURVES.items():
        first, second = curve.points[:2]
        assert [*found[name]["points"]] == [str(first), str(second)]
        assert found[name]["targets"]
        for point in (first, second):
            assert curve.label(point) in printed
            rate = "read_mb_s" if name == "readers" else "msg_s"
            assert figure(found[name], point, rate) > 0
            assert 0 < figure(found[name], point, "p50_ms") <= figure(found[name], point, "p99_ms")
            total = figure(found[name], point, "rss_mib")
            assert 0 < figure(found[name], point, "master_mib") < total
            assert figure(found[name], point, "snapshot_bytes") > 0
            paused = figure(found[name], point, "snapshot_pause_s")
            assert 0 < paused <= figure(found[name], point, "snapshot_s")
    grown = {
        name: figure(found[name], CURVES[name].points[1], "snapshot_bytes_each")
        for name in ("queues", "producers", "consumers")
    }
    assert grown["queues"] > 100  # the fixed part of a queue's row
    # A row with the one batch that it remembers, and at most an extent that is not dropped yet.
    assert 68 <= grown["producers"] < 68 + 36 + 1
    assert grown["consumers"] > 68 + 48  # rows of a producer and of a consumer's lock
    root = ElementTree.fromstring(picture.read_text())
    texts = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {curve.title for curve in CURVES.values()} <= texts


def test_restarts_are_measured_also_where_clients_must_be_let_go_before(tmp_path: Path) -> None:
    found = run(tmp_path, "--curves", "queues,consumers", "--figures", "restart")
    for point in CURVES["queues"].points[:2]:
        assert figure(found["queues"], point, "restart_s") > 0
        assert figure(found["queues"], point, "replayed_restart_s") > 0
    first, second = CURVES["consumers"].points[:2]
    assert figure(found["consumers"], second, "restart_s") > 0
    alone = found["consumers"]["points"][str(first)]["contender"]
    assert "restart_s" not in found["consumers"]["contenders"][alone]


@pytest.mark.parametrize("rows_each", [1, 4])
def test_rows_of_producers_that_are_made_again_are_made_once(
    tmp_path: Path, rows_each: int
) -> None:
    with site(tmp_path / "cluster", 0.0001) as one:
        client = one.client
        client.admin.create_topic("idle", queues=4)
        settings = {
            "controller": one.cluster.controller_address,
            "broker": one.cluster.master().address,
            "topic": "idle",
            "queues": 4,
            "rows_each": rows_each,
            "first": 0,
        }
        for count in (30, 50):  # neither is a multiple of 4
            with GrowthClient("producers", **settings, count=count) as process:
                assert process.result()["made"] == count
        assert one.cluster.status(one.cluster.master()).producers == 50
        assert one.messages("idle") == 50
        with grpc.insecure_channel(one.cluster.master().address) as channel:
            stub = broker_pb2_grpc.BrokerStub(channel)
            rows = stub.DescribeProducers(broker_pb2.DescribeProducersRequest(), timeout=30).rows
        stored = [row for row in rows if row.producer_id >= FIRST_ID]
        assert {row.last_sequence for row in stored} == {0}
        assert len({row.producer_id for row in stored}) == -(-50 // rows_each)
        said = "the client of producers failed: .*NotMaster"
        slave = one.cluster.slaves()[0].address
        with (
            pytest.raises(ClientError, match=said) as caught,
            GrowthClient("producers", **{**settings, "broker": slave}, count=1) as process,
        ):
            process.result()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_end_from_outside_leaves_nothing(tmp_path: Path, sent: signal.Signals) -> None:
    command = [sys.executable, "-m", "benchmarks.growth", *SMALL, "--data", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--curves", "messages"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/beside/broker-3/log/*/segment*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        nodes = psutil.Process(process.pid).children(recursive=True)
        assert len(nodes) >= 4
        os.killpg(process.pid, sent) if sent == signal.SIGINT else process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (130 if sent == signal.SIGINT else 143)
    gone, alive = psutil.wait_procs(nodes, timeout=10)
    assert not alive
    assert len(gone) == len(nodes)
    assert not list(tmp_path.iterdir())
    if sent == signal.SIGINT:
        assert errors.strip() == "error: interrupted; nothing is left running"


def test_bad_input_is_one_line_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = children()
    with pytest.raises(SystemExit) as caught:
        growth.main([*SMALL, "--curves", "wishes", "--data", str(tmp_path)])
    assert caught.value.code == 2
    assert "there is no curve 'wishes'" in capsys.readouterr().err.splitlines()[-1]
    assert children() == before
    assert not list(tmp_path.iterdir())
