"""JSON documents of the tier: one spelling for each content, and strict reading.

How it works. A document is written with sorted keys, without spaces and in ASCII, so equal contents
are equal bytes, and the digest of the bytes names the content. Every document says its format and
what it is. Reading takes a field by name and type, and refuses what it does not know.

Not here: what is in them (`manifest.py`, `catalog.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from semel.tier.errors import CorruptTier, ForeignTier
from semel.tier.schema import FORMAT

T = TypeVar("T")


def write(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Returns the document."""
    whole = {"format": FORMAT, "kind": kind, **fields}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode("ascii")


def sha256_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


class Fields:
    """The fields of one JSON object, each of which must be taken."""

    def __init__(self, name: str, found: Any) -> None:
        """Raises CorruptTier unless `found` is an object; `name` says where it stands."""
        if not isinstance(found, dict):
            raise CorruptTier(f"{name} is no JSON object")
        self._name = name
        self._left = dict(found)

    def take(self, field: str, kind: type[T]) -> T:
        """Returns a field. Raises CorruptTier if it is missing, of another type, or negative."""
        value = self._left.pop(field, None)
        if type(value) is not kind or (isinstance(value, int) and value < -(1 << 63)):
            raise CorruptTier(f"{self._name}: field {field!r} is {value!r}, not a {kind.__name__}")
        return value

    def has(self, field: str) -> bool:
        """Whether a field that may be absent is there."""
        return field in self._left

    def done(self) -> None:
        """Raises CorruptTier if a field is left."""
        if self._left:
            raise CorruptTier(f"{self._name}: unknown fields {', '.join(sorted(self._left))}")


def read(name: str, kind: str, data: bytes) -> Fields:
    """Returns the fields of a document of this kind.

    Raises CorruptTier for anything else, and ForeignTier for a newer format.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptTier(f"{name} is no JSON: it is cut short or damaged ({error})") from None
    fields = Fields(name, found)
    version = fields.take("format", int)
    if version > FORMAT:
        raise ForeignTier(
            f"{name} has format {version}, this program knows up to {FORMAT}: use a newer Semel"
        )
    found_kind = fields.take("kind", str)
    if version < 1 or found_kind != kind:
        raise CorruptTier(f"{name} is a {found_kind!r} of format {version}, not a {kind!r}")
    return fields
