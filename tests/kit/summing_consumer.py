"""A consumer process that adds up messages in a database, and kills itself at a chosen step.

    python -m tests.kit.summing_consumer BOOTSTRAP TOPIC GROUP DATABASE STEP

Each message is an INSERT of its number. STEP is where the fifth transaction ends the process:
`results` (the results are written), `offsets` (the offsets are written too, and nothing is
committed), `committed` (the brokers are not told yet), `told` (they are told), or `never`: then it
reads to the end and returns. DATABASE is an SQLite file.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from contextlib import closing
from typing import Any, NoReturn

from semel.client import SqlOffsets, connect

STEPS = ("results", "offsets", "committed", "told")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Dying(sqlite3.Connection):
    """Ends the process at a step of the transaction in which it is armed."""

    step = ""

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        if self.step == "results":
            die()
        return super().cursor(*arguments, **options)

    def commit(self) -> None:
        if self.step == "offsets":
            die()
        super().commit()
        if self.step == "committed":
            die()


def add_up(bootstrap: str, topic: str, group: str, database: str, step: str) -> None:
    """Runs to the step, or until nothing comes any more."""
    store = SqlOffsets(lambda: sqlite3.connect(database, timeout=30))
    transactions = 0
    with (
        closing(sqlite3.connect(database, timeout=30, factory=Dying)) as results,
        connect(bootstrap) as client,
        client.consumer(
            group, topic, offset_store=store, member_id="m", session_ms=3_000
        ) as consumer,
    ):
        results.execute("CREATE TABLE IF NOT EXISTS results (number INTEGER)")
        results.commit()
        while messages := consumer.poll(7, timeout=1 if transactions else 15):
            transactions += 1
            armed = transactions == 5
            with consumer.transaction(results):
                for message in messages:
                    results.execute("INSERT INTO results VALUES (?)", (int(message.value),))
                results.step = step if armed else ""
            if armed and step == "told":
                while client.admin.describe_group(group).lag > 120 - 30:
                    time.sleep(0.01)
                die()
    results.close()


if __name__ == "__main__":
    add_up(*sys.argv[1:])
