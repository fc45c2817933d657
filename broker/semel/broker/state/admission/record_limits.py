"""How large a control record and the names in it may be: pure limits, the same for every request.

How it works. Everything that becomes a control record is asked here before it waits for the
admission (`replica/proposer.py`). A record is one part of one entry, and an entry has at most
`FRAME_BYTES_MAX` bytes; a master that admitted a larger one could not make an entry of it. A name
stays in the memory of every node and in each checkpoint.

Not here: what the names may consist of (`semel.broker.server`), the sizes of batches
(`admission.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from google.protobuf.message import Message

from semel.protos.batch import BATCH_BYTES_MAX
from semel.protos.errors import InvalidRequest
from semel.protos.v1.control_pb2 import ControlRecord

CONTROL_BYTES_MAX: Final = BATCH_BYTES_MAX
"""A control record has at most as many bytes as the largest batch, so the same entries hold it."""
NAME_CHARACTERS_MAX: Final = 249
"""The longest name of a producer, topic, consumer group, member, transaction or query."""

_GROUP: Final = ("group",)
_TRANSACTION: Final = ("transaction_id",)
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "create_queue": ("topic",),
    "create": ("topic",),
    "fence": ("name",),
    "acquire_lock": ("group", "member_id"),
    "release_lock": _GROUP,
    "commit_offsets": _GROUP,
    "reset_offset": _GROUP,
    "delete_group": _GROUP,
    "open_stager": _TRANSACTION,
    "stage_commits": ("transaction_id", "group"),
    "pin": _TRANSACTION,
    "publish": _TRANSACTION,
    "rewrite": _TRANSACTION,
    "drop_pin": _TRANSACTION,
    "begin": ("transaction_id", "query_id"),
    "decide": _TRANSACTION,
    "abort": _TRANSACTION,
    "finish": _TRANSACTION,
}
"""Fields that hold a name, by kind of record, or by step. `forget` names what is known already."""


def record_refusal(record: ControlRecord) -> InvalidRequest | None:
    """Why the record is too large for the log, whatever the state; None if it is not."""
    kind, size = record.WhichOneof("record"), record.ByteSize()
    if size > CONTROL_BYTES_MAX:
        return InvalidRequest(
            f"{kind} would be a record of {size:,} bytes,"
            f" {CONTROL_BYTES_MAX:,} are the most: ask for less at once"
        )
    for what, name in _names(record):
        if len(name) > NAME_CHARACTERS_MAX:
            return InvalidRequest(
                f"the {what} of {kind} has {len(name):,} characters, {NAME_CHARACTERS_MAX} are the"
                f" most: {name[:60]!r}..."
            )
    return None


def _names(record: ControlRecord) -> Iterator[tuple[str, str]]:
    """What each name of the record is called, and the name."""
    holder: Message = record
    kind = record.WhichOneof("record")
    if kind == "transaction":
        holder, kind = record.transaction, record.transaction.WhichOneof("step")
    elif kind == "move_queue":
        yield "source", record.move_queue.source
        holder, kind = record.move_queue, "create"
    for field in _NAMES.get(kind or "", ()):
        yield field.replace("_", " "), getattr(getattr(holder, kind or ""), field)
