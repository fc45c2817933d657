"""The intake of a producer: whatever happens to a topic, each message gets one outcome in time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.config import ProducerConfig, build
from semel.client.core.batching import ROW_BYTES, Chunk, Outcome, Part
from semel.client.producer import producer as producer_module
from semel.client.producer.intake import Intake
from semel.client.producer.producer import ProducerCore
from semel.protos.errors import InternalError, InvalidRequest, TimedOut, UnknownTopic
from semel.protos.ids import QueueId, QueueKey, TopicId


def make_intake(**options: Any) -> Intake:
    return Intake(build(ProducerConfig, options), wake=lambda: None, open_topic=None)


def send(intake: Intake, value: bytes = b"x" * 100) -> Chunk:
    return intake.append("t", value, None, None, None, None, None, True)[0]


def send_many(intake: Intake) -> Chunk:
    place, pieces = intake.bulk_pieces("t", [b"x" * 100], None, None, None, None)
    return intake.append_piece(place, pieces[0], None, True)[0]


def chunks_of(intake: Intake) -> list[Chunk]:
    """What the I/O thread finds."""
    found = []
    for place in intake.on_woken():
        while (chunk := intake.take(place, open_too=True)) is not None:
            found.append(chunk)
    return found


def test_a_message_without_a_value_needs_a_key() -> None:
    intake = make_intake()
    chunk, row = intake.append("t", None, "key", None, None, None, None, True)
    assert (chunk.values[row], chunk.keys[row], chunk.bytes) == (None, b"key", 3 + ROW_BYTES)
    with pytest.raises(InvalidRequest, match="the message has neither value nor key"):
        intake.append("t", None, None, None, None, None, None, True)
    with pytest.raises(InvalidRequest, match="message 1: a null value"):
        intake.bulk_pieces("t", [None, None], [b"k", None], None, None, None)
    _, (piece,) = intake.bulk_pieces("t", [b"x", None], [b"k", b"l"], None, None, None)
    assert piece.columns.values.to_pylist() == [b"x", None]
    assert chunk.count == 1


@pytest.mark.parametrize("enter", [send, send_many])
def test_who_waits_for_room_while_the_topic_is_forgotten_is_found(
    enter: Callable[[Intake], Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to be put into an intake from which nothing is taken."""
    intake = make_intake(buffer_bytes=150)
    first = send(intake)
    second = send(intake)
    assert second is first

    def meanwhile(block: bool) -> None:
        monkeypatch.undo()
        intake._lock.release()
        try:
            assert chunks_of(intake) == [first]
            first.fail(UnknownTopic("deleted"))
            intake.release(first)
            intake.forget("t")
        finally:
            intake._lock.acquire()

    monkeypatch.setattr(intake, "_wait_for_room", meanwhile)
    third = enter(intake)
    assert third is not first
    assert chunks_of(intake) == [third]


def test_an_intake_is_not_forgotten_while_something_waits_in_it() -> None:
    intake = make_intake()
    chunk = send(intake)
    opened: list[str] = []
    intake._open_topic = opened.append
    intake.forget("t")
    assert send(intake) is chunk
    assert opened == ["t"], "the topic is opened anew: a blocking caller is told that it is gone"
    assert chunks_of(intake) == [chunk]
    place = intake.topic("t")
    intake.forget("t")
    assert intake.topic("t") is not place


@pytest.mark.parametrize("where", ["open", "sealed", "behind another", "taken"])
def test_a_chunk_expires_wherever_it_waits(where: str) -> None:
    intake = make_intake(batch_bytes=200)
    chunk = send(intake)
    if where != "open":
        while send(intake) is chunk:
            pass
    place = intake.topic("t")
    if where == "taken":
        assert intake.take(place, open_too=False) is chunk
        chunk.parts = []
    assert intake.expired(chunk.deadline - 1) == []
    found = intake.expired(math.inf)
    assert found[0] is chunk
    assert len(found) == (1 if where == "open" else 2)
    assert chunks_of(intake) == [], "it must not go out any more"
    assert send(intake) not in found, "nothing comes into it any more"


async def test_a_producer_that_can_end_nothing_any_more_fails_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "EXPIRY_CHECK_S", (0.0, 0.0))
    intake = make_intake()

    def spawn(coroutine: Any, name: str) -> asyncio.Task[Any]:
        return asyncio.create_task(coroutine, name=name)

    cluster: Any = SimpleNamespace(spawn=spawn)
    core = ProducerCore(cluster, "", build(ProducerConfig, {}), intake)
    chunk = send(intake)

    def broken(now: float) -> None:
        raise KeyError("a bug")

    core._end_late = broken  # type: ignore[method-assign]
    core.start()
    assert core._expiry is not None
    await asyncio.wait([core._expiry])
    await asyncio.sleep(0)
    assert chunk.outcome is not None
    assert isinstance(chunk.outcome.error, InternalError)


def test_a_producer_ends_what_is_late_in_every_place() -> None:
    """In the intake, in a lane, in a window, or out of all of them while a queue is split."""
    intake = make_intake()
    cluster: Any = SimpleNamespace()
    core = ProducerCore(cluster, "", build(ProducerConfig, {}), intake)
    core._pump_due = True  # nothing goes out by itself
    waiting = send(intake)
    assert send(intake) is waiting
    assert chunks_of(intake) == [waiting]
    key = QueueKey(TopicId(1), QueueId(0))
    parts = [Part(waiting, key, 0, 1, 100), Part(waiting, key, 1, 1, 100)]
    waiting.parts, waiting.open_parts = parts, 2
    core.settle(parts[0], Outcome(base_offset=5))
    inside = Chunk("t", 0, 0.0)
    inside.parts, inside.open_parts = [Part(inside, key, 0, 1, 10)], 1
    core._keep(inside)
    in_the_intake = send(intake)
    core._end_late(math.inf)
    assert in_the_intake.settled
    assert waiting.settled
    assert inside.settled
    assert parts[0].outcome is not None
    assert parts[0].outcome.error is None, "the first outcome stands"
    for outcome in (in_the_intake.outcome, parts[1].outcome, inside.parts[0].outcome):
        assert outcome is not None
        assert isinstance(outcome.error, TimedOut)
    assert intake.outstanding == {}
    assert intake.buffered == 0
