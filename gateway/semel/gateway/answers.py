"""Builds responses for whatever version a request has.

kio has classes of its own for each version of each API, and they differ in their fields. A handler
says everything that it knows as plain values; `answer` takes what the request's version has.

    answer(request, error_code=ErrorCode.none, throttle_time=0, topics=[{"name": …}, …])

Entities are mappings, arrays are iterables, durations are milliseconds. What the version lacks is
left out, what is not said has Kafka's default. A field that no served version has is a mistake of
ours, and asserts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Any, Final, get_args, get_origin

from kio.index import load_response_schema
from kio.static.primitive import i32Timedelta, i64Timedelta

from semel.gateway.versions import TABLE, ApiKey

_DURATIONS: Final = (i32Timedelta, i64Timedelta)


def answer(request: Any, /, **values: Any) -> Any:
    """Returns the response to `request`, a kio request of any version. See the module's text."""
    kind = type(request)
    return respond(_response_type(kind.__api_key__, kind.__version__), **values)


def respond(kind: type[Any], /, **values: Any) -> Any:
    """Returns a response of kio's class `kind`. See the module's text."""
    return _build(kind, values)


@cache
def _response_type(key: int, version: int) -> type[Any]:
    return load_response_schema(key, version)


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    inner: Any
    """None, or the class of the entity, or of each entity in the array."""
    is_array: bool
    is_duration: bool
    required: bool


def _build(kind: Any, values: Mapping[str, Any]) -> Any:
    given: dict[str, Any] = {}
    found = 0
    for field in _fields(kind):
        if field.name not in values:
            if field.required:
                assert field.is_duration or field.is_array, f"{kind.__name__} needs {field.name}"
                given[field.name] = timedelta() if field.is_duration else ()
            continue
        found += 1
        given[field.name] = _converted(field, values[field.name])
    if found != len(values):
        unknown = values.keys() - _known(kind.__api_key__, kind.__name__)
        assert not unknown, f"no version of {kind.__name__} has {unknown}"
    return kind(**given)


def _converted(field: _Field, value: Any) -> Any:
    if value is None:
        return None
    if field.is_duration:
        return timedelta(milliseconds=value)
    if field.inner is not None and field.is_array:
        return tuple(_build(field.inner, each) for each in value)
    if field.is_array:
        return tuple(value)
    return value if field.inner is None else _build(field.inner, value)


@cache
def _fields(kind: type[Any]) -> tuple[_Field, ...]:
    return tuple(_read(field) for field in dataclasses.fields(kind))


def _read(field: dataclasses.Field[Any]) -> _Field:
    inner = field.type
    if get_origin(inner) is UnionType:
        inner = next(each for each in get_args(inner) if each is not type(None))
    is_array = get_origin(inner) is tuple
    if is_array:
        inner = get_args(inner)[0]
    return _Field(
        name=field.name,
        inner=inner if dataclasses.is_dataclass(inner) and isinstance(inner, type) else None,
        is_array=is_array,
        is_duration=inner in _DURATIONS,
        required=field.default is dataclasses.MISSING,
    )


@cache
def _known(key: int, name: str) -> frozenset[str]:
    """The names of the fields that an entity of this name has in any served version."""
    served = TABLE[ApiKey(key)]
    versions = range(served.lowest, served.highest + 1)
    roots: list[Any] = [_response_type(key, version) for version in versions]
    return frozenset(
        field.name
        for root in roots
        for kind in _entities(root)
        if kind.__name__ == name
        for field in _fields(kind)
    )


def _entities(kind: Any) -> list[Any]:
    inner: list[Any] = [field.inner for field in _fields(kind) if field.inner is not None]
    return [kind, *(each for child in inner for each in _entities(child))]
