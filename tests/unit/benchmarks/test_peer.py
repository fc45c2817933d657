"""Peers' scripts: what is believed of them, and that nothing of them is left."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks import peer as peer_module
from benchmarks.figures import Cell
from benchmarks.peer import Peer, PeerError, collect, parse

ROOT = Path(__file__).resolve().parents[3]
LINE = '{"peer": "fake 1", "workload": "W1", "client": "tool", "msg_s": 10, "rss_mib": [1, 2]}'
# Starts a node in a session of its own, as the scripts do, and writes both process ids.
NODE = """
    import os, signal, subprocess, sys, time
    node = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                            stdout=subprocess.DEVNULL, start_new_session=True)
    open(os.environ["TMPDIR"] + "/data", "w").write("stored")
    open({pids!r}, "w").write(f"{{os.getpid()}} {{node.pid}}")
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Peer]:
    """A peer whose script has this body."""

    def make(body: str, silence_s: float = 60.0) -> Peer:
        path = tmp_path / "peer_fake.py"
        path.write_text(textwrap.dedent(body))
        data = tmp_path / "data"
        data.mkdir(exist_ok=True)
        return Peer(
            f"{sys.executable} -S {path}",
            workloads=["W1", "W3"],
            scale=0.5,
            durability="default",
            silence_s=silence_s,
            data=data,
        )

    return make


def with_node(tmp_path: Path, body: str) -> str:
    return textwrap.dedent(NODE.format(pids=str(tmp_path / "pids"))) + textwrap.dedent(body)


def assert_nothing_left(tmp_path: Path) -> None:
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not list((tmp_path / "data").iterdir())


def test_figures_of_a_round_are_medians_by_cell(
    script: Callable[..., Peer], tmp_path: Path
) -> None:
    found = script(
        with_node(
            tmp_path,
            """
            import json
            for longest in (1, 9, 2):
                print(json.dumps({"peer": "fake 1", "workload": "W6", "signal": "SIGKILL",
                                  "longest_gap_s": longest, "errors": ["x"]}))
            print()
            print(json.dumps({"peer": "fake 1", "workload": "W3", "client": "python",
                              "durability": "default", "p50_ms": 1.5, "n": 3}), flush=True)
            print(json.dumps({"peer": "fake 1", "workload": "W1", "client": " ".join(sys.argv[1:]),
                              "durability": "fsync", "msg_s": 7}), end="")
            node.kill()
            node.wait()
            """,
        )
    ).run()
    called = "--only W1,W3 --runs 1 --scale 0.5 --durability default"
    assert found == {
        Cell("fake 1", "W6", "SIGKILL"): {"longest_gap_s": 2},
        Cell("fake 1", "W3", "python"): {"p50_ms": 1.5},
        Cell("fake 1", "W1", f"{called}, fsync"): {"msg_s": 7},
    }
    assert_nothing_left(tmp_path)


def test_nested_figures_and_nodes_have_names_of_their_own() -> None:
    cell, figures = parse(
        '{"peer": "fake", "workload": "W4", "linger_ms": 5, "ack": {"p50_ms": 1, "n": 9}, '
        '"rss_mib": [10, 20], "first_ack_after_s": null}'
    )
    assert cell == Cell("fake", "W4", "linger_ms 5")
    assert figures == {
        "ack_p50_ms": 1,
        "rss_mib": 30,
        "rss_mib_node_1": 10,
        "rss_mib_node_2": 20,
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Starting up …", "'Starting up …', which is no JSON object"),
        ("[" * 100_000, "no JSON object"),
        ("7", "no `peer` or no `workload`"),
        ('{"peer": "fake", "msg_s": 1}', "no `peer` or no `workload`"),
        ('{"peer": "fake", "workload": 1, "msg_s": 1}', "no `peer` or no `workload`"),
        ('{"peer": "semel", "workload": "W1", "msg_s": 1}', "no other broker is called 'semel'"),
        ('{"peer": "a: b", "workload": "W1", "msg_s": 1}', "no other broker is called 'a: b'"),
        ('{"peer": "fake", "workload": "W1", "client": "x"}', "which has no figure"),
        ('{"peer": "fake", "workload": "W1", "msg_s": "fast"}', "msg_s is no number"),
        ('{"peer": "fake", "workload": "W1", "msg_s": true}', "msg_s is no number"),
        ('{"peer": "fake", "workload": "W1", "msg_s": NaN}', "msg_s is nan"),
        ('{"peer": "fake", "workload": "W1", "msg_s": -1}', "msg_s is -1"),
        ('{"peer": "fake", "workload": "W1", "rss_mib": [1, Infinity]}', "rss_mib_node_2 is inf"),
    ],
)
def test_a_line_that_is_no_figure_is_refused(line: str, message: str) -> None:
    with pytest.raises(PeerError) as caught:
        collect(iter([LINE, line]))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print('hello', flush=True); time.sleep(600)", "peer_fake: printed 'hello', which is no"),
        (f"print('{LINE}', flush=True); sys.exit(3)", "peer_fake: ended with exit status 3"),
        ("raise OSError('no Java')", "exit status 1; its last words: OSError: no Java"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "peer_fake: ended with SIGKILL"),
        ("pass", "peer_fake: printed no figure"),
        ("os.write(1, b'x' * 2_000_000); time.sleep(600)", "a line of more than 1 MiB"),
    ],
)
def test_a_peer_that_fails_is_one_line_and_leaves_nothing(
    script: Callable[..., Peer], tmp_path: Path, body: str, message: str
) -> None:
    with pytest.raises(PeerError) as caught:
        script(with_node(tmp_path, body)).run()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_nothing_left(tmp_path)


