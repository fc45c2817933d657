"""Messages that are known by their ids: what several broker groups say becomes one answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.admin.found_message import cancel_message, find_message
from semel.client.core.routing import QueueRoute
from semel.protos.batch import BrokerHeader
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import InvalidRequest, QueueMoved, SemelError, UnknownQueue
from semel.protos.ids import GroupId, Offset, QueueId, QueueKey, Term, TopicId
from semel.protos.v1 import broker_pb2, common_pb2, controller_pb2

TOPIC = TopicId(7)
UNKNOWN = broker_pb2.MESSAGE_FATE_UNKNOWN
STORED = broker_pb2.MESSAGE_FATE_STORED
DELAYED = broker_pb2.MESSAGE_FATE_DELAYED
CANCELLED = broker_pb2.MESSAGE_FATE_CANCELLED
REMOVED = broker_pb2.MESSAGE_FATE_REMOVED


def stored_batch() -> bytes:
    batch = encode_batch(
        Columns.from_arrow(
            [b"one", b"two"],
            keys=[b"k1", b"k2"],
            message_ids=[b"id-1", b"id-2"],
            headers=[[], [("waiter", b"Ann")]],
        ),
        topic_id=TOPIC,
        queue_id=3,
        producer_id=55,
        epoch=4,
        session=2,
        previous_sequence=9,
        base_sequence=10,
        last_sequence=11,
        timestamp_us=777,
    )
    head = BrokerHeader(base_offset=Offset(40), append_time_us=888, term=Term(1))
    return head.encode() + batch


def answer(fate: Any, **fields: Any) -> dict[str, Any]:
    queue = common_pb2.QueueRef(topic_id=TOPIC, queue_id=3)
    return {"fate": fate, "queue": queue, "offset": -1, **fields}


class Groups:
    """A cluster whose broker groups, numbers 1 and up, each have a queue of the topic."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.failures: list[SemelError] = []
        self.asked: list[tuple[int, str, bytes]] = []
        self.refreshed = 0
        self.routes = self

    async def topic(self, name: str, *, refresh: bool = False) -> Any:
        self.refreshed += refresh
        every = tuple(
            QueueRoute(
                key=QueueKey(TOPIC, QueueId(number)),
                group_id=GroupId(number),
                slot_start=0,
                slot_end=65_536,
            )
            for number in range(1, len(self.answers) + 1)
        )
        return SimpleNamespace(name=name, topic_id=TOPIC, every=every)

    def by_home(self, queues: Any) -> Any:
        return {queue.group_id: [queue.key] for queue in queues}

    async def call_master(self, group_id: GroupId, method: str, request: Any) -> Any:
        assert request.topic_id == TOPIC
        self.asked.append((group_id, method, request.message_id))
        if self.failures:
            raise self.failures.pop()
        found = self.answers[group_id - 1]
        if isinstance(found, SemelError):
            raise found
        kind = getattr(broker_pb2, f"{method}Reply")
        return kind(**found)

    async def controller(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        reply = controller_pb2.ListProducersReply()
        reply.producers.add(producer_id=55, name="kitchen")
        return reply


async def find(groups: Any, message_id: Any = "id-2") -> Any:
    return await find_message(groups, "orders", message_id)


async def cancel(groups: Any, message_id: Any = "id-2") -> Any:
    return await cancel_message(groups, "orders", message_id)


async def test_a_message_is_taken_out_of_its_batch() -> None:
    groups = Groups(
        answer(UNKNOWN),
        answer(STORED, offset=41, append_time_us=999, stored=stored_batch(), row=1),
    )
    found = await find(groups)
    assert found.as_dict() == {
        "topic": "orders",
        "message_id": b"id-2",
        "state": "stored",
        "queue": 3,
        "offset": 41,
        "due_us": 0,
        "append_time_us": 999,
        "arrival_time_us": 888,
        "timestamp_us": 777,
        "key": b"k2",
        "value": b"two",
        "headers": (("waiter", b"Ann"),),
        "producer_id": 55,
        "producer": "kitchen",
        "epoch": 4,
        "session": 2,
        "sequence": 11,
    }
    assert sorted(groups.asked) == [(1, "FindMessage", b"id-2"), (2, "FindMessage", b"id-2")]


@pytest.mark.parametrize(
    ("fates", "state"),
    [
        ((CANCELLED, STORED), "stored"),
        ((REMOVED, DELAYED), "delayed"),
        ((CANCELLED, REMOVED), "removed"),
        ((UNKNOWN, CANCELLED), "cancelled"),
    ],
)
async def test_what_is_there_counts_more_than_what_is_gone(
    fates: tuple[Any, ...], state: str
) -> None:
    for order in (fates, fates[::-1]):
        found = await find(Groups(*(answer(fate, due_us=5) for fate in order)))
        assert (found.state, found.due_us, found.value, found.sequence) == (state, 5, None, None)


async def test_an_unknown_message_is_none() -> None:
    assert await find(Groups(answer(UNKNOWN), answer(UNKNOWN))) is None


@pytest.mark.parametrize("wrong", ["", b"x" * 129, 7, None])
async def test_malformed_ids_are_refused_before_anybody_is_asked(wrong: Any) -> None:
    groups = Groups(answer(UNKNOWN))
    for ask in (find, cancel):
        with pytest.raises(InvalidRequest):
            await ask(groups, wrong)
    assert groups.asked == []


@pytest.mark.parametrize("error", [QueueMoved("it moved"), UnknownQueue("not here")])
async def test_a_topic_that_moved_is_asked_for_again(error: SemelError) -> None:
    groups = Groups(answer(DELAYED))
    groups.failures = [error, error]
    assert (await find(groups)).state == "delayed"
    assert groups.refreshed == 3
    groups.failures = [error] * 3
    with pytest.raises(type(error)):
        await find(groups)


async def test_a_message_that_nobody_knows_is_sought_again_if_its_queue_has_moved() -> None:
    class Moving(Groups):
        async def call_master(self, group_id: GroupId, method: str, request: Any) -> Any:
            reply = await super().call_master(group_id, method, request)
            self.answers = [answer(UNKNOWN), answer(DELAYED, due_us=9)]  # after it was asked
            return reply

    assert (await find(Moving(answer(UNKNOWN)))).state == "delayed"
    groups = Groups(answer(UNKNOWN))
    assert await find(groups) is None
    assert len(groups.asked) == 1


async def test_a_cancelled_message() -> None:
    never = InvalidRequest("it was never delayed")
    for others in (answer(UNKNOWN), answer(STORED, offset=4), never):
        result = await cancel(Groups(others, answer(CANCELLED, due_us=9)))
        assert (result.result, result.queue, result.offset) == ("cancelled", 3, None)
        assert (result.due_us, result.delivered_us) == (9, None)


async def test_a_message_that_was_delivered() -> None:
    result = await cancel(Groups(answer(STORED, offset=0, due_us=9, append_time_us=10)))
    assert (result.result, result.queue, result.offset) == ("delivered", 3, 0)
    assert (result.due_us, result.delivered_us) == (9, 10)
    result = await cancel(Groups(answer(REMOVED, due_us=9)))
    assert (result.result, result.offset, result.delivered_us) == ("delivered", None, None)


async def test_a_message_that_is_unknown() -> None:
    result = await cancel(Groups({"fate": UNKNOWN, "offset": -1}))
    assert result.as_dict() == {
        "topic": "orders",
        "message_id": b"id-2",
        "result": "unknown",
        "queue": None,
        "offset": None,
        "due_us": None,
        "delivered_us": None,
    }


async def test_a_message_that_was_never_delayed_is_refused() -> None:
    never = InvalidRequest("it was never delayed")
    for answers in ([never], [answer(UNKNOWN), never]):
        with pytest.raises(InvalidRequest, match="never delayed"):
            await cancel(Groups(*answers))
    with pytest.raises(InvalidRequest):
        await find(Groups(never))
