"""Kafka's transactions: which step follows from what the brokers know of a transactional id."""
