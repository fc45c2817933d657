"""Consumer groups: their members, and the queues that each member should read."""
