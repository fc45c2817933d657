"""The demo as a newcomer runs it: it proves, and leaves nothing behind, also when interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


def start(temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    """The demo as a process whose temporary files go below `temporary`."""
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "tools.demo", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
        # Whoever runs the tests in the background has made SIGINT ignored for all of its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def left_over(temporary: Path) -> list[object]:
    """Files and processes of a demo that ended."""
    processes = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = " ".join(process.info["cmdline"] or [])
        environment = process.info["environ"] or {}
        ours = str(temporary) in words or environment.get("TMPDIR", "").startswith(str(temporary))
        if ours and process.status() != psutil.STATUS_ZOMBIE:
            processes.append(words)
    return [*temporary.iterdir(), *processes]


def write_lines(path: Path, count: int) -> Path:
    path.write_bytes(b"".join(b"%d: a line of the demo's file\n" % n for n in range(count)))
    return path


@pytest.mark.timeout(300)
def test_it_proves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = start(tmp_path / "tmp", str(write_lines(tmp_path / "file", 50_000)))
    out, err = demo.communicate(timeout=280)
    assert (demo.returncode, err) == (0, ""), out + err
    assert "SIGKILL to the master" in out
    assert "SIGKILL to the loader" in out
    assert "✗" not in out
    assert out.count("50,000") >= 4
    assert left_over(tmp_path / "tmp") == []


@pytest.mark.parametrize("scene", ["brokers serve", "SIGKILL to the loader"])
def test_interrupted_it_leaves_nothing_behind(tmp_path: Path, scene: str) -> None:
    demo = start(tmp_path / "tmp", str(write_lines(tmp_path / "file", 20_000)))
    assert demo.stdout is not None
    for line in demo.stdout:
        if scene in line:
            break
    time.sleep(1)  # into the middle of the next scene
    began = time.monotonic()
    os.kill(demo.pid, signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (130, ""), out + err
    assert time.monotonic() - began < 30
    assert left_over(tmp_path / "tmp") == []


@pytest.mark.parametrize(
    ("name", "what"),
    [("missing", "no such file"), (".", "is a directory"), ("empty", "is empty"), ("few", "lines")],
)
def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "empty").touch()
    write_lines(tmp_path / "few", 3)
    demo = start(tmp_path / "tmp", str(tmp_path / name))
    out, err = demo.communicate(timeout=30)
    assert (demo.returncode, out) == (1, "")
    assert what in err
    assert len(err.splitlines()) == 1
    assert left_over(tmp_path / "tmp") == []
