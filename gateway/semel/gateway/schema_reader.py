"""Reads requests as kio's schemas lay them out, from bytes that anybody may have sent. No I/O.

How it works. kio has a dataclass for each version of each request, with Kafka's type of every
field. From these a reader is put together once: neighbouring fields of fixed size are one `struct`,
everything else is a step of its own. What is read are kio's own entities, with one difference:
record sets are views of the request, because they are large.

Rejected: kio's own reader, which is compiled. It takes memory for as many entities as an array
claims to have before it looks whether they are there, and where it gets none it ends the process:
22 bytes from anybody would end the gateway.

Invariants
1. For any bytes, `read` returns an entity or raises InvalidRequest, and it raises nothing else.
2. It makes at most `ITEMS_MAX` entities and strings of arrays, and no more than bytes can hold.

Not here: headers and frames (`wire.py`), records (`records/`).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin

from semel.protos.errors import InvalidRequest

ITEMS_MAX: Final = 100_000
"""Elements of all arrays of a request together; the largest that clients send have thousands."""
_FIXED: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
}
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_VARINT_BYTES_MAX: Final = 5
_MILLISECONDS_MAX: Final = 86_399_999_999_999_000
"""What a timedelta holds."""


class _Input:
    """The bytes of one request, and how far they are read."""

    __slots__ = ("at", "data", "end", "items_left")

    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self.at = at
        self.end = len(data)
        self.items_left = ITEMS_MAX

    def take(self, length: int) -> memoryview:
        """Returns the next `length` bytes."""
        at = self.at
        if length < 0 or length > self.end - at:
            raise InvalidRequest(f"{length} bytes are announced, {self.end - at} are there")
        self.at = at + length
        return self.data[at : at + length]

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def varint(self) -> int:
        found = shift = 0
        for _ in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
        raise InvalidRequest("a length has too many bytes")

    def count(self, flexible: bool) -> int:
        """Returns the length of an array, -1 for none."""
        count = self.varint() - 1 if flexible else self.int32()
        if count < -1 or count > self.end - self.at:
            raise InvalidRequest(f"{count} entries are announced in {self.end - self.at} bytes")
        if count > self.items_left:
            raise InvalidRequest(f"a request has more than {ITEMS_MAX} entries")
        self.items_left -= max(0, count)
        return count

    def length(self, flexible: bool, wide: bool) -> int:
        """Returns the length of a string or of bytes (`wide`), -1 for none."""
        if flexible:
            return self.varint() - 1
        return self.int32() if wide else self.int16()


_Read: TypeAlias = Callable[[_Input], Any]
_Step: TypeAlias = Callable[[_Input, dict[str, Any]], None]


def read(kind: Any, data: memoryview, at: int = 0) -> tuple[Any, int]:
    """Reads an entity of a kio class from `data[at:]`, and returns it with the place behind it.

    Raises InvalidRequest.
    """
    source = _Input(data, at)
    found = _entity_reader(kind)(source)
    return found, source.at


@cache
def _entity_reader(kind: type[Any]) -> _Read:
    flexible: bool = kind.__flexible__
    is_header = kind.__name__ == "RequestHeader"
    steps: list[_Step] = []
    tagged: dict[int, tuple[str, _Read]] = {}
    fixed: list[tuple[str, str]] = []
    for field in dataclasses.fields(kind):
        kafka_type = field.metadata.get("kafka_type", "")
        if (tag := field.metadata.get("tag")) is not None:
            tagged[int(tag)] = field.name, _value_reader(field, flexible)
        elif kafka_type in _FIXED and not _is_array(field.type):
            fixed.append((field.name, kafka_type))
        else:
            if fixed:
                steps.append(_fixed_step(fixed))
                fixed = []
            # A client's name is never compact: who does not know the version must find it.
            named = is_header and field.name == "client_id"
            steps.append(_named_step(field.name, _value_reader(field, flexible and not named)))
    if fixed:
        steps.append(_fixed_step(fixed))

    def entity(source: _Input) -> Any:
        values: dict[str, Any] = {}
        for step in steps:
            step(source, values)
        if flexible:
            _read_tags(source, tagged, values)
        return kind(**values)

    return entity


def _named_step(name: str, value: _Read) -> _Step:
    def step(source: _Input, values: dict[str, Any]) -> None:
        values[name] = value(source)

    return step


def _fixed_step(fields: list[tuple[str, str]]) -> _Step:
    """Reads neighbouring fields of fixed size at once."""
    layout = struct.Struct(">" + "".join(_FIXED[kafka_type] for _, kafka_type in fields))
    names = tuple(name for name, _ in fields)
    durations = tuple(name for name, kafka_type in fields if kafka_type.startswith("timedelta"))

    def step(source: _Input, values: dict[str, Any]) -> None:
        values.update(zip(names, layout.unpack(source.take(layout.size)), strict=True))
        for name in durations:
            values[name] = _duration(values[name])

    return step


def _duration(milliseconds: int) -> timedelta:
    if abs(milliseconds) > _MILLISECONDS_MAX:
        raise InvalidRequest(f"a duration of {milliseconds} ms")
    return timedelta(milliseconds=milliseconds)


def _value_reader(field: dataclasses.Field[Any], flexible: bool) -> _Read:
    """Reads one field that is no neighbour of others of fixed size."""
    inner, optional = field.type, False
    if get_origin(inner) is UnionType:
        optional = True
        inner = next(each for each in get_args(inner) if each is not type(None))
    kafka_type = field.metadata.get("kafka_type", "")
    if get_origin(inner) is tuple:
        element = get_args(inner)[0]
        one = _element_reader(element, kafka_type, flexible, optional=False)
        return _array_reader(one, field.name, flexible, optional)
    return _element_reader(inner, kafka_type, flexible, optional=optional, name=field.name)


def _is_array(kind: Any) -> bool:
    if get_origin(kind) is UnionType:
        return any(_is_array(each) for each in get_args(kind))
    return get_origin(kind) is tuple


def _array_reader(one: _Read, name: str, flexible: bool, optional: bool) -> _Read:
    def array(source: _Input) -> Any:
        count = source.count(flexible)
        if count < 0:
            if optional:
                return None
            raise InvalidRequest(f"{name} is null")
        return tuple([one(source) for _ in range(count)])

    return array


def _element_reader(
    kind: Any, kafka_type: str, flexible: bool, *, optional: bool, name: str = "an entry"
) -> _Read:
    if dataclasses.is_dataclass(kind):
        assert not optional, f"{name} may be null, which no served version has"
        entity: Any = kind
        return _entity_reader(entity)
    if kafka_type in _FIXED:
        return _fixed_reader(kafka_type)
    assert kafka_type in ("string", "bytes", "records"), f"{name} is of Kafka's type {kafka_type}"
    is_text, is_view = kafka_type == "string", kafka_type == "records"

    def variable(source: _Input) -> Any:
        length = source.length(flexible, wide=not is_text)
        if length < 0:
            if optional and length == -1:
                return None
            raise InvalidRequest(f"{name} is null")
        data = source.take(length)
        if is_view:
            return data
        if not is_text:
            return bytes(data)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest(f"{name} is no text") from None

    return variable


def _fixed_reader(kafka_type: str) -> _Read:
    layout = struct.Struct(">" + _FIXED[kafka_type])
    is_duration = kafka_type.startswith("timedelta")

    def fixed(source: _Input) -> Any:
        (found,) = layout.unpack(source.take(layout.size))
        return _duration(found) if is_duration else found

    return fixed


def _read_tags(source: _Input, known: dict[int, tuple[str, _Read]], values: dict[str, Any]) -> None:
    """Reads the tagged fields; those that are unknown are passed over."""
    for _ in range(source.varint()):
        tag, length = source.varint(), source.varint()
        at = source.at
        source.take(length)
        if tag not in known:
            continue
        name, value = known[tag]
        behind, source.at = source.at, at
        values[name] = value(source)
        if source.at != behind:
            raise InvalidRequest(f"tagged field {name} has another length than it says")
