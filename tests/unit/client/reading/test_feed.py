"""What comes out of a feed: rows, messages, columns, and nothing that is void.

It is one file, because all tests stand on the same feed and its answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.core.routing import Master
from semel.client.message import ARROW_SCHEMA, Rows
from semel.client.reading.feed_queue import Delivery, FeedQueue, cut, pass_lost
from semel.client.reading.fetch import _Asked, _FetchLink
from semel.client.reading.pulling import Puller, await_ready, wait_ready
from semel.protos.errors import (
    CorruptBatch,
    InternalError,
    OffsetOutOfRange,
    OffsetsLost,
    SemelError,
    Throttled,
    Unavailable,
    UnknownQueue,
    to_detail,
)
from semel.protos.ids import GroupId, NodeId, QueueId, QueueKey, Term, TopicId
from semel.protos.v1 import broker_pb2
from tests.unit.client.reading.feeds import KEY, Box, Nowhere, stored


def test_messages_come_in_pieces_and_are_whole() -> None:
    box = Box()
    box.put(
        [b"a", b"b", b"c"],
        10,
        keys=[None, b"k", b""],
        headers=[None, {"h": b"1"}, [("x", b""), ("x", b"2")]],
        timestamps=[1, 2, 3],
    )
    box.put([b"d"], 13)
    first = box.puller.messages(2)
    assert box.queue.delivered == 12
    rest = box.puller.messages(10)
    assert box.queue.delivered == 14
    messages = first + rest
    assert [message.as_dict() for message in messages[1:3]] == [
        {
            "topic": "t",
            "queue": 2,
            "offset": 11,
            "timestamp_us": 2,
            "key": b"k",
            "value": b"b",
            "headers": [("h", b"1")],
            "message_id": None,
            "producer_id": 5,
            "sequence": 111,
        },
        {
            "topic": "t",
            "queue": 2,
            "offset": 12,
            "timestamp_us": 3,
            "key": b"",
            "value": b"c",
            "headers": [("x", b""), ("x", b"2")],
            "message_id": None,
            "producer_id": 5,
            "sequence": 112,
        },
    ]
    last = messages[-1]
    assert (last.key, last.headers, last.timestamp_us, last.offset) == (None, [], 777, 13)
    assert (last.rows.token, last.topic_id) == (9, 1)
    assert "offset=13" in repr(last)
    assert box.puller.messages(10) == []


def test_rows_of_a_batch_that_are_not_wanted_are_left_out() -> None:
    box = Box()
    whole = stored([b"%d" % number for number in range(10)], 100)
    box.feed.deliver([Delivery(box.queue, 0, 0, whole, 103, 3, 6)])
    batch = box.puller.arrow()
    assert batch is not None
    assert batch.column("offset").to_pylist() == [103, 104, 105]
    assert batch.column("value").to_pylist() == [b"3", b"4", b"5"]
    assert batch.column("sequence").to_pylist() == [203, 204, 205]
    assert box.queue.delivered == 106


def test_small_batches_are_gathered_as_columns() -> None:
    box = Box()
    for number in range(5):
        box.put([b"%d" % number], number)
    assert [message.value for message in box.puller.messages(1)] == [b"0"]
    batch = box.puller.arrow()
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema == ARROW_SCHEMA
    assert batch.column("value").to_pylist() == [b"1", b"2", b"3", b"4"]
    assert box.puller.arrow() is None


def test_ids_are_read_where_a_batch_has_them() -> None:
    box = Box()
    box.put([b"a"], 0)
    box.put([b"b", b"c", b"d"], 1, message_ids=[b"1", None, b"3"])
    box.put([b"e"], 4)
    first = box.puller.messages(2)
    assert [message.message_id for message in first] == [None, b"1"]
    batch = box.puller.arrow()
    assert batch is not None
    assert batch.schema == ARROW_SCHEMA
    assert batch.column("message_id").to_pylist() == [None, b"3", None]


def test_an_iteration_that_is_left_goes_on_where_it_was() -> None:
    box = Box()
    box.put([b"a", b"b", b"c"], 0)
    for message in box.puller.drain():
        if message.value == b"b":
            break
    assert box.queue.delivered == 2
    assert [message.value for message in box.puller.drain()] == [b"c"]


def test_what_was_fetched_before_a_seek_is_void() -> None:
    box = Box()
    box.put([b"a", b"b"], 0)
    box.put([b"c"], 2)
    running = box.puller.drain()
    assert next(running).value == b"a"
    box.queue.go_to(50)
    assert list(running) == []
    assert box.queue.delivered == 50
    box.put([b"z"], 50)
    assert [message.value for message in box.puller.messages(9)] == [b"z"]
    assert box.feed.buffered == box.queue.buffered == 0


def test_a_lost_queue_gives_nothing_more() -> None:
    box = Box()
    box.put([b"a", b"b"], 0)
    assert box.puller.messages(1)
    box.feed.remove(KEY)
    assert box.puller.messages(9) == []
    assert box.puller.arrow() is None


def test_a_failure_comes_after_what_was_there_before() -> None:
    box = Box()
    box.put([b"a"], 0)
    box.feed.fail(OffsetOutOfRange("trimmed"))
    assert len(box.puller.messages(1)) == 1
    with pytest.raises(OffsetOutOfRange):
        box.puller.messages(1)
    assert box.puller.messages(1) == []


def test_a_damaged_batch_is_refused() -> None:
    box = Box()
    damaged = bytearray(stored([b"value"], 0))
    damaged[-1] ^= 1
    box.feed.deliver([Delivery(box.queue, 0, 0, memoryview(damaged), 0, 0, 1)])
    with pytest.raises(CorruptBatch):
        box.puller.messages(1)


def damaged(values: list[bytes], base_offset: int) -> memoryview:
    batch = bytearray(stored(values, base_offset))
    batch[-1] ^= 1
    return memoryview(batch)


WAYS: dict[str, Callable[[Puller], Any]] = {
    "messages": lambda puller: puller.messages(9),
    "arrow": lambda puller: puller.arrow(),
    "drain": lambda puller: list(puller.drain()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_batch_is_not_passed_over(way: str) -> None:
    """A commit of what comes after it would cover it."""
    box = Box()
    box.feed.deliver([Delivery(box.queue, 0, 0, damaged([b"a", b"b"], 0), 0, 0, 2)])
    box.put([b"c"], 2)
    for _ in range(2):
        with pytest.raises(CorruptBatch):
            WAYS[way](box.puller)
    assert (box.queue.delivered, box.puller.outstanding.spans()) == (0, [])
    for function in box.soon:
        function()
    assert (box.queue.offset, box.queue.asked) == (0, False), "it is fetched once more"
    box.put([b"a", b"b", b"c"], 0)
    assert len(WAYS[way](box.puller)) == 3
    assert box.feed.buffered == box.queue.buffered == 0


def test_a_damaged_batch_can_be_sought_over() -> None:
    box = Box()
    box.feed.deliver([Delivery(box.queue, 0, 0, damaged([b"a", b"b"], 0), 0, 0, 2)])
    with pytest.raises(CorruptBatch):
        box.puller.messages(1)
    box.queue.go_to(2)
    for function in box.soon:
        function()
    box.put([b"c"], 2)
    assert [message.value for message in box.puller.messages(9)] == [b"c"]


@pytest.mark.parametrize("found", ["at first", "late"])
def test_columns_before_a_damaged_batch_are_given_out(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """The damage shows when the batch is checked, or only when its columns are decoded."""
    box = Box()
    box.put([b"a"], 0)
    bad = damaged([b"b"], 1) if found == "at first" else stored([b"b"], 1)
    box.feed.deliver([Delivery(box.queue, 0, 9, bad, 1, 0, 1)])
    whole = Rows.arrow

    def arrow(rows: Rows, start: int = 0) -> pa.RecordBatch:
        if rows.base_offset == 1:
            raise CorruptBatch("its columns make no sense")
        return whole(rows, start)

    monkeypatch.setattr(Rows, "arrow", arrow)
    first = box.puller.arrow()
    assert first is not None
    assert first.column("value").to_pylist() == [b"a"]
    for _ in range(2):
        with pytest.raises(CorruptBatch):
            box.puller.arrow()
    assert box.queue.delivered == 1


def test_room_is_told_once() -> None:
    box = Box(prefetch_bytes=400)
    for number in range(4):
        box.put([b"x" * 100], number)
    assert box.feed.wanted(GroupId(1)) == []
    box.puller.messages(10)
    assert box.woken == 1
    assert box.feed.wanted(GroupId(1)) == [box.queue]


def test_a_reader_that_keeps_up_wakes_nobody() -> None:
    box = Box()
    for number in range(4):
        assert box.feed.wanted(GroupId(1)) == [box.queue]
        box.put([b"x" * 100], number)
        assert len(box.puller.messages(10)) == 1
    assert box.woken == 0


@given(
    st.lists(st.sampled_from(["put", "take", "ask"]), max_size=40),
    st.integers(1, 3),
    st.sampled_from([0, 5_000]),
)
def test_whoever_wants_room_is_told_when_there_is_some(
    steps: list[str], batches: int, delay_ms: int
) -> None:
    """What was not asked for because of room is asked for again, or somebody was woken to do so."""
    size = len(stored([b"x"], 0))
    box = Box(prefetch_bytes=batches * size)
    box.queue.delay_ms = delay_ms
    refused = False
    for number, step in enumerate(steps):
        if step == "put":
            box.put([b"x"], number)
        elif step == "take":
            box.feed.take()
        else:
            box.woken = 0
            refused = not box.feed.wanted(GroupId(1))
        if refused and box.queue.buffered < (1 if delay_ms else batches * size):
            assert box.woken == 1, "there is room, and nobody knows"
        assert box.woken <= refused, "woken for nothing, or twice"


def test_the_end_is_reached_when_everything_was_given_out() -> None:
    box = Box()
    box.queue.end = 2
    assert not box.puller.finished
    box.put([b"a", b"b"], 0)
    assert box.queue.ended
    assert not box.puller.finished
    box.puller.messages(1)
    assert not box.puller.finished
    box.puller.messages(1)
    assert box.puller.finished


def test_a_batch_that_is_not_in_line_yet_is_not_overlooked_at_the_end() -> None:
    """The caller's thread looks while the I/O thread handles the last answer."""
    box = Box()
    box.queue.end = 3
    box.put([b"a"], 0)
    box.puller.messages(9)
    last = broker_pb2.BatchRange(base_offset=1, row_start=0, row_end=2)
    deliveries: list[Delivery] = []
    cut(deliveries, box.queue, box.queue.turn, last, stored([b"b", b"c"], 1))
    assert (box.puller.finished, box.feed.ready) == (False, False)
    box.feed.deliver(deliveries)
    assert len(box.puller.messages(9)) == 2
    assert box.puller.finished


