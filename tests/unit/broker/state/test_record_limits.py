"""No control record is larger than an entry, and no name that stays in the state is too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from semel.broker.state import record_refusal
from semel.broker.state.admission.record_limits import CONTROL_BYTES_MAX, NAME_CHARACTERS_MAX
from semel.protos.errors import InvalidRequest
from semel.protos.levels import MOVE_LEVEL
from semel.protos.v1.control_pb2 import ControlRecord, FeatureLevel, MoveQueue
from tests.unit.broker.state.in_flight import Master, control, run


def names(descriptor: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path to each field of text."""
    for field in descriptor.fields:
        here = (*path, field.name)
        if field.type == FieldDescriptor.TYPE_STRING:
            yield here
        elif field.message_type is not None:
            yield from names(field.message_type, here)


KNOWN = ("transaction", "forget", "transaction_ids")
"""Filled in by the broker itself, with ids that it knows."""
NAMES = [path for path in names(ControlRecord.DESCRIPTOR) if path != KNOWN]


def named(path: tuple[str, ...], name: str) -> ControlRecord:
    record: Any = ControlRecord()
    holder = record
    for field in path[:-1]:
        holder = getattr(holder, field)
    setattr(holder, path[-1], name)
    return record  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", NAMES, ids=".".join)
def test_every_name_of_every_record_is_bounded(path: tuple[str, ...]) -> None:
    assert record_refusal(named(path, "\U0001f600" * NAME_CHARACTERS_MAX)) is None
    refusal = record_refusal(named(path, "x" * (NAME_CHARACTERS_MAX + 1)))
    assert isinstance(refusal, InvalidRequest)
    assert f"has 250 characters, {NAME_CHARACTERS_MAX} are the most" in str(refusal)


def sized(length: int) -> ControlRecord:
    """A record of this many bytes."""
    record = ControlRecord(move_queue=MoveQueue(part=bytes(length - 16)))
    record.move_queue.part += bytes(length - record.ByteSize())
    assert record.ByteSize() == length
    return record


def test_the_largest_record_fits_an_entry_and_a_larger_one_never_waits() -> None:
    async def play() -> None:
        master = Master()
        proposer = master.proposer
        future = proposer.submit_control(sized(CONTROL_BYTES_MAX + 1))
        assert not proposer.waiting
        error = future.exception()
        assert isinstance(error, InvalidRequest)
        assert f"{CONTROL_BYTES_MAX:,} are the most" in str(error)

        assert master.ask(control(feature_level=FeatureLevel(level=MOVE_LEVEL)))
        master.apply()
        assert master.ask(control(move_queue=sized(CONTROL_BYTES_MAX).move_queue))

    run(play())
