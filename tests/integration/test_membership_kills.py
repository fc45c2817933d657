"""Groups grow, nodes are replaced and restarted, under a real load and over real kills.

Each test ends with `semel verify --exactly-once` on every member and a comparison with the source.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from semel.client import SemelError, connect
from tests.kit.loading import (
    create_topic,
    done,
    finish,
    make_source,
    prove,
    semel,
    start_loader,
    wait_share,
)
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until
from tools.demo.source import Source
from tools.demo.stage import Actor, Stage

LINES = 20_000
LOAD_S = 60
"""Longer than any change takes; the rest is loaded at full speed then."""


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source", lines=LINES, seed=11)


def change(up: UpProcess, *command: str) -> dict[str, object]:
    """One command that changes the group, with `up` starting what it needs; its last line."""
    found = semel(up.bootstrap, *command, "--up", str(up.directory), "--json")
    assert found.returncode == 0, found.stdout + found.stderr
    line: dict[str, object] = json.loads(found.stdout.splitlines()[-1])
    assert line["event"] == "done"
    return line


def voters(line: dict[str, object]) -> list[int]:
    found = line["voters"]
    assert isinstance(found, dict)
    return sorted(map(int, found))


def finish_load(up: UpProcess, stage: Stage, source: Source, loader: Actor) -> None:
    """The slow load went on until now; a fast one of the same name stores the rest."""
    assert loader.running, "the load was over before the change was"
    loaded = done(loader)
    loader.kill()
    assert 0 < loaded < LINES
    result = finish(start_loader(stage, up.bootstrap, source, seconds=0.5, name="rest"))
    assert result["stored"] + result["duplicates"] + result["skipped"] == LINES
    assert result["skipped"] >= loaded * 0.9


def alive(up: UpProcess) -> list[int]:
    return sorted(node.id for node in up.group().nodes if node.alive)


def test_a_group_grows_from_one_to_three_to_five_under_load(
    tmp_path: Path, stage: Stage, source: Source
) -> None:
    with UpProcess(tmp_path / "cluster", "--brokers", "1") as up:
        create_topic(up.bootstrap)
        loader = start_loader(stage, up.bootstrap, source, seconds=LOAD_S)
        wait_share(loader, source, 0.02)
        assert voters(change(up, "cluster", "grow", "1", "--to", "3")) == [1, 2, 3]
        assert voters(change(up, "cluster", "grow", "1", "--to", "5")) == [1, 2, 3, 4, 5]
        assert change(up, "cluster", "grow", "1", "--to", "5")["changed"] is False
        finish_load(up, stage, source, loader)
        # The first node, which had everything alone, is not needed any more.
        master, term = up.master(), up.term()
        up.kill(up.node(1))
        if master == 1:
            until(lambda: up.term() > term, 20, "another master")
        until(lambda: alive(up) == [1, 2, 3, 4, 5], 30, "five nodes")
        prove(up.bootstrap, source, nodes=5, scratch=tmp_path / "rebuilt")


def test_a_replacement_survives_the_death_of_the_master_and_of_the_console(
    tmp_path: Path, stage: Stage, source: Source
) -> None:
    with UpProcess(tmp_path / "cluster") as up:
        create_topic(up.bootstrap)
        loader = start_loader(stage, up.bootstrap, source, seconds=LOAD_S)
        wait_share(loader, source, 0.02)
        master, term = up.master(), up.term()
        old = next(node.id for node in up.brokers if node.id != master)
        command = ["node", "replace", str(old), "--up", str(up.directory), "--json"]
        console = subprocess.Popen(
            [sys.executable, "-m", "semel.console", *command, "--bootstrap", up.bootstrap],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert console.stdout is not None
        first = json.loads(console.stdout.readline())
        assert (first["step"], first["node"]) == ("add", 4)
        second = json.loads(console.stdout.readline())
        assert second["step"] in ("catch-up", "promote")
        console.kill()
        console.wait()
        console.stdout.close()
        up.kill(up.node(old))  # it is dead for a moment while it is being replaced
        up.kill(up.node(master))
        until(lambda: up.term() > term, 20, "another master")
        line = change(up, "node", "replace", str(old))
        assert voters(line) == sorted({1, 2, 3, 4} - {old})
        up.wait_event("exited", id=old, kind="broker", status=0, timeout=10)
        finish_load(up, stage, source, loader)
        left = sorted({1, 2, 3, 4} - {old})
        until(lambda: alive(up) == left, 20, "all members, and nobody else")
        prove(up.bootstrap, source, nodes=3, scratch=tmp_path / "rebuilt")
        # What `up` remembers starts the same group again.
        up.stop()
        up.start()
        assert sorted(node.id for node in up.brokers) == left
        assert alive(up) == left


def test_drained_and_restarted_nodes_cost_no_client_an_error(tmp_path: Path) -> None:
    """Every node once, the master of the moment first; sends, reads and calls go on."""
    with UpProcess(tmp_path / "cluster") as up, connect(up.bootstrap) as client:
        create_topic(up.bootstrap, queues=2, topic="calm")
        errors: list[SemelError] = []
        gaps: list[float] = []
        stored: list[bytes] = []
        over = threading.Event()

        def produce() -> None:
            with client.producer("calm") as producer:
                last = time.monotonic()
                while not over.is_set():
                    value = b"%d" % len(stored)
                    try:
                        producer.send("calm", value).result(10)
                    except SemelError as error:
                        errors.append(error)
                        return
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now
                    stored.append(value)

        thread = threading.Thread(target=produce)
        thread.start()
        handed_over = 0
        try:
            for _ in range(3):
                master = up.node(up.master())
                drained = semel(up.bootstrap, "node", "drain", str(master.id), "--json")
                assert drained.returncode == 0, drained.stderr
                said = json.loads(drained.stdout)
                assert said["was_master"] is True
                assert said["master"] not in (0, master.id)
                handed_over += 1
                assert master.pid is not None
                pid = master.pid
                os.kill(pid, signal.SIGTERM)
                up.wait_event("exited", kind="broker", id=master.id, pid=pid, timeout=10)
                up.wait_event("started", kind="broker", id=master.id, timeout=10)
                up.wait_all_alive()
        finally:
            over.set()
            thread.join()
        assert not errors, errors
        assert handed_over == 3
        assert max(gaps) < 1.0, "a hand-over took as long as an election after a crash"
        with client.reader("calm", end="latest") as reader:
            assert sorted(message.value for message in reader) == sorted(stored)
        assert client.admin.verify("calm").ok
