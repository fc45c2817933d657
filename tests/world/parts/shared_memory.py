"""Programs on the brokers' machines: everything that they fetch comes through their own memory,
however little it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from semel.client.reading import fetch
from semel.client.transport import shared_memory
from semel.client.transport.shared_memory import Exchange
from tests.world.registry import Part, add_part
from tests.world.run import Run


@contextmanager
def through_memory(run: Run) -> Iterator[None]:
    """Every answer counts as a large one, and those that come through memory are counted."""
    original = Exchange.on_answer

    def on_answer(exchange: Exchange, header: Any, *rest: Any) -> list[memoryview]:
        run.world.seen["answer through memory"] += header.in_memory
        return original(exchange, header, *rest)

    with (
        patch.object(shared_memory, "BUSY_BYTES", 0),
        patch.object(fetch, "STANDING_BYTES", 1),
        patch.object(Exchange, "on_answer", on_answer),
    ):
        yield


add_part(
    Part(
        name="shared_memory",
        help="programs are on the brokers' machines",
        add=lambda plan: plan,
        exchange=through_memory,
    )
)
