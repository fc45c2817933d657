"""The message ids of a queue on its way here, as the steps of its move are applied.

How it works. IDS steps bring ids, which the window has taken in by then, whether or not the step
fits. Here it is noted how far they have come. From feature level 8 on they come in two rows: those
of messages that do not wait while the source serves, the others after the SEAL. Before the first
ones, SUPERSEDE steps end what this group knows of the queue's delayed messages from earlier.

Invariants
1. No id that counts is left out: ids of each row follow one another by the arrivals of the source.
2. The horizon of a move, which says what waits, never changes.

Not here: the window (`id_windows.py`), the other steps (`moves.py`).
"""

from __future__ import annotations

from semel.broker.state.apply.id_windows import CopiedIds, IdWindows
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueKey
from semel.protos.levels import DELAYED_MOVE_LEVEL
from semel.protos.v1 import control_pb2


def begin_ids(windows: IdWindows, key: QueueKey, level: int, *, known: bool) -> None:
    """A queue begins to come here; `known` says that it may have been here before."""
    if level >= DELAYED_MOVE_LEVEL and key.topic_id in windows.topics:
        windows.copied[key] = CopiedIds(open=not known)


def take_ids(
    windows: IdWindows, key: QueueKey, record: control_pb2.MoveQueue, level: int
) -> InvalidRequest | None:
    """Notes how far the ids are copied, unless the step does not follow those before."""
    copied = windows.copied.get(key, CopiedIds())
    covered = copied.waiting if record.waiting else copied.arrival
    if record.ids_from > covered:
        return InvalidRequest(
            f"message ids of queue {key.queue_id} from {record.ids_from} on do not follow those"
            f" below {covered}"
        )
    if level >= DELAYED_MOVE_LEVEL:
        if not copied.is_open:
            return InvalidRequest(f"earlier ids of queue {key.queue_id} still count here")
        if copied.horizon_us not in (0, record.horizon_us):
            return InvalidRequest(
                f"message ids of queue {key.queue_id} come with the horizon {record.horizon_us},"
                f" and it is {copied.horizon_us}"
            )
    windows.copied[key] = copied.take(record)
    return None


def supersede_ids(windows: IdWindows, key: QueueKey, record: control_pb2.MoveQueue) -> None:
    """Ends what is known from earlier, before ids have come. Raises StateDiverged."""
    copied = windows.copied.get(key, CopiedIds())
    if not copied.is_open:
        windows.supersede(record)
        windows.copied[key] = copied._replace(open=record.last)


def ids_misfit(windows: IdWindows, key: QueueKey, ids_to: int, level: int) -> InvalidRequest | None:
    """Why the ids are not complete up to arrival `ids_to` of the source; None if they are."""
    copied = windows.copied.get(key, CopiedIds())
    come = copied.arrival if level < DELAYED_MOVE_LEVEL else min(copied.arrival, copied.waiting)
    if come >= ids_to:
        return None
    return InvalidRequest(
        f"message ids of queue {key.queue_id} have come up to {come}, not {ids_to}"
    )
