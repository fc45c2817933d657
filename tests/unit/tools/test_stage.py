"""What the demo starts it ends, within a time, whatever its processes leave behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.kit.waiting import until
from tools.demo.stage import READ_S, STOP_S, DemoFailed, Stage

CLEAR = """
import sys, time
from pathlib import Path
from tools.demo.stage import Stage

stage = Stage(Path(sys.argv[1]))
stage.adopt_orphans()
actor = stage.start("clinging", "tests.unit.tools.clinging", sys.argv[2])
print(actor.wait_for(lambda said: "child" in said.line, 30, "its child").line["child"])
began = time.monotonic()
stage.clear()
print(time.monotonic() - began)
"""


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("where", ["group", "session"])
def test_what_a_process_leaves_behind_is_ended_and_not_waited_for(
    tmp_path: Path, where: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLEAR, str(tmp_path), where],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    child, seconds = done.stdout.split()
    assert not lives(int(child))
    assert float(seconds) < STOP_S + READ_S


def test_one_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    actor = stage.start("clinging", "tests.unit.tools.clinging", "stubborn")
    actor.wait_for(lambda said: "child" in said.line, 30, "its child")
    began = time.monotonic()
    stage.end_actors()
    assert STOP_S <= time.monotonic() - began < STOP_S + 5
    assert not actor.running
    child = actor.said[0].line["child"]
    until(lambda: not lives(child), what="end of the child, which was killed with its group")


def test_one_that_ends_early_is_named_with_its_last_words(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    actor = stage.start("wrong", "tests.unit.tools.no_such_module")
    try:
        with pytest.raises(DemoFailed, match=r"the wrong ended without a word.*no_such_module"):
            actor.wait_for(lambda said: True, 30, "a word")
    finally:
        stage.end_actors()
