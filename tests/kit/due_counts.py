"""Counts what is due in which second from the delayed batches themselves."""

from __future__ import annotations

from collections import Counter

from semel.broker.state import Delays, DueLoad
from semel.broker.state.apply.due_seconds import SECOND_US


def counted(delays: Delays) -> dict[tuple[int, int], DueLoad]:
    """Returns what the index of seconds must say, by topic and second."""
    messages: Counter[tuple[int, int]] = Counter()
    length: Counter[tuple[int, int]] = Counter()
    for key, queue in delays.queues.items():
        for extent in queue:
            second = key.topic_id, extent.due_us // SECOND_US
            messages[second] += queue.left(extent)
            length[second] += extent.length
    return {second: DueLoad(messages[second], length[second]) for second in length}
