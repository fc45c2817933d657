"""A stream of a real Spark that copies a topic while a cluster is upgraded, run by either program.

How it works. The query is a process of the older program's Python or of this tree's, which goes on
until it is told to end. Each goes on from the checkpoint of the one before. The copy is made by the
exactly-once sink, so that it must equal the topic in the end, whatever was exchanged beneath it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import IO

from semel.client import Client
from tests.kit.waiting import until

PROGRAM = """
import sys
import threading
from semel.spark_connector import keep_running, spark_session

bootstrap, source, target, checkpoint = sys.argv[1:]
settings = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "120s",
}
with spark_session("rolled", **settings) as spark:
    stream = spark.readStream.format("semel").option("bootstrap", bootstrap)
    lines = stream.option("subscribe", source).option("startingOffsets", "earliest").load()
    sink = lines.select("key", "value").writeStream.format("semel")
    sink = sink.option("bootstrap", bootstrap).option("topic", target)
    sink = sink.option("checkpointLocation", checkpoint)
    ends = threading.Event()
    running = []

    def start():
        if ends.is_set():
            return sink.trigger(availableNow=True).start()
        running.append(sink.trigger(processingTime="500 milliseconds").start())
        return running[-1]

    def wait():
        sys.stdin.readline()
        ends.set()
        running[-1].stop()

    threading.Thread(target=wait, daemon=True).start()
    keep_running(start)
    ends.wait()
    keep_running(start)
print("ended", flush=True)
"""
PATIENCE_S = 240.0
"""How long a micro-batch may take: Java and Python start first, beside a cluster."""


class RolledQuery:
    """The query; one process at a time."""

    def __init__(self, client: Client, bootstrap: str, directory: Path) -> None:
        self._client = client
        self._arguments = [bootstrap, "orders", "copied", str(directory / "checkpoint")]
        self._log = directory / "query.log"
        directory.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        client.admin.create_topic("copied", queues=2)

    def begin(self, python: Path) -> None:
        """Starts a process of a program."""
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(python), "-c", PROGRAM, *self._arguments],
                cwd=self._log.parent,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def go_on(self) -> None:
        """Returns once the query has copied more."""
        before = self._copied()

        def more() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self._told()
            return self._copied() > before

        until(more, PATIENCE_S, "a micro-batch")

    def end(self) -> None:
        """Has the process copy what there is, and ends it in order."""
        assert self._process is not None
        process, self._process = self._process, None
        assert process.poll() is None, self._told()
        stdin: IO[bytes] | None = process.stdin
        assert stdin is not None
        stdin.close()
        try:
            assert process.wait(PATIENCE_S) == 0, self._told()
        finally:
            process.kill()
            process.wait()

    def copied(self) -> list[bytes | None]:
        """Returns the values of the copy."""
        with self._client.reader("copied", end="latest") as reader:
            return [message.value for message in reader]

    def kill(self) -> None:
        """Leaves no process behind."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _copied(self) -> int:
        queues = self._client.admin.describe_topic("copied").queues
        return sum(queue.log_end_offset for queue in queues)

    def _told(self) -> str:
        return self._log.read_text()[-4_000:]
