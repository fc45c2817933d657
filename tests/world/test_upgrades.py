"""Whole clusters whose machines run older programs at first, and are upgraded under load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from semel.broker.replica.replica import Replica
from semel.client.transport.streams import Streams
from semel.protos.levels import DELAY_LEVEL, LEVEL_MAX
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

SEEDS = range(18, 34)
RARE = {
    "at rest": 6,
    "level raised": 6,
    "level refused": 8,
    "machine upgraded": 55,
    "send: UnsupportedVersion": 75,
}


@contextmanager
def a_broker_of_before_delays_is_not_told_apart() -> Iterator[None]:
    """It takes a delayed message for an ordinary one, and a client does not know that it does."""
    submit = Replica.submit_batch

    def submit_batch(self: Any, header: Any, data: bytes, stream: Any) -> None:
        if header.deliver_at_us and self.state.feature_level < DELAY_LEVEL:
            header = replace(header, deliver_at_us=0)
        submit(self, header, data, stream)

    with (
        patch.object(Replica, "submit_batch", submit_batch),
        patch.object(Streams, "open", _at_any_level(Streams.open)),
    ):
        yield


def _at_any_level(opened: Any) -> Any:
    async def open(self: Any, address: str, purpose: Any) -> Any:
        stream = await opened(self, address, purpose)
        stream.level = LEVEL_MAX
        return stream

    return open


def raises_the_level_at_the_first_use() -> Any:
    async def require_level(self: Any, level: int) -> None:
        await self.feature_levels.raise_to(level)

    return patch.object(Replica, "require_level", require_level)


@pytest.mark.timeout(300)
def test_a_cluster_is_upgraded_machine_by_machine_and_rises_when_it_is_told() -> None:
    run_until_seen(SEEDS, RARE, more=("upgrades", "delays"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "others", [("splits",), ("moves",), ("transactions",), ("controllers",)], ids=",".join
)
def test_upgrades_beside(others: tuple[str, ...]) -> None:
    wanted = {"at rest": 2, "level raised": 2}
    run_until_seen(range(30, 34), wanted, more=(*others, "upgrades"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told", "more", "seeds"),
    [
        (a_broker_of_before_delays_is_not_told_apart, "", ("delays",), range(18, 38)),
        (
            raises_the_level_at_the_first_use,
            "which nobody asked",
            ("transactions",),
            range(30, 50),
        ),
    ],
    ids=["not told apart", "first use"],
)
def test_a_planted_bug_of_levels_is_found(
    plant: Plant, told: str, more: tuple[str, ...], seeds: range
) -> None:
    first_failure(seeds, plant, match=told, more=("upgrades", *more))
