"""The replicated state machine: applies committed records, with the same result on every node."""
