"""Facts of a queue, as a broker would note them, for tests of the tier."""

from __future__ import annotations

import dataclasses
from typing import Any

from semel.protos.ids import QueueId, TopicId
from semel.tier import QueueFacts

_FACTS = QueueFacts(
    cluster_id="c",
    topic="orders",
    topic_id=TopicId(0xAB),
    queue_id=QueueId(7),
    number=3,
    length=500,
    sha256="0123456789abcdef" * 4,
    time_us=1_000_000,
    log_start_offset=5,
    log_end_offset=50,
    released=False,
    settings=b"settings",
    slice=b"slice" * 100,
    nonce="00112233",
)


def some_facts(**fields: Any) -> QueueFacts:
    """The same ones, with other fields."""
    return dataclasses.replace(_FACTS, **fields)
