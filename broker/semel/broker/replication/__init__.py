"""Raft's messages between the nodes of a group: sender, receiver and their framed port."""
