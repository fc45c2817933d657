"""What readers and consumers tell about their work where nothing is traced: nothing.

Not here: the same with spans (`tracing/receiving.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from semel.client.message import Message
from semel.client.reading.outstanding import Span


class Untraced:
    """Contexts of the calls of one reader or consumer."""

    def polling(self) -> AbstractContextManager[Any]:
        """The context in which messages are given out."""
        return _NOTHING

    def processing(self, messages: Message | Iterable[Message]) -> AbstractContextManager[Any]:
        """The context in which the caller works on messages."""
        return _NOTHING

    def settling(self, spans: Sequence[Span]) -> AbstractContextManager[Any]:
        """The context of a commit."""
        return _NOTHING


_NOTHING: Final = contextlib.nullcontext()
UNTRACED: Final = Untraced()
