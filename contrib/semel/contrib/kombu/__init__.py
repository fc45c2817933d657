"""A transport for Kombu: Celery and other programs of Kombu on a Semel cluster.

Importing it makes `semel://HOST:PORT` an address that Kombu knows. See docs/celery.md of the
repository.
"""

from semel.contrib.kombu.channel import Channel
from semel.contrib.kombu.options import TransportOptions
from semel.contrib.kombu.transport import Transport

__all__ = ["Channel", "Transport", "TransportOptions"]
