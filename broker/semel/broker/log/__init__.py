"""Bytes on disk of one node: segments, checkpoints, kept files, hard state, identity."""
