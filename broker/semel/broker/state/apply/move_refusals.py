"""Why a queue cannot leave its broker group, whatever the job.

Not here: refusals that depend on the job and on the step (`moves.py`).
"""

from __future__ import annotations

from collections.abc import Container

from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.parted import held_above, holds_parts
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.splits import ancestors
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.ids import QueueKey
from semel.protos.levels import COMPACTED_MOVE_LEVEL, DELAYED_MOVE_LEVEL


def held_here(delays: Delays, key: QueueKey, level: int) -> str | None:
    """A text that says which delayed messages keep a queue from moving; None if none do."""
    return None if level >= DELAYED_MOVE_LEVEL else delays.held(key)


def unheld(queue: QueueState, job: int) -> InvalidRequest:
    """The error for a job that takes a compacted queue without holding it."""
    return InvalidRequest(
        f"queue {queue.key.queue_id} of {queue.topic!r} is compacted, and move {job} does not hold"
        " it: give the move up and begin again"
    )


def move_refusal(
    queues: dict[QueueKey, QueueState],
    queue: QueueState,
    delays: Delays,
    level: int,
    id_topics: Container[int],
) -> SemelError | None:
    """Why a queue cannot leave this broker group, whatever the job; None if it can. `id_topics` are
    the topics that compare message ids.

    The locks of one broker group keep the order of reading after a split, so parent and children
    stay together as long as the parent holds messages.
    """
    number = queue.key.queue_id
    if queue.settings.compaction is not None and level < COMPACTED_MOVE_LEVEL:
        return InvalidRequest(
            f"queue {number} of {queue.topic!r} is compacted, which must not go on while it is"
            f" copied. Raise both broker groups to feature level {COMPACTED_MOVE_LEVEL} (semel"
            " cluster upgrade --finish), or alter the topic to --cleanup delete, move the queue,"
            " and alter it back"
        )
    if queue.children:
        return InvalidRequest(
            f"queue {number} of {queue.topic!r} was split and cannot move. Move its children once"
            " retention has emptied it"
        )
    for parent in ancestors(queues, queue):
        if parent.log_start_offset < parent.log_end_offset:
            return InvalidRequest(
                f"queue {number} of {queue.topic!r} is a child of queue {parent.key.queue_id};"
                f" that one still holds {parent.log_end_offset - parent.log_start_offset} messages,"
                " which are read first. Move the child once retention has emptied its parent"
            )
    if (held := held_above(queues, delays, queue)) is not None:
        return InvalidRequest(f"{held}, and cannot move meanwhile. Move it in a moment")
    if queue.key.topic_id in id_topics and holds_parts(queues, delays, queue):
        return InvalidRequest(
            f"queue {number} of {queue.topic!r} holds delayed messages of queue {queue.parent},"
            " whose ids lead there. Move it once they are delivered"
        )
    return None
