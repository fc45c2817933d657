"""What browsers send: queries and forms, bounded and checked.

Invariant: a form of any size takes at most `FORM_BYTES_MAX` of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

import click
from starlette.requests import Request

from semel.protos.errors import InvalidRequest

FORM_BYTES_MAX: Final = 64 << 10
FIELDS_MAX: Final = 2_000
_INT_MAX: Final = (1 << 63) - 1


async def read_form(request: Request) -> dict[str, list[str]]:
    """Returns the fields of a form, each with all its values. Raises InvalidRequest."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidRequest("a form is sent as application/x-www-form-urlencoded")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise InvalidRequest(f"a form has at most {FORM_BYTES_MAX >> 10} KiB")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise InvalidRequest("the form cannot be read") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


class Fields:
    """Fields of a query or a form; those that are absent are empty."""

    def __init__(self, values: Mapping[str, list[str]]) -> None:
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """The first value without blanks around it."""
        found = self._values.get(name)
        return (found[0].strip() if found else "") or default

    def raw(self, name: str) -> str:
        """The first value as it is."""
        found = self._values.get(name)
        return found[0] if found else ""

    def all(self, name: str) -> list[str]:
        """All values."""
        return [value for value in self._values.get(name, []) if value]

    def needed(self, name: str) -> str:
        """Raises InvalidRequest for none."""
        found = self.text(name)
        if not found:
            raise InvalidRequest(f"{name.replace('_', ' ')} is missing")
        return found

    def whole(self, name: str, default: int | None = None, *, low: int = 0) -> int:
        """A whole number. Raises InvalidRequest for another text, and for none without a
        default."""
        text = self.text(name)
        if not text and default is not None:
            return default
        digits = text.removeprefix("-")
        number = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
        if number is None or not low <= number <= _INT_MAX:
            what = name.replace("_", " ")
            raise InvalidRequest(f"{what} must be a whole number from {low}, not {text[:30]!r}")
        return number

    def flag(self, name: str) -> bool:
        """A box that was ticked."""
        return bool(self.text(name))

    def unit(self, name: str, kind: Any) -> int | None:
        """A size or a duration as `semel topic` takes it; None for an empty field. Raises
        InvalidRequest."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(kind.convert(text, None, None))
        except click.BadParameter as error:
            raise InvalidRequest(f"{name.replace('_', ' ')}: {error.message}") from None

    def time(self, name: str) -> datetime | None:
        """A time in ISO 8601, in UTC if it says nothing else; None for an empty field. Raises
        InvalidRequest."""
        text = self.text(name)
        if not text:
            return None
        try:
            found = datetime.fromisoformat(text)
            found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
            found.timestamp()
        except (ValueError, OverflowError):
            raise InvalidRequest(f"{text[:40]!r} is no time such as 2026-01-31T12:00:00Z") from None
        return found


def query_of(request: Request) -> Fields:
    """Returns the fields of a request's query."""
    values: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        values.setdefault(name, []).append(value)
    return Fields(values)
