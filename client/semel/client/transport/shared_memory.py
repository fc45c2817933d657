"""Memory that a broker on the same machine writes batches to, instead of sending them.

How it works. A fetch stream that is busy makes a *region*, a sealed memfd, and offers it to its
broker by process and descriptor. Every poll names a free *slot* of it. A broker that could open the
region writes the batches of its answer there and sends the header alone. Each byte is then copied
twice, while gRPC copies it six times, two of them under each interpreter's lock. A slot is free
again once nothing refers to it; arrays and views that the application keeps refer to theirs. The
broker sends the batches as usual if no slot is free, if it runs on another machine, or if it is of
an older version.

All readers of a stream share its region. An *exchange* decides for one of them: it names places
while its reader is busy, and as long as the reader holds no more slots than are free, if others are
busy, too. So a reader that keeps everything does not take the memory from the others. A region that
has become too small for its busy readers is replaced. The stream takes it back when all of them
have been quiet, and offers none any more once a broker has sent batches that would have fit into a
slot.

Invariants
1. A slot is written by the answer to the one poll that named it, and named again only when nobody
   refers to it any more.
2. A region belongs to one stream. If a hung broker writes after its stream was given up, no reader
   looks there.
3. Polls leave in the order in which they named their places: a place is in the region that was
   offered last before it.
4. After a fork no slot is named that the child may see: earlier regions are given up.
5. A process leaves nothing behind when it ends, even when it is killed: a memfd has no name.

Not here: which polls name a slot (`reading/fetch.py`), who shares a stream
(`transport/fetch_streams.py`), the broker's side
(`server/shared_memory.py` of the broker).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import secrets
import weakref
from collections import deque
from typing import Any, Final

import numpy as np

from semel.protos.streams import (
    MEMORY_HEAD_BYTES,
    MEMORY_NAME,
    MEMORY_SECRET_BYTES,
    fetched_batches,
)
from semel.protos.v1 import broker_pb2

with contextlib.suppress(ImportError):  # a system without it has no memfd either
    import fcntl

SLOTS_MAX: Final = 16
"""Slots that one reader can use."""
REGION_BYTES_MAX: Final = 128 << 20
"""Size in bytes of a region for many readers: a quarter of what a broker takes of all clients."""
BUSY_BYTES: Final = 256 << 10
"""Size in bytes of an answer that makes its reader busy, so that a region is worth its memory."""
PADDING_BYTES: Final = 64 << 10
"""Bytes that a slot has beyond the bytes of an answer's batches."""
QUIET_S: Final = 5.0
"""Seconds without such an answer after which the region is given back."""

_forks = 0
"""Number of forks of this process so far."""


