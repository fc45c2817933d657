"""Fingerprints of message ids and of messages' contents, computed for all rows of a batch at once.

How it works. Both are sums of 32-bit words times secret 64-bit weights, modulo 2^64 (multilinear
hashing: Lemire and Kaser, "Strongly universal string hashing is fast", 2014). Arrow pads the rows
of one class of lengths to one width, unless they all have one length and are taken as they lie in
memory, and numpy multiplies the resulting matrix by the weights. The weights come from the topic's
seed by SHAKE-256, so whoever does not know the seed cannot choose two ids that collide, and every
node computes the same fingerprints.

- The *key* of an id is 128 bits: the upper halves of four independent sums. Two different ids have
  the same key with a probability of 2^-128.
- The *digest* of a message is 64 bits over value, key, the user's headers and id. Two different
  messages have the same digest with a probability of at most 2^-33. It is compared only if the keys
  are equal, and it covers the id, so a message is taken for a duplicate by mistake with a
  probability of at most 2^-161; in any other collision of keys its producer is told of a conflict.

Invariants
1. A fingerprint depends on the seed and the row alone, not on its neighbours, its batch, the codec
   or the memory's layout.
2. A null, an empty column and a missing column count the same where they mean the same: a message
   without a key has one digest, whether or not other messages of its batch have keys.

Rejected: murmur3 or CRC-32C of each row, which is a loop in Python and three times the time at
100 bytes; SipHash for the same reason; the digest of a whole batch, which says nothing about a row.

Not here: which ids are known (`id_index.py`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from operator import mul
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.protos.arrays import offsets_of
from semel.protos.columns import Columns
from semel.protos.errors import InvalidRequest
from semel.protos.id_dedup import COMPARED_ID_BYTES_MAX, SEED_BYTES

KEY_SUMS: Final = 4

U64 = npt.NDArray[np.uint64]
"""Keys have the shape (rows, 2), digests the shape (rows,)."""
Words = npt.NDArray[np.uint32]

_WORD_BYTES: Final = 4
_STEPS_PER_OCTAVE: Final = 4
_WORDS_AT_ONCE: Final = 1 << 19
"""Words that are widened to 64 bits at a time: 4 MiB, which stays in the processor's cache."""
_FIRST_WEIGHTS: Final = 1_024
FEW_ROWS: Final = 8
"""Up to this number of rows a loop in Python takes less time than the calls of numpy."""
_FEW_WORDS: Final = 8
"""Up to this number of words numpy is faster column by column than row by row."""
_MASK: Final = (1 << 64) - 1
_UPPER_HALF: Final = 0xFFFFFFFF00000000
_UPPER: Final = np.uint64(_UPPER_HALF)
_HALF: Final = np.uint64(32)


class _Weights:
    """One stream of secret weights, as long as the longest row so far needs it."""

    def __init__(self, seed: bytes, label: str) -> None:
        self._source = hashlib.shake_256(seed + label.encode())
        self._words = np.zeros(0, np.uint64)
        self._few: list[int] = []

    def sum_of(self, row: bytes) -> int:
        """The sum for one row."""
        return self.sum_of_words(len(row), _words_of(row))

    def sum_of_words(self, length: int, words: tuple[int, ...]) -> int:
        """The sum for a row of `length` bytes, with zeros behind them."""
        count = len(words)
        if count >= len(self._few):
            self._few = self.first(count + 1).tolist()
        few = self._few
        total: int = (length + 1) * few[0] + sum(map(mul, words, few[1 : count + 1]))
        return total & _MASK

    def length_sum(self, length: int) -> np.uint64:
        """The part of a sum that is for the length of a row."""
        return np.uint64((length + 1) * int(self.first(1)[0]) & _MASK)

    def first(self, count: int) -> U64:
        """The first `count` weights."""
        if count > len(self._words):
            count_now = max(_FIRST_WEIGHTS, 1 << (count - 1).bit_length())
            self._words = np.frombuffer(self._source.digest(8 * count_now), "<u8")
        return self._words[:count]


