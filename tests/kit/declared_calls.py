"""Requests for every method of every service, made from what the methods declare."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from semel.protos.security.declared import declared
from semel.protos.security.rules import Kind
from semel.protos.v1 import (
    audit_pb2,
    broker_pb2,
    common_pb2,
    controller_pb2,
    login_pb2,
    metadata_store_pb2,
    mirrors_pb2,
    raft_pb2,
    restores_pb2,
    settings_pb2,
    transactions_pb2,
)

FILES: Final = (
    *(audit_pb2, broker_pb2, controller_pb2, login_pb2, metadata_store_pb2, mirrors_pb2),
    *(raft_pb2, restores_pb2, settings_pb2, transactions_pb2),
)
"""The generated modules with services."""
METHODS: list[MethodDescriptor] = [
    method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def path_of(method: MethodDescriptor) -> str:
    """`/SERVICE/METHOD`."""
    return f"/{method.containing_service.full_name}/{method.name}"


def naming(method: MethodDescriptor, names: dict[Kind, str], topic_id: int) -> Message:
    """A request that names a resource wherever it can, and says nothing else."""
    if method.input_type.name == "Frame":
        return common_pb2.Frame()
    request = GetMessageClass(method.input_type)()
    for right in declared(path_of(method)).rights:
        if right.path:
            _set(request, right.path, names[right.kind], topic_id)
    return request


def _set(message: Any, path: tuple[str, ...], name: str, number: int) -> None:
    field = message.DESCRIPTOR.fields_by_name[path[0]]
    inner = getattr(message, path[0])
    if len(path) > 1:
        if field.is_repeated:
            inner = inner[0] if len(inner) else inner.add()
        _set(inner, path[1:], name, number)
        return
    value = name if field.type == field.TYPE_STRING else number
    if field.is_repeated:
        inner.append(value)
    else:
        setattr(message, path[0], value)
