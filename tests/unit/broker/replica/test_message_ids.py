"""The indexes of a node serve its master, follow its log, and are on disk before a checkpoint."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.broker.dedup.id_store import CorruptIndex, MemoryIdStore
from semel.broker.dedup.looked_up import LookedUp
from semel.broker.dedup.rocks_store import RocksIdStore
from semel.broker.dedup.run_list import encode_end, end_key
from semel.broker.replica.id_indexes import Lacking, LeftBehind, Loan
from semel.broker.replica.message_ids import MessageIds
from semel.broker.state import Admission, State, batch_record_parts
from semel.broker.state.apply.id_windows import ID_BYTES
from semel.client.core.encoding import encode_mark
from semel.protos.batch import check_batch
from semel.protos.dropped import Verdict
from semel.protos.errors import (
    InvalidRequest,
    NotMaster,
    Throttled,
    Unavailable,
)
from semel.protos.frames import RecordKind
from semel.protos.ids import Offset, ProducerId, Sequence, Term
from semel.protos.v1 import control_pb2
from tests.kit.id_node import SEED, IdNode, numbered, proposer_of, settled
from tests.kit.state_log import KEY, START_US, control, ref
from tests.unit.broker.replica import one_node


@pytest.fixture
async def node() -> AsyncIterator[IdNode]:
    node = IdNode()
    node.begin()
    yield node
    node.ids.close()


async def test_ids_are_found_in_memory_in_flight_and_on_disk(node: IdNode) -> None:
    await node.send(numbered(0, 10))
    await node.send(numbered(9, 12), commit=False)
    await node.send({"id 11": "other"}, commit=False)
    node.commit()
    assert node.sink.acks[10] == ("committed", 10, [(10, 9, Verdict.DUPLICATE)])
    assert node.sink.acks[13] == ("committed", 12, [(13, 11, Verdict.CONFLICT)])
    await node.ids.settle({KEY.topic_id: 12})
    assert node.index.memory_ids == 0
    await node.send({"id 3": "v", "id 12": "v"})
    assert node.sink.acks[14] == ("committed", 12, [(14, 3, Verdict.DUPLICATE)])


async def test_batches_keep_their_order_while_one_waits_for_the_disk(node: IdNode) -> None:
    await node.send(numbered(0, 10))
    await node.ids.settle({KEY.topic_id: 10})
    first, second = node.batch({"id 3": "v"}), node.batch({"new": "v"}, previous=node.last + 1)
    for data in (first, second):
        node.ids.submit(check_batch(data), data, node.sink)
    assert node.ids._looking_up == 2
    assert node.proposer is not None
    assert node.proposer.pending_bytes == len(first) + len(second)
    await settled(node)
    assert node.proposer.waiting == 2
    node.commit()
    assert node.sink.acks[11] == ("committed", 10, [])
    assert node.proposer.pending_bytes == 0


async def test_a_retry_of_a_stored_batch_is_answered_without_a_look_up(node: IdNode) -> None:
    data = await node.send(numbered(0, 3))
    await node.ids.settle({KEY.topic_id: 3})
    node.ids.submit(check_batch(data), data, node.sink)
    assert not node.ids._looking_up
    node.commit()
    assert node.sink.acks[0] == ("duplicate", 0, [])


async def test_a_position_mark_needs_no_decision(node: IdNode) -> None:
    mark = encode_mark(
        KEY,
        producer_id=ProducerId(1),
        epoch=1,
        session=0,
        previous_sequence=Sequence(-1),
        position=Sequence(4),
        timestamp_us=1,
    )
    for status in ("committed", "duplicate"):
        node.ids.submit(check_batch(mark), mark, node.sink)
        node.commit()
        assert node.sink.acks.pop(4)[0] == status
    node.last = 4
    await node.send(numbered(0, 3))
    assert node.state.id_windows.topics[KEY.topic_id].next_arrival == 3


async def test_a_look_up_of_a_lost_mastership_tells_of_no_damage(
    node: IdNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have found ids that were cut off meanwhile, of which memory knows no place."""
    await node.send(numbered(0, 10))
    await node.ids.settle({KEY.topic_id: 10})
    index, finish, lost = node.index, LookedUp.finish, threading.Event()

    def late(looked_up: LookedUp) -> LookedUp:
        assert lost.wait(10)
        return finish(looked_up)

    monkeypatch.setattr(LookedUp, "finish", late)
    await node.send({"new": "v"}, commit=False)
    data = node.batch({"id 3": "v", "new": "v"})
    node.propose()
    node.ids.submit(check_batch(data), data, node.sink)
    assert node.ids._looking_up
    node.proposer = None
    node.ids.on_lost()
    lost.set()
    await settled(node)
    assert isinstance(node.sink.refused[11], NotMaster)
    assert node.index is index
    assert not node.ids.behind


