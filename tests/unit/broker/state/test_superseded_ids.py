"""Ids of a queue that comes here: in two rows, and those known from earlier do not count."""

from __future__ import annotations

import numpy as np
import pytest

from semel.broker.state import CopiedIds, IdWindow, StateDiverged
from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.id_windows import IdSettings, IdWindows
from semel.broker.state.apply.move_ids import begin_ids, ids_misfit, supersede_ids, take_ids
from semel.protos.errors import CorruptSegment
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import DELAYED_MOVE_LEVEL, ID_LEVEL
from semel.protos.v1 import control_pb2

KEY = QueueKey(TopicId(7), QueueId(1))
LEVEL = DELAYED_MOVE_LEVEL


@pytest.fixture
def windows() -> IdWindows:
    """Ids 10 to 29 of the topic are known."""
    made = IdWindows()
    made.configure(7, IdSettings(window_bytes=1 << 20), 10)
    made.topics[7].take(10, 20, 0, 0, 5)
    return made


@pytest.fixture
def window(windows: IdWindows) -> IdWindow:
    return windows.topics[7]


def packed(*arrivals: int) -> bytes:
    return np.array(arrivals, "<u8").tobytes()


def ids(
    start: int,
    end: int,
    *,
    waits_from: int | None = None,
    waiting: bool = False,
    horizon_us: int = 9,
) -> control_pb2.MoveQueue:
    return control_pb2.MoveQueue(
        ids_from=start,
        ids_to=end,
        waits_from=end if waits_from is None else waits_from,
        waiting=waiting,
        horizon_us=horizon_us,
    )


def superseding(*arrivals: int, last: bool = True) -> control_pb2.MoveQueue:
    record = control_pb2.MoveQueue(arrivals=packed(*arrivals), last=last)
    record.queue.topic_id = 7
    return record


def test_what_waits_comes_in_a_row_of_its_own(windows: IdWindows) -> None:
    begin_ids(windows, KEY, LEVEL, known=False)
    assert take_ids(windows, KEY, ids(0, 10), LEVEL) is None
    assert windows.copied[KEY] == CopiedIds(10, 10, 9, True)
    assert take_ids(windows, KEY, ids(10, 20, waits_from=13), LEVEL) is None
    assert take_ids(windows, KEY, ids(20, 30, waits_from=25), LEVEL) is None
    assert windows.copied[KEY] == CopiedIds(30, 13, 9, True)
    assert "have come up to 13, not 30" in str(ids_misfit(windows, KEY, 30, LEVEL))
    assert ids_misfit(windows, KEY, 30, ID_LEVEL) is None
    assert "do not follow" in str(take_ids(windows, KEY, ids(14, 30, waiting=True), LEVEL))
    assert take_ids(windows, KEY, ids(13, 30, waiting=True), LEVEL) is None
    assert ids_misfit(windows, KEY, 30, LEVEL) is None
    assert "do not follow" in str(take_ids(windows, KEY, ids(31, 40), LEVEL))


def test_the_horizon_never_changes(windows: IdWindows) -> None:
    begin_ids(windows, KEY, LEVEL, known=False)
    assert take_ids(windows, KEY, ids(0, 10), LEVEL) is None
    assert "horizon" in str(take_ids(windows, KEY, ids(10, 20, horizon_us=10), LEVEL))


def test_no_ids_come_before_earlier_ones_are_superseded(
    windows: IdWindows, window: IdWindow
) -> None:
    begin_ids(windows, KEY, LEVEL, known=True)
    assert "still count" in str(take_ids(windows, KEY, ids(0, 10), LEVEL))
    supersede_ids(windows, KEY, superseding(12, 15, last=False))
    assert "still count" in str(take_ids(windows, KEY, ids(0, 10), LEVEL))
    supersede_ids(windows, KEY, superseding(15, 20))
    assert take_ids(windows, KEY, ids(0, 10), LEVEL) is None
    supersede_ids(windows, KEY, superseding(25))  # late: these have come with the move
    assert window.superseded.tolist() == [12, 15, 20]
    assert [window.is_superseded(each) for each in (12, 13, 25)] == [True, False, False]


def test_the_window_leaves_superseded_ids_behind(windows: IdWindows, window: IdWindow) -> None:
    window.supersede(packed(3, 12, 20))
    assert window.superseded.tolist() == [12, 20]
    window.cancel(14)
    window.evict(15)
    assert [each.tolist() for each in window.gone] == [[], [20]]
    with pytest.raises(StateDiverged, match="not all have arrived"):
        window.supersede(packed(30))


def test_all_of_it_survives_a_checkpoint(windows: IdWindows, window: IdWindow) -> None:
    window.supersede(packed(12, 20))
    begin_ids(windows, KEY, LEVEL, known=False)
    take_ids(windows, KEY, ids(0, 10, waits_from=4), LEVEL)
    data = b"".join(windows.parts(superseded=True))
    reader = Reader(data)
    again = IdWindows.read_parts(reader, superseded=True)
    reader.finish()
    assert b"".join(again.parts(superseded=True)) == data
    assert again.copied == {KEY: CopiedIds(10, 4, 9, True)}
    window.superseded[0] = 40  # beyond the last one
    with pytest.raises(CorruptSegment, match="malformed window"):
        IdWindows.read_parts(Reader(b"".join(windows.parts(superseded=True))), superseded=True)


def test_a_move_that_began_below_the_level_goes_on(windows: IdWindows) -> None:
    assert take_ids(windows, KEY, ids(0, 10, horizon_us=0), ID_LEVEL) is None
    assert windows.copied[KEY] == CopiedIds(10, 10, 0, False)
    assert take_ids(windows, KEY, ids(10, 20, waits_from=12), LEVEL) is None
    assert windows.copied[KEY] == CopiedIds(20, 12, 9, False)


def test_topics_without_a_window_have_nothing_to_do() -> None:
    windows = IdWindows()
    begin_ids(windows, KEY, LEVEL, known=True)
    assert windows.copied == {}
    assert ids_misfit(windows, KEY, 0, LEVEL) is None
