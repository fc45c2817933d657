"""The rows of a table: of each key the newest value that was read.

How it works. The messages of one queue come in the order of their offsets. A queue that was split
holds the older messages of its keys, and its children the newer ones; both are read at the same
time. So a row remembers of which generation its queue was, and an older generation changes nothing
any more.

Not here: reading (`api/aio_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class KeyedMessage(Protocol):
    """The part of a message that a table uses."""

    @property
    def queue(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


class TableRows:
    """Rows by key."""

    def __init__(self, parent_of: Callable[[int], int | None]) -> None:
        """`parent_of` tells the queue whose split made a queue; None for none."""
        self.values: dict[bytes, bytes] = {}
        self._parent_of = parent_of
        self._generations: dict[int, int] = {}
        """Generation of each queue that was read: 0 if no split made it."""
        self._of_keys: dict[bytes, int] = {}
        """The newest generation of each key, also of those without a value, where it is above 0."""

    def take(self, messages: Iterable[KeyedMessage]) -> None:
        """Takes in the next messages. Those without a key are no rows."""
        for message in messages:
            key = message.key
            if key is None:
                continue
            generation = self._generations.get(message.queue)
            if generation is None:
                generation = self._generations[message.queue] = self._generation(message.queue)
            if generation < self._of_keys.get(key, 0):
                continue  # a child of the queue has a newer one
            if generation:
                self._of_keys[key] = generation
            value = message.value
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value

    def _generation(self, queue: int) -> int:
        found = 0
        parent = self._parent_of(queue)
        while parent is not None:
            found += 1
            parent = self._parent_of(parent)
        return found
