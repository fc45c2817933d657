"""Cuts a stream of bytes into messages, a few megabytes at a time.

How it works. Lines: a block is read, its newlines are found with one numpy operation, and the
lines become one array (their bytes without the newlines, and offsets); a key is cut off where the
separator is found. Where Arrow is installed no Python object is made for a line. JSON lines are
parsed one by one.

Invariants
1. Every byte except a newline passes unchanged. An empty line is an empty message; the last line
   needs no newline.
2. Line n of the input, counted from 0, is message n, however the stream was cut into blocks.
3. All lines before a line that is too long or malformed are yielded; then the error is raised, and
   it names the line, counted from 1 as editors do.

Not here: sending (`produce.py`).
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import numpy as np

from semel.client.core.dues import due_at
from semel.client.core.message_ids import id_bytes
from semel.protos.arrays import (
    Array,
    binary_array,
    binary_over,
    buffer_over,
    data_of,
    offsets_of,
    places_in,
)
from semel.protos.columns import NO_VALUE_NO_KEY
from semel.protos.errors import InvalidRequest, MessageTooLarge

BLOCK_BYTES: Final = 4 * 1024 * 1024
_NEWLINE: Final = 10
_FIELDS: Final = {
    "value",
    "value_base64",
    "key",
    "key_base64",
    "headers",
    "deliver_at",
    "message_id",
    "message_id_base64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive messages of the input."""

    first: int
    """Number of the first message, counted from 0."""
    values: Array
    """Type binary; a null says that the message's key has no value any more."""
    keys: Array | None
    """Type binary, null for a message without a key; None when no message has a key."""
    headers: list[dict[str, bytes]] | None
    """Headers of each message; None when no message of the block has any."""
    read_bytes: int
    """Bytes of the input that the block covers."""
    deliver_at: list[int | None] | None = None
    """Due time of each message, in microseconds since 1970; None when no message has one."""
    message_ids: list[bytes | None] | None = None
    """Ids of each message; None when no message of the block has any."""


