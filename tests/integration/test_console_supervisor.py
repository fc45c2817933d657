"""The supervisor's shell with real processes that are no nodes: nothing is left behind, ever."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from semel.console.supervisor import Supervisor
from semel.protos import compat
from semel.protos.errors import Unavailable
from tests.kit.up_process import is_alive
from tests.kit.waiting import until
from tests.kit.watched_supervisor import PLAN, SLEEP, STUBBORN, Watched


async def test_leaving_ends_every_process(tmp_path: Path) -> None:
    watched = Watched(tmp_path, SLEEP)
    async with watched.nodes:
        pids = await watched.count("started", 2)
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)
    assert len(await watched.count("exited", 2)) == 2


async def test_a_process_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.console.supervisor.STOP_GRACE_S", 0.3)
    watched = Watched(tmp_path, STUBBORN)
    async with watched.nodes:
        pids = await watched.count("started", 2)
        for node in PLAN.nodes:
            log = watched.nodes.log_path(node)
            while "up" not in log.read_text():
                await asyncio.sleep(0.01)
    assert not any(is_alive(pid) for pid in pids)
    assert {event.status for event in watched.events if event.event == "exited"} == {-9}


async def test_a_paused_process_is_ended_too(tmp_path: Path) -> None:
    watched = Watched(tmp_path, SLEEP)
    async with watched.nodes:
        pids = await watched.count("started", 2)
        os.kill(pids[0], signal.SIGSTOP)
    assert not any(is_alive(pid) for pid in pids)


async def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path, SLEEP)
    async with watched.nodes:
        first = (await watched.count("started", 2))[0]
        os.kill(first, signal.SIGKILL)
        third = (await watched.count("started", 3))[2]
        assert third != first
        assert is_alive(third)


async def test_without_restart_a_killed_process_stays_away(tmp_path: Path) -> None:
    watched = Watched(tmp_path, SLEEP, restart=False)
    async with watched.nodes:
        first = (await watched.count("started", 2))[0]
        os.kill(first, signal.SIGKILL)
        await watched.count("exited", 1)
        await asyncio.sleep(1.0)
        assert len(await watched.count("started", 2)) == 2
        assert watched.nodes.pid(PLAN.nodes[0]) is None


async def test_a_node_that_gives_up_at_the_start_is_an_error_with_its_last_words(
    tmp_path: Path,
) -> None:
    code = "import sys; print('error: the disk is on fire: buy another'); sys.exit(1)"
    watched = Watched(tmp_path, code)
    watched.nodes.serving = False
    async with watched.nodes:
        with pytest.raises(Unavailable, match="the disk is on fire: buy another"):
            await check_for(watched.nodes, seconds=10)


async def check_for(nodes: Supervisor, seconds: float) -> None:
    async with compat.timeout(seconds):
        while True:
            nodes.check()
            await asyncio.sleep(0.01)


def test_nodes_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, sys
            from pathlib import Path
            from tests.kit.watched_supervisor import STUBBORN, Watched

            async def main():
                watched = Watched(Path(sys.argv[1]), STUBBORN)
                async with watched.nodes:
                    print(*await watched.count("started", 2), flush=True)
                    await asyncio.sleep(600)

            asyncio.run(main())
            """
        )
    )
    root = Path(__file__).parents[2]
    owner = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    owner.kill()
    owner.wait()
    until(lambda: not any(is_alive(pid) for pid in pids), 5, "the nodes' end")
