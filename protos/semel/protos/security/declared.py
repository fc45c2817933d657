"""What a call needs, as its method's option `access` declares it (v1/security.proto).

How it works. `declared` reads the option of a method once. `Declared.needs` finds in a request the
resources that it names, and says which action on each the caller needs. `Declared.told` is the
reply without the elements that tell of what the caller may not describe. A resource may be named
by a number (a topic's id): whoever decides looks up its name. Methods of other people's services
(`foreign_calls.py`) are *public*: whoever reaches the port may call them.

Invariants
1. A method of ours without a declaration is not called by anybody: `declared` raises.
2. A reply of which nothing has to be left out is the same object, and no reply is changed in place:
   a server may give one object to several callers.

Not here: who the caller is and what it may do (`enforcement.py`), what the actions mean
(`rules.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from semel.protos.errors import InvalidRequest
from semel.protos.foreign_calls import FOREIGN
from semel.protos.method_lookup import find_method
from semel.protos.security.rules import ACTIONS_OF, Action, Kind
from semel.protos.v1 import security_pb2 as pb

M = TypeVar("M", bound=Message)

ACCESS: Final[Any] = pb.access
"""The option; the generated stub names its type too vaguely for Extensions."""

Name = str | int
"""How a message names a resource; a number for an id."""


class Need(NamedTuple):
    """One action on one resource."""

    action: Action
    kind: Kind
    name: Name


class DeclarationError(Exception):
    """A method has no declaration, or one that cannot be meant; a bug of the .proto files."""


@dataclass(frozen=True, slots=True)
class _Right:
    action: Action
    kind: Kind
    path: tuple[str, ...]
    unnamed: pb.Unnamed


@dataclass(frozen=True, slots=True)
class _Shown:
    field: str
    kind: Kind
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The declaration of one method."""

    method: str
    """`/SERVICE/METHOD`."""
    nodes: frozenset[str]
    """Kinds of nodes (`broker`, `controller`) that may call it whatever the rules say."""
    anybody: bool
    """Every caller that has proved who it is may call it."""
    each_message: bool
    """The rights are needed for each message of the request's stream."""
    rights: tuple[_Right, ...]
    shows: tuple[_Shown, ...]
    public: bool = False
    """Everybody may call it, also who has not proved who they are. No method of ours is."""

    @property
    def for_nodes_only(self) -> bool:
        """No caller but the nodes may call it."""
        return not (self.rights or self.anybody or self.public)

    def needs(self, request: Message) -> list[Need]:
        """What a caller needs for `request`; each once. Raises InvalidRequest if it names no
        resource where it must."""
        found: dict[Need, None] = {}
        for right in self.rights:
            if right.kind is Kind.CLUSTER:
                found[Need(right.action, right.kind, "")] = None
                continue
            named = False
            for name in _values(request, right.path):
                if name != "":
                    named = True
                    found[Need(right.action, right.kind, name)] = None
            if not named and right.unnamed == pb.UNNAMED_REFUSED:
                raise InvalidRequest(
                    f"the request names no {right.kind.value}: set {'.'.join(right.path)}"
                )
        return list(found)

    def told(self, reply: M, visible: Callable[[Kind, Name], bool]) -> M:
        """`reply`, or a copy without the elements that tell of what is not `visible`."""
        told = reply
        for shown in self.shows:
            elements = getattr(told, shown.field)
            kept = [
                element
                for element in elements
                if all(visible(shown.kind, name) for name in _values(element, shown.path))
            ]
            if len(kept) < len(elements):
                fewer = type(reply)()
                fewer.CopyFrom(told)
                fewer.ClearField(shown.field)
                getattr(fewer, shown.field).extend(kept)
                told = fewer
        return told


@functools.cache
def declared(method: str) -> Declared:
    """The declaration of `/SERVICE/METHOD`. Raises DeclarationError, also for a method that no
    .proto file has."""
    if method in FOREIGN:
        return _public(method)
    found = find_method(method)
    if found is None:
        raise DeclarationError(f"{method} is no method of a .proto file")
    return declaration_of(found)


def declaration_of(method: MethodDescriptor) -> Declared:
    """The declaration in a method's options. Raises DeclarationError with all that is wrong with
    it."""
    where = f"/{method.containing_service.full_name}/{method.name}"
    options = method.GetOptions()
    if not options.HasExtension(ACCESS):
        raise DeclarationError(f"{where} declares no access: add `option (access)`")
    access: pb.Access = options.Extensions[ACCESS]
    problems = [f"{where}: {problem}" for problem in _problems(access, method)]
    if problems:
        raise DeclarationError("\n".join(problems))
    return Declared(
        method=where,
        nodes=frozenset(NODE_KINDS[kind] for kind in access.nodes),
        anybody=access.anybody,
        each_message=access.each_message,
        rights=tuple(
            _Right(
                _ACTIONS[right.action], _KINDS[right.resource], _path(right.field), right.unnamed
            )
            for right in access.rights
        ),
        shows=tuple(
            _Shown(shown.field, _KINDS[shown.resource], _path(shown.name)) for shown in access.shows
        ),
    )


