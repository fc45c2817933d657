"""Checkpoints of a node's own state, and catching up from a peer's."""
