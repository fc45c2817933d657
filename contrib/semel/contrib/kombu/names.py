"""Names of topics for names of Kombu's queues. Pure.

A queue's topic has the queue's name wherever a topic may be called so; the consumer group that
reads it has the topic's name. Another name is cut and gets a digest of itself at its end, so that
different queues never share a topic.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

BINDINGS: Final = "kombu.bindings"
"""The topic of the bindings of all exchanges; no queue gets this name."""
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]")
_CHARACTERS_MAX: Final = 180
"""Leaves room for what the names of topics of retries and dead letters add."""


def topic_of(queue: str, virtual_host: str = "/") -> str:
    """Returns the topic of a queue, in a virtual host."""
    return _plain(_within(virtual_host) + queue)


def bindings_topic(virtual_host: str = "/") -> str:
    """Returns the topic of a virtual host's bindings."""
    return _within(virtual_host) + BINDINGS


def _within(virtual_host: str) -> str:
    host = virtual_host.strip("/")
    return f"{_plain(host)}." if host else ""


def _plain(name: str) -> str:
    plain = _FOREIGN.sub("-", name)[:_CHARACTERS_MAX]
    if plain == name and plain not in ("", ".", "..") and not plain.endswith(BINDINGS):
        return plain
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{plain}-{digest[:12]}"
