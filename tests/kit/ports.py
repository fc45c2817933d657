"""Ports for the processes of a test."""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import tempfile
import time
from collections import deque
from pathlib import Path

from semel.console.cluster_file import PRIVATE_PORTS, is_taken

RESERVED_S = 60.0
"""Seconds after which the receiver of a port listens there."""
_reserved: deque[tuple[float, int]] = deque()
"""Time of the reservation of each port, and the open file whose lock tells other processes."""


def free_ports(count: int) -> list[int]:
    """Different ports on which nobody listens, outside of those that the kernel gives out by
    itself.

    A port from the kernel would be free again until the node listens, and any outgoing connection
    could have it by then. Other processes that ask here, such as tests that run beside this one,
    get other ports.
    """
    now = time.monotonic()
    while _reserved and _reserved[0][0] < now - RESERVED_S:
        os.close(_reserved.popleft()[1])
    found: list[int] = []
    chance = random.Random(secrets.token_bytes(16))
    for port in chance.sample(PRIVATE_PORTS, len(PRIVATE_PORTS)):
        if not is_taken(f"127.0.0.1:{port}") and _reserve(port, now):
            found.append(port)
        if len(found) == count:
            break
    return found


def _reserve(port: int, now: float) -> bool:
    """Reserves a port; false when it is reserved already, here or elsewhere."""
    place = Path(tempfile.gettempdir()) / f"semel-ports-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    file = os.open(place / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    _reserved.append((now, file))
    return True
