"""The replicated state machine: a pure fold of committed records, the same on every node."""
