"""Makes a queue of this broker group of what the object store has of a lost cluster's.

How it works. The master cuts the queue's slice (`state/apply/restored.py`) and brings it into the
log by the steps of a move, as if the queue came from another group and had no message left:

    BEGIN      an empty queue that nobody sees
    FLOOR      it begins where the manifest ends
    PART …     the slice
    INGEST     which is whole, and fits the queue
    ACTIVATE   the queue lives here

The same facts give the same steps, so whoever is the master goes on after a crash at any of them.

Not here: what a step does (`state/apply/moves.py`), who asks (`server/restores_service.py`).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Protocol

from semel.broker.state import (
    RESTORE_JOB,
    ApplyResult,
    MoveApplied,
    MoveState,
    RestoredSlice,
    State,
)
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import control_pb2

PART_BYTES: Final = 1 << 20


class Target(Protocol):
    """The node that gets the queue, as this module needs it."""

    @property
    def state(self) -> State: ...

    async def submit_control(self, record: control_pb2.ControlRecord) -> ApplyResult: ...


def is_restored(state: State, key: QueueKey) -> bool:
    """Whether the queue lives here, and was restored."""
    place = state.moves.places.get(key)
    return key in state.queues and place is not None and place.job == RESTORE_JOB


async def restore_queue(
    target: Target, create: control_pb2.CreateQueue, cut: RestoredSlice
) -> None:
    """Returns when the queue lives here. Raises InvalidRequest if another queue of this number
    does, and what `submit_control` raises."""
    key = queue_key_of(create.queue)

    async def step(step: control_pb2.MoveStep, **fields: Any) -> None:
        record = control_pb2.MoveQueue(queue=queue_ref(key), job=RESTORE_JOB, step=step, **fields)
        result = await target.submit_control(control_pb2.ControlRecord(move_queue=record))
        assert isinstance(result, MoveApplied)
        if result.error is not None:
            raise result.error

    if is_restored(target.state, key):
        return
    if key in target.state.queues:
        raise InvalidRequest(
            f"queue {key.queue_id} of {create.topic!r} is on this broker group already, and was not"
            " restored"
        )
    place = target.state.moves.places.get(key)
    if place is None or place.state is not MoveState.READY:
        await step(control_pb2.MOVE_STEP_BEGIN, create=create)
        await step(control_pb2.MOVE_STEP_FLOOR, offset=cut.log_end_offset)
        for at in range(0, len(cut.slice), PART_BYTES):
            part = cut.slice[at : at + PART_BYTES]
            await step(control_pb2.MOVE_STEP_PART, offset=at, part=part)
        digest = hashlib.sha256(cut.slice).digest()
        await step(control_pb2.MOVE_STEP_INGEST, offset=len(cut.slice), digest=digest)
    await step(control_pb2.MOVE_STEP_ACTIVATE, create=create)
