"""The calls that stand in the audit log once they are done, and what their line tells.

How it works. Changes by operators are a class of calls (v1/isolation.proto); those of them that
clients may make are audited, with the request's plain fields. Texts and bytes of messages, nested
ones and lists are left out: a line says what was done, not all of how.

Not here: refusals (`enforcement.py`); changes of rules, users and quotas, which the controllers
tell one by one (`controller/server.py`).
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from semel.protos.call_classes import class_of
from semel.protos.v1 import isolation_pb2

TOLD_ELSEWHERE: Final = ("ChangeRights", "ChangeUser", "ChangeQuotas")
"""Methods whose handlers write lines of their own."""
READING: Final = ("Describe", "List")
"""Begins of the names of methods that change nothing."""
HIDDEN: Final = ("cluster_id", "password")
"""Fields that say nothing of interest, or that nobody may read."""


def is_audited(method: str) -> bool:
    """`/SERVICE/METHOD` is a change by an operator that nobody else writes down."""
    name = method.rpartition("/")[2]
    return (
        class_of(method) == isolation_pb2.CALL_CLASS_ADMIN
        and name not in TOLD_ELSEWHERE
        and not name.startswith(READING)
    )


def told_of(request: Message) -> str:
    """The plain fields of a request: `name=orders queues=8`; each text on one line."""
    return " ".join(
        f"{field.name}={value!r}" if isinstance(value, str) else f"{field.name}={value}"
        for field, value in request.ListFields()
        if field.name not in HIDDEN
        and not field.is_repeated
        and field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_BYTES)
    )
