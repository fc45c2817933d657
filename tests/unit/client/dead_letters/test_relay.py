"""Ending another owner's copies for good, and finding those that it has stored."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.dead_letters import relay
from semel.protos.errors import UnknownTopic
from semel.protos.v1.copies_pb2 import CopyAttempt, CopyTarget, CopyTargetQueue

ATTEMPT = CopyAttempt(
    producer_id=9,
    epoch=1,
    end=5,
    targets=[CopyTarget(topic=name, topic_id=number) for number, name in enumerate("abcd", 1)],
)


async def test_what_lands_before_the_producer_is_ended_is_found_in_every_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that looks first, and ends the producer then, overlooks a copy that is on its way,
    and makes it once more. A target that is gone, or another topic of that name, has none."""
    stored: dict[str, list[str]] = {"a": ["a1"], "d": []}

    async def end(cluster: object, target: CopyTarget, attempt: CopyAttempt) -> Any:
        assert attempt is ATTEMPT
        if target.topic == "b":
            raise UnknownTopic("deleted")
        if target.topic == "c":
            return None
        stored[target.topic].append(f"{target.topic} late")
        return SimpleNamespace(name=target.topic)

    async def stored_by(
        cluster: object, runtime: object, route: Any, target: CopyTarget, producer_id: int
    ) -> list[str]:
        assert (route.name, producer_id) == (target.topic, 9)
        return list(stored[target.topic])

    async def topic(name: str, *, refresh: bool = False) -> Any:
        return SimpleNamespace(name=name)

    monkeypatch.setattr(relay, "_end_producer", end)
    monkeypatch.setattr(relay, "_stored_by", stored_by)
    cluster: Any = SimpleNamespace(topic=topic)
    runtime: Any = None
    found: list[Any] = list(await relay.settle(cluster, runtime, ATTEMPT))
    assert found == ["a1", "a late", "d late"]


class StoredMessages:
    """What a reader finds in the queues that it is opened for; stands where `ReaderCore` does."""

    opened: list[tuple[dict[int, int], dict[int, int]]]
    producers: list[int]

    def __init__(self, *_: object) -> None:
        self.feed = None
        self.puller = SimpleNamespace(finished=False, messages=self.messages)

    async def open(self, name: str, queues: Any, starts: dict[int, int], until: Any) -> None:
        self.opened.append((starts, until))

    def messages(self, count: int) -> list[Any]:
        self.puller.finished = True
        return [
            SimpleNamespace(producer_id=one, offset=at) for at, one in enumerate(self.producers)
        ]

    def close(self) -> None:
        pass


async def test_only_copies_of_the_attempts_producer_count_from_its_recorded_ends_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other owners copy to the same topics, and what they have copied is not copied here."""
    reader = StoredMessages
    reader.opened, reader.producers = [], [9, 8, 9, 7]

    async def offsets(cluster: object, queues: object) -> dict[int, Any]:
        return {
            number: SimpleNamespace(log_start_offset=start, log_end_offset=end)
            for number, start, end in ((0, 0, 20), (1, 12, 20), (2, 0, 5), (3, 0, 4))
        }

    async def ready(feed: object, wait_s: float) -> None:
        pass

    monkeypatch.setattr(relay, "ReaderCore", reader)
    monkeypatch.setattr(relay, "list_offsets", offsets)
    monkeypatch.setattr(relay, "await_ready", ready)
    ends = [CopyTargetQueue(queue_id=queue, end=end) for queue, end in ((0, 10), (1, 10), (2, 5))]
    target = CopyTarget(topic="a", topic_id=1, queues=ends)
    nothing: Any = None
    route: Any = SimpleNamespace(name="a", every=())
    found = await relay._stored_by(nothing, nothing, route, target, 9)
    assert [message.offset for message in found] == [0, 2]
    ((starts, until),) = reader.opened
    assert starts == {0: 10, 1: 12, 3: 0}, "a queue that a split made since is read whole"
    assert until == {0: 20, 1: 20, 3: 4}


async def test_an_attempt_looks_back_to_where_its_first_copies_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that begins afresh must not find the copies of the one before: they are over."""
    opened: list[list[str]] = []
    ends = {"a": 5, "b": 7}

    async def open_topics(self: relay.Relay, topics: Iterable[str]) -> None:
        opened.append(list(topics))

    async def ends_of(self: relay.Relay, name: str) -> CopyTarget:
        return CopyTarget(topic=name, queues=[CopyTargetQueue(queue_id=0, end=ends[name])])

    monkeypatch.setattr(relay.Relay, "_open", open_topics)
    monkeypatch.setattr(relay.Relay, "_ends_of", ends_of)
    nothing: Any = None
    copying = relay.Relay(nothing, "r")

    def named() -> dict[str, int]:
        return {one.topic: one.queues[0].end for one in copying.attempt(1).targets}

    await copying.prepare(["a"], afresh=True)
    assert named() == {"a": 5}
    ends.update(a=6, b=8)
    await copying.prepare(["a", "b"], afresh=False)
    assert named() == {"a": 5, "b": 8}, "copies may be there since"
    ends.update(a=9)
    await copying.prepare(["a"], afresh=True)
    assert named() == {"a": 9}
    assert opened == [["a"], ["b"], ["a"]]
