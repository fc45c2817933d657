"""Message-id dedup of a topic: fingerprints of messages, and the index of those in the window."""