async def test_a_malformed_id_refuses_its_batch(node: IdNode) -> None:
    data = node.batch({"x" * 129: "v"})
    node.ids.submit(check_batch(data), data, node.sink)
    assert isinstance(node.sink.refused[0], InvalidRequest)


async def test_without_mastership_batches_are_sent_on(node: IdNode) -> None:
    await node.send(numbered(0, 10))
    await node.ids.settle({KEY.topic_id: 10})
    data = node.batch({"id 3": "v"})
    node.ids.submit(check_batch(data), data, node.sink)
    node.proposer = None
    node.ids.on_lost()
    await settled(node)
    assert isinstance(node.sink.refused.pop(10), NotMaster)
    node.ids.submit(check_batch(data), data, node.sink)
    assert isinstance(node.sink.refused[10], NotMaster)


async def test_lost_entries_take_their_ids_along(node: IdNode) -> None:
    await node.send(numbered(0, 4))
    await node.send(numbered(4, 8), commit=False)
    node.propose()
    assert node.index.end_arrival == 8
    node.proposer = None
    node.pending.clear()
    node.ids.on_lost()
    assert node.index.end_arrival == node.window.next_arrival == 4
    node.last = 3
    admission = Admission(node.state, term=Term(1))
    node.proposer = proposer_of(node.ids, admission)
    await node.send(numbered(3, 6))
    assert node.sink.acks[4] == ("committed", 4, [(4, 3, Verdict.DUPLICATE)])


async def test_a_slave_has_the_same_ids(node: IdNode) -> None:
    await node.send(numbered(0, 60))
    await node.send(numbered(55, 70))
    slave = IdNode()
    for frame in node.frames:
        slave.follow(frame)
    assert slave.index.end_arrival == node.index.end_arrival == 70
    keys = node.ids._topics[KEY.topic_id].fingerprints.keys
    sought = keys(pa.array([b"id %d" % number for number in range(80)], pa.binary()))
    for one in (node, slave):
        hits = one.index.search_disk(one.index.search_memory(sought, 0), sought, 0).hits
        assert hits.arrivals.tolist() == list(range(70))
        assert one.index.places_of(hits.arrivals).offsets.tolist() == list(range(70))
    slave.ids.close()


@pytest.mark.parametrize("kept", [True, False], ids=["its index", "an empty one"])
async def test_a_node_that_starts_replays_the_rest_or_knows_that_it_is_behind(
    tmp_path: Path, kept: bool
) -> None:
    old = IdNode(RocksIdStore(tmp_path / "ids"))
    old.begin()
    await old.send(numbered(0, 20))
    at = len(old.frames)
    checkpoint = b"".join(old.state.to_parts())
    await old.ids.settle({KEY.topic_id: old.window.next_arrival})
    await old.send(numbered(15, 30))
    old.ids.close()
    directory = tmp_path / ("ids" if kept else "other")
    new = IdNode(RocksIdStore(directory), state=State.from_bytes(checkpoint))
    new.ids.follow()
    assert new.behind == ([] if kept else [True])
    for frame in old.frames[at:]:
        new.follow(frame)
    assert new.ids.behind is not kept
    assert new.index.end_arrival == 30
    assert new.ids.gaps() == ({} if kept else {KEY.topic_id: range(20)})
    new.ids.close()


