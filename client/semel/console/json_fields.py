"""Fields of messages as JSON, the same in every command that prints messages."""

from __future__ import annotations

import base64
from collections.abc import Iterable


def bytes_field(name: str, value: bytes | None) -> dict[str, str | None]:
    """The field as text if it is UTF-8, else in base64 under a name that says so."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        assert value is not None
        return {f"{name}_base64": base64.b64encode(value).decode()}


def header_texts(headers: Iterable[tuple[str, bytes]]) -> dict[str, str | list[str]]:
    """Texts by header name; a list for a name that occurs more than once."""
    found: dict[str, list[str]] = {}
    for name, data in headers:
        found.setdefault(name, []).append(data.decode("utf-8", "backslashreplace"))
    return {name: texts[0] if len(texts) == 1 else texts for name, texts in found.items()}
