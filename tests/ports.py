"""Ports for the processes of a test."""

from __future__ import annotations

import random
import secrets

from semel.console.cluster_file import PRIVATE_PORTS, is_taken


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on, of those that the kernel does not give out by itself.

    A port that the kernel gave would be free again until the node listens, and an outgoing
    connection of anybody could have it by then.
    """
    found: list[int] = []
    chance = random.Random(secrets.token_bytes(16))
    for port in chance.sample(PRIVATE_PORTS, len(PRIVATE_PORTS)):
        if not is_taken(f"127.0.0.1:{port}"):
            found.append(port)
        if len(found) == count:
            break
    return found