@pytest.mark.parametrize(
    ("offset", "end", "batch", "expected", "next_offset"),
    [
        (0, None, (0, 0, 5), (0, 0, 5), 5),
        (3, None, (0, 0, 5), (3, 3, 5), 5),
        (3, 4, (0, 0, 5), (3, 3, 4), 4),
        (12, None, (10, 2, 7), (12, 4, 7), 15),
        (11, None, (10, 2, 7), (11, 3, 7), 15),
        (14, None, (10, 2, 7), (14, 6, 7), 15),
        (5, None, (0, 0, 5), None, 5),
        (0, 0, (0, 0, 5), None, 0),
    ],
)
def test_batches_are_cut_to_what_was_asked(
    offset: int,
    end: int | None,
    batch: tuple[int, int, int],
    expected: tuple[int, int, int] | None,
    next_offset: int,
) -> None:
    queue = FeedQueue("t", KEY, GroupId(1), offset)
    queue.end = end
    base, start, stop = batch
    found: list[Delivery] = []
    place = broker_pb2.BatchRange(base_offset=base, row_start=start, row_end=stop)
    cut(found, queue, 0, place, memoryview(b""))
    assert [(each.base_offset, each.row_start, each.row_end) for each in found] == (
        [] if expected is None else [expected]
    )
    assert queue.offset == next_offset


