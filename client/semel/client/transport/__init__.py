"""Connections: controllers, masters, produce and fetch streams, routes, the I/O thread."""
