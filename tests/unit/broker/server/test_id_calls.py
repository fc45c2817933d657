"""What a master tells of messages that are known by their ids, and how it cancels them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.log import IndexUnavailable
from semel.broker.replica.message_ids import IdPlace
from semel.broker.server import id_calls
from semel.broker.server.id_calls import IdCalls
from semel.broker.state import Refused
from semel.protos.errors import CorruptBatch, InvalidRequest, Throttled, UnknownQueue
from semel.protos.ids import TopicId
from semel.protos.v1 import broker_pb2, control_pb2
from tests.kit.cancelling import CancelGroup
from tests.kit.state_log import KEY
from tests.unit.broker.server.lone_master import Master

SECOND_US = 1_000_000


class IdMaster(Master):
    """A master with the log and the index of a group; `between` happens before each look."""

    def __init__(self, group: CancelGroup) -> None:
        super().__init__(group.state)
        self.config = SimpleNamespace(group_id=1)
        self.log = SimpleNamespace(read_record=self._read)
        self.ids = self
        self.cleaned = False
        self.between: list[Callable[[], Any]] = []
        self._group = group

    def log_time_us(self) -> int:
        return self._group.now_us

    async def locate(self, topic_id: TopicId, message_id: bytes) -> IdPlace | None:
        if self.between:
            self.between.pop(0)()
        return self._group.place(message_id)

    def _read(self, index: int, position: int, length: int) -> bytes:
        if self.cleaned:
            raise IndexUnavailable(index, index + 1, index + 1)
        return self._group.read_record(index, position, length)

    pools = SimpleNamespace(clients=None)

    async def in_reader(self, work: Callable[[], Any], pool: Any) -> Any:
        return work()

    async def submit_control(self, record: control_pb2.ControlRecord) -> Any:
        decision = self._group.submit(record.cancel_delayed, commit=False)
        if isinstance(decision, Refused):
            raise decision.error
        return self._group.commit()[-1]


@pytest.fixture
def group() -> CancelGroup:
    """Message x is in the queue; a, b and c are due in five seconds."""
    made = CancelGroup()
    made.produce_ids([(b"x", b"1")])
    due_us = made.now_us + 5 * SECOND_US
    made.produce_ids([(each, b"value") for each in (b"a", b"b", b"c")], due_us=due_us)
    return made


@pytest.fixture
def master(group: CancelGroup) -> IdMaster:
    return IdMaster(group)


async def find(master: Any, message_id: bytes, topic_id: int = KEY.topic_id) -> Any:
    request = broker_pb2.FindMessageRequest(topic_id=topic_id, message_id=message_id)
    return await IdCalls(master).FindMessage(request, None)


async def cancel(master: Any, message_id: bytes, topic_id: int = KEY.topic_id) -> Any:
    request = broker_pb2.CancelMessageRequest(topic_id=topic_id, message_id=message_id)
    return await IdCalls(master).CancelMessage(request, None)


def release(group: CancelGroup) -> None:
    group.now_us += 5 * SECOND_US
    group.release()


async def test_a_message_is_found_before_and_after_it_is_due(
    group: CancelGroup, master: IdMaster
) -> None:
    due_us = group.now_us + 5 * SECOND_US
    before = await find(master, b"b")
    assert (before.fate, before.offset, before.due_us, before.append_time_us, before.row) == (
        broker_pb2.MESSAGE_FATE_DELAYED,
        -1,
        due_us,
        0,
        1,
    )
    await cancel(master, b"a")
    release(group)
    after = await find(master, b"b")
    assert (after.fate, after.offset, after.due_us, after.append_time_us, after.row) == (
        broker_pb2.MESSAGE_FATE_STORED,
        1,
        due_us,
        due_us,
        1,
    )
    assert before.stored == after.stored
    plain = await find(master, b"x")
    assert (plain.fate, plain.offset, plain.due_us) == (broker_pb2.MESSAGE_FATE_STORED, 0, 0)


async def test_a_message_that_was_trimmed_is_removed(group: CancelGroup, master: IdMaster) -> None:
    release(group)
    group.state.queues[KEY].trim(4)
    for message_id, offset in ((b"x", 0), (b"b", -1)):
        found = await find(master, message_id)
        assert (found.fate, found.offset) == (broker_pb2.MESSAGE_FATE_REMOVED, offset)
        assert not found.stored
    reply = await cancel(master, b"b")
    assert (reply.fate, reply.offset) == (broker_pb2.MESSAGE_FATE_REMOVED, -1)


async def test_another_id_with_the_same_fingerprint_is_not_found(
    group: CancelGroup, master: IdMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = group.place(b"x")
    monkeypatch.setattr(group, "place", lambda _: place)
    assert (await find(master, b"y")).fate == broker_pb2.MESSAGE_FATE_UNKNOWN
    assert (await find(master, b"x")).fate == broker_pb2.MESSAGE_FATE_STORED


async def test_an_id_that_the_window_has_left_is_unknown(
    group: CancelGroup, master: IdMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = group.place(b"x")
    assert place is not None
    group.window.evict(1)
    monkeypatch.setattr(group, "place", lambda _: place)  # it was looked up before
    assert (await find(master, b"x")).fate == broker_pb2.MESSAGE_FATE_UNKNOWN


async def test_a_batch_that_this_node_lacks_is_an_error_and_no_answer(master: IdMaster) -> None:
    master.cleaned = True
    for ask in (find, cancel):
        with pytest.raises(CorruptBatch):
            await ask(master, b"a")


async def test_two_callers_hear_that_it_is_cancelled(group: CancelGroup, master: IdMaster) -> None:
    for _ in range(2):
        reply = await cancel(master, b"b")
        assert (reply.fate, reply.queue.queue_id) == (broker_pb2.MESSAGE_FATE_CANCELLED, 0)
    assert group.delayed() == [b"a", b"c"]


async def test_a_call_that_meets_one_in_flight_looks_again(
    group: CancelGroup, master: IdMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_calls, "_RETRY_MS", 0)
    record = group.cancel_record(b"b")
    assert record is not None
    master.between = [lambda: group.submit(record, commit=False), group.commit]
    reply = await cancel(master, b"b")
    assert reply.fate == broker_pb2.MESSAGE_FATE_CANCELLED
    assert master.between == []


async def test_a_message_that_is_due_is_waited_for(
    group: CancelGroup, master: IdMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no offset yet, and will have one."""
    monkeypatch.setattr(id_calls, "_RETRY_MS", 0)
    group.now_us += 5 * SECOND_US
    master.between = [lambda: None, lambda: None, group.release]
    reply = await cancel(master, b"b")
    assert (reply.fate, reply.offset) == (broker_pb2.MESSAGE_FATE_STORED, 2)
    assert reply.append_time_us == group.now_us


