"""Programs that tests fork are as those that they start, in everything that a test looks at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import forking
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.forking import Forked

LONG = 20.0


def begin(directory: Path, program: str, *words: str, **variables: str) -> Forked | None:
    with (
        Path(os.devnull).open("rb") as nothing,
        (directory / "out").open("wb") as out,
        (directory / "errors").open("wb") as errors,
    ):
        files = (nothing.fileno(), out.fileno(), errors.fileno())
        return forking.begin(program, words, 1, files, {**os.environ, **variables})


@pytest.mark.parametrize("words", [("--version",), ("topic", "list", "--wrong"), ("--help",)])
def test_a_fork_does_what_the_program_does(tmp_path: Path, words: tuple[str, ...]) -> None:
    forked = begin(tmp_path, "semel.console", *words)
    assert forked is not None
    started = subprocess.run(
        [sys.executable, "-m", "semel.console", *words], capture_output=True, check=False
    )
    assert forked.wait(LONG) == started.returncode
    assert (tmp_path / "out").read_bytes() == started.stdout
    assert (tmp_path / "errors").read_bytes() == started.stderr


def test_the_console_has_its_input_and_its_environment(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", brokers=1) as cluster:
        assert all(isinstance(node.process, Forked) for node in cluster.nodes)
        semel = Console(cluster.bootstrap)
        assert semel("topic", "create", "forked").returncode == 0
        assert semel("produce", "forked", stdin=b"one\ntwo\n").returncode == 0
        done = semel("consume", "forked", "--from", "earliest", "--max", "2")
        assert (done.returncode, done.stdout) == (0, b"one\ntwo\n")


def test_a_node_that_is_killed_is_a_zombie_until_somebody_asks(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", brokers=1) as cluster:
        node = cluster.brokers[0]
        process = node.process
        assert process is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(LONG) == -signal.SIGKILL
        assert process.poll() == process.returncode == -signal.SIGKILL
        process.kill()
        cluster.start_node(node)
        cluster.kill(node, signal.SIGTERM)
        assert node.process is not None
        assert node.process.returncode == 0


def test_what_cannot_be_forked_is_started_otherwise(tmp_path: Path) -> None:
    assert begin(tmp_path, "http.server") is None
    assert begin(tmp_path, "semel.console", "--version", PYTHONOPTIMIZE="1") is None
    own = begin(tmp_path, "semel.console", "--version", SEMEL_BOOTSTRAP="h:1")
    assert own is not None
    assert own.wait(LONG) == 0


def test_the_nodes_of_a_group_hash_differently(tmp_path: Path) -> None:
    """As they do in production, where the order in a set of names must not matter."""
    assert len({number % forking.NURSERIES for number in (1, 2, 3)}) == 3
    assert "PYTHONHASHSEED" not in os.environ


def test_what_is_forked_ends_with_its_nursery(tmp_path: Path) -> None:
    nursery = forking.Nursery()
    with Path(os.devnull).open("r+b") as nothing:
        request = {
            "program": "semel.controller",
            "arguments": ["--data", str(tmp_path), "--listen", "127.0.0.1:0"],
            "environment": dict(os.environ),
            "directory": str(Path.cwd()),
        }
        forked = nursery.fork(request, (nothing.fileno(),) * 3)
    assert forked.poll() is None
    nursery.close()
    assert forked.wait(LONG) == -signal.SIGKILL
    with pytest.raises(RuntimeError, match="has ended with status 0"):
        nursery.fork(request, (0, 1, 2))
