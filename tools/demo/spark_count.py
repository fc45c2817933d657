"""Spark, as a process of the demo: `spark_count BOOTSTRAP TOPIC`.

Starts Spark early and counts once what the topic holds then, because nine tenths of a first
count's time is Java and Python getting ready; prints `{"event":"ready"}`. For every line on stdin
it reads the topic anew and prints `{"event":"count","count":N,"seconds":S}`. Ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Final

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""A JVM that lives for seconds: measured, these halve the processor time of its start."""


def main(bootstrap: str, topic: str) -> int:
    """Counts once for each line on stdin; returns the exit status."""
    os.environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    from semel.spark_connector import spark_session

    with spark_session("semel-demo", **{"spark.master": "local[2]"}) as spark:

        def count() -> int:
            reader = spark.read.format("semel").option("bootstrap", bootstrap)
            return reader.option("subscribe", topic).load().count()

        count()
        print(json.dumps({"event": "ready"}), flush=True)
        for _ in sys.stdin:
            began = time.monotonic()
            found = count()
            seconds = round(time.monotonic() - began, 3)
            print(json.dumps({"event": "count", "count": found, "seconds": seconds}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
