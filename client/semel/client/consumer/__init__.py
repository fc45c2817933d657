"""Consumer groups: membership, locks, commits, offsets in a SQL database."""
