"""Retries, dead letters, and bringing dead letters back."""
