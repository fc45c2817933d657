"""Spark, as a process of the demo: starts early, waits for its cue, counts one topic.

Prints `{"event":"ready"}` once Spark is up, reads `BOOTSTRAP TOPIC` from stdin, prints
`{"event":"count","count":N,"seconds":S}`. Ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Final

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""A JVM that lives for seconds: measured, these halve the processor time of its start."""


def main() -> int:
    """Counts once; returns the exit status."""
    os.environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    from semel.spark_connector import spark_session

    with spark_session("semel-demo", **{"spark.master": "local[2]"}) as spark:
        print(json.dumps({"event": "ready"}), flush=True)
        cue = sys.stdin.readline().split()
        if len(cue) != 2:
            return 1
        bootstrap, topic = cue
        began = time.monotonic()
        reader = spark.read.format("semel").option("bootstrap", bootstrap)
        count = reader.option("subscribe", topic).load().count()
        seconds = round(time.monotonic() - began, 3)
        print(json.dumps({"event": "count", "count": count, "seconds": seconds}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