def test_a_peer_that_hangs_is_ended_even_if_it_does_not_listen(
    script: Callable[..., Peer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "GRACE_S", 0.1)
    body = f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print('{LINE}', flush=True)
        time.sleep(600)
    """
    peer = script(with_node(tmp_path, body), silence_s=5.0)
    # Silence is what is waited for here; it begins when both processes are known to run.
    monkeypatch.setattr(peer, "_lines", after_first_line(peer))
    with pytest.raises(PeerError, match=r"said nothing for 0\.1 s and was ended"):
        peer.run()
    assert_nothing_left(tmp_path)


def after_first_line(peer: Peer) -> Callable[[subprocess.Popen[bytes]], Iterator[str]]:
    """Its lines, with little patience after the first one."""
    lines = peer._lines

    def impatient(process: subprocess.Popen[bytes]) -> Iterator[str]:
        for line in lines(process):
            peer.silence_s = 0.1
            yield line

    return impatient


def test_ctrl_c_is_looked_for_while_a_peer_is_silent(
    script: Callable[..., Peer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal just before a system call does not end its wait, so no wait may be a long one."""
    waits: list[float] = []

    def noted(readable: Any, writable: Any, other: Any, wait_s: float) -> Any:
        waits.append(wait_s)
        return select.select(readable, writable, other, wait_s)

    monkeypatch.setattr(peer_module, "select", SimpleNamespace(select=noted))
    peer = script("import time; time.sleep(600)", silence_s=2.0)
    with pytest.raises(PeerError, match="said nothing for 2 s and was ended"):
        peer.run()
    assert len(waits) > 1
    assert max(waits) <= 0.5


def test_a_peer_ends_its_nodes_itself_when_it_can(
    script: Callable[..., Peer], tmp_path: Path
) -> None:
    body = f"""
        def end(*_):
            node.kill()
            node.wait()
            open({str(tmp_path / "asked")!r}, "w").close()
            sys.exit(143)
        signal.signal(signal.SIGTERM, end)
        print("nonsense", flush=True)
        time.sleep(600)
    """
    with pytest.raises(PeerError, match="nonsense"):
        script(with_node(tmp_path, body)).run()
    assert (tmp_path / "asked").exists()
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-program peer.py", "there is no such program"),
        (f"{sys.executable} /no/such/peer_kafka.py", "there is no file /no/such/peer_kafka.py"),
        ("", "there is no such program"),
        ("python3 'peer.py", "is no command"),
    ],
)
def test_a_peer_that_does_not_exist_is_known_at_once(
    command: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(PeerError, match=message):
        Peer(command, workloads=[], scale=1, durability="default", silence_s=1, data=tmp_path)


def test_ctrl_c_ends_the_peer_and_removes_its_data(tmp_path: Path) -> None:
    """The whole command, interrupted while its peer runs, which comes before all else."""
    path = tmp_path / "peer_fake.py"
    path.write_text(with_node(tmp_path, f"print('{LINE}', flush=True); time.sleep(600)"))
    data = tmp_path / "data"
    data.mkdir()
    command = [sys.executable, "-m", "benchmarks.side_by_side", "--workloads", "W1"]
    command += ["--peer", f"{sys.executable} -S {path}", "--scale", "0.0001", "--data", str(data)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()  # closes its pipe, too
    assert process.returncode == 130
    assert errors.strip() == "error: interrupted; nothing is left running"
    assert_nothing_left(tmp_path)
