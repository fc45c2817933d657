"""Batches with null values, or a context, are taken from the feature level on that knows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.broker.state import Accepted, Refused
from semel.broker.state.admission.batch_limits import batch_refusal
from semel.protos.batch import BatchFlags
from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.levels import CONTEXT_LEVEL, NULL_LEVEL
from semel.protos.staging import STAGER_ID_MIN
from tests.kit.state_log import KEY, START_US, Group, header


@pytest.mark.parametrize(
    ("flag", "level"),
    [(BatchFlags.NULL_VALUES, NULL_LEVEL), (BatchFlags.CONTEXT, CONTEXT_LEVEL)],
)
def test_below_the_level_such_a_batch_is_refused(flag: BatchFlags, level: int) -> None:
    group = Group()
    group.raise_level(level - 1)
    group.fence()
    before = group.state.digest()
    head = header(-1)
    head = replace(head, flags=head.flags | flag)
    decision = group.produce(head)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, UnsupportedVersion)
    assert decision.error.level == level
    assert group.state.digest() == before
    group.raise_level(level)
    assert isinstance(group.produce(head), Accepted)
    assert group.state.queues[KEY].log_end_offset == 1


@pytest.mark.parametrize("producer", [1, STAGER_ID_MIN])
def test_clients_give_no_offsets(producer: int) -> None:
    """Those of staged batches neither: both are asked for in one place."""
    head = header(-1, producer=producer)
    head = replace(head, flags=head.flags | BatchFlags.OFFSET)
    refused = batch_refusal(head, bytes_max=1 << 20, level=NULL_LEVEL, time_us=START_US)
    assert refused is not None
    assert isinstance(refused.error, InvalidRequest)
