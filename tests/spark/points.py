"""The format `semel-points`: `semel`, whose writes stop at named points, so that somebody can be
killed there.

How it works. The option `at` names one point, `points` a directory. The process that comes there
first writes its pid to the file POINT there and waits until `let_go` was called, or it is killed,
or its parent is gone. Whoever comes later goes on: what is repeated must not stop again.

| point | process | what has happened |
|---|---|---|
| writing | of a task | some rows are staged |
| staged | of a task | all its rows are staged, the driver does not know |
| begun | of the commit | all tasks have told, nothing is committed |
| committed | of the commit | the brokers have committed, Spark does not know |
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from semel.spark_connector.sink_options import parse_write_options
from semel.spark_connector.source import SemelSource
from semel.spark_connector.writer import SemelStreamWriter, TaskReceipt

POINTS: Final = ("writing", "staged", "begun", "committed")
BATCHES_BEFORE: Final = 2
"""Batches of rows that a task has passed on when it comes to `writing`."""


class Points:
    """Where the processes of one run wait."""

    def __init__(self, directory: Path, at: str) -> None:
        self.directory = directory
        self.at = at

    def reach(self, point: str) -> None:
        """Waits if this is the point, and nobody was here before."""
        if point != self.at:
            return
        try:
            with (self.directory / f".{os.getpid()}").open("x") as file:
                file.write(str(os.getpid()))
            os.link(file.name, self.directory / point)  # appears with its content, once
        except FileExistsError:
            return
        parent = os.getppid()
        while not (self.directory / "go").exists():
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)

    def waiting(self) -> int | None:
        """The pid of the process that has come to the point."""
        try:
            return int((self.directory / self.at).read_text())
        except FileNotFoundError:
            return None

    def let_go(self) -> None:
        """The process that waits goes on."""
        (self.directory / "go").touch()


class PointsSource(SemelSource):
    """`semel` with two options more."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "semel-points"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """The writer of one micro-batch."""
        own = {name.lower(): value for name, value in dict(self.options).items()}
        points = Points(Path(own.pop("points")), own.pop("at"))
        options = parse_write_options(own, os.environ).for_stream()
        return PointsWriter(points, SemelStreamWriter(options, schema, overwrite=overwrite))


class PointsWriter(SemelStreamWriter):
    """Does what the other does, with stops."""

    def __init__(self, points: Points, other: SemelStreamWriter) -> None:
        self._points = points
        self._other = other

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReceipt:
        """A task calls it."""
        receipt = self._other.write(_stopping(iterator, self._points.reach))
        self._points.reach("staged")
        return receipt

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The driver calls it."""
        self._points.reach("begun")
        self._other.commit(messages, batchId)
        self._points.reach("committed")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The driver calls it."""
        self._other.abort(messages, batchId)


def _stopping(
    batches: Iterator[pa.RecordBatch], reach: Callable[[str], None]
) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        if number == BATCHES_BEFORE:
            reach("writing")
        yield batch
