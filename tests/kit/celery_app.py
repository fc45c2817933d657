"""An application of Celery for tests: `celery -A tests.kit.celery_app worker`.

Each task appends a line to the file that SEMEL_TEST_JOURNAL names. A line is one write, so workers
share the file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject

import semel.contrib.kombu  # noqa: F401 - makes semel:// known

JOURNAL = "SEMEL_TEST_JOURNAL"
TRANSPORT_OPTIONS: dict[str, Any] = {"queues": 1, "session_ms": 1_000}
app = Celery("tests")
app.conf.update(
    broker_url=f"semel://{os.environ.get('SEMEL_BOOTSTRAP', '127.0.0.1:7070')}",
    broker_transport_options=TRANSPORT_OPTIONS,
    task_default_queue=os.environ.get("SEMEL_TEST_QUEUE", "celery"),
    task_acks_late=True,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)


def write(line: str) -> None:
    with Path(os.environ[JOURNAL]).open("ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


def lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


@app.task
def note(name: str) -> None:
    write(f"{name} {os.getpid()}")


@app.task
def note_time(name: str) -> None:
    write(f"{name} {time.time()}")


@app.task
def hold(name: str, gate: str) -> None:
    """Works until the file is there."""
    write(f"begun {name} {os.getpid()}")
    while not Path(gate).exists():
        time.sleep(0.02)
    write(f"done {name} {os.getpid()}")


@app.task(bind=True, max_retries=2)
def fails_twice(self: Task, name: str) -> None:
    write(f"{name} {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=1)


@app.task
def refuse(name: str) -> None:
    write(f"refused {name}")
    raise Reject("it is wrong", requeue=False)


@app.task
def pass_on(name: str) -> None:
    """Sends another task from inside of one."""
    note.delay(name)
