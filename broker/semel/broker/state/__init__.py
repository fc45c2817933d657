"""What the log means: the replicated state machine, and the master's judge. Pure; no I/O."""
