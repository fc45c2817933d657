"""The classes of calls: which calls wait in one line, and how many of them go on at once.

How it works. Each method declares its class in its .proto file (v1/isolation.proto), those of other
people's services in `foreign_calls.py`. Calls that may hold each other up are of one class. What
clients depend on while they produce and consume stands in no line with anything else: streams, what
nodes need of each other, heartbeats and commits.

Calls of a *paced* class begin a few at a time (`call_gates.py`), because the event loop that
answers them also moves the messages.

Beside its class a method declares whether quotas of requests count it (`is_counted`).

Not here: how calls wait (`call_gates.py`), who may call what (`security/declared.py`), how calls
are counted (`security/call_quotas.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor

from semel.protos.foreign_calls import FOREIGN
from semel.protos.method_lookup import find_method
from semel.protos.v1 import isolation_pb2 as pb

CALL_CLASS: Final[Any] = pb.call_class
"""The option; the generated stub names its type too vaguely for Extensions."""
UNCOUNTED: Final[Any] = pb.uncounted


class UndeclaredClass(Exception):
    """A method declares no class; a bug of the .proto files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLimits:
    """What a node takes on of one class."""

    name: str
    """As logs, errors and metrics show it."""
    running_max: int
    """Calls that go on at once; the others wait."""
    paced: bool = True
    """They begin a few at a time."""
    waits: bool = True
    """Calls beyond `running_max` wait; otherwise they are refused."""

    def __post_init__(self) -> None:
        assert self.waits or not self.paced, "whoever must not wait cannot be told to begin later"


LIMITS: Final[Mapping[int, ClassLimits]] = {
    pb.CALL_CLASS_STREAM: ClassLimits(name="stream", running_max=20_000, paced=False, waits=False),
    pb.CALL_CLASS_NODES: ClassLimits(name="nodes", running_max=1_024, paced=False),
    pb.CALL_CLASS_SESSION: ClassLimits(name="session", running_max=4_096, paced=False),
    pb.CALL_CLASS_CONNECT: ClassLimits(name="connect", running_max=32),
    # All that wait for one entry, or one round of heartbeats, go on in the same turn of the loop:
    # this is how many calls may stand before a batch then.
    pb.CALL_CLASS_BEGIN: ClassLimits(name="begin", running_max=32),
    pb.CALL_CLASS_METADATA: ClassLimits(name="metadata", running_max=16),
    pb.CALL_CLASS_LOOK_UP: ClassLimits(name="look-up", running_max=16),
    # They wait for other nodes, for many seconds if those do not answer.
    pb.CALL_CLASS_ADMIN: ClassLimits(name="admin", running_max=64),
    pb.CALL_CLASS_WATCH: ClassLimits(name="watch", running_max=20_000, paced=False, waits=False),
    pb.CALL_CLASS_SCAN: ClassLimits(name="scan", running_max=1),
    pb.CALL_CLASS_COPY: ClassLimits(name="copy", running_max=16),
    pb.CALL_CLASS_HEALTH: ClassLimits(name="health", running_max=16),
}


@functools.cache
def class_of(method: str) -> int:
    """The class of `/SERVICE/METHOD`. Raises UndeclaredClass, also for a method that no .proto file
    has."""
    if method in FOREIGN:
        return FOREIGN[method]
    found = find_method(method)
    if found is None:
        raise UndeclaredClass(f"{method} is no method of a .proto file")
    return declared_class(found)


@functools.cache
def is_counted(method: str) -> bool:
    """Whether quotas of requests count `/SERVICE/METHOD`; False for one that no .proto file of ours
    has."""
    found = None if method in FOREIGN else find_method(method)
    return found is not None and not found.GetOptions().Extensions[UNCOUNTED]


def declared_class(method: MethodDescriptor) -> int:
    """The class in a method's options. Raises UndeclaredClass."""
    declared: int = method.GetOptions().Extensions[CALL_CLASS]
    if declared not in LIMITS:
        raise UndeclaredClass(
            f"/{method.containing_service.full_name}/{method.name} declares no class: add `option"
            " (call_class)`"
        )
    return declared
