"""The pure checkers of what clients saw: against the nodes' logs, and for one real-time order."""
