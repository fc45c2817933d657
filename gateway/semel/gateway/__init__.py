"""The Kafka gateway: a server that speaks Kafka's wire protocol and is a client of a cluster.

Not here: what clients of Kafka can expect (docs/kafka.md of the repository).
"""
