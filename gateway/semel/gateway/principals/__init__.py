"""Logins of Kafka's clients: SASL, and the rights that each connection has."""
