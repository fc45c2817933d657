"""The coordinator of Kafka's consumer groups, as decisions. No I/O; the clock is the caller's."""
