"""Very many clients: each asks for streams at the brokers' own ports, and waits for its watch when
a master is lost, as one of many does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from semel.broker.server.direct import DirectStreams
from semel.client.transport import master_search, streams
from semel.client.transport.master_search import MasterSearch
from tests.world.registry import Part, add_part
from tests.world.run import Run


@contextmanager
def as_one_of_many(run: Run) -> Iterator[None]:
    """All clients count as many, and what they do as such is counted."""
    grant, wait = DirectStreams._grant, MasterSearch._wait_as_one_of_many

    async def granted(direct: DirectStreams, *what: Any) -> None:
        await grant(direct, *what)
        run.world.seen["stream granted to who asks"] += 1

    async def waited(search: MasterSearch, *what: Any) -> None:
        run.world.seen["wait as one of many"] += 1
        await wait(search, *what)

    run.world.asking = True
    with (
        patch.object(streams, "FEW", 0),
        patch.object(master_search, "FEW", 0),
        patch.object(DirectStreams, "_grant", granted),
        patch.object(MasterSearch, "_wait_as_one_of_many", waited),
    ):
        yield


add_part(
    Part(
        name="asking",
        help="clients are many, and ask for streams at the brokers' ports",
        add=lambda plan: plan,
        exchange=as_one_of_many,
    )
)
