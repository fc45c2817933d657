"""Kafka's record batches, to and from batches of this project. No I/O, no clock."""
