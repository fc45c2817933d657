"""Spark, as a process of the demo: `spark_copy BOOTSTRAP TOPIC COPY DIRECTORY`.

It runs two streaming queries over the topic: one appends to a Parquet table, one to another topic,
where each row has its line's number as key. Both are exactly once.

It starts Spark early and reads the topic once, because nine tenths of a first query's time goes
into starting Java and Python, and then prints `{"event":"ready"}`. For every line on stdin it lets
both queries process everything that is available, from their checkpoints on, and prints
`{"event":"copied","seconds":S}`. It ends when stdin does.

Not here: what the table and the topic must contain (`play.py`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options for a JVM that lives for seconds; they were measured to halve the processor time of
its start."""
TABLE: Final = "table"
"""Name of the Parquet files' directory."""
STARTS_MAX: Final = 5


def main(bootstrap: str, topic: str, copy: str, place: str) -> int:
    """Runs both queries once for each line on stdin; returns the exit status."""
    os.environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    from semel.spark_connector import spark_session

    directory = Path(place)
    settings = {
        "spark.master": "local[2]",
        "spark.python.authenticate.socketTimeout": "60s",
        "spark.sql.streaming.pollingDelay": "50ms",
    }
    with spark_session("semel-demo", **settings) as spark:
        reader = spark.read.format("semel").option("bootstrap", bootstrap)
        reader.option("subscribe", topic).load().count()
        stream = spark.readStream.format("semel").option("bootstrap", bootstrap)
        lines = stream.options(subscribe=topic, startingOffsets="earliest").load()
        table = lines.select("queue", "offset", "sequence", "value").writeStream
        table = table.format("parquet").option("path", str(directory / TABLE))
        table = table.option("checkpointLocation", str(directory / "table-checkpoint"))
        copied = lines.selectExpr("cast(sequence as string) as key", "value").writeStream
        copied = copied.format("semel").options(bootstrap=bootstrap, topic=copy)
        copied = copied.option("checkpointLocation", str(directory / "copy-checkpoint"))
        print(json.dumps({"event": "ready"}), flush=True)
        for _ in sys.stdin:
            began = time.monotonic()
            for query in (table, copied):
                _run(query)
            seconds = round(time.monotonic() - began, 3)
            print(json.dumps({"event": "copied", "seconds": seconds}), flush=True)
    return 0


def _run(writer: DataStreamWriter) -> None:
    """Runs a query until it has processed all available data.

    Spark ends a query whose Python worker does not connect within 10 s, however busy the machine
    is; the query is then started again from the checkpoint.
    """
    from pyspark.errors import PySparkException

    for left in reversed(range(STARTS_MAX)):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            return
        except PySparkException as error:
            if not left or "Python worker failed to connect back" not in str(error):
                raise


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
