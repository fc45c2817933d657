"""What a queue's reader learns of a split, and that it refuses nothing before it has asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from semel.client.core.routing import QueueRoute
from semel.gateway.fetching.queue_polls import GroupPolls, PollResult
from semel.gateway.fetching.queue_reader import QueueReader
from semel.gateway.fetching.queue_runs import KafkaBatch
from semel.protos.errors import OffsetOutOfRange, Unavailable
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId

ROUTE = QueueRoute(
    key=QueueKey(TopicId(7), QueueId(0)), group_id=GroupId(1), slot_start=0, slot_end=65_536
)
BEYOND = OffsetOutOfRange("beyond", log_start_offset=0, log_end_offset=100)


class Asked:
    """A broker that answers when it is told to."""

    def __init__(self) -> None:
        self.polls: list[tuple[int, int, Callable[[PollResult], None]]] = []
        """Offset, wait and where the answer goes."""
        self.shifts: set[int] = set()

    def ask(
        self,
        key: QueueKey,
        offset: int,
        tell: Callable[[PollResult], None],
        *,
        max_bytes: int,
        shift: int = 0,
        wait_ms: int = 500,
    ) -> None:
        self.polls.append((offset, wait_ms, tell))
        self.shifts.add(shift)

    def answer(self, **result: Any) -> None:
        _, _, tell = self.polls.pop(0)
        tell(PollResult(**result))


@pytest.fixture
def broker() -> Asked:
    return Asked()


@pytest.fixture
def reader(broker: Asked) -> QueueReader:
    made = QueueReader(ROUTE.key, lambda _: cast(GroupPolls, broker), lambda _: None, 40)
    made.listen(cast(Any, type("Event", (), {"set": lambda self: None})()))
    return made


def test_a_poll_at_the_end_of_a_split_queue_tells_its_end(
    reader: QueueReader, broker: Asked
) -> None:
    reader.want(ROUTE, 100)
    assert reader.sealed_end == -1
    broker.answer(high_watermark=100, log_start_offset=0, sealed=True)
    assert reader.sealed_end == 100
    assert not reader.take(100)
    assert broker.shifts == {40}


def test_batches_have_the_queue_s_offsets(reader: QueueReader, broker: Asked) -> None:
    reader.want(ROUTE, 0)
    broker.answer(batches=[KafkaBatch(0, 5, b"data")], high_watermark=5, log_start_offset=0)
    assert reader.has(4)
    assert reader.high_watermark == 5
    assert reader.sealed_end == -1


def test_what_is_beyond_the_end_is_refused_only_if_the_queue_was_not_split(
    reader: QueueReader, broker: Asked
) -> None:
    reader.want(ROUTE, 120)
    broker.answer(error=BEYOND)
    assert [(offset, wait) for offset, wait, _ in broker.polls] == [(100, 0)]
    broker.answer()
    with pytest.raises(OffsetOutOfRange):
        reader.take(120)
    assert not reader.is_polling


def test_a_split_that_another_gateway_has_told_is_no_refusal(
    reader: QueueReader, broker: Asked
) -> None:
    reader.want(ROUTE, 120)
    broker.answer(error=BEYOND)
    broker.answer(high_watermark=100, log_start_offset=0, sealed=True)
    assert not reader.take(120)
    assert reader.sealed_end == 100
    assert not reader.is_polling


def test_nobody_answers_for_the_end(reader: QueueReader, broker: Asked) -> None:
    reader.want(ROUTE, 120)
    broker.answer(error=BEYOND)
    broker.answer(error=Unavailable("no master"))
    with pytest.raises(Unavailable):
        reader.take(120)


def test_what_retention_took_is_refused_at_once(reader: QueueReader, broker: Asked) -> None:
    reader.want(ROUTE, 2)
    broker.answer(error=OffsetOutOfRange("gone", log_start_offset=9, log_end_offset=100))
    assert not broker.polls
    with pytest.raises(OffsetOutOfRange):
        reader.take(2)