async def test_windows_are_shortened_by_entries(node: IdNode) -> None:
    ids_max = (1 << 20) // ID_BYTES
    for start in range(0, ids_max + 600, 6_000):
        await node.send(numbered(start, min(start + 6_000, ids_max + 600)))
        await node.ids.settle({KEY.topic_id: node.window.next_arrival})
    running = asyncio.create_task(node.ids.run())
    while node.proposer is None or not node.proposer.waiting:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    node.commit()
    assert node.window.first_arrival == 600
    await node.send({"id 599": "v", "id 600": "v"})
    assert [each[0] for each in node.sink.acks[ids_max + 600][2]] == [ids_max + 601]


async def test_the_index_of_a_topic_that_stops_comparing_is_dropped(node: IdNode) -> None:
    await node.send(numbered(0, 5))
    await node.ids.settle({KEY.topic_id: 5})
    assert isinstance(node.store, MemoryIdStore)
    assert node.store._values
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id)
    assert node.proposer is not None
    node.proposer.submit_control(control_pb2.ControlRecord(alter_topic=alter))
    node.commit()
    await node.ids.write(lambda: None)  # the thread has dropped it by now
    (end,) = node.store._values.items()
    assert end == (end_key(KEY.topic_id), encode_end(node.state.applied_index))
    assert not node.ids.compares(KEY.topic_id)
    await node.send(numbered(0, 5))
    assert node.sink.acks[5] == ("committed", 5, [])


