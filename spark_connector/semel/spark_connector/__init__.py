"""PySpark data source for Semel, and a local Spark session on any Java."""

from semel.spark_connector.java import JavaMissing, spark_session
from semel.spark_connector.source import SemelSource

__all__ = ["JavaMissing", "SemelSource", "spark_session"]
