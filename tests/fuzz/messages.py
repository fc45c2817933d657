"""Requests of every call, made at random from the descriptors of the `.proto` files.

How it works. A field is left out, or gets a value of its type: one that decoders and rules stumble
over, or one of the *hints*, which are the ids and names that mean something to the servers. So
most requests are nonsense, and some reach what lies behind the first check. Some are sent with
their bytes changed.

Not here: who sends them (`assault.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor import ServiceDescriptor as Service
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from semel.protos.v1 import (
    audit_pb2,
    broker_pb2,
    controller_pb2,
    login_pb2,
    metadata_store_pb2,
    mirrors_pb2,
    raft_pb2,
    restores_pb2,
    settings_pb2,
    transactions_pb2,
)
from tests.fuzz.mutation import mutated

FILES: Final = {
    "broker": (
        *(audit_pb2, broker_pb2, mirrors_pb2, raft_pb2, restores_pb2),
        *(settings_pb2, transactions_pb2),
    ),
    "controller": (audit_pb2, controller_pb2, metadata_store_pb2, settings_pb2),
    "login": (login_pb2,),
}
"""Generated modules with the services of a port."""
_DEPTH_MAX: Final = 4
_TRIES: Final = 10
_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_SINT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_SFIXED32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_FIXED32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_SINT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_SFIXED64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.TYPE_FIXED64: (0, (1 << 64) - 1),
}
_NUMBERS: Final = (-1, 0, 1, 2, 3, 5, 100, 1_000, 65_535, 65_536, 1 << 20, 1 << 31, 1 << 40)
_TEXTS: Final = ("", "a", "ä", "\0", "..", "a/b", "x" * 249, "x" * 250, "127.0.0.1:1", "\n", " ")


class Call(NamedTuple):
    """One method of a service."""

    path: str
    request: Descriptor
    streams_in: bool
    streams_out: bool


def calls_of(files: Sequence[Any]) -> list[Call]:
    """All methods of all services in these generated modules."""
    services: Iterator[Service] = (
        service for file in files for service in file.DESCRIPTOR.services_by_name.values()
    )
    return [
        Call(
            f"/{service.full_name}/{method.name}",
            method.input_type,
            method.client_streaming,
            method.server_streaming,
        )
        for service in services
        for method in service.methods
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Values that mean something to the servers, by the name of the field."""

    values: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def of(self, name: str) -> tuple[Any, ...]:
        return self.values.get(name, ())


def request_bytes(
    rng: random.Random,
    call: Call,
    hints: Hints,
    may_send: Callable[[str, Any], bool] = lambda *_: True,
) -> bytes:
    """The bytes of one request; `may_send` gets the name of its method and the message."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(200))
    name = call.path.rpartition("/")[2]
    for _ in range(_TRIES):
        message = random_message(rng, call.request, hints)
        if may_send(name, message):
            break
    else:
        message = GetMessageClass(call.request)()
    data: bytes = message.SerializeToString()
    if rng.random() >= 0.1:
        return data
    changed = mutated(rng, data, [data])
    try:
        message = GetMessageClass(call.request).FromString(changed)
    except DecodeError:
        return changed
    return changed if may_send(name, message) else data


def random_message(rng: random.Random, kind: Any, hints: Hints, depth: int = 0) -> Any:
    """A message of this type."""
    message = GetMessageClass(kind)()
    chosen = {one.name: rng.choice(one.fields).name for one in kind.oneofs}
    fill = rng.choice((0.3, 0.7, 0.95, 1.0))
    for each in kind.fields:
        oneof = each.containing_oneof
        if oneof is not None and chosen[oneof.name] != each.name:
            continue
        if rng.random() >= fill:
            continue
        if each.type == FieldDescriptor.TYPE_MESSAGE:
            _fill_message(rng, message, each, hints, depth)
        elif each.is_repeated:
            count = rng.choice((0, 1, 1, 2, 3, 50))
            getattr(message, each.name).extend(_value(rng, each, hints) for _ in range(count))
        else:
            setattr(message, each.name, _value(rng, each, hints))
    return message


def _fill_message(
    rng: random.Random, message: Any, each: FieldDescriptor, hints: Hints, depth: int
) -> None:
    if depth >= _DEPTH_MAX:
        return
    inner = each.message_type
    assert inner is not None
    if inner.GetOptions().map_entry:
        return
    if not each.is_repeated:
        getattr(message, each.name).CopyFrom(random_message(rng, inner, hints, depth + 1))
        return
    for _ in range(rng.choice((0, 1, 1, 2, 2, 8))):
        made = random_message(rng, inner, hints, depth + 1)
        getattr(message, each.name).append(made)
        if rng.random() < 0.1:
            getattr(message, each.name).append(made)


def _value(rng: random.Random, each: FieldDescriptor, hints: Hints) -> Any:
    hinted = [value for value in hints.of(each.name) if _fits(each, value)]
    if hinted and rng.random() < 0.8:
        return rng.choice(hinted)
    if each.type in _INTEGERS:
        least, most = _INTEGERS[each.type]
        number = rng.choice((*_NUMBERS, least, most, rng.getrandbits(62)))
        return min(max(number, least), most)
    match each.type:
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            assert each.enum_type is not None
            return rng.choice((*each.enum_type.values_by_number, 99))
        case FieldDescriptor.TYPE_STRING:
            return rng.choice(_TEXTS)
        case FieldDescriptor.TYPE_BYTES:
            return rng.choice((b"", b"\0", rng.randbytes(16), rng.randbytes(300), bytes(70_000)))
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return rng.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
        case kind:
            raise AssertionError(f"no values for type {kind} of {each.full_name}")


def _fits(each: FieldDescriptor, value: Any) -> bool:
    if each.type in _INTEGERS:
        least, most = _INTEGERS[each.type]
        return isinstance(value, int) and least <= value <= most
    wanted = {FieldDescriptor.TYPE_STRING: str, FieldDescriptor.TYPE_BYTES: bytes}.get(each.type)
    return wanted is not None and isinstance(value, wanted)