async def test_a_disk_that_cannot_be_read_refuses_the_batch_and_no_other(
    node: IdNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.send(numbered(0, 5))
    await node.ids.settle({KEY.topic_id: 5})

    def broken(keys: Any) -> Any:
        raise OSError("no such disk")

    with monkeypatch.context() as patch:
        patch.setattr(node.store, "get", broken)
        data = node.batch({"id 1": "v"})
        node.ids.submit(check_batch(data), data, node.sink)
        await settled(node)
    assert isinstance(node.sink.refused[5], Throttled)
    assert node.proposer is not None
    assert node.proposer.pending_bytes == 0
    await node.send({"id 1": "v", "id 9": "v"})
    assert node.sink.acks[5] == ("committed", 5, [(5, 1, Verdict.DUPLICATE)])


async def test_a_batch_with_other_ids_than_its_record_says_is_damage(node: IdNode) -> None:
    slave = IdNode()
    for frame in node.frames:
        slave.follow(frame)
    slave.proposer = None
    check = control_pb2.CheckIds(
        queue=ref(KEY), producer_id=1, base_sequence=0, count=2, content_crc=1, ids=1
    )
    parts = batch_record_parts(
        slave.batch(numbered(0, 2)), base_offset=Offset(0), append_time_us=START_US, term=Term(1)
    )
    with pytest.raises(CorruptIndex, match="has 2 ids, not 1"):
        slave.apply([control(check_ids=check), (RecordKind.BATCH, parts)])
    slave.ids.close()


# --- losses -------------------------------------------------------------------------------------


async def test_damage_is_answered_and_the_index_begins_anew(node: IdNode) -> None:
    await node.send(numbered(0, 5))
    await node.ids.settle({KEY.topic_id: 5})
    assert isinstance(node.store, MemoryIdStore)
    for key in [key for key in node.store._values if key[13:14] == b"c"]:
        del node.store._values[key]
    data = node.batch({"id 1": "v"})
    node.ids.submit(check_batch(data), data, node.sink)
    await settled(node)
    assert isinstance(node.sink.refused.pop(5), Throttled)
    assert node.behind == [True]
    assert not node.ids.gaps()  # the damaged index is gone, and there is none yet
    node.ids.submit(check_batch(data), data, node.sink)
    assert "it is incomplete" in str(node.sink.refused.pop(5))
    running = asyncio.create_task(node.ids.run())
    while not node.ids.gaps():
        await asyncio.sleep(0.01)
    assert node.ids.gaps() == {KEY.topic_id: range(5)}
    assert node.store._values == {}
    node.ids.forget(KEY.topic_id, 5)
    assert node.behind == [True, False]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("call", ["locate", "look", "answer_again"])
async def test_every_look_up_notices_damage_unless_the_index_was_given_up_meanwhile(
    node: IdNode, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed: list[CorruptIndex] = []
    monkeypatch.setattr(node.ids, "on_damage", noticed.append)
    await node.send(numbered(0, 5))
    data = await node.send(numbered(4, 6))
    index = node.index

    def damaged(*_: object) -> Any:
        raise CorruptIndex("planted")

    async def look_up() -> None:
        if call == "answer_again":
            node.ids.answer_again(check_batch(data), 5, node.sink)
            while 5 not in node.sink.refused:
                await asyncio.sleep(0.001)
            raise node.sink.refused.pop(5)
        if call == "look":
            await node.ids.look(index, node.ids._readers, damaged)
        else:
            await node.ids.locate(KEY.topic_id, b"id 1")

    monkeypatch.setattr(index, "search_disk", damaged)
    monkeypatch.setattr(index, "places_of", damaged)
    for count in (1, 1):
        with pytest.raises(Throttled, match="it cannot be read: planted"):
            await look_up()
        assert len(noticed) == count
        index.abandon()


async def test_a_disk_that_takes_no_ids_refuses_batches_until_it_does(
    node: IdNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: Any) -> None:
        raise OSError("no space left on device")

    for start in range(0, 250, 50):
        await node.send(numbered(start, start + 50))
    running = asyncio.create_task(node.ids.run())
    with monkeypatch.context() as patch:
        patch.setattr(node.store, "write", full)
        while KEY.topic_id not in node.ids._unwritten:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        data = node.batch({"more": "v"})
        node.ids.submit(check_batch(data), data, node.sink)
        assert "it cannot be written" in str(node.sink.refused.pop(250))
    while node.ids._unwritten:
        await asyncio.sleep(0.01)
    await node.ids.settle({KEY.topic_id: 250})
    await node.send({"more": "v", "id 249": "v"})
    assert node.sink.acks[250][2] == [(251, 249, Verdict.DUPLICATE)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    said = [record for record in caplog.records if "not written" in record.getMessage()]
    assert len(said) == 1


async def test_a_store_that_cannot_be_opened_is_tried_again() -> None:
    refused = [OSError("no such disk")]
    store = MemoryIdStore()

    def open_store() -> MemoryIdStore:
        if refused:
            raise refused.pop()
        return store

    node = IdNode()
    node.ids = MessageIds(node, open_store, memory_ids=50, on_behind=node.behind.append)
    node.begin()
    assert node.behind == [True]
    running = asyncio.create_task(node.ids.run())
    while node.ids.behind:
        await asyncio.sleep(0.01)
    await node.send(numbered(0, 5))
    assert node.sink.acks[0] == ("committed", 0, [])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    node.ids.close()


async def test_a_new_master_forgets_what_all_have_lost(node: IdNode) -> None:
    await node.send(numbered(0, 5))
    checkpoint = b"".join(node.state.to_parts())
    new = IdNode(state=State.from_bytes(checkpoint))
    new.ids.follow()
    assert new.ids.gaps() == {KEY.topic_id: range(5)}
    new.ids.forget(KEY.topic_id, 5)
    assert new.behind == [True, False]
    new.proposer = proposer_of(new.ids, Admission(new.state, term=Term(1)))
    for topic_id, arrival in new.ids.forgotten.items():
        new.proposer.submit_eviction(topic_id, arrival)
    new.last = 4
    await new.send({"id 4": "v", "id 5": "v"})
    assert new.sink.acks[5] == ("committed", 5, [])
    assert new.window.first_arrival == 5
    new.ids.close()


async def test_ids_that_were_given_up_are_missing_again_under_another_master(node: IdNode) -> None:
    """It had not applied them when it was asked, and has them."""
    await node.send(numbered(0, 5))
    checkpoint = b"".join(node.state.to_parts())
    slave = IdNode(state=State.from_bytes(checkpoint))
    slave.ids.follow()
    slave.ids.forget(KEY.topic_id, 5)
    slave.ids.recall()
    assert slave.behind == [True, False, True]
    assert slave.ids.gaps() == {KEY.topic_id: range(5)}
    slave.ids.forget(KEY.topic_id, 5)
    slave.state.id_windows.topics[KEY.topic_id].evict(5)
    slave.ids.recall()
    assert not slave.ids.behind
    slave.ids.close()


async def test_a_loan_is_of_the_window_and_durable(node: IdNode) -> None:
    await node.send(numbered(0, 20))
    loan = await node.ids.lend(KEY.topic_id, SEED, 3)
    assert isinstance(loan, Loan)
    assert loan.held == range(20)
    assert loan.run.info.ids == 20
    assert await node.ids.lend(KEY.topic_id, SEED, 20) == Lacking(0)
    assert await node.ids.lend(KEY.topic_id, b"x" * 16, 3, late=True) == Lacking(0)
    assert await node.ids.lend(KEY.topic_id + 1, SEED, 3, late=True) == Lacking(0)
    with pytest.raises(Unavailable):
        await node.ids.lend(KEY.topic_id, b"x" * 16, 3)
    with pytest.raises(Unavailable):
        await node.ids.lend(KEY.topic_id + 1, SEED, 3)
    checkpoint = b"".join(node.state.to_parts())
    new = IdNode(state=State.from_bytes(checkpoint))
    new.ids.follow()
    assert await new.ids.lend(KEY.topic_id, SEED, 3) == Lacking(20)
    new.ids.close()


async def test_ids_that_the_window_of_a_peer_has_left_behind_are_not_missed(node: IdNode) -> None:
    """The node that lacks them has not applied that, and nobody else may be able to be master."""
    await node.send(numbered(0, 5))
    checkpoint = b"".join(node.state.to_parts())
    node.window.evict(2)
    assert await node.ids.lend(KEY.topic_id, SEED, 1) == LeftBehind(2)
    node.window.evict(5)
    assert await node.ids.lend(KEY.topic_id, SEED, 0) == LeftBehind(5)
    slow = IdNode(state=State.from_bytes(checkpoint))
    slow.ids.follow()
    slow.ids.leave_behind(KEY.topic_id, 2)
    assert slow.ids.gaps() == {KEY.topic_id: range(2, 5)}
    slow.ids.leave_behind(KEY.topic_id, 5)
    slow.ids.leave_behind(KEY.topic_id, 3)
    assert slow.behind == [True, False]
    slow.ids.close()


async def test_a_window_with_another_seed_has_nothing_that_was_given_up(node: IdNode) -> None:
    await node.send(numbered(0, 5))
    node.ids.forget(KEY.topic_id, 5)
    settings = replace(node.window.settings, seed=b"x" * 16)
    node.state.id_windows.replace(KEY.topic_id, settings)
    node.ids.follow()
    assert node.ids.forgotten == {}


async def test_a_candidate_that_lost_ids_does_not_stay_master() -> None:
    """It stood before its index was found to lack some, and the votes came."""
    async with one_node.node() as one:
        await one.become_master()
        replica = one.replica
        assert replica.ids._topics == {}
        replica.set_fit("message ids", False)
        replica.ids.behind = True
        replica.tell_role()
        await one.until(lambda: not replica.is_master)
        assert not replica.electable
