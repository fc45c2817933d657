"""A cluster whose log is JSON: every line is an object with an event from the list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from semel.protos.event_names import LIBRARY, NAMES, ON_STDOUT
from tests.kit.loading import semel
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until

KNOWN = {*NAMES.values(), *ON_STDOUT, LIBRARY}


def lines_of(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in found:
        assert line["event"] in KNOWN, f"{path.name}: {line}"
        if line["event"] not in ON_STDOUT:
            assert {"time", "level", "process", "logger", "message"} <= line.keys()
    return found


def test_every_line_of_a_cluster_is_json(tmp_path: Path) -> None:
    up = UpProcess(tmp_path / "cluster", "--log-format", "json", "--web", "0", "--kafka", "0")
    with up:
        assert semel(up.bootstrap, "topic", "create", "kept").returncode == 0
        master = up.node(up.master() or 0)
        up.kill(master)
        up.wait_event("started", kind="broker", id=master.id, timeout=20)
        until(lambda: up.master() not in (None, master.id), 20)
        assert semel(up.bootstrap, "topic", "create", "again").returncode == 0
    logs = up.directory / "logs"
    by_process = {path.stem: lines_of(path) for path in sorted(logs.glob("*.log"))}
    assert sorted(by_process) == [
        *("broker-1", "broker-2", "broker-3", "controller-1", "kafka-gateway", "web")
    ]
    lines_of(up.directory / "up.stderr")
    for name, lines in by_process.items():
        assert {line["process"] for line in lines if "process" in line} <= {name}
    brokers = [line for name, lines in by_process.items() if "broker" in name for line in lines]
    masters = {line["process"] for line in brokers if line["event"] == "mastership_begins"}
    assert len(masters) >= 2, "the one that was killed, and another"
    roles = [line for line in brokers if line["event"] == "role_changed"]
    assert {line["role"] for line in roles} >= {"master", "slave"}
    assert all(isinstance(line["term"], int) for line in roles)
    told = {line["event"] for line in by_process["controller-1"]}
    assert {"ready", "controller_serves", "topic_active", "group_has_master"} <= told


def test_the_setting_is_taken_from_file_and_environment(tmp_path: Path) -> None:
    """Each program fails at once, and says so in the form that was asked for."""
    taken = tmp_path / "file"
    taken.write_text("in the way")
    listen, data = "127.0.0.1:0", str(taken / "data")
    broker = ["--group", "1", "--node", "1"]
    for program, options in (("broker", broker), ("controller", [])):
        command = [sys.executable, "-m", f"semel.{program}", "--data", data, "--listen", listen]
        command += ["--cluster-id", "c", *options]
        settings = tmp_path / f"{program}.toml"
        settings.write_text('log_format = "json"\n')
        variable = f"SEMEL_{program.upper()}_LOG_FORMAT"
        for more, environment in ((["--config", str(settings)], {}), ([], {variable: "json"})):
            done = subprocess.run(
                [*command, *more], capture_output=True, env=environment, timeout=60, check=False
            )
            last = json.loads(done.stderr.splitlines()[-1])
            assert (done.returncode, last["event"]) == (1, "process_ends"), done.stderr
            assert last["process"] == f"{program}-1"
            assert "file" in last["reason"]


def test_a_command_that_fails_says_so_as_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "semel.console", "mirror", "--log-format", "json"]
    command += ["--from", "127.0.0.1:1", "--to", "127.0.0.1:1", "--topics", "x"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, lines[-1]["event"]) == (1, "command_failed")
    assert {line["process"] for line in lines} == {"mirror"}
