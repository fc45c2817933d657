"""Damage on this node's disk: finding it, deciding about it, repair and quarantine."""
