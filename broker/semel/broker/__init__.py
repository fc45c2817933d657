"""The broker: one process is one replica of one broker group's log."""
