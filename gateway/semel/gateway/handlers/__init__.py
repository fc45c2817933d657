"""Kafka's requests, answered: one module for each subject."""
