"""A Spark application that copies a topic into another: a streaming query, until nothing is new.

    python -m tests.spark.copying --bootstrap HOST:PORT --source A --target B --checkpoint DIR
        [--points DIR --at POINT] [--master URL] [--set NAME=VALUE ...]

Prints one JSON object at its end: the query's id, and how often it was started in this life.
"""

from __future__ import annotations

import argparse
import json
import uuid

from pyspark.sql.streaming.query import StreamingQuery

from semel.spark_connector import keep_running, spark_session
from tests.spark.points import POINTS, PointsSource


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--master", default="local[2,3]")
    parser.add_argument("--points", default="")
    parser.add_argument("--at", choices=(*POINTS, ""), default="")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--per-trigger", type=int, default=2_000)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--forgets-its-id", action="store_true", help="a planted bug")
    options = parser.parse_args()
    settings = {
        "spark.master": options.master,
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.python.authenticate.socketTimeout": "120s",
        **dict(each.split("=", 1) for each in options.set),
    }
    with spark_session("copying", **settings) as spark:
        spark.dataSource.register(PointsSource)
        source = spark.readStream.format("semel").option("bootstrap", options.bootstrap)
        source = source.option("subscribe", options.source).option("startingOffsets", "earliest")
        frame = source.option("maxOffsetsPerTrigger", str(options.per_trigger)).load()
        copy = frame.select("key", "value").repartition(options.partitions)
        sink = copy.writeStream.format("semel-points" if options.at else "semel")
        if options.at:
            sink = sink.options(points=options.points, at=options.at)
        sink = sink.options(bootstrap=options.bootstrap, topic=options.target)
        sink = sink.option("checkpointLocation", options.checkpoint)
        if options.forgets_its_id:
            sink = sink.option("transactionId", str(uuid.uuid4()))
        starts = 0

        def start() -> StreamingQuery:
            nonlocal starts
            starts += 1
            return sink.trigger(availableNow=True).start()

        query = keep_running(start)
        print(json.dumps({"query": str(query.id), "starts": starts}))


if __name__ == "__main__":
    main()
