"""ListOffsets tells when a message was appended: when it got its offset, not when it was stored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.server.queue_calls import QueueCalls
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from tests.kit.state_log import KEY, START_US, Group, header
from tests.unit.broker.server.lone_master import Master
from tests.unit.broker.state.delaying import SECOND_US, delaying_group, late

LATER_US = START_US + 7 * SECOND_US


@pytest.fixture
def group() -> Group:
    """Offsets 0 to 1 were stored at once; 2 to 4 were delayed, and released seven seconds later."""
    made = delaying_group()
    made.produce(late(-1, 5, last=2))
    made.produce(header(2, last=4))
    made.now_us = LATER_US
    assert made.release() is not None
    return made


async def append_time_us(group: Group, offset: int | None) -> int:
    replica: Any = Master(group.state)
    nothing: Any = SimpleNamespace()
    request = broker_pb2.ListOffsetsRequest(queues=[queue_ref(KEY)], offset=offset)
    (found,) = (await QueueCalls(nothing, replica, nothing).ListOffsets(request, None)).queues
    assert (found.log_start_offset, found.high_watermark) == (
        group.state.queues[KEY].log_start_offset,
        5,
    )
    return found.append_time_us


@pytest.mark.parametrize(
    ("offset", "time_us"),
    [(0, START_US), (1, START_US), (2, LATER_US), (4, LATER_US), (5, 0), (-1, 0), (None, 0)],
)
async def test_the_time_is_that_of_the_offset(
    group: Group, offset: int | None, time_us: int
) -> None:
    assert await append_time_us(group, offset) == time_us


async def test_a_message_that_was_trimmed_has_no_time(group: Group) -> None:
    group.state.queues[KEY].trim(3)
    assert await append_time_us(group, 2) == 0
    assert await append_time_us(group, 3) == LATER_US
