"""A retry of a batch of which messages were dropped gets the lost answer, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.state import Admission, State
from semel.broker.state.apply import dropped_batches
from semel.protos.batch import check_batch
from semel.protos.errors import DedupStateExpired, SemelError, Throttled, Unavailable
from semel.protos.ids import Term
from tests.kit.id_node import IdNode, numbered, proposer_of
from tests.kit.state_log import KEY


class Raw:
    """The answers as they are sent."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, int, bytes]] = []
        self.refused: list[SemelError] = []

    def ack(
        self,
        _: Any,
        status: str,
        offset: int,
        time_us: int,
        dropped: bytes = b"",
        due: object = None,
    ) -> None:
        self.acks.append((status, offset, dropped))

    def refuse(self, _: Any, error: SemelError) -> None:
        self.refused.append(error)

    async def answered(self) -> None:
        while not self.acks and not self.refused:
            await asyncio.sleep(0.001)


@pytest.fixture
async def node() -> AsyncIterator[IdNode]:
    node = IdNode()
    node.begin()
    yield node
    node.ids.close()


async def first(node: IdNode, messages: dict[str, str]) -> tuple[bytes, tuple[str, int, bytes]]:
    """Sends a batch, and returns it and its answer."""
    sink, node.sink = node.sink, Raw()  # type: ignore[assignment]
    data = await node.send(messages)
    node.sink, raw = sink, node.sink
    (ack,) = raw.acks
    return data, ack  # type: ignore[return-value]


async def again(node: IdNode, data: bytes) -> Raw:
    raw = Raw()
    node.ids.submit(check_batch(data), data, raw)
    node.commit()
    await raw.answered()
    return raw


async def test_the_answer_comes_again_from_memory_and_from_disk(node: IdNode) -> None:
    await node.send(numbered(0, 6))
    messages = {"id 1": "v", "new": "v", "id 3": "other", "id 4": "v", "id 5": "v"}
    data, (status, offset, dropped) = await first(node, messages)
    assert (status, offset, len(dropped)) == ("committed", 6, 4 * 32)
    assert (await again(node, data)).acks == [("duplicate", 6, dropped)]
    await node.ids.settle({KEY.topic_id: 7})
    assert node.index.memory_ids == 0
    assert (await again(node, data)).acks == [("duplicate", 6, dropped)]


async def test_so_it_does_for_a_batch_that_was_sent_twice_as_a_whole(node: IdNode) -> None:
    await node.send(numbered(0, 60))
    data = node.batch(numbered(10, 50))
    whole, answer = await first(node, numbered(10, 50))
    assert whole == data
    assert (await again(node, whole)).acks == [("duplicate", 60, answer[2])]
    window = node.window.dropped
    assert window.bytes == dropped_batches.BATCH.size + dropped_batches.STRETCH.size


async def test_a_retry_in_flight_is_answered_with_its_first(node: IdNode) -> None:
    await node.send(numbered(0, 3))
    sink = node.sink = Raw()  # type: ignore[assignment]
    data = await node.send(numbered(2, 5), commit=False)
    node.propose()
    node.ids.submit(check_batch(data), data, sink)
    await asyncio.sleep(0.01)
    node.propose()
    assert not sink.acks
    node.commit()
    (one, two) = sink.acks
    assert (one[0], two[0]) == ("committed", "duplicate")
    assert one[1:] == two[1:]
    assert one[2]


async def test_another_master_and_a_node_that_starts_again_give_the_same(node: IdNode) -> None:
    await node.send(numbered(0, 20))
    data, answer = await first(node, {**numbered(15, 25), "id 2": "other"})
    slave = IdNode()
    for frame in node.frames:
        slave.follow(frame)
    await node.ids.settle({KEY.topic_id: node.window.next_arrival})
    restarted = IdNode(node.store, state=State.from_bytes(b"".join(node.state.to_parts())))
    restarted.ids.follow()
    for other in (slave, restarted):
        assert not other.ids.behind
        other.proposer = proposer_of(other.ids, Admission(other.state, term=Term(1)))
        assert (await again(other, data)).acks == [("duplicate", *answer[1:])]
        other.ids.close()


async def test_it_comes_while_nothing_can_be_appended(node: IdNode) -> None:
    await node.send(numbered(0, 3))
    data, answer = await first(node, numbered(2, 5))
    raw = Raw()
    node.ids.submit(check_batch(data), data, raw)
    assert node.proposer is not None
    node.proposer.refuse_pending(Unavailable("the disk is full"))
    await raw.answered()
    assert raw.acks == [("duplicate", *answer[1:])]


async def test_what_the_window_has_left_behind_or_forgotten_is_not_guessed(node: IdNode) -> None:
    await node.send(numbered(0, 4))
    data, _ = await first(node, numbered(3, 6))
    other, answer = await first(node, numbered(5, 8))
    assert node.proposer is not None
    node.proposer.submit_eviction(KEY.topic_id, 4)
    node.commit()
    (error,) = (await again(node, data)).refused
    assert isinstance(error, DedupStateExpired)
    assert "not known any more" in str(error)
    assert (await again(node, other)).acks == [("duplicate", *answer[1:])]
    node.window.dropped._packed.clear()
    (error,) = (await again(node, other)).refused
    assert isinstance(error, DedupStateExpired)


async def test_a_place_that_cannot_be_read_lets_the_producer_wait(
    node: IdNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.send(numbered(0, 4))
    data, _ = await first(node, numbered(3, 6))

    def broken(_: Any) -> Any:
        raise OSError("no such block")

    monkeypatch.setattr(node.index, "places_of", broken)
    (error,) = (await again(node, data)).refused
    assert isinstance(error, Throttled)
    assert not node.ids.behind

    def damaged(_: Any) -> Any:
        raise CorruptIndex("a block is damaged")

    monkeypatch.setattr(node.index, "places_of", damaged)
    (error,) = (await again(node, data)).refused
    assert isinstance(error, Throttled)
    assert node.ids.behind
