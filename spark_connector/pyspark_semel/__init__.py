"""Makes Spark find the format "semel": Spark searches every package named `pyspark_*`."""

from semel.spark_connector.source import SemelSource as DefaultSource

__all__ = ["DefaultSource"]