def test_a_gap_is_never_passed_on() -> None:
    queue = FeedQueue("t", KEY, GroupId(1), 3)
    place = broker_pb2.BatchRange(base_offset=4, row_start=0, row_end=1)
    with pytest.raises(InternalError, match="offset 3 was asked for, 4 came"):
        cut([], queue, 0, place, memoryview(b""))


def test_waiting_ends_with_a_delivery_or_the_time() -> None:
    box = Box()
    assert not wait_ready(box.feed, 0.01)
    assert box.feed._waiters == []
    thread = threading.Thread(target=lambda: box.put([b"a"], 0))
    thread.start()
    assert wait_ready(box.feed, 10)
    thread.join()


async def test_awaiting_ends_with_a_delivery_or_the_time() -> None:
    box = Box()
    assert not await await_ready(box.feed, 0.01)
    assert box.feed._waiters == []
    thread = threading.Thread(target=lambda: box.put([b"a"], 0))
    thread.start()
    assert await await_ready(box.feed, 10)
    thread.join()
    box.feed.end()
    assert await await_ready(box.feed, None)


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        (set(), [10, 11, 12, 13]),
        ({10}, [11, 12, 13]),
        ({11, 12}, [10, 13]),
        ({13, 9, 14}, [10, 11, 12]),
        ({10, 11, 12, 13}, []),
    ],
)
def test_offsets_to_be_skipped_are_not_given_out(skip: set[int], expected: list[int]) -> None:
    box = Box()
    box.queue.skip = skip
    box.queue.offset = 10
    values = [b"%d" % number for number in range(8, 14)]
    batch = broker_pb2.BatchRange(base_offset=8, row_start=0, row_end=6)
    deliveries: list[Delivery] = []
    cut(deliveries, box.queue, box.queue.turn, batch, stored(values, 8))
    box.feed.deliver(deliveries)
    messages = box.puller.messages(100)
    assert [message.offset for message in messages] == expected
    assert [int(message.value) for message in messages] == expected
    assert box.queue.offset == 14


