"""Spark streaming with little data: time of a trigger, and from sending a message to the sink.

How it works. A trickle of messages carries the time of sending; a stream with the default trigger
takes them as soon as it can, and its sink (foreachBatch) notes when they arrive, in the same
process, by the same clock. The first seconds do not count. Every message must arrive once.

    python -m benchmarks.spark_stream [--seconds 25] [--rate 200]

Not here: large reads (`spark_read.py`).
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import (
    Contender,
    arguments,
    compare,
    number,
    percentile,
    report,
    temporary_directory,
)
from semel.client import Producer, connect
from semel.spark_connector import spark_session
from tests.integration.cluster import Cluster

TOPIC = "trickle"
MESSAGE_BYTES = 132
SETTLE_S = 5.0


def trickle(
    spark: SparkSession, producer: Producer, bootstrap: str, place: Path, seconds: float, rate: int
) -> Mapping[str, float]:
    """One stream over `seconds` of messages."""
    taken: list[tuple[int, float]] = []
    """When each message was sent, and how long it was on its way."""

    def sink(frame: DataFrame, _: int) -> None:
        rows = frame.select("value").collect()
        now = time.time_ns()
        for row in rows:
            sent = int.from_bytes(row.value[:8], "big")
            taken.append((sent, (now - sent) / 1e9))

    source = spark.readStream.format("semel").options(bootstrap=bootstrap, subscribe=TOPIC)
    place.mkdir()
    writer = source.load().writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(place)).start()
    query.processAllAvailable()  # where it begins is stored
    sent = 0
    stop = threading.Event()
    began = time.time_ns()
    while time.time_ns() - began < seconds * 1e9:
        producer.send(TOPIC, time.time_ns().to_bytes(8, "big") + bytes(MESSAGE_BYTES - 8))
        sent += 1
        stop.wait(max(0.0, began / 1e9 + sent / rate - time.time()))
    producer.flush(60)
    query.processAllAvailable()
    triggers = [
        batch["durationMs"]["triggerExecution"] / 1e3
        for batch in query.recentProgress
        if batch["numInputRows"]
    ]
    triggers = triggers[3:] or triggers  # the first ones warm up
    query.stop()
    assert len(taken) == len({at for at, _ in taken}) == sent, f"{len(taken)} of {sent} came"
    delays = [delay for at, delay in taken if at - began > SETTLE_S * 1e9]
    return {
        "trigger_p50_s": statistics.median(triggers),
        "trigger_p99_s": percentile(triggers, 99),
        "to_sink_p50_s": statistics.median(delays),
        "to_sink_p99_s": percentile(delays, 99),
    }


def main() -> int:
    """Command line."""
    parser = arguments("Measure Spark streaming with little data.", rounds=3, seconds=25)
    parser.add_argument("--rate", type=number(1, 10_000), default=200, help="messages a second")
    options = parser.parse_args()
    if options.seconds <= SETTLE_S:
        parser.error(f"--seconds must be more than {SETTLE_S:g}, which do not count")
    with (
        temporary_directory(options.data) as data,
        spark_session("benchmark", **{"spark.master": "local[2]"}) as spark,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic(TOPIC, queues=2)
        with client.producer() as producer:
            rounds = iter(range(1_000))
            comparison = compare(
                f"Spark: a stream of {options.rate} messages a second, local[2]",
                [
                    Contender(
                        name="stream",
                        run=lambda: trickle(
                            spark,
                            producer,
                            cluster.bootstrap,
                            data / f"checkpoint-{next(rounds)}",
                            options.seconds,
                            options.rate,
                        ),
                    )
                ],
                rounds=options.rounds,
                warm_ups=0,
            )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
