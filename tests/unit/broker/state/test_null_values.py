"""Batches with null values are taken from the feature level on that knows them."""

from __future__ import annotations

from dataclasses import replace

from semel.broker.state import Accepted, Refused
from semel.protos.batch import BatchFlags
from semel.protos.errors import UnsupportedVersion
from semel.protos.levels import NULL_LEVEL
from tests.kit.state_log import KEY, Group, header


def test_below_the_level_null_values_are_refused() -> None:
    group = Group()
    group.raise_level(NULL_LEVEL - 1)
    group.fence()
    before = group.state.digest()
    head = header(-1)
    head = replace(head, flags=head.flags | BatchFlags.NULL_VALUES)
    decision = group.produce(head)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, UnsupportedVersion)
    assert decision.error.level == NULL_LEVEL
    assert group.state.digest() == before
    group.raise_level(NULL_LEVEL)
    assert isinstance(group.produce(head), Accepted)
    assert group.state.queues[KEY].log_end_offset == 1
