"""Topics: their rules; creating, altering and deleting them; splitting their queues."""
