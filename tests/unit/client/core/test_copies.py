"""What a queue's owner leaves for the next one about its copies, and how those are looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.core.copies import read_record, record_bytes
from semel.client.core.routing import TopicRoute, topic_route
from semel.client.dead_letters import relay
from semel.protos.errors import (
    Closed,
    DedupStateExpired,
    InvalidRequest,
    ProducerFenced,
    QueueSealed,
    UnknownTopic,
)
from semel.protos.v1 import controller_pb2
from semel.protos.v1.control_pb2 import SplitQueue
from semel.protos.v1.copies_pb2 import CopyAttempt, CopyTarget

OFFSETS = st.sets(st.integers(0, (1 << 62) - 1), max_size=50)


@given(copied=OFFSETS, progress=st.integers(0, 1 << 62), end=st.integers(0, 1 << 62))
def test_a_record_tells_what_is_not_over(copied: set[int], progress: int, end: int) -> None:
    attempt = CopyAttempt(producer_id=7, epoch=1, end=end, targets=[CopyTarget(topic="t")])
    found = read_record(record_bytes(copied, attempt, progress))
    assert found.copied == {offset for offset in copied if offset >= progress}
    assert found.attempt == (attempt if end > progress else None)


def test_a_record_of_nothing_is_nothing() -> None:
    assert record_bytes({1, 2}, CopyAttempt(end=3), 3) == b""
    assert read_record(b"") == read_record(record_bytes((), None, 0))


def test_metadata_of_somebody_else_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="no record of copies"):
        read_record(b"\xff\xff\xff")


def test_neighbours_take_two_bytes_each() -> None:
    assert len(record_bytes(range(10**12, 10**12 + 1_000), None, 0)) < 1_100


# --- ending a producer


class Producers:
    """Fences of one producer, as a broker would judge them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.errors = list(errors)
        self.epochs: list[int] = []
        self.happened: list[str] = []
        self.asked: list[list[int]] = []
        """The queues of each fence."""
        monkeypatch.setattr(relay, "Identity", self)
        monkeypatch.setattr(relay, "_stored_by", self._stored_by)

    def given(self, cluster: Any, name: str, producer_id: int, epoch: int) -> Producers:
        self.epochs.append(epoch)
        return self

    async def fence(self, queues: list[Any], session: int, timeout_s: float, **_: Any) -> list[Any]:
        self.asked.append([queue.key.queue_id for queue in queues])
        if self.errors:
            raise self.errors.pop(0)
        self.happened.append("ended")
        return []

    async def _stored_by(self, *_: Any) -> list[Any]:
        self.happened.append("read")
        return ["copy"]


class Topics:
    """A cluster that has one topic."""

    routes: Any

    class config:  # noqa: N801
        request_timeout_ms = 1_000

    def __init__(self, topic_id: int) -> None:
        queues = [controller_pb2.QueueRoute(queue_id=0, group_id=1, slot_end=65_536)]
        self.route: TopicRoute = topic_route(
            controller_pb2.TopicRoute(name="t", topic_id=topic_id, queues=queues)
        )

    async def topic(self, name: str, *, refresh: bool = False) -> TopicRoute:
        if name != "t":
            raise UnknownTopic(f"there is no topic {name!r}")
        return self.route


def attempt(*topics: str) -> CopyAttempt:
    targets = [CopyTarget(topic=topic, topic_id=5) for topic in topics]
    return CopyAttempt(producer_id=9, epoch=3, end=1, targets=targets)


async def settled(topics: Topics, *names: str) -> list[Any]:
    cluster: Any = topics
    runtime: Any = None
    return await relay.settle(cluster, runtime, attempt(*names))


async def test_a_producer_is_ended_before_its_copies_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one could land between the two, of which nobody would know."""
    producers = Producers(monkeypatch)
    assert await settled(Topics(5), "t") == ["copy"]
    assert producers.happened == ["ended", "read"]
    assert producers.epochs == [4]


async def test_a_floor_does_not_keep_an_owner_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """After idle days a queue refuses epochs up to those of producers that are nothing to it."""
    floor = DedupStateExpired("expired", epoch_floor=200)
    producers = Producers(monkeypatch, floor, ProducerFenced("newer", current_epoch=300))
    assert await settled(Topics(5), "t") == ["copy"]
    assert producers.epochs == [4, 201, 301]


async def test_the_children_of_a_queue_that_was_split_are_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = SplitQueue(
        queue={"topic_id": 5, "queue_id": 0},
        children=[
            {"queue_id": 1, "slot_start": 0, "slot_end": 9},
            {"queue_id": 2, "slot_start": 9, "slot_end": 65_536},
        ],
    )
    sealed = QueueSealed("it was split", split_record=split.SerializeToString())
    producers = Producers(monkeypatch, sealed)
    topics = Topics(5)
    told: list[Any] = []
    topics.routes = SimpleNamespace(on_split=lambda topic, split: told.append((topic, split)))
    assert await settled(topics, "t") == ["copy"]
    assert producers.asked == [[0], [1, 2]]
    assert producers.happened == ["ended", "read"]
    assert told == [("t", split)]


@pytest.mark.parametrize(("topic_id", "name"), [(6, "t"), (5, "gone")])
async def test_a_topic_that_is_gone_took_its_copies_along(
    monkeypatch: pytest.MonkeyPatch, topic_id: int, name: str
) -> None:
    producers = Producers(monkeypatch)
    assert await settled(Topics(topic_id), name) == []
    assert producers.happened == []


# --- a relay's own producer


class Core:
    """A producer whose topic has a floor, up to which no epoch may open a row."""

    floor = 200
    begun: list[Core]

    def __init__(self, *_: Any, identity: Any) -> None:
        self.identity = identity
        self.ended = False
        self.begun.append(self)

    def start(self) -> None:
        pass

    def close(self) -> None:
        self.ended = True

    async def open_topic(self, name: str) -> None:
        if self.identity.epoch <= self.floor:
            self.identity.floor = self.floor
            raise ProducerFenced("was forgotten")


class Ids:
    """Controllers that give out one id."""

    asked = 0

    async def controller(self, method: str, request: Any) -> Any:
        self.asked += 1
        return controller_pb2.OpenProducerReply(producer_id=9, epoch=1)


async def test_an_id_of_its_own_goes_above_a_floor_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else counts its epochs; no new lock and no new id is needed for it."""
    monkeypatch.setattr(Core, "begun", [], raising=False)
    monkeypatch.setattr(relay, "_RelayProducer", Core)

    async def ends_of(_: Any, name: str) -> CopyTarget:
        return CopyTarget(topic=name)

    monkeypatch.setattr(relay.Relay, "_ends_of", ends_of)
    ids: Any = Ids()
    one = relay.Relay(ids, "semel.retry")
    await one.prepare(["a", "b"], afresh=True)
    assert [(core.identity.epoch, core.ended) for core in Core.begun] == [(1, True), (201, False)]
    assert (one.attempt(5).producer_id, one.attempt(5).epoch, ids.asked) == (9, 201, 1)
    monkeypatch.setattr(Core, "floor", 300)
    with pytest.raises(ProducerFenced):
        await one.prepare(["a", "b", "c"], afresh=False)  # something is under way: not now
    assert len(Core.begun) == 2
    one.close()
    with pytest.raises(Closed):
        await one.prepare(["a"], afresh=True)
