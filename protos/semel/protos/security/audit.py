"""The audit log: changes and refusals as lines of JSON in files that rotate.

How it works. `write` puts a line into a bounded queue and returns; one thread writes them. A file
that would grow beyond its limit becomes FILE.1, the one before FILE.2, and so on; the oldest goes.
Lines that find no room, or that the disk does not take, are counted and lost: a node does not stop
serving because its audit log does. Each line has `time`, in UTC.

Invariants
1. `write` never waits and never raises.
2. Every line given is written or counted in `dropped`, once the log is closed.

Not here: what is worth a line (`enforcement.py`; the controllers' changes of rules).
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
"""Lines that may wait for the disk."""
FILE_BYTES_MAX: Final = 64 << 20
FILES_KEPT: Final = 8
VALUE_CHARACTERS_MAX: Final = 1_000
_CLOSE_S: Final = 5.0


class AuditLog:
    """One process's audit log; `close` writes what waits."""

    def __init__(
        self,
        path: Path,
        wall_s: Callable[[], float],
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_kept: int = FILES_KEPT,
    ) -> None:
        """Opens `path`, at its end. Raises OSError."""
        self.dropped = 0
        """Lines that were lost."""
        self._wall_s = wall_s
        self._file = _File(path, file_bytes_max, files_kept)
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    def write(self, event: Mapping[str, str | int | bool]) -> None:
        """Writes one line, soon."""
        when = datetime.fromtimestamp(self._wall_s(), UTC).isoformat(timespec="milliseconds")
        values = {
            name: value[:VALUE_CHARACTERS_MAX] if isinstance(value, str) else value
            for name, value in event.items()
        }
        try:
            self._lines.put_nowait(json.dumps({"time": when, **values}))
        except queue.Full:
            self._drop()

    def close(self) -> None:
        """BLOCKING. Writes what waits, for some seconds at most."""
        try:
            self._lines.put(None, timeout=_CLOSE_S)
        except queue.Full:
            logger.error("the audit log is closed with lines unwritten")
        self._thread.join(_CLOSE_S)
        self._file.close()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            if not self._file.write(line):
                self._drop()

    def _drop(self) -> None:
        if not self.dropped:
            logger.error("the audit log loses lines: the disk does not take them fast enough")
        self.dropped += 1


class _File(RotatingFileHandler):
    """The standard library's rotating file, which here says whether a line was written."""

    def __init__(self, path: Path, file_bytes_max: int, files_kept: int) -> None:
        super().__init__(path, maxBytes=file_bytes_max, backupCount=files_kept, encoding="utf-8")
        self._failed = False

    def write(self, line: str) -> bool:
        self._failed = False
        self.handle(logging.makeLogRecord({"msg": line}))
        return not self._failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the library's name)
        self._failed = True