def test_a_failure_is_told_between_what_came_before_and_what_came_after() -> None:
    """A queue that is never empty would hide the error of another one for ever."""
    box = Box()
    box.put([b"a"], 0)
    box.feed.fail(Unavailable("older"))
    box.put([b"b"], 1)
    box.feed.fail(CorruptBatch("newer"))
    box.put([b"c"], 2)
    assert [message.value for message in box.puller.messages(9)] == [b"a"]
    with pytest.raises(CorruptBatch, match="newer"):
        box.puller.messages(9)
    assert [message.value for message in box.puller.messages(9)] == [b"b", b"c"]


def test_a_busy_queue_does_not_hide_a_failure() -> None:
    box = Box()
    box.put([b"m"], 0)
    box.feed.fail(Unavailable("the other queue"))
    given, told = 0, 0
    for offset in range(1, 5):
        box.put([b"m"], offset)
        try:
            given += len(box.puller.messages(1))
        except Unavailable:
            told = given
    assert (given, told) == (3, 1)
    assert [message.offset for message in box.puller.drain()] == [3, 4]


def test_a_failure_comes_after_a_damaged_batch_that_was_put_back() -> None:
    box = Box()
    box.feed.deliver([Delivery(box.queue, 0, 9, damaged([b"a"], 0), 0, 0, 1)])
    box.feed.fail(Unavailable("the other queue"))
    for _ in range(2):
        with pytest.raises(CorruptBatch):
            box.puller.messages(1)
    box.soon[0]()
    with pytest.raises(Unavailable):
        box.puller.messages(1)


def test_what_is_in_line_comes_before_a_final_failure() -> None:
    box = Box()
    box.feed.fail(Unavailable("passing"))
    box.put([b"a"], 0)
    box.feed.fail(InternalError("final"), final=True)
    box.put([b"b"], 1)
    assert [message.value for message in box.puller.messages(9)] == [b"a", b"b"]
    for _ in range(2):
        with pytest.raises(InternalError, match="final"):
            box.puller.messages(9)


def test_after_a_final_failure_every_call_fails() -> None:
    box = Box()
    box.feed.fail(InternalError("passing"))
    with pytest.raises(InternalError, match="passing"):
        box.puller.messages(1)
    assert box.puller.messages(1) == []
    box.feed.fail(InternalError("final"), final=True)
    box.feed.fail(InternalError("later"))
    for _ in range(2):
        with pytest.raises(InternalError, match="final"):
            box.puller.messages(1)


def test_after_a_final_failure_nothing_more_is_fetched() -> None:
    """Else a queue that grows would put the error off for ever."""
    box = Box()
    box.put([b"a"], 0)
    assert box.feed.wanted(GroupId(1)) == [box.queue]
    box.feed.fail(InternalError("final"), final=True)
    assert box.feed.wanted(GroupId(1)) == []
    assert len(box.puller.messages(9)) == 1
    with pytest.raises(InternalError, match="final"):
        box.puller.messages(9)


@pytest.mark.parametrize("way", ["arrow", "messages"])
def test_a_failure_takes_nothing_along_that_was_there_before_it(way: str) -> None:
    box = Box()
    box.put([b"a", b"b"], 0)
    box.feed.fail(OffsetOutOfRange("trimmed"))
    found = box.puller.arrow() if way == "arrow" else box.puller.messages(10)
    assert found is not None
    assert len(found) == 2
    assert box.queue.delivered == 2
    with pytest.raises(OffsetOutOfRange):
        box.puller.arrow()
    assert box.puller.arrow() is None


def ask_for(link: _FetchLink, box: Box) -> None:
    """Poll 1 for the box's queue is under way."""
    box.queue.asked = True
    link._asked[1] = [_Asked(box.queue, box.queue.turn, False)]


