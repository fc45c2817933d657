"""Celery's workers on a real cluster: processes that are killed, delays, dead letters, control."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from celery import Celery
from kombu import pools

import semel.contrib.kombu  # noqa: F401 - makes semel:// known
from semel.client import Client
from tests.kit.celery_app import TRANSPORT_OPTIONS, lines
from tests.kit.cluster import Cluster
from tests.kit.waiting import until
from tools.source_tree import ROOT

StartWorker = Callable[..., AbstractContextManager["subprocess.Popen[bytes]"]]
TASKS = "tests.kit.celery_app"


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The test's own queue."""
    return str(request.node.name).replace("_", "-")[:80]


@pytest.fixture
def sender(shared_cluster: Cluster, queue: str) -> Iterator[Celery]:
    """An application that sends to that queue, and has no task of its own."""
    with Celery("tests", broker=f"semel://{shared_cluster.bootstrap}") as made:
        made.conf.broker_transport_options = TRANSPORT_OPTIONS
        made.conf.task_default_queue = queue
        yield made
        pools.reset()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def start_worker(shared_cluster: Cluster, queue: str, journal: Path, tmp_path: Path) -> StartWorker:
    @contextmanager
    def start(name: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        environment = {
            **os.environ,
            "SEMEL_BOOTSTRAP": shared_cluster.bootstrap,
            "SEMEL_TEST_QUEUE": queue,
            "SEMEL_TEST_JOURNAL": str(journal),
        }
        command = [sys.executable, "-m", "celery", "-A", "tests.kit.celery_app", "worker"]
        command += ["-n", f"{name}@test", "--without-heartbeat", *(flags or ("--pool=solo",))]
        with (tmp_path / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(20)
                finally:
                    process.kill()
                    process.wait()

    return start


def test_a_task_whose_worker_is_killed_is_done_by_another(
    start_worker: StartWorker,
    sender: Celery,
    queue: str,
    journal: Path,
    tmp_path: Path,
    client: Client,
) -> None:
    gate = tmp_path / "gate"
    sender.send_task(f"{TASKS}.hold", ("first", str(gate)), semel_key="one")
    for name in ("second", "third"):
        sender.send_task(f"{TASKS}.note", (name,), semel_key="one")
    with start_worker("one") as one:
        until(lambda: lines(journal) == [f"begun first {one.pid}"], within_s=30, what="its begin")
        one.kill()
        one.wait()
        gate.touch()
        with start_worker("two") as two:
            expected = [f"begun first {two.pid}", f"done first {two.pid}"]
            expected += [f"second {two.pid}", f"third {two.pid}"]
            until(lambda: lines(journal)[1:] == expected, within_s=40, what="all of it, in order")
            until(lambda: client.admin.describe_group(queue).lag == 0, what="the acknowledgements")


def test_delays_retries_and_dead_letters(
    start_worker: StartWorker, sender: Celery, queue: str, journal: Path, client: Client
) -> None:
    before = time.time()
    sender.send_task(f"{TASKS}.note_time", ("later",), countdown=3)
    described = client.admin.describe_topic(queue)
    assert sum(each.delayed_messages for each in described.queues) == 1, "the cluster waits, alone"
    sender.send_task(f"{TASKS}.fails_twice", ("retried",))
    sender.send_task(f"{TASKS}.refuse", ("wrong",))
    with start_worker("one"):
        until(lambda: len(lines(journal)) == 5, within_s=40, what="every attempt")
    found = lines(journal)
    assert [line for line in found if line.startswith("retried")] == [
        f"retried {number}" for number in range(3)
    ]
    [later] = [float(line.split()[1]) for line in found if line.startswith("later")]
    assert later >= before + 3
    [letter] = client.admin.dead_letters(queue)
    assert (letter.attempts, letter.reason) == (1, "rejected")


def test_a_worker_of_many_processes_sends_and_is_controlled(
    start_worker: StartWorker, sender: Celery, journal: Path
) -> None:
    sender.send_task(f"{TASKS}.pass_on", ("inner",))
    with start_worker("one", "--pool=prefork", "--concurrency=2") as worker:
        until(lambda: len(lines(journal)) == 1, within_s=40, what="the inner task")
        assert lines(journal)[0].startswith("inner ")
        answers = sender.control.ping(timeout=3)
        assert answers == [{"one@test": {"ok": "pong"}}]
        sender.control.broadcast("shutdown")
        assert worker.wait(30) == 0
