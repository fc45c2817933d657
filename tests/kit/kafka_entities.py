"""Random requests of Kafka's protocol, from kio's schemas."""

from __future__ import annotations

import dataclasses
import random
from datetime import timedelta
from types import UnionType
from typing import Any, Final, get_args, get_origin

_BITS: Final = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "timedelta_i32": 32,
    "timedelta_i64": 48,
}
_NAMES: Final = ("", "orders", "a" * 300, "ünïcode", "with space", "__consumer_offsets")


def random_entity(kind: Any, rng: random.Random) -> Any:
    """Returns an entity with any values that its schema allows."""
    return kind(**{field.name: _value(field, rng) for field in dataclasses.fields(kind)})


def _value(field: dataclasses.Field[Any], rng: random.Random) -> Any:
    inner, optional = field.type, False
    if get_origin(inner) is UnionType:
        optional = True
        inner = next(each for each in get_args(inner) if each is not type(None))
    if optional and rng.random() < 0.3:
        return None
    kafka_type = field.metadata.get("kafka_type", "")
    if get_origin(inner) is tuple:
        element = get_args(inner)[0]
        return tuple(_one(element, kafka_type, rng) for _ in range(rng.choice((0, 1, 1, 2, 5))))
    return _one(inner, kafka_type, rng)


def _one(kind: Any, kafka_type: str, rng: random.Random) -> Any:
    if dataclasses.is_dataclass(kind):
        return random_entity(kind, rng)
    match kafka_type:
        case "string":
            return rng.choice(_NAMES)
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 70, 300)))
        case "bool":
            return rng.random() < 0.5
    bits = _BITS[kafka_type]
    edge = 1 << (bits - 1)
    number = rng.choice((0, 1, -1, edge - 1, -edge, rng.randrange(-edge, edge)))
    return timedelta(milliseconds=number) if kafka_type.startswith("timedelta") else number
