"""Spark's side of a stream without a JVM: calls a reader in the order in which Spark 4.3 does.

How it works. `offsets` and `commits` are the checkpoint's two logs. A run asks where the stream
begins, repeats a trigger that was stored and not committed, and then triggers until nothing is new.
Everything passes through JSON and pickle, as on Spark's way; a reader is made anew for each run and
for reading, as it is in Spark's processes. The order is that of PySpark's own runner.

Not here: the real Spark (`integration/test_spark_read.py`).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from semel.spark_connector import SemelSource
from semel.spark_connector.rows import ROW_SCHEMA
from semel.spark_connector.stream import SemelStreamReader


class Died(Exception):
    """The driver was killed."""


class Engine:
    """One streaming query and its checkpoint; `rows` is what its sink has, trigger by trigger."""

    def __init__(self, columns: str = "key value queue offset") -> None:
        self.schema = StructType([ROW_SCHEMA[name] for name in columns.split()])
        self.offsets: list[str] = []
        self.commits: list[int] = []
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.partitions = 0

    def reader(self, **options: str) -> SemelStreamReader:
        found = SemelSource(options).streamReader(self.schema)
        assert isinstance(found, SemelStreamReader)
        return found

    def run(
        self,
        *,
        available_now: bool = True,
        limit: ReadLimit | None = None,
        triggers_max: int = 1_000,
        dies: Callable[[str], bool] = lambda moment: False,
        **options: str,
    ) -> int:
        """Runs until nothing is new, and returns the number of triggers. `dies` is asked at each
        moment whether the driver ends there."""

        def may_die(moment: str) -> None:
            if dies(moment):
                raise Died(moment)

        reader = self.reader(**options)
        if available_now:
            reader.prepareForTriggerAvailableNow()
        wanted = limit or reader.getDefaultReadLimit()
        if not self.offsets:
            start = json.dumps(reader.initialOffset())
            reader.initialOffset()  # Spark asks twice
        else:
            start = self.offsets[-1]
            if len(self.commits) < len(self.offsets):  # asked anew when the first is repeated
                before = self.offsets[-2] if len(self.offsets) > 1 else None
                begin = before or json.dumps(reader.initialOffset())
                self._execute(reader, begin, start, options, may_die)
        triggers = 0
        while triggers < triggers_max:
            end = json.dumps(reader.latestOffset(json.loads(start), wanted))
            if end == start:
                break
            may_die("before the offsets are stored")
            self.offsets.append(end)
            may_die("after the offsets are stored")
            self._execute(reader, start, end, options, may_die)
            start = end
            triggers += 1
        return triggers

    def _execute(
        self,
        reader: SemelStreamReader,
        start: str,
        end: str,
        options: dict[str, str],
        may_die: Callable[[str], None],
    ) -> None:
        assert reader.partitions(json.loads(end), json.loads(end)) == []
        parts = reader.partitions(json.loads(start), json.loads(end))
        self.partitions = len(parts)
        worker = pickle.loads(pickle.dumps(self.reader(**options)))
        rows = [
            row
            for part in parts
            for batch in worker.read(pickle.loads(pickle.dumps(part)))
            for row in batch.to_pylist()
        ]
        self.rows[len(self.offsets) - 1] = rows  # an idempotent sink: by the trigger's number
        may_die("before the commit")
        self.commits.append(len(self.offsets) - 1)

    def read(self) -> list[tuple[int, int]]:
        """(queue, offset) of all rows, in the order in which they came."""
        return [(row["queue"], row["offset"]) for row in self.all_rows()]

    def all_rows(self) -> list[dict[str, Any]]:
        return [row for trigger in sorted(self.rows) for row in self.rows[trigger]]


EVERYTHING = ReadAllAvailable()

_Result = TypeVar("_Result")


def patiently(run: Callable[[], _Result]) -> _Result:
    """Calls `run`, and calls it again where Spark gave up on its own Python: it gives the process
    of a stream 10 s to start, however busy the machine is. Every other failure counts."""
    for _ in range(9):
        try:
            return run()
        except PySparkException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return run()
