"""Deterministic simulation: real cores, one event queue, seeded faults."""
