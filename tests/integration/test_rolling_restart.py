"""A cluster of `semel up` is restarted node by node while a client sends: no send fails. Settings
that were changed without a restart last until then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.client import Client, connect
from semel.protos.errors import InvalidRequest
from tests.kit.console import Console, read_json
from tests.kit.steady_sends import Sends, steady_sends
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("rolling") / "cluster") as process:
        with connect(process.bootstrap) as client:
            client.admin.create_topic("orders", queues=2)
        yield process


@contextmanager
def loaded(client: Client) -> Iterator[Sends]:
    """Sends while the block runs; at its end everything that was sent is there, once."""
    before = count(client)
    with steady_sends(client, "orders") as load:
        yield load
    assert count(client) == before + len(load.sent), "each is there once"


def count(client: Client) -> int:
    with client.reader("orders", end="latest") as reader:
        return sum(1 for _ in reader)


def started(client: Client) -> dict[str, int]:
    """When each node was started."""
    found = client.admin.inspect_cluster()
    return {f"broker {each.node}": each.started_us for each in found.nodes} | {
        "controller": found.controllers[0].started_us
    }


def test_all_nodes_are_restarted_and_no_send_fails(up: UpProcess) -> None:
    master = up.master()
    pids = {(node.kind, node.id): node.pid for node in up.nodes}
    with connect(up.bootstrap) as client, loaded(client) as load:
        before = started(client)
        said = read_json(Console(up.bootstrap)("cluster", "restart", "--rolling", "--json"))
        load.go_on()
        after = started(client)
    assert [name for name in before if after[name] <= before[name]] == []
    up.drain()
    assert {(node.kind, node.id): node.pid for node in up.nodes} == pids, "the same processes"
    done = said.pop()
    order = [(each["kind"], each["id"]) for each in done["restarted"]]
    slaves = [number for number in (1, 2, 3) if number != master]
    assert order == [("controller", 1), *(("broker", number) for number in (*slaves, master))]
    steps = [(each["kind"], each["id"], each["step"]) for each in said if each["step"] != "wait"]
    expected: list[tuple[str, int, str]] = []
    for kind, number in order:
        expected += [(kind, number, "drain")] if kind == "broker" else []
        expected += [(kind, number, step) for step in ("restart", "started", "done")]
    assert steps == [*expected, ("broker", master, "transfer")], "one at a time"
    assert up.master() == master


def test_a_command_restarts_a_node_that_its_supervisor_starts_again(
    up: UpProcess, tmp_path: Path
) -> None:
    script = tmp_path / "end.py"
    up.drain()
    pids = {str(node.id): node.pid for node in up.brokers}
    script.write_text(
        f"import os, signal, sys\nos.kill({pids!r}[sys.argv[1]], signal.SIGTERM)\nprint('told')\n"
    )
    with connect(up.bootstrap) as client, loaded(client):
        said = read_json(
            Console(up.bootstrap)(
                *("cluster", "restart", "--rolling", "--node", "3", "--json"),
                *("--with", f"{sys.executable} {script} {{id}}"),
            )
        )
        assert [each["id"] for each in said[-1]["restarted"]] == [3]
        fails = Console(up.bootstrap)(
            *("cluster", "restart", "--rolling", "--node", "3"),
            *("--with", f"{sys.executable} -c 'raise SystemExit({{id}})'"),
        )
        assert (fails.returncode, b"ended with status 3" in fails.stderr) == (1, True)
        assert client.admin.inspect_cluster().under_replicated(1) == []
    up.wait_event("started", kind="broker", id=3, timeout=10)
    assert up.node(3).pid not in (None, pids["3"])


def test_ctrl_c_leaves_a_whole_cluster_and_the_rest_is_restarted_later(up: UpProcess) -> None:
    with connect(up.bootstrap) as client, loaded(client):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "semel.console", "cluster", "restart", "--rolling"),
                *("--only", "brokers", "--json"),
            ],
            env={**os.environ, "SEMEL_BOOTSTRAP": up.bootstrap},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first = 0
        for line in process.stdout:
            step: dict[str, Any] = json.loads(line)
            if step["step"] == "restart":
                first = step["id"]
                process.send_signal(signal.SIGINT)
                break
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "stopped; what was restarted runs" in errors
        until(lambda: not client.admin.inspect_cluster().under_replicated(1), what="a whole group")
        left = read_json(
            Console(up.bootstrap)(
                *("cluster", "restart", "--rolling", "--only", "brokers", "--json"),
                *("--ran-for", "1d"),
            )
        )
        assert left[-1]["restarted"] == [], "all are younger than a day"
        assert first


def test_a_setting_counts_at_once_and_until_its_node_is_started_again(up: UpProcess) -> None:
    console = Console(up.bootstrap)

    def scrub_rates() -> dict[int, tuple[str, bool]]:
        shown = console.json("config", "show", "scrub_bytes_per_second")["settings"]
        return {each["id"]: (each["value"], each["changed"]) for each in shown}

    with connect(up.bootstrap) as client:
        [change] = console.json("config", "set", "topics_max", "1")["changes"]
        assert (change["kind"], change["before"], change["value"]) == ("controller", "100000", "1")
        with pytest.raises(InvalidRequest, match="--topics-max"):
            client.admin.create_topic("more")
        console.json("config", "set", "topics_max", "--reset")
        client.admin.create_topic("more")
    usual = ("8388608", False)
    console.json("config", "set", "scrub_bytes_per_second", "4096", "--broker", "3")
    assert scrub_rates() == {1: usual, 2: usual, 3: ("4096", True)}
    for name, value, text in (
        ("tier_read_ms", "1", "counts from its start on"),
        ("compaction_dirty_percent", "0", "may be 1 to 100, not 0"),
        ("nothing", "1", "no node has a setting 'nothing'"),
    ):
        assert text in console.fails("config", "set", name, value)
    console.json("cluster", "restart", "--rolling", "--node", "3")
    assert scrub_rates() == {1: usual, 2: usual, 3: usual}


def test_a_restart_says_how_it_is_done(up: UpProcess) -> None:
    console = Console(up.bootstrap)
    assert "say --rolling" in console.fails("cluster", "restart", status=2)
    text = console.fails("cluster", "restart", "--rolling", "--node", "9")
    assert text == "node 9 is no member of a broker group"
