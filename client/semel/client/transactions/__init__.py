"""Transactions over topics: staging and committing."""
