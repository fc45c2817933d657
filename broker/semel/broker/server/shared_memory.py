"""Memory of clients on this machine, to which replies are written instead of being sent.

How it works. A client offers a memfd by its process and descriptor. `/proc` opens it if both sides
are on one machine, in one process namespace, and this node's user may. Its first bytes must be the
secret that came with the offer, so that no client can make a broker write to memory of somebody
else, whichever numbers it names. Batches are written by `pwritev`; nothing is mapped here, so a
client cannot hurt this process by what it does with its memory.

Invariants
1. Nothing is written outside the place that the poll named, which lies in the offered memory.
2. Offers of all streams take at most `bytes_max`; replies beyond that are sent as usual.

Not here: what is written, and when (`server/fetch.py`), the client's side
(`semel/client/transport/shared_memory.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import logging
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.protos.errors import InvalidRequest
from semel.protos.streams import (
    MEMORY_HEAD_BYTES,
    MEMORY_NAME,
    MEMORY_SECRET_BYTES,
    padded,
    padded_bytes,
)
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

_LINK: Final = f"/memfd:{MEMORY_NAME} (deleted)"
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_VECTORS_MAX: Final = 512
"""Buffers in one write; the kernel takes 1,024."""


class ClientMemory:
    """The memory that one stream's client has offered."""

    def __init__(self, pool: MemoryPool, descriptor: int, size: int) -> None:
        self.size = size
        self._descriptor = descriptor
        self._close = weakref.finalize(self, _give_back, pool, descriptor, size)

    def place(self, request: broker_pb2.FetchRequest) -> Place | None:
        """The place for the reply to a poll; None if the reply is to be sent.

        Raises InvalidRequest.
        """
        at, size = request.memory_at, request.memory_bytes
        if not size:
            return None
        if at < MEMORY_HEAD_BYTES or at + size > self.size:
            raise InvalidRequest(
                f"bytes {at} to {at + size} are not in the shared memory, which has {self.size};"
                f" the first {MEMORY_HEAD_BYTES} are not written to"
            )
        return Place(self, at, size)

    def write(self, at: int, pieces: Sequence[bytes | memoryview]) -> bool:
        """Writes buffers one behind the other; False if that failed."""
        if not self._close.alive:
            return False
        try:
            for start in range(0, len(pieces), _VECTORS_MAX):
                some = pieces[start : start + _VECTORS_MAX]
                size = sum(map(len, some))
                if os.pwritev(self._descriptor, some, at) != size:
                    raise OSError("cut short")
                at += size
        except OSError as error:
            logger.warning("shared memory of a client is not writable error=%s", error)
            self.close()
            return False
        return True

    def close(self) -> None:
        """Gives the memory back; idempotent."""
        self._close()


class Place:
    """The place for one reply."""

    __slots__ = ("_at", "_memory", "_size")

    def __init__(self, memory: ClientMemory, at: int, size: int) -> None:
        self._memory = memory
        self._at = at
        self._size = size

    def put(self, parts: Sequence[bytes | memoryview]) -> bool:
        """Writes stored batches, padded; False if they are to be sent."""
        return padded_bytes(parts) <= self._size and self._memory.write(self._at, padded(parts))


class MemoryPool:
    """All memory that the streams of a node were offered."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    def open(self, offer: broker_pb2.SharedMemory) -> ClientMemory | None:
        """None if the memory cannot be opened here, lacks the secret, or exceeds the limit."""
        path = Path(f"/proc/{offer.pid}/fd/{offer.descriptor}")
        try:
            if len(offer.secret) != MEMORY_SECRET_BYTES or str(path.readlink()) != _LINK:
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptor)
            try:
                size = os.fstat(descriptor).st_size
                begins = os.pread(descriptor, MEMORY_SECRET_BYTES, 0)
                ours = (
                    fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
                    and hmac.compare_digest(begins, offer.secret)
                    and self.bytes + size <= self._bytes_max
                )
            except OSError:
                return None
            if not ours:
                return None
            undo.pop_all()
        self.bytes += size
        return ClientMemory(self, descriptor, size)


def _give_back(pool: MemoryPool, descriptor: int, size: int) -> None:
    os.close(descriptor)
    pool.bytes -= size