def _public(method: str) -> Declared:
    return Declared(
        method=method,
        nodes=frozenset(),
        anybody=False,
        each_message=False,
        rights=(),
        shows=(),
        public=True,
    )


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower().replace("_", "-")


_ACTIONS: Final = {
    number: Action(_word(name, "ACTION_")) for name, number in pb.Action.items() if number
}
_KINDS: Final = {
    number: Kind(_word(name, "RESOURCE_KIND_"))
    for name, number in pb.ResourceKind.items()
    if number
}
NODE_KINDS: Final = {
    number: _word(name, "NODE_KIND_") for name, number in pb.NodeKind.items() if number
}
NUMBERED: Final = (Kind.TOPIC, Kind.TRANSACTION, Kind.PRODUCER)
"""Kinds whose resources a message may name by a number."""


def _path(field: str) -> tuple[str, ...]:
    return tuple(field.split(".")) if field else ()


def _values(value: Any, path: tuple[str, ...]) -> Iterator[Name]:
    """The names at `path`, each as often as it stands there."""
    if not path:
        yield value
        return
    inner = getattr(value, path[0])
    if isinstance(inner, (str, int, Message)):
        yield from _values(inner, path[1:])
    else:
        for element in inner:
            yield from _values(element, path[1:])


# --- what can be wrong with a declaration --------------------------------------------------------


def _problems(access: pb.Access, method: MethodDescriptor) -> Iterator[str]:
    if not (access.nodes or access.rights or access.anybody):
        yield "nobody may call it"
    if access.anybody and access.rights:
        yield "everybody may call it, so it needs no rights"
    if access.each_message and not (method.client_streaming and access.rights):
        yield "rights for each message need a stream of requests, and rights"
    for node in access.nodes:
        if node not in NODE_KINDS:
            yield f"{node} is no kind of node"
    for right in access.rights:
        yield from _problems_of_right(right, access, method)
    for shown in access.shows:
        field = method.output_type.fields_by_name.get(shown.field)
        if shown.resource not in _KINDS:
            yield "a shown resource has no kind"
        elif field is None or not field.is_repeated:
            yield f"{shown.field!r} is no repeated field of the reply"
        else:
            yield from _problems_of_path(_kinds_at(field, _path(shown.name)), shown.resource)


def _problems_of_right(
    right: pb.Right, access: pb.Access, method: MethodDescriptor
) -> Iterator[str]:
    if right.action not in _ACTIONS or right.resource not in _KINDS:
        yield "a right lacks its action or its resource"
        return
    action, kind = _ACTIONS[right.action], _KINDS[right.resource]
    if action not in ACTIONS_OF[kind]:
        yield f"nobody can {action.value} a {kind.value}"
    if (kind is Kind.CLUSTER) is bool(right.field):
        yield f"a right on a {kind.value} is declared with the field {right.field!r}"
    elif kind is not Kind.CLUSTER and method.input_type.name != "Frame":  # a frame is bytes
        first, *rest = _path(right.field)
        field = method.input_type.fields_by_name.get(first)
        yield from _problems_of_path(
            "" if field is None else _kinds_at(field, tuple(rest)), right.resource, right.field
        )
    if right.unnamed == pb.UNNAMED_VISIBLE and not any(
        shown.resource == right.resource for shown in access.shows
    ):
        yield f"without a name it tells of every {kind.value}, and `shows` leaves none out"


def _problems_of_path(found: str, resource: pb.ResourceKind, path: str = "") -> Iterator[str]:
    if found == "name" or (found == "number" and _KINDS[resource] in NUMBERED):
        return
    yield f"{path or 'a shown name'} does not name a {_KINDS[resource].value}"


def _kinds_at(field: FieldDescriptor, path: Iterable[str]) -> str:
    """What stands at `path` behind `field`: a name, a number, or nothing that names something."""
    for name in path:
        inner: Descriptor | None = field.message_type
        if inner is None or name not in inner.fields_by_name:
            return ""
        field = inner.fields_by_name[name]
    if field.type == FieldDescriptor.TYPE_STRING:
        return "name"
    numbers = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_UINT32)
    return "number" if field.type in numbers else ""
