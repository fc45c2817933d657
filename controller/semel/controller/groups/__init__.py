"""Consumer groups: members, and which queues each one should read."""
