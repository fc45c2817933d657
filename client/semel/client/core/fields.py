"""Checks of a message's fields: bytes, headers, a timestamp, a queue's number.

Not here: due times (`core/dues.py`), ids (`core/message_ids.py`), whole columns
(`semel.protos.columns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from semel.protos.columns import NO_VALUE_NO_KEY
from semel.protos.errors import InvalidRequest

Headers: TypeAlias = Mapping[str, bytes] | Iterable[tuple[str, bytes]]

INT64_MAX: Final = (1 << 63) - 1


def as_bytes(name: str, value: Any) -> bytes:
    """Returns bytes as they are, and text as UTF-8. Raises InvalidRequest."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{name} is not valid Unicode: {error}") from error
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest(f"{name} must be bytes (or str, as UTF-8), not {type(value).__name__}")


def as_pairs(headers: Headers) -> tuple[list[tuple[str, bytes]], int]:
    """Returns headers in their order, and their size in bytes. Raises InvalidRequest."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found: list[tuple[str, bytes]] = []
    size = 0
    try:
        for name, value in pairs:
            if not isinstance(name, str):
                raise InvalidRequest(f"a header's name must be str, not {type(name).__name__}")
            data = as_bytes(f"header {name!r}", value)
            size += len(as_bytes("header name", name)) + len(data)
            found.append((name, data))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"headers must be (str, bytes) pairs or a mapping: {error}") from None
    return found, size


def check_null_value(key: Any) -> None:
    """Checks that a message without a value has a key. Raises InvalidRequest."""
    if key is None:
        raise InvalidRequest(f"the message has neither value nor key: {NO_VALUE_NO_KEY}")


def check_time(value: Any) -> None:
    """Raises InvalidRequest."""
    if not isinstance(value, int) or not -INT64_MAX <= value <= INT64_MAX:
        raise InvalidRequest(f"timestamp_us must be whole microseconds, not {value!r}")


def check_queue(value: Any) -> None:
    """Raises InvalidRequest."""
    if value.__class__ is not int or not 0 <= value < 1 << 31:
        raise InvalidRequest(f"queue must be a queue's number, not {value!r}")
