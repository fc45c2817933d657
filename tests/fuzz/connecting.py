"""Connections of an assault to the ports of a cluster's processes, with or without TLS.

Not here: what is sent (`assault.py`, `strangers.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
from pathlib import Path
from typing import Final

from semel.protos import compat
from tests.kit.cluster import HOST, Cluster, Node

HANDSHAKE_S: Final = 5.0


async def say(
    rng: random.Random,
    port: int,
    data: bytes,
    *,
    tls: ssl.SSLContext | None = None,
    tls_name: str | None = None,
    patience_s: float = 0.02,
) -> bytes:
    """Sends bytes in two pieces on a new connection, and ends it in one way or another; returns the
    beginning of the answer. Raises OSError, TimeoutError."""
    async with compat.timeout(HANDSHAKE_S):
        reader, writer = await asyncio.open_connection(
            HOST, port, ssl=tls, server_hostname=tls_name if tls is not None else None
        )
    answer = b""
    try:
        half = rng.randrange(len(data) + 1)
        for piece in (data[:half], data[half:]):
            writer.write(piece)
            await writer.drain()
        async with compat.timeout(patience_s):
            while more := await reader.read(1 << 16):
                answer += more
    except (TimeoutError, OSError):
        pass
    finally:
        if tls is not None or rng.random() < 0.5:  # TLS would wait for the other end's goodbye
            writer.transport.abort()
        writer.close()
    return answer


class Ports:
    """The TCP ports of all nodes of a cluster, as the kernel knows them."""

    def __init__(self, cluster: Cluster) -> None:
        """BLOCKING."""
        self.of = {node.data.name: ports_of(node) for node in cluster.nodes if node.running}
        """By the node's name."""
        self.all = [port for ports in self.of.values() for port in ports]


def ports_of(node: Node) -> list[int]:
    """The TCP ports at which a process listens, from /proc."""
    inodes = set()
    for link in _descriptors(node):
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    found = []
    for line in Path(f"/proc/{node.pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            found.append(int(words[1].rpartition(":")[2], 16))
    return found


def _descriptors(node: Node) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    for name in os.listdir(f"/proc/{node.pid}/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{node.pid}/fd/{name}"))  # noqa: PTH115
    return found


def port_of(address: str) -> int:
    """The port of HOST:PORT."""
    return int(address.rpartition(":")[2])
