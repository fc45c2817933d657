"""Bugs of mirrors to plant; worlds of two sites must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from semel.broker.server import mirror_source
from semel.broker.state import SequenceTable, make_slice, read_slice
from semel.broker.state.apply import mirrored
from semel.client.core.mirroring import QueueMirror, TopicMirror
from semel.protos.v1 import control_pb2


@contextmanager
def keeps_what_is_behind_the_slice() -> Iterator[None]:
    """A promotion keeps the copies behind the settled slice."""
    with patch.object(mirrored, "_cut", lambda queue, end: None):
        yield


@contextmanager
def settles_without_looking() -> Iterator[None]:
    """The last batch of an answer is lost on the way, and its slice settles all the same."""
    on_read = QueueMirror.on_read

    def lossy(self: QueueMirror, now: float, read: Any, *, may_settle: bool) -> Any:
        bring = on_read(self, now, read, may_settle=may_settle)
        if bring is not None and bring.slice_bytes and bring.batches:
            del bring.batches[-1]
        return bring

    with (
        patch.object(QueueMirror, "on_read", lossy),
        patch.object(mirrored, "_misfit", lambda *_: None),
    ):
        yield


@contextmanager
def keeps_the_first_slice() -> Iterator[None]:
    """A promotion takes the first slice that has settled, and none of the later ones."""
    settle = mirrored._STEPS[control_pb2.MOVE_STEP_SETTLE]

    def once(moves: Any, record: Any, key: Any, home: Any) -> Any:
        incoming = moves.incoming.get(key)
        mirror = None if incoming is None else incoming.mirror
        before = None if mirror is None else (mirror.settled, mirror.settled_end)
        found = settle(moves, record, key, home)
        if mirror is not None and before is not None and before[0]:
            mirror.settled, mirror.settled_end = before
        return found

    steps = {**mirrored._STEPS, control_pb2.MOVE_STEP_SETTLE: once}
    with patch.object(mirrored, "_STEPS", steps):
        yield


@contextmanager
def forgets_producers() -> Iterator[None]:
    """A slice has no rows of producers: what they send again is stored a second time."""

    def make(queue: Any, _: Any, *others: Any) -> bytes:
        return make_slice(queue, SequenceTable(), *others)

    with patch.object(mirror_source, "make_slice", make):
        yield


@contextmanager
def lets_groups_run_ahead() -> Iterator[None]:
    """A slice says of each consumer group that it has read everything."""

    def make(queue: Any, producers: Any, groups: Any, delays: Any, level: int) -> bytes:
        found = read_slice(make_slice(queue, producers, groups, delays, level))
        for _, _, state in found.groups.states():
            state.committed_offset = queue.log_end_offset
        return make_slice(queue, producers, found.groups, delays, level)

    with patch.object(mirror_source, "make_slice", make):
        yield


@contextmanager
def gives_tokens_out_again() -> Iterator[None]:
    """Tokens of locks go on where the source's stood, which may have given out more of them."""
    with patch.object(mirrored, "TOKEN_STEP", 0):
        yield


@contextmanager
def settles_parents_first() -> Iterator[None]:
    """The slice of a queue that was split settles before its children have one."""
    with patch.object(TopicMirror, "may_settle", lambda *_: True):
        yield


@contextmanager
def forgets_what_is_delayed() -> Iterator[None]:
    """The source tells of delayed batches that they are all there, and brings none."""
    read = mirror_source.MirrorSource._delayed

    def none(self: Any, queue: Any, ordinal: int, bytes_max: int) -> Any:
        found = read(self, queue, ordinal, bytes_max)
        return found._replace(extents=[])

    with (
        patch.object(mirror_source.MirrorSource, "_delayed", none),
        patch.object(mirrored, "_misfit", lambda *_: None),
    ):
        yield
