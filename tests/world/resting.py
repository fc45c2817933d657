"""Compaction rests while a queue is copied, and arrives with it as it was.

How it works. A node that holds a queue for a move, or has sealed it, has the same compaction of it
as the first node that did, whatever is applied meanwhile. The node that has got all of the queue
has it, too; only the times of its marks are those of another log, all by the same difference.

Not here: when tombstones may go (`tests/checking/compaction.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.broker.state import MoveState, State
from semel.broker.state.apply.compacted import Compaction

if TYPE_CHECKING:
    from tests.world.world import World


def resting_problem(world: World, state: State, known: dict[Any, Any]) -> str:
    """Says what is wrong with the queues of a node that move; empty if nothing. `known` has the
    compactions of all moves, as far as nodes were looked at."""
    for key, place in state.moves.places.items():
        job = (int(key.topic_id), int(key.queue_id)), place.job
        if place.state in (MoveState.HELD, MoveState.FROZEN):
            found = state.queues[key].compaction
            if job not in known:
                known[job] = found.copy()
            elif found != known[job]:
                return f"queue {key} was compacted while it moves: {known[job]} became {found}"
        elif place.state is MoveState.READY and job in known:
            wanted, found = known[job], state.moves.incoming[key].queue.compaction
            if not _same(wanted, found):
                return f"queue {key} left with {wanted} and came with {found}"
            if wanted.marks:
                world.count("queue arrived with marks")
    return ""


def _same(left: Compaction, came: Compaction) -> bool:
    """Whether only times differ, all of them by the same; offsets without gaps may count as having
    some."""
    named = ("compacted_to", "tombstones", "purged_to", "records")
    shifts = {new.time_us - old.time_us for old, new in zip(left.marks, came.marks, strict=False)}
    return (
        all(getattr(left, name) == getattr(came, name) for name in named)
        and came.gaps_to >= left.gaps_to
        and [mark.offset for mark in left.marks] == [mark.offset for mark in came.marks]
        and len(shifts) <= 1
    )
