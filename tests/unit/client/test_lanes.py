"""A producer's stream to one broker group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from semel.client.lanes import Lane, Link
from semel.protos.ids import GroupId


class EndlessLane:
    """One that always has a batch to send."""

    key = (1, 0)

    def next_batch(self, may_encode: bool) -> Any:
        return SimpleNamespace(payload=bytes(1 << 20))

    def close(self) -> None:
        pass


def test_a_link_sends_nothing_once_it_is_closed() -> None:
    """A producer that fails because of a hole must not store what comes behind the hole, though the
    link's writer may be due to run once more."""
    owner = SimpleNamespace(config=SimpleNamespace(max_in_flight_bytes=8 << 20))
    link = Link(cast(Any, owner), cast(Any, None), GroupId(1))
    lane = cast(Lane, EndlessLane())
    link.on_ready(lane)
    assert link._gather()
    link.close()
    link.on_ready(lane)
    assert link._gather() == []
