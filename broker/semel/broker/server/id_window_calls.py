"""Calls about the windows of message ids: how much each holds, and what became of messages.

How it works. Everything is in the replicated state: a window's arrivals say how many ids it holds
and has left behind, and it counts the messages that were dropped. A message whose id is looked up
is stored, a duplicate or a conflict, so look-ups are the sum of these. All figures count from the
moment at which the topic began to compare ids.

Not here: the windows (`state/apply/id_windows.py`), metrics (`probe.py`).
"""

from __future__ import annotations

from semel.broker.replica.replica import Replica
from semel.broker.state.apply.id_windows import IdWindow
from semel.protos.v1 import broker_pb2


class IdWindowCalls:
    """Serves the calls of semel.protos.v1.Broker about windows of message ids."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def DescribeIds(  # noqa: N802
        self, request: broker_pb2.DescribeIdsRequest, context: object
    ) -> broker_pb2.DescribeIdsReply:
        replica = self._replica
        await replica.confirm_read()
        topics, now_us = replica.state.id_windows.topics, replica.log_time_us()
        wanted = request.topic_ids or sorted(topics)
        return broker_pb2.DescribeIdsReply(
            windows=[
                describe_window(topic_id, topics[topic_id], now_us)
                for topic_id in dict.fromkeys(wanted)
                if topic_id in topics
            ]
        )


def describe_window(topic_id: int, window: IdWindow, now_us: int) -> broker_pb2.IdWindowStatus:
    """The figures of one window at a log time."""
    oldest_us = window.oldest_us
    return broker_pb2.IdWindowStatus(
        topic_id=topic_id,
        ids=window.ids,
        bytes=window.logical_bytes,
        oldest_age_us=0 if oldest_us is None else max(0, now_us - oldest_us),
        hits=window.duplicates,
        conflicts=window.conflicts,
        lookups=window.next_arrival + window.duplicates + window.conflicts,
        evictions=window.first_arrival,
    )
