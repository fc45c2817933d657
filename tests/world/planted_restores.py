"""Bugs of restores to plant; worlds of two lives must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from semel.broker.background.tier_facts import TierFacts
from semel.broker.server import restores_service
from semel.broker.state import Delays, ProducerState, make_slice, read_slice
from semel.broker.state.apply import restored
from semel.broker.state.apply.rows import Row


@contextmanager
def counts_lost_messages_as_stored() -> Iterator[None]:
    """Producers' rows stay as they were: what is lost and sent again is taken for a duplicate."""
    cut = restored.cut_row
    with patch.object(restored, "cut_row", lambda row, end: cut(row, None)):
        yield


@contextmanager
def forgets_what_is_stored() -> Iterator[None]:
    """Rows of queues that lost something begin anew: what is stored and sent again comes twice."""
    cut = restored.cut_row

    def lax(row: ProducerState, end: int | None) -> Row | None:
        if end is None:
            return cut(row, None)
        return Row(row.epoch, row.session, row.last_time_us)

    with patch.object(restored, "cut_row", lax):
        yield


@contextmanager
def publishes_before_the_facts() -> Iterator[None]:
    """A manifest's pointer is in the store, and no facts name it."""

    def is_current(self: TierFacts, queue: Any) -> bool:
        return queue.key in self._noted

    with patch.object(TierFacts, "_is_current", is_current):
        yield


@contextmanager
def keeps_progress_beyond_the_end() -> Iterator[None]:
    """Groups go on where they were, though the messages there are lost: they skip what comes."""
    original = restored.restore_slice

    def restore(*arguments: Any, **options: Any) -> Any:
        cut = original(*arguments, **options)
        found = read_slice(cut.slice)
        known = {name: state.committed_offset for name, _, state in cut.source.groups.states()}
        for name, _, state in found.groups.states():
            state.committed_offset = known[name]
        parts = found.queue, found.producers, found.groups
        made = make_slice(*parts, Delays(), options["level"])
        return cut._replace(slice=made)

    original = restored.restore_slice
    with patch.object(restores_service, "restore_slice", restore):
        yield
