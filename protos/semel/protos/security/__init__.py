"""Identities, certificates and TLS: proof of who is at the other end."""
