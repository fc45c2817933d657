"""The pure checker of exactly-once: what clients saw against what the nodes' logs hold."""
