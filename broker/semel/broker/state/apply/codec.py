"""Reads and writes the pieces of the state's canonical bytes: integers, texts, runs of bytes.

Format. Everything is little-endian; a text is a u32 length and UTF-8. See docs/formats/state.md.

Not here: which fields exist and in which order. Each class writes its own; `state_machine.py`
begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import google_crc32c

from semel.protos.errors import CorruptSegment

CRC: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<I")


class Frozen(Protocol):
    """A piece that never changes, and whose bytes are made when they are needed."""

    def data(self) -> bytes:
        """The bytes; any thread may ask for them."""
        ...


Part = bytes | Frozen
"""A piece of canonical bytes."""


def joined(parts: Iterable[Part]) -> bytes:
    """The pieces in one."""
    return b"".join(part if isinstance(part, bytes) else part.data() for part in parts)


class CheckedParts:
    """Pieces, and the CRC of all of them as the last one. It is iterated as often as one likes, by
    any thread; only then bytes are made of what is frozen."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        crc = 0
        for part in self._parts:
            data = part if isinstance(part, bytes) else part.data()
            crc = google_crc32c.extend(crc, data)
            yield data
        yield CRC.pack(crc)


def pack_text(text: str) -> bytes:
    """The text in UTF-8, preceded by its length."""
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


def pack_bytes(data: bytes) -> bytes:
    """The bytes, preceded by their length."""
    return _LENGTH.pack(len(data)) + data


class Reader:
    """Walks over one buffer. Every method raises CorruptSegment when too few bytes are left."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def at(self) -> int:
        """How many bytes were taken so far."""
        return self._at

    def between(self, start: int, end: int) -> bytes:
        """The bytes `[start, end)` again, all of which were taken before."""
        assert 0 <= start <= end <= self._at
        return bytes(self._data[start:end])

    def take(self, length: int) -> memoryview:
        """The next `length` bytes, as a view."""
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise CorruptSegment(
                f"state ends at byte {len(self._data)}, but {end} bytes are needed"
            )
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fields."""
        return layout.unpack(self.take(layout.size))

    def text(self) -> str:
        """The next text."""
        (length,) = self.unpack(_LENGTH)
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptSegment(f"state holds a text that is not UTF-8: {error}") from error

    def bytes(self) -> bytes:
        """The next run of bytes that is preceded by its length."""
        (length,) = self.unpack(_LENGTH)
        return self.take(length).tobytes()

    def finish(self) -> None:
        """Raises CorruptSegment if any bytes are left."""
        if self._at != len(self._data):
            raise CorruptSegment(f"state has {len(self._data) - self._at} bytes too many")
