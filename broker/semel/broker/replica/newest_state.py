"""What a node begins with: the newest checkpoint, and the members that the log names behind it."""

from __future__ import annotations

from typing import Final

from semel.broker.log import Log
from semel.broker.replica.member_book import Members
from semel.broker.replication.receiver import frame_meta
from semel.broker.state import State
from semel.protos.errors import CorruptSegment
from semel.protos.frames import decode_frame_header

READ_BYTES: Final = 4 << 20


def newest_state(log: Log, level_max: int) -> tuple[State, dict[int, Members]]:
    """BLOCKING. The state of the newest checkpoint, and the members by entry. Raises
    CorruptSegment."""
    checkpoint = log.checkpoint
    try:
        state = (
            State(level_max)
            if checkpoint is None
            else State.from_bytes(checkpoint.payload, level_max)
        )
    except CorruptSegment as error:
        raise CorruptSegment(f"{checkpoint and checkpoint.path}: {error}") from error
    logged: dict[int, Members] = {}
    lo, end = state.applied_index + 1, log.last_index + 1
    damaged = sorted(index for index in log.damaged if index >= lo)
    for stop in (*damaged, end):  # a damaged entry is repaired before it is applied
        while lo < stop:
            hi = log.fit(lo, stop, READ_BYTES)
            for frame in log.read_frames(lo, hi):
                meta = frame_meta(frame, decode_frame_header(frame))
                if meta.membership is not None:
                    logged[meta.index] = Members.of_frame(frame)
            lo = hi
        lo = stop + 1
    return state, logged