class Fingerprints:
    """Computes the fingerprints of one topic."""

    def __init__(self, seed: bytes) -> None:
        """Raises InvalidRequest unless the seed has 16 bytes."""
        if len(seed) != SEED_BYTES:
            raise InvalidRequest(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
        self._of_keys = [_Weights(seed, f"key {number}") for number in range(KEY_SUMS)]
        fields = ("value", "key", "id", "header names", "header values")
        self._of_fields = {name: _Weights(seed, name) for name in fields}
        lengths = ("header name lengths", "header value lengths")
        self._of_lengths = {name: _Weights(seed, name) for name in lengths}

    def keys(self, ids: pa.Array) -> U64:
        """The keys of message ids, a binary array; the key of a null has no meaning.

        Raises InvalidRequest for an id of 0 bytes or of more than 128.
        """
        _check_ids(ids)
        return _joined(_sums(ids, self._of_keys))

    def any_keys(self, column: pa.Array) -> U64:
        """The same for keys of any length, which are no message ids."""
        return _joined(_sums(column, self._of_keys))

    def digests(self, columns: Columns) -> U64:
        """The digests of messages."""
        total = self._content_sums(columns)
        if columns.message_ids is not None:
            total += _sums(columns.message_ids, [self._of_fields["id"]])[0]
        return total

    def both(self, columns: Columns) -> tuple[U64, U64]:
        """Keys and digests of messages that all have ids, with one pass over these.

        Raises InvalidRequest for an id of 0 bytes or of more than 128.
        """
        ids = columns.message_ids
        _check_ids(ids)
        *sums, of_ids = _sums(ids, [*self._of_keys, self._of_fields["id"]])
        of_ids += self._content_sums(columns)
        return _joined(sums), of_ids

    def of_few(self, rows: Sequence[tuple[bytes, bytes | None, bytes]]) -> tuple[U64, U64]:
        """The same of a few values, keys and ids, without Arrow; no headers.

        Raises InvalidRequest for an id of 0 bytes or of more than 128.
        """
        keys, digests = [], []
        of, of_keys = self._of_fields, self._of_keys
        for number, (value, key, message_id) in enumerate(rows):
            length = len(message_id)
            if not 0 < length <= COMPARED_ID_BYTES_MAX:
                raise _wrong_id(number, length)
            words = _words_of(message_id)
            a, b, c, d = [stream.sum_of_words(length, words) for stream in of_keys]
            keys.append((a & _UPPER_HALF | b >> 32, c & _UPPER_HALF | d >> 32))
            total = of["id"].sum_of_words(length, words) + of["value"].sum_of(value)
            if key is not None:
                total += of["key"].sum_of(key)
            digests.append(total & _MASK)
        return np.array(keys, np.uint64).reshape(-1, 2), np.array(digests, np.uint64)

    def _content_sums(self, columns: Columns) -> U64:
        """Sums of all that a digest covers, ids aside."""
        total = _sums(columns.values, [self._of_fields["value"]])[0]
        if columns.keys is not None:
            total += _sums(columns.keys, [self._of_fields["key"]])[0]
        if columns.headers is not None:
            total += self._header_sums(columns.headers)
        return total

    def _header_sums(self, headers: pa.Array) -> U64:
        """Sums of the names, of the values and of all their lengths, so that no two lists of
        headers are the same bytes."""
        lists = offsets_of(headers).astype(np.int64)
        pairs = headers.values
        total = np.zeros(len(headers), np.uint64)
        for name, column in (("name", pairs.field(0)), ("value", pairs.field(1))):
            offsets = offsets_of(column)
            joined = _binary(offsets[lists], column.buffers()[2])
            lengths = np.diff(offsets).astype(np.uint32)
            total += _sums(joined, [self._of_fields[f"header {name}s"]])[0]
            numbers = _binary((lists * _WORD_BYTES).astype(np.int32), pa.py_buffer(lengths))
            weights = [self._of_lengths[f"header {name} lengths"]]
            total += _sums(numbers, weights)[0]
        return np.where(np.diff(lists) > 0, total, np.uint64(0))


def _binary(offsets: npt.NDArray[np.int32], data: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), data or pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _lengths_of(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.diff(offsets_of(column)).astype(np.int64)


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _check_ids(ids: pa.Array) -> None:
    lengths = _lengths_of(ids)
    if len(ids) and lengths.min() > 0 and lengths.max() <= COMPARED_ID_BYTES_MAX:
        return
    wrong = (lengths > COMPARED_ID_BYTES_MAX) | ((lengths == 0) & _valid(ids))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _wrong_id(row, int(lengths[row]))


def _wrong_id(row: int, length: int) -> InvalidRequest:
    return InvalidRequest(
        f"message {row} of the batch has an id of {length} bytes; an id has 1 to"
        f" {COMPARED_ID_BYTES_MAX}"
    )


def _words_of(row: bytes) -> tuple[int, ...]:
    count = -(-len(row) // _WORD_BYTES)
    return struct.unpack(f"<{count}I", row + bytes(-len(row) % _WORD_BYTES))


def _joined(sums: list[U64]) -> U64:
    """Keys of the upper halves of four sums, each half of all keys side by side in memory."""
    halves = np.empty((2, len(sums[0])), np.uint64)
    for half, left, right in zip(halves, sums[::2], sums[1::2], strict=True):
        np.right_shift(right, _HALF, out=half)
        half |= left & _UPPER
    return halves.T


def _sums(column: pa.Array, streams: list[_Weights]) -> list[U64]:
    """Returns one array of sums for each stream; a null counts 0.

    The first weight of a stream is for the length, so that padding never counts.
    """
    if len(column) <= FEW_ROWS:
        return _sums_of_few(column, streams)
    lengths = _lengths_of(column)
    shortest, longest = int(lengths.min()), int(lengths.max())
    found = [np.empty(len(column), np.uint64) for _ in streams]
    if shortest == longest:
        width = _width(longest)
        words = _words(column) if longest == width else _padded(_as_text(column), width)
        for sums, stream in zip(found, streams, strict=True):
            sums[:] = stream.length_sum(longest)
        _add_products(words.reshape(len(column), -1), streams, found)
    else:
        counted = (lengths + 1).astype(np.uint64)
        for sums, stream in zip(found, streams, strict=True):
            np.multiply(counted, stream.first(1)[0], out=sums)
        text, widths = _as_text(column), _widths(lengths)
        for width in np.unique(widths).tolist():
            rows = np.flatnonzero(widths == width)
            words = _padded(text.take(pa.array(rows)), width).reshape(len(rows), -1)
            parts = [np.zeros(len(rows), np.uint64) for _ in streams]
            _add_products(words, streams, parts)
            for sums, part in zip(found, parts, strict=True):
                sums[rows] += part
    if column.null_count:
        missing = ~_valid(column)
        for sums in found:
            sums[missing] = 0
    return found


def _add_products(words: Words, streams: list[_Weights], sums: list[U64]) -> None:
    """Adds the products of rows and weights to the sums."""
    width = words.shape[1]
    step = max(1, _WORDS_AT_ONCE // max(width, 1))
    for start in range(0, len(words) if width else 0, step):
        rows = words[start : start + step]
        totals = [each[start : start + step] for each in sums]
        if width > _FEW_WORDS:
            matrix = rows.astype(np.uint64)
            for total, stream in zip(totals, streams, strict=True):
                total += np.einsum("ij,j->i", matrix, stream.first(width + 1)[1:])
            continue
        columns = np.empty((width, len(rows)), np.uint64)
        columns[:] = rows.T
        product = np.empty(len(rows), np.uint64)
        for total, stream in zip(totals, streams, strict=True):
            for column, weight in zip(columns, stream.first(width + 1)[1:], strict=True):
                total += np.multiply(column, weight, out=product)


def _sums_of_few(column: pa.Array, streams: list[_Weights]) -> list[U64]:
    """The same sums for a few rows, without the fixed cost of numpy's calls."""
    found: list[list[int]] = [[] for _ in streams]
    for row in column.to_pylist():
        for sums, stream in zip(found, streams, strict=True):
            sums.append(0 if row is None else stream.sum_of(row))
    return [np.array(sums, np.uint64) for sums in found]


def _width(length: int) -> int:
    return -(-length // _WORD_BYTES) * _WORD_BYTES


def _widths(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The width to which each row is padded: four widths between a power of two and the next, so
    that a batch of many lengths has few widths, and padding adds a quarter at most."""
    words: npt.NDArray[np.int64] = -(-lengths // _WORD_BYTES)
    octave = np.floor(np.log2(np.maximum(words, 1))).astype(np.int64)
    step = np.maximum(1, (1 << octave) // _STEPS_PER_OCTAVE)
    widths: npt.NDArray[np.int64] = -(-words // step) * step * _WORD_BYTES
    return widths


def _as_text(column: pa.Array) -> pa.Array:
    """The same bytes as an array of strings: Arrow pads only these, and does not look into them."""
    offsets = offsets_of(column)
    data = column.buffers()[2] if len(column) else None
    buffers = [None, pa.py_buffer(offsets), data or pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.string(), len(column), buffers)


def _padded(text: pa.Array, width: int) -> Words:
    """The words of rows that are padded to `width`, one row after the other."""
    if not width:
        return np.zeros(0, np.uint32)
    return _words(pc.ascii_rpad(text, width=width, padding="\0"))


def _words(column: pa.Array) -> Words:
    """The words of rows of one length, one row after the other."""
    offsets = offsets_of(column)
    start, end = int(offsets[0]), int(offsets[-1])
    return np.frombuffer(column.buffers()[2] or b"", "<u4", (end - start) // _WORD_BYTES, start)
