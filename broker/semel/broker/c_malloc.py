"""How the C library's malloc of a node keeps and gives back memory.

How it works. A broker allocates and frees blocks of up to some megabytes all the time. If the
kernel maps and unmaps them each time, every page costs a fault; measured, that is a third of the
time of a fetch. So large blocks are reused, and freed memory is given back only beyond a limit. If
each thread has an arena, each arena keeps the memory that it once needed, and memory creeps up as
long as new peaks come. Measured: one arena makes nothing slower, under the GIL.

Where message ids are compared, two million of them are in memory, which are freed at once when they
are on disk, with what has sorted them, and needed again: more than the usual limit. The first touch
of memory that the kernel has taken back cost 40 to 80 ns an id on each node of a virtual machine.

With another C library than glibc nothing of this is done; the broker works without it.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
KEPT_BYTES: Final = 64 << 20
KEPT_BYTES_WITH_IDS: Final = 192 << 20


def tune() -> None:
    """Has malloc reuse large blocks, and use one arena for all threads."""
    _set(_M_MMAP_THRESHOLD, 32 << 20)
    _set(_M_TRIM_THRESHOLD, KEPT_BYTES)
    _set(_M_ARENA_MAX, 1)


def keep_more() -> None:
    """Has malloc keep the memory of message ids for the next ones."""
    _set(_M_TRIM_THRESHOLD, KEPT_BYTES_WITH_IDS)


def _set(parameter: int, value: int) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(parameter, value)
