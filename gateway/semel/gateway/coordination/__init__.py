"""Kafka's consumer groups on a cluster: gateways, roles, offsets, and members that wait."""
