"""Was there an outage, and how long? Judged from the acknowledgements that a loader counts.

How it works. Answers that the master sent before it died may be counted for a moment after the
kill. The first pause that is longer than such a moment is the outage; the acknowledgement after it
comes from another master. When acknowledgements never pause, the kill did not bite.
"""

from __future__ import annotations

from typing import Final

PAUSE_S: Final = 0.15
"""A pause this long is no hiccup of the loader, which tells its count every 25 ms."""
BITE_S: Final = 1.0
"""A kill whose acknowledgements went on for so long did not bite."""


class AckWatch:
    """Fed with (time, messages known to be stored) from the kill on."""

    def __init__(self, killed: float, done: int) -> None:
        self._killed = killed
        self._done = done
        self._settled = killed
        self.resumed = killed
        """When the first acknowledgement after the pause came."""
        self.stopped = False
        """There was a pause."""

    def on_progress(self, time: float, done: int) -> bool:
        """One line of the loader; True once it is decided."""
        if done == self._done:
            return False
        self._done = done
        self.resumed = time
        if time - self._settled > PAUSE_S:
            self.stopped = True
            return True
        self._settled = time
        return time - self._killed > BITE_S

    @property
    def outage(self) -> float:
        """Seconds from the kill to the first acknowledgement by another master."""
        return self.resumed - self._killed
