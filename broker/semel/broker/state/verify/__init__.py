"""Recomputes the exactly-once promise from the log alone, for `semel verify`."""
