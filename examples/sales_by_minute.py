"""Fan-in to Spark: many sellers, one stream, totals of each minute as Parquet.

    python examples/sales_by_minute.py sales --output totals --checkpoint checkpoint

How it works. Any number of producers write {"shop": …, "cents": …} to one topic. Spark reads its
queues in parallel, adds up windows of a minute by the messages' own timestamps, and writes a window
when the watermark has passed it. Offsets are in the checkpoint, so a query that is started again
goes on where it was, and each window is written once.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from semel.spark_connector import spark_session


def main() -> None:
    parser = argparse.ArgumentParser(description="Adds up sales by shop and minute.")
    parser.add_argument("topic")
    parser.add_argument("--bootstrap", default="127.0.0.1:7070", help="controllers, HOST:PORT[,…]")
    parser.add_argument("--output", required=True, help="directory of the Parquet table")
    parser.add_argument("--checkpoint", required=True, help="directory of the query's checkpoint")
    parser.add_argument("--once", action="store_true", help="end when all that is there was read")
    arguments = parser.parse_args()

    # As many states of windows as this machine has use for; Spark's 200 are for a data centre.
    with spark_session("sales by minute", **{"spark.sql.shuffle.partitions": "4"}) as spark:
        messages = (
            spark.readStream.format("semel")
            .option("bootstrap", arguments.bootstrap)
            .option("subscribe", arguments.topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = (
            totals(messages)
            .writeStream.format("parquet")
            .option("path", arguments.output)
            .option("checkpointLocation", arguments.checkpoint)
            .outputMode("append")
        )
        if arguments.once:
            writer = writer.trigger(availableNow=True)
        writer.start().awaitTermination()


def totals(messages: DataFrame) -> DataFrame:
    """Sales and cents of each shop and minute."""
    sale = F.from_json(F.col("value").cast("string"), "shop STRING, cents BIGINT")
    return (
        messages.select("timestamp", sale.alias("sale"))
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "1 minute"), "sale.shop")
        .agg(F.count("*").alias("sales"), F.sum("sale.cents").alias("cents"))
        .select(F.col("window.start").alias("minute"), "shop", "sales", "cents")
    )


if __name__ == "__main__":
    main()
