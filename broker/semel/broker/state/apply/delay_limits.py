"""How much may be due in one second of a topic, and what has no room there.

How it works. The limit is the topic's, and broker groups share nothing: each takes the part of it
that its slots have of all 65,536, rounded up. So what moves or splits takes its part along, and all
groups together take at most one message more for each group than the limit says.

Plain batches are decided by the admission, each as a whole. A transaction is decided when it is
pinned, with all its batches at once: what is pinned is certain to be published, and is never
refused after that. Until then its batches count for nothing, for most of what is staged may never
come.

Not here: what is due in a second (`due_seconds.py`), what is in flight
(`state/admission/due_loads.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.due_seconds import SECOND_US, second_of
from semel.broker.state.apply.queue_table import QueueTable
from semel.broker.state.apply.queues import SLOTS, QueueState
from semel.broker.state.apply.stagers import StagedQueue
from semel.broker.state.apply.staging import Staging
from semel.protos.errors import DelayThrottled
from semel.protos.ids import QueueKey
from semel.protos.v1 import transaction_records_pb2

Second = tuple[int, int]
"""A topic and a second since 1970."""


def share_of(limit: int, slots: int) -> int:
    """The part of a topic's limit that so many slots have."""
    return min(limit, -(-limit * slots // SLOTS))


def throttled(queue: QueueState, second: int, messages: int, due: int, most: int) -> DelayThrottled:
    """The error for messages that have no room in a second of the queue's topic."""
    when = datetime.fromtimestamp(second, UTC)
    return DelayThrottled(
        f"{due:,} messages of topic {queue.topic!r} are due at {when:%Y-%m-%d %H:%M:%S} UTC on this"
        f" broker group, which takes {most:,} in a second, its share of the topic's"
        f" {queue.settings.delay_per_second_max:,}: no room for {messages:,} more, not stored."
        " Choose another second, send smaller batches, or raise the limit (semel topic alter"
        " --delay-per-second-max)",
        due_us=second * SECOND_US,
        due_messages=due,
        due_messages_max=most,
    )


def pinned_loads(staging: Staging, but_not: str = "") -> Counter[Second]:
    """How many messages of pinned transactions, except one, will be due in which second."""
    return _loads(
        staging.stagers[number].queues
        for pin in staging.pins.values()
        if pin.transaction_id != but_not
        for number in pin.winners
    )


def pin_refusal(
    record: transaction_records_pb2.PinTransaction,
    staging: Staging,
    delays: Delays,
    queues: QueueTable,
) -> DelayThrottled | None:
    """Why a transaction cannot be pinned; None if there is room for all of its delayed messages.

    A pin that is here already is not judged again. Stagers that are not known are left out.
    """
    if staging.pin_of(record.transaction_id, record.attempt) is not None:
        return None
    winners = [
        staging.stagers[winner.stager_id].queues
        for winner in record.winners
        if winner.stager_id in staging.stagers
    ]
    limited: dict[int, QueueState] = {}
    for key in sorted({key for queues_of in winners for key in queues_of} & queues.keys()):
        if queues[key].settings.delay_per_second_max:
            limited.setdefault(key.topic_id, queues[key])
    if not limited:
        return None
    pinned = pinned_loads(staging, record.transaction_id)
    for (topic_id, second), messages in sorted(_loads(winners).items()):
        queue = limited.get(topic_id)
        if queue is None:
            continue
        due = delays.seconds.load(topic_id, second).messages + pinned[topic_id, second]
        most = share_of(queue.settings.delay_per_second_max, queues.slots_of(topic_id))
        if due + messages > most:
            return throttled(queue, second, messages, due, most)
    return None


def _loads(stages: Iterable[Mapping[QueueKey, StagedQueue]]) -> Counter[Second]:
    found: Counter[Second] = Counter()
    for stage in stages:
        for key, staged in stage.items():
            for extent in staged.extents:
                if extent.due_us:
                    found[key.topic_id, second_of(extent.due_us)] += extent.messages
    return found