async def test_a_message_that_is_due_and_never_comes_is_to_be_asked_for_again(
    group: CancelGroup, master: IdMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_calls, "CANCEL_MS_MAX", 30)
    group.now_us += 5 * SECOND_US
    with pytest.raises(Throttled, match="due"):
        await cancel(master, b"b")
    assert group.delayed() == [b"a", b"b", b"c"]


async def test_a_message_that_was_never_delayed_is_not_cancelled(master: IdMaster) -> None:
    with pytest.raises(InvalidRequest, match="it has been in queue 0 at offset 0"):
        await cancel(master, b"x")


@pytest.mark.parametrize("ask", [find, cancel])
async def test_what_is_no_id_or_no_topic_is_refused(master: IdMaster, ask: Any) -> None:
    for wrong in (b"", b"x" * 129):
        with pytest.raises(InvalidRequest, match="1 to 128 bytes"):
            await ask(master, wrong)
    assert (await ask(master, b"x" * 128)).fate == broker_pb2.MESSAGE_FATE_UNKNOWN
    with pytest.raises(UnknownQueue):
        await ask(master, b"a", topic_id=9)
    del master.state.id_windows.topics[KEY.topic_id]
    with pytest.raises(InvalidRequest, match="--dedup-by-id"):
        await ask(master, b"a")
