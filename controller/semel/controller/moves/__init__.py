"""Moves of queues between broker groups."""
