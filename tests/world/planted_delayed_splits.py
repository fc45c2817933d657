"""Planted bugs of delayed messages that are handed to the children of a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from semel.broker.background import delayed_parting
from semel.broker.state.admission import admission
from semel.broker.state.apply import parted, state_machine
from semel.broker.state.apply.delayed_extent import DelayedExtent
from semel.broker.state.apply.delays import Delays
from semel.protos.parted_rows import part_rows

EARLY_US = 300_000


def _plants(*plants: Any) -> AbstractContextManager[object]:
    stack = ExitStack()
    for each in plants:
        stack.enter_context(each)
    return stack


def _unchecked(*plants: Any) -> AbstractContextManager[object]:
    """Apply does not look whether parts fit."""
    return _plants(patch.object(parted, "misfit", lambda *_: None), *plants)


def children_do_not_wait() -> AbstractContextManager[object]:
    """A child releases what comes after the batches that its parent still holds."""
    return _plants(
        patch.object(admission, "held_before", lambda *_: None),
        patch.object(state_machine, "held_before", lambda *_: None),
    )


def parts_are_early() -> AbstractContextManager[object]:
    def early(due_us: int, *rest: Any) -> DelayedExtent:
        return DelayedExtent(due_us - EARLY_US, *rest)

    return _unchecked(patch.object(parted, "DelayedExtent", early))


def parts_are_released_twice() -> AbstractContextManager[object]:
    """A part waits still, under another number, when it is released."""
    original = Delays.insert

    def insert(self: Any, key: Any, extent: Any) -> None:
        original(self, key, extent)
        if extent.ordinal < self.next_ordinal - 1:  # it has its number from the parent
            original(self, key, extent._replace(ordinal=self.next_ordinal))
            self.next_ordinal += 1

    return patch.object(Delays, "insert", insert)


def parts_get_their_own_numbers() -> AbstractContextManager[object]:
    """A part comes after what the child has taken itself."""
    original = parted.apply_part

    def apply_part(record: Any, queues: Any, delays: Any, *rest: Any) -> Any:
        real = Delays.insert

        def insert(self: Any, key: Any, extent: Any) -> None:
            real(self, key, extent._replace(ordinal=self.next_ordinal))
            self.next_ordinal += 1

        with patch.object(Delays, "insert", insert):
            return original(record, queues, delays, *rest)

    return patch.object(state_machine, "apply_part", apply_part)


def a_row_is_lost() -> AbstractContextManager[object]:
    """The last child of those that have rows of a batch gets none."""

    def bad(*args: Any, **how: Any) -> Any:
        found = part_rows(*args, **how)
        return found[:-1] if len(found) > 1 else found

    return _unchecked(patch.object(delayed_parting, "part_rows", bad))


def cancelled_rows_come_back() -> AbstractContextManager[object]:
    """Nobody looks whether messages were cancelled."""

    def bad(batch: bytes, _: Any, *rest: Any, **how: Any) -> Any:
        return part_rows(batch, (), *rest, **how)

    return _unchecked(
        patch.object(delayed_parting, "part_rows", bad),
        patch.object(Delays, "leave_out", lambda *_: None),
    )


Plant = Callable[[], AbstractContextManager[object]]
PLANTS: dict[str, tuple[Plant, str, Sequence[int]]] = {
    "children do not wait": (children_do_not_wait, "out of order", range(7, 30)),
    "parts are early": (parts_are_early, "early: what is due", range(20)),
    "parts are released twice": (parts_are_released_twice, "are released", range(1, 20)),
    "parts get numbers of their own": (
        parts_get_their_own_numbers,
        "out of order",
        range(1, 20),
    ),
    "a row is lost": (a_row_is_lost, "the parts have", range(20)),
}
"""For worlds in which queues are split and messages are delayed. Each with words of its error, and
seeds of which one at least finds it."""
PLANTS_OF_IDS: dict[str, tuple[Plant, str, Sequence[int]]] = {
    "cancelled rows come back": (cancelled_rows_come_back, "the parts have", range(5, 30)),
}
"""For worlds whose topics compare ids."""