class Slot:
    """The memory for one answer. It is free again when this object is collected."""

    __slots__ = ("__weakref__", "_free", "at", "region")

    def __init__(self, region: Region, at: int, free: deque[int]) -> None:
        self.region = region
        self.at = at
        """First byte of the slot in the region."""
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.at)

    def __len__(self) -> int:
        return self.region.slot_bytes

    def view(self) -> memoryview:
        """Returns its bytes, read-only. Objects made from the view keep the slot."""
        return np.asarray(self).data

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Tells numpy where the bytes are; an array over them keeps this object."""
        address = self.region.address + self.at
        return {"data": (address, True), "shape": (len(self),), "typestr": "|u1", "version": 3}


class Region:
    """The memory of one stream, divided into slots."""

    def __init__(self, slot_bytes: int, slots: int) -> None:
        """Raises OSError on systems without such memory."""
        self.slot_bytes = slot_bytes
        self.slots = slots
        self._forks = _forks
        size = MEMORY_HEAD_BYTES + slots * slot_bytes
        self._descriptor = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, size)
            self._secret = secrets.token_bytes(MEMORY_SECRET_BYTES)
            os.pwrite(self._descriptor, self._secret, 0)
            # Nobody can remove a page under a reader, or make a broker fill the machine.
            sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, sealed)
            self._mapped = np.frombuffer(mmap.mmap(self._descriptor, size), np.uint8)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.address: int = self._mapped.ctypes.data
        self._free = deque(MEMORY_HEAD_BYTES + n * slot_bytes for n in range(slots))
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def given_up(self) -> bool:
        """This process has forked. The child sees the memory that applications held then, so it
        must not change."""
        return self._forks != _forks

    @property
    def free(self) -> int:
        """Number of slots that nobody holds."""
        return len(self._free)

    def offer(self) -> broker_pb2.SharedMemory:
        """Returns the offer by which a broker can open the region."""
        return broker_pb2.SharedMemory(
            pid=os.getpid(), descriptor=self._descriptor, secret=self._secret
        )

    def take(self) -> Slot | None:
        """Returns the free slot that was used last, since its pages are in the caches, or None."""
        if self.given_up:
            return None
        try:
            return Slot(self, self._free.pop(), self._free)
        except IndexError:
            return None


class StreamMemory:
    """The memory that one fetch stream offers to its broker, for all of its readers."""

    def __init__(self, *, allowed: bool) -> None:
        self.allowed = allowed
        self.region: Region | None = None
        self.busy_at = -math.inf
        """When the last one of its readers was busy."""
        self._exchanges: dict[Exchange, None] = {}
        """Those that have been busy, in order."""

    def forget(self, exchange: Exchange) -> None:
        """Its reader has left the stream."""
        self._exchanges.pop(exchange, None)

    def on_busy(self, exchange: Exchange, now: float) -> None:
        self.busy_at = now
        self._exchanges[exchange] = None

    def take(self, exchange: Exchange, request: broker_pb2.FetchRequest, now: float) -> Slot | None:
        """Returns a slot for a busy reader, or None; a new region is offered in the request."""
        region = self.region
        if region is not None and not region.given_up:
            fair = len(self._exchanges) == 1 or exchange.slots_held() < region.free
            slot = region.take() if fair else None
            if slot is not None and exchange.answer_bytes < region.slot_bytes:
                return slot
            slot_bytes, slots = self._needed(now)
            if slot_bytes <= region.slot_bytes and slots <= region.slots:
                return slot
        else:
            slot_bytes, slots = self._needed(now)
        try:
            self.region = region = Region(slot_bytes, slots)
        except (OSError, AttributeError):  # AttributeError on systems without memfd
            self.allowed, self.region = False, None
            return None
        request.memory.CopyFrom(region.offer())
        return region.take()

    def _needed(self, now: float) -> tuple[int, int]:
        """Returns bytes and number of slots for the readers that are busy now, for each as many as
        it buffers and some more."""
        busy = [each for each in self._exchanges if now - each.busy_at <= QUIET_S]
        slot_bytes = max(each.answer_bytes for each in busy) + PADDING_BYTES & -mmap.PAGESIZE
        slots = sum(min(SLOTS_MAX, 4 + -(-each.held_bytes // slot_bytes)) for each in busy)
        if len(busy) > 1:
            slots = min(slots, max(SLOTS_MAX, REGION_BYTES_MAX // slot_bytes))
        return slot_bytes, slots


class Exchange:
    """One reader's use of its stream's memory."""

    def __init__(self, memory: StreamMemory, answer_bytes: int, held_bytes: int) -> None:
        """`answer_bytes` is the size of an answer, `held_bytes` the bytes that the application
        buffers."""
        self.answer_bytes = answer_bytes
        self.held_bytes = held_bytes
        self.busy_at = -math.inf
        self._memory = memory
        self._slots: list[weakref.ref[Slot]] = []

    def name_place(self, request: broker_pb2.FetchRequest, now: float) -> Slot | None:
        """Names in a request a free slot for its batches, if there is one.

        `now` is monotonic, in seconds."""
        memory = self._memory
        if now - self.busy_at > QUIET_S:
            if memory.region is not None and now - memory.busy_at > QUIET_S:
                memory.region = None
                request.memory.SetInParent()  # an empty offer: the broker closes the old region
            return None
        if not memory.allowed:
            return None
        slot = memory.take(self, request, now)
        if slot is not None:
            request.memory_at, request.memory_bytes = slot.at, len(slot)
            self._slots.append(weakref.ref(slot))
            if len(self._slots) > 2 * SLOTS_MAX:
                self.slots_held()
        return slot

    def slots_held(self) -> int:
        """Returns the number of slots of this reader that are not free, of all regions."""
        self._slots = [slot for slot in self._slots if slot() is not None]
        return len(self._slots)

    def on_answer(
        self, header: broker_pb2.FetchReplyHeader, rest: memoryview, slot: Slot | None, now: float
    ) -> list[memoryview]:
        """Returns the batches of the answer to a request that named `slot`. Raises CorruptBatch."""
        if not header.results:
            return []
        batches = fetched_batches(header, rest, slot.view() if slot is not None else None)
        memory = self._memory
        if sum(map(len, batches)) >= BUSY_BYTES:
            self.busy_at = now
            memory.on_busy(self, now)
        if slot is not None and slot.region is memory.region and 0 < len(rest) <= len(slot):
            # The broker cannot open the region, has too many of them, or does not know the call.
            memory.allowed, memory.region = False, None
        return batches


def _on_fork() -> None:
    global _forks
    _forks += 1


with contextlib.suppress(AttributeError):  # a system without fork
    os.register_at_fork(before=_on_fork)
