"""Figures of the operating system about this process and about the disk that it uses.

Not here: reporting them (`control_plane/reports.py`, `server/node_status.py`, `probe.py`).
"""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    """Resident memory of this process; 0 where /proc is not available."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def disk_room(directory: Path) -> tuple[int, int]:
    """Free bytes and total bytes of the file system of `directory`; zeros if unknown."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