@pytest.mark.parametrize("answer", ["nothing", "refused"])
def test_a_node_that_is_behind_is_asked_once_and_no_master_is_blamed(answer: str) -> None:
    box = Box()
    box.feed.any_replica = True
    box.feed.cluster = cluster = Nowhere()  # type: ignore[assignment]
    link = _FetchLink(box.feed, GroupId(1))
    node = link._replica()
    assert node is not None
    assert node.address == "slave:1"
    header = broker_pb2.FetchReplyHeader(correlation_id=1)
    if answer == "refused":
        result = header.results.add(error=to_detail(UnknownQueue("not here yet")))
        result.queue.topic_id, result.queue.queue_id = KEY.topic_id, KEY.queue_id
    ask_for(link, box)
    with pytest.raises(Unavailable if answer == "nothing" else UnknownQueue) as caught:
        link.on_reply(header, [])
    link._on_ended(node, caught.value)
    assert link._replica() is None  # the master's turn
    assert cluster.failed == []
    master = Master(address="master:1", node_id=NodeId(1), term=Term(1))
    link._on_ended(master, Unavailable("gone"))
    assert cluster.failed == [master]


async def test_a_poll_that_is_throttled_is_made_again() -> None:
    box = Box()
    box.feed.cluster = Nowhere()  # type: ignore[assignment]
    link = _FetchLink(box.feed, GroupId(1))
    header = broker_pb2.FetchReplyHeader(
        correlation_id=1, error=to_detail(Throttled("later", retry_after_ms=5))
    )
    ask_for(link, box)
    link.on_reply(header, [])
    assert box.feed.wanted(GroupId(1)) == [box.queue]
    assert link._wake.is_set(), "whoever asks sleeps until then"


@pytest.mark.parametrize(
    ("error", "pause_s"),
    [(Unavailable("not yet"), 0.05), (Throttled("later", retry_after_ms=80), 0.08)],
)
async def test_a_queue_that_cannot_be_read_now_rests_alone(
    error: SemelError, pause_s: float
) -> None:
    box = Box()
    box.feed.cluster = Nowhere()  # type: ignore[assignment]
    link = _FetchLink(box.feed, GroupId(1))
    other = FeedQueue("t", QueueKey(TopicId(1), QueueId(3)), GroupId(1), 0)
    box.feed.queues[other.key] = other
    header = broker_pb2.FetchReplyHeader(correlation_id=1)
    result = header.results.add(error=to_detail(error))
    result.queue.topic_id, result.queue.queue_id = KEY.topic_id, KEY.queue_id
    ask_for(link, box)
    link.on_reply(header, [])
    began = time.monotonic()
    assert box.feed.wanted(GroupId(1)) == [other]
    other.asked = True
    box.feed._links[GroupId(1)] = link
    link._wake.clear()
    await link._wake.wait()
    assert time.monotonic() - began >= 0.9 * pause_s
    assert box.feed.wanted(GroupId(1)) == [box.queue]


def lose(box: Box, next_offset: int, *, told: bool) -> None:
    error = OffsetsLost("gone", next_offset=next_offset)
    box.feed.deliver([pass_lost(box.queue, error, told=told)])


def test_lost_messages_are_told_once_between_those_around_them() -> None:
    box = Box()
    box.put([b"a", b"b"], 0)
    lose(box, 7, told=True)
    box.put([b"c"], 7)
    assert [message.value for message in box.puller.messages(10)] == [b"a", b"b"]
    with pytest.raises(OffsetsLost) as caught:
        box.puller.messages(10)
    assert (caught.value.next_offset, box.queue.delivered) == (7, 7)
    assert [message.offset for message in box.puller.messages(10)] == [7]


def test_lost_messages_can_be_passed_over_and_are_committed_with_the_rest() -> None:
    box = Box()
    box.put([b"a", b"b"], 0)
    box.queue.token = 9
    lose(box, 7, told=False)
    assert [message.value for message in box.puller.messages(10)] == [b"a", b"b"]
    assert box.puller.messages(10) == []
    (span,) = box.puller.outstanding.spans()
    assert (span.start, span.end, box.queue.delivered) == (0, 7, 7)


def test_a_reader_that_ends_within_what_is_lost_is_finished() -> None:
    box = Box()
    box.queue.end = 5
    box.put([b"a", b"b"], 0)
    lose(box, 7, told=False)
    assert len(box.puller.messages(2)) == 2
    assert not box.puller.finished
    assert box.puller.messages(10) == []
    assert (box.queue.offset, box.puller.finished) == (5, True)


def test_what_is_lost_before_a_seek_is_not_told() -> None:
    box = Box()
    lose(box, 7, told=True)
    box.queue.go_to(3)
    assert box.puller.messages(10) == []
    assert (box.queue.delivered, box.queue.offset) == (3, 3)
