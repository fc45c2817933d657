"""Logging in: clients without certificates prove who they are, and get certificates."""
