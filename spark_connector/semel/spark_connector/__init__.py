"""PySpark data source for Semel, and a local Spark session on any Java."""

from semel.client.java import JavaMissing
from semel.spark_connector.java import spark_session
from semel.spark_connector.restarting import keep_running
from semel.spark_connector.source import SemelSource

__all__ = ["JavaMissing", "SemelSource", "keep_running", "spark_session"]
