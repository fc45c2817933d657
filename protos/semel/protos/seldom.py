"""Lines of the log about what strangers can bring about as often as they like.

Not here: what the lines say.
"""

from __future__ import annotations

import logging
import time
from typing import Final

TELL_S: Final = 1.0
"""Pause between two lines."""


class Seldom:
    """Logs one line a second at most, and says how often the same has happened since the last."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._count = 0
        """Not logged yet."""
        self._tell_s = 0.0

    def warning(self, text: str, *arguments: object) -> None:
        """Logs `text`, with a count behind it, unless a line was logged a moment ago."""
        self._count += 1
        now_s = time.monotonic()
        if now_s >= self._tell_s:
            self._logger.warning(f"{text} count=%d", *arguments, self._count)
            self._count, self._tell_s = 0, now_s + TELL_S
