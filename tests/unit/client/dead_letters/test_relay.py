"""Ending another owner's copies for good, and finding those that it has stored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.dead_letters import relay
from semel.protos.errors import UnknownTopic
from semel.protos.v1.copies_pb2 import CopyAttempt, CopyTarget

ATTEMPT = CopyAttempt(
    producer_id=9,
    epoch=1,
    end=5,
    targets=[CopyTarget(topic=name, topic_id=number) for number, name in enumerate("abcd", 1)],
)


async def test_what_lands_before_the_producer_is_ended_is_found_in_every_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever looks first and ends it then overlooks a copy that is on its way, and makes it once
    more. A target that is gone, or another topic of that name, has none."""
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
