"""Lets Spark find format "semel" by itself: it looks into every package named `pyspark_*`."""

from semel.spark_connector.source import SemelSource as DefaultSource

__all__ = ["DefaultSource"]
