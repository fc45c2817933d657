"""Topics that compare message ids: an id determines the queue as a key does; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.config import ProducerConfig
from semel.client.core.batching import NO_QUEUE, Part, route
from semel.client.core.message_ids import check_ids
from semel.client.core.routing import TopicRoute, topic_route
from semel.client.core.splitting import divide, of_waiting
from semel.client.producer.intake import Intake
from semel.client.producer.rare_fields import rare_fields
from semel.protos.columns import Columns
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.few_rows import FEW_ROWS_MAX
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.slots import slot_of_key, split_slots
from semel.protos.v1 import controller_pb2
from tests.unit.client.chunks import SPLIT, chunk_of, heirs, values_of

QUEUES = 8


def compared(groups: int = 1, *, dedup: bool = True) -> TopicRoute:
    message = controller_pb2.TopicRoute(name="t", topic_id=5)
    if dedup:
        message.settings.dedup.window_bytes = 1 << 20
    for number, (start, end) in enumerate(split_slots(QUEUES)):
        group = number % groups + 1
        message.queues.add(queue_id=number, group_id=group, slot_start=start, slot_end=end)
    return topic_route(message)


def routed(topic: TopicRoute, count: int, **columns: Any) -> dict[bytes, int]:
    """The queue of each message, by its value."""
    chunk = chunk_of([b"%d" % row for row in range(count)], **columns)
    parts = route(chunk, topic, sticky=3, batch_bytes=1 << 20, resume=columns.get("resume"))
    return {value: part.queue.queue_id for part in parts for value in values_of(part)}


def queue_of(text: bytes) -> int:
    return next(n for n, (_, end) in enumerate(split_slots(QUEUES)) if slot_of_key(text) < end)


maybe = st.one_of(st.none(), st.binary(min_size=1, max_size=128))


@given(st.lists(st.tuples(maybe, maybe), min_size=1, max_size=12), st.booleans())
def test_the_queue_follows_from_the_key_or_else_from_the_id(
    rows: list[tuple[bytes | None, bytes | None]], dedup: bool
) -> None:
    keys, ids = [key for key, _ in rows], [each for _, each in rows]
    found = routed(compared(dedup=dedup), len(rows), keys=keys, message_ids=ids)
    for row, (key, message_id) in enumerate(rows):
        chosen = key if key is not None else (message_id if dedup else None)
        assert found[b"%d" % row] == (3 if chosen is None else queue_of(chosen))


def test_a_column_of_ids_routes_as_a_column_of_the_same_keys() -> None:
    texts = pa.array([b"id %d" % row for row in range(100)], pa.binary())
    by_id = routed(compared(2), 100, message_ids=texts)
    assert by_id == routed(compared(2), 100, keys=texts)
    assert len(set(by_id.values())) == QUEUES


@pytest.mark.parametrize("count", [1, 2, FEW_ROWS_MAX, FEW_ROWS_MAX + 1])
def test_few_messages_with_ids_alone_go_to_the_queues_of_their_ids(count: int) -> None:
    ids = [b"id %d" % row for row in range(count)]
    found = routed(compared(2), count, message_ids=ids)
    assert found == {b"%d" % row: queue_of(each) for row, each in enumerate(ids)}
    assert set(routed(compared(2, dedup=False), count, message_ids=ids).values()) == {3}


def test_ids_go_before_source_positions() -> None:
    resume = np.full(QUEUES, -1, np.int64)
    ids = [b"one", None, b"two"]
    chunk = chunk_of([b"0", b"1", b"2"], message_ids=ids, positions=[5, 6, 7])
    parts = route(chunk, compared(), sticky=0, batch_bytes=1 << 20, resume=resume)
    found = {value: part.queue.queue_id for part in parts for value in values_of(part)}
    assert (found[b"0"], found[b"2"]) == (queue_of(b"one"), queue_of(b"two"))


@pytest.mark.parametrize(
    "columns",
    [
        {"keys": [None, b"key"], "message_ids": [None, b"id"]},
        {"message_ids": [None, b"id"], "queues": [NO_QUEUE, 2]},
        {"message_ids": [None, b"id"], "queues": 2},
        {"message_ids": [None, b"x" * 129]},
        {"keys": [b"any", b"key"], "message_ids": [b"other", b"id"]},
        {"message_ids": [b"other", b"id"], "queues": [NO_QUEUE, 2]},
        {"message_ids": [b"other", b"id"], "queues": 2},
        {"message_ids": [b"other", b"x" * 129]},
    ],
)
def test_what_could_meet_two_groups_is_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        routed(compared(2), 2, **columns)
    if columns["message_ids"][1] == b"id":
        assert len(routed(compared(1), 2, **columns)) == 2, "one group knows all ids"
        assert len(routed(compared(2, dedup=False), 2, **columns)) == 2


def test_no_id_needs_no_rule() -> None:
    found = routed(compared(2), 2, keys=[b"a", b"b"], message_ids=[None, None])
    assert found == {b"0": queue_of(b"a"), b"1": queue_of(b"b")}


def intake_of(topic: TopicRoute) -> Intake:
    intake = Intake(ProducerConfig(), wake=lambda: None, open_topic=None)
    intake.topic("t").id_rules = topic.id_rules
    return intake


def append(intake: Intake, message_id: bytes, key: bytes | None = None) -> None:
    rare = rare_fields(None, None, message_id)
    intake.append("t", b"v", key, None, None, None, None, False, *rare)


def test_an_opened_topic_refuses_at_the_call() -> None:
    with pytest.raises(InvalidRequest, match="1 to 128 on a topic that compares"):
        append(intake_of(compared()), b"x" * 129)
    with pytest.raises(InvalidRequest, match="2 broker groups"):
        append(intake_of(compared(2)), b"id", b"key")
    append(intake_of(compared()), b"id", b"key")
    append(intake_of(compared(2)), b"x" * 128)
    append(intake_of(compared(2, dedup=False)), b"x" * 1_024, b"key")


@pytest.mark.parametrize("ids", [[b"x" * 129], [b""], pa.array([7]), [b"a", b"b"], [7]])
def test_bulk_calls_refuse_before_anything_is_sent(ids: Any) -> None:
    intake = intake_of(compared())
    with pytest.raises(SemelError) as caught:
        intake.bulk_pieces("t", [b"v"], None, None, None, None, None, ids)
    assert isinstance(caught.value, InvalidRequest)
    with pytest.raises(InvalidRequest, match="row 1"):
        intake_of(compared(2)).bulk_pieces(
            "t", [b"v", b"w"], [None, b"k"], None, None, None, None, [b"id", b"id"]
        )


def test_the_limit_depends_on_the_topic() -> None:
    ids = pa.array([b"x" * 129], pa.binary())
    assert check_ids(ids).tolist() == [129]
    with pytest.raises(InvalidRequest, match="row 0"):
        check_ids(ids, 128)


@pytest.mark.parametrize("by_id", [False, True])
def test_children_of_a_split_get_rows_by_their_ids(by_id: bool) -> None:
    ids = [b"id %d" % row for row in range(40)]
    chunk = chunk_of([b"%d" % row for row in range(40)])
    part = Part(chunk, QueueKey(TopicId(5), QueueId(0)), 0, 40, 400)
    part.columns = Columns.from_arrow([b"%d" % row for row in range(40)], message_ids=ids)
    chunk.parts, chunk.open_parts = [part], 1
    made = divide(of_waiting(part), heirs(), 1, by_id=by_id)
    for child in made:
        for value in values_of(child):
            slot = slot_of_key(ids[int(value)])
            wanted = [c.queue_id for c in SPLIT.children if c.slot_start <= slot][-1]
            assert child.queue.queue_id == (wanted if by_id else 3)


def test_plain_ids_are_checked_where_they_are_appended() -> None:
    intake = intake_of(compared())
    for wrong in (b"", b"x" * 129):
        with pytest.raises(InvalidRequest, match="1 to 128"):
            intake.append("t", b"v", None, None, None, None, None, False, 0, wrong)
    assert intake.buffered == 0