def read_lines(
    file: BinaryIO,
    *,
    limit: int,
    separator: bytes = b"",
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[Block]:
    """Messages from the lines of `file`; a separator's first place splits key and value.

    Raises MessageTooLarge for a line of more than `limit` bytes.
    """
    first = 0
    for text in _whole_lines(file, limit=limit + len(separator), block_bytes=block_bytes):
        values, keys = _split(text), None
        if separator:
            keys, values = _split_keys(values, separator)
        sizes = np.diff(offsets_of(values))
        if keys is not None:
            sizes = sizes + np.diff(offsets_of(keys))
        good = _count_within(sizes, limit)
        if good:
            yield Block(
                first=first,
                values=values.slice(0, good),
                keys=None if keys is None else keys.slice(0, good),
                headers=None,
                read_bytes=len(text),
            )
        if good < len(values):
            raise _too_long(first + good, limit)
        first += good


def _whole_lines(file: BinaryIO, *, limit: int, block_bytes: int) -> Iterator[bytes]:
    """Blocks that end with a newline, which is added to the input's last line if missing."""
    rest: list[bytes] = []
    rest_bytes = 0
    while block := file.read(block_bytes):
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join((*rest, block[:end]))
            rest, rest_bytes = [], 0
        if end < len(block):
            rest.append(block[end:])
            rest_bytes += len(block) - end
            if rest_bytes > limit:  # the line is too long already: its end does not matter
                break
    if rest:
        yield b"".join((*rest, b"\n"))


def _split(text: bytes) -> Array:
    """The lines of `text`, which ends with a newline."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    data = text.replace(b"\n", b"")
    return binary_over(len(ends), None, buffer_over(offsets), buffer_over(data))


def _split_keys(lines: Array, separator: bytes) -> tuple[Array, Array]:
    """Keys and values of lines; a line without the separator is a value without a key."""
    count = len(lines)
    lengths = np.diff(offsets_of(lines))
    place = places_in(lines, separator)
    found = place >= 0
    key_lengths = np.where(found, place, 0)
    dropped = np.where(found, len(separator), 0)
    value_lengths = lengths - key_lengths - dropped
    runs = np.stack([key_lengths, dropped, value_lengths], axis=1).ravel()
    owner = np.repeat(np.tile(np.array([1, 0, 2], np.uint8), count), runs)
    text = np.empty(0, np.uint8)
    if len(owner):
        text = np.frombuffer(data_of(lines), np.uint8, len(owner))
    validity = buffer_over(np.packbits(found, bitorder="little"))
    return (
        _array(text[owner == 1], key_lengths, validity),
        _array(text[owner == 2], value_lengths, None),
    )


def _array(data: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], validity: Any) -> Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return binary_over(len(lengths), validity, buffer_over(offsets), buffer_over(data))


def _count_within(sizes: np.ndarray[Any, Any], limit: int) -> int:
    """The number of sizes before the first one above the limit."""
    over = np.flatnonzero(sizes > limit)
    return int(over[0]) if len(over) else len(sizes)


def _too_long(line: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"line {line + 1} is longer than {limit} bytes: nothing from it on was sent; shorten it,"
        " or raise the topic's message_bytes_max",
        limit_bytes=limit,
    )


def read_json(file: BinaryIO, *, limit: int, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Messages from JSON objects, one per line.

    Fields: `value`, `key`, `message_id` (or `…_base64`), `headers` and `deliver_at`. A `value` that
    is null says that the key has no value any more.

    Raises InvalidRequest for a line that is no such object, and MessageTooLarge for a message over
    the limit.
    """
    line_limit = 6 * limit + 65_536  # an escaped byte takes up to six
    first = 0
    for text in _whole_lines(file, limit=line_limit, block_bytes=block_bytes):
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        headers: list[dict[str, bytes]] = []
        dues: list[int | None] = []
        ids: list[bytes | None] = []
        failure: Exception | None = None
        for line in text[:-1].split(b"\n"):
            number = first + len(values)
            if len(line) > line_limit:
                failure = _too_long(number, limit)
                break
            try:
                table = _table(line, number)
                value, key, own = _message(table, number)
                due_us, message_id = _due(table, number), _id(table, number)
            except InvalidRequest as error:
                failure = error
                break
            own_bytes = sum(len(name.encode()) + len(data) for name, data in own.items())
            if len(value or b"") + len(key or b"") + own_bytes > limit:
                failure = _too_long(number, limit)
                break
            values.append(value)
            keys.append(key)
            headers.append(own)
            dues.append(due_us)
            ids.append(message_id)
        if values:
            yield Block(
                first=first,
                values=binary_array(values),
                keys=binary_array(keys) if any(k is not None for k in keys) else None,
                headers=headers if any(headers) else None,
                read_bytes=len(text),
                deliver_at=dues if any(each is not None for each in dues) else None,
                message_ids=ids if any(each is not None for each in ids) else None,
            )
        if failure is not None:
            raise failure
        first += len(values)


def _table(line: bytes, number: int) -> dict[str, Any]:
    """One JSON line as an object that has only known fields."""
    try:
        table = json.loads(line)
    except ValueError as error:
        raise _bad(number, f"is no JSON ({error})") from error
    except RecursionError:
        raise _bad(number, "is nested too deeply") from None
    if not isinstance(table, dict):
        raise _bad(number, "is no JSON object")
    unknown = table.keys() - _FIELDS
    if unknown:
        raise _bad(number, f"has an unknown field {min(unknown)!r}")
    return table


def _message(
    table: dict[str, Any], number: int
) -> tuple[bytes | None, bytes | None, dict[str, bytes]]:
    """Value, key and headers of one JSON object; the value may be null if there is a key."""
    value, key = _bytes(table, "value", number), _bytes(table, "key", number)
    if value is None and "value" not in table:
        raise _bad(number, 'has neither "value" nor "value_base64"')
    if value is None and key is None:
        raise _bad(number, f"has neither value nor key ({NO_VALUE_NO_KEY})")
    return value, key, _headers(table, number)


def _headers(table: dict[str, Any], number: int) -> dict[str, bytes]:
    """The message's own headers. Names and texts are Unicode: a lone surrogate has no bytes."""
    headers = table.get("headers")
    if headers is None:
        return {}
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise _bad(number, 'has "headers" that are no object of strings')
    try:
        "".join(headers).encode()
        return {name: text.encode() for name, text in headers.items()}
    except UnicodeEncodeError as error:
        raise _bad(number, 'has a text in "headers" that is no Unicode') from error


def _due(table: dict[str, Any], number: int) -> int | None:
    """The message's due time, if the object has one: in ISO 8601, or in microseconds."""
    told = table.get("deliver_at")
    try:
        if isinstance(told, str):
            told = datetime.fromisoformat(told)
            told = told if told.tzinfo is not None else told.replace(tzinfo=UTC)
        return None if told is None else due_at(told, time.time_ns() // 1000)
    except ValueError as error:
        raise _bad(number, f'has a "deliver_at" that is no time ({error})') from error
    except InvalidRequest as error:
        raise _bad(number, f"cannot be delayed ({error.message})") from error


def _id(table: dict[str, Any], number: int) -> bytes | None:
    """The message's id, if the object has one."""
    found = _bytes(table, "message_id", number)
    try:
        return None if found is None else id_bytes(found)
    except InvalidRequest as error:
        raise _bad(number, f"has an unusable message_id ({error.message})") from error


def _bytes(table: dict[str, Any], name: str, number: int) -> bytes | None:
    plain, coded = table.get(name), table.get(name + "_base64")
    if plain is not None and coded is not None:
        raise _bad(number, f'has both "{name}" and "{name}_base64"')
    try:
        if coded is not None:
            return base64.b64decode(coded, validate=True)
        return None if plain is None else plain.encode()
    except (AttributeError, TypeError, UnicodeEncodeError, binascii.Error, ValueError) as error:
        field = f"{name}_base64" if coded is not None else name
        raise _bad(number, f'has a "{field}" that is no such string') from error


def _bad(line: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"line {line + 1} {what}: nothing from it on was sent; correct it")
