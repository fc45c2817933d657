"""Recomputes exactly-once from the log alone, for `semel verify`."""
