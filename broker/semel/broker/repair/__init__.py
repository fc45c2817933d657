"""Damage on this node's disk: how it is found, decided about, repaired or quarantined."""
