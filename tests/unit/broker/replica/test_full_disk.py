"""A disk without room for term and vote: nothing is promised, nothing is half done, and the node
goes on when there is room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel.broker.log import HardStateFile
from semel.broker.raft import EntryMeta, Message, MessageKind, Role
from semel.protos.errors import DiskFull, NotMaster
from semel.protos.frames import RecordKind, build_frame
from semel.protos.v1.control_pb2 import ControlRecord, FeatureLevel
from tests.kit.disk import SimFiles
from tests.kit.state_log import header
from tests.unit.broker.replica.one_node import ME, OTHER, Answers, node


def saved(files: SimFiles) -> object:
    """Term and vote as the next process finds them after a failure of power."""
    return HardStateFile(Path("/node/hard_state"), files.restart(survives=0.0)).load()


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_deposed_master_without_room_for_the_new_term_judges_nothing_any_more(
    operation: str,
) -> None:
    async with node() as one:
        await one.become_master()
        replica = one.replica
        for peer in one.peers.values():
            peer.there = False
        asked = asyncio.create_task(
            replica.submit_control(ControlRecord(feature_level=FeatureLevel(level=1)))
        )
        last = replica.log.last_index
        while replica.log.last_index == last:
            await asyncio.sleep(0)
        one.files.full = ("hard_state", operation)
        one.hear(MessageKind.HEARTBEAT)
        assert not replica.is_master
        assert replica.disk_full
        with pytest.raises(NotMaster):
            await asked


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_without_room_for_a_vote_nobody_gets_it_before_there_is(operation: str) -> None:
    async with node() as one:
        replica = one.replica
        one.files.full = ("hard_state", operation)
        one.hear(MessageKind.VOTE, context=7)
        for _ in range(50):  # nor does it stand for election itself, or answer a heartbeat
            one.hear(MessageKind.HEARTBEAT, term=replica.term)
            replica.driver.on_tick()
            await asyncio.sleep(0.001)
        assert one.sent() == []
        assert replica.term == 1
        one.files.full = None
        replica.driver.on_tick()
        assert one.sent()[0] is MessageKind.VOTE_REPLY
        assert not replica.disk_full
        assert saved(one.files) == (1, OTHER)


async def test_a_candidate_without_room_for_its_own_vote_stands_when_there_is() -> None:
    async with node() as one:
        replica = one.replica
        one.files.full = ("hard_state", "write")
        await one.until(lambda: replica.core.role is Role.CANDIDATE)
        assert set(one.sent()) == {MessageKind.PRE_VOTE}
        for _ in range(50):
            replica.driver.on_tick()
            await asyncio.sleep(0.001)
        assert (replica.core.role, replica.term) == (Role.CANDIDATE, 1)
        one.files.full = None
        await one.become_master()
        assert saved(one.files) == (replica.term, ME)


async def test_what_a_full_disk_refused_is_written_again_and_not_only_synced() -> None:
    """The kernel calls pages clean whose sync has failed: another sync writes nothing."""
    async with node() as one:
        one.hear(MessageKind.VOTE)
        one.files.full = ("hard_state", "sync")
        one.hear(MessageKind.VOTE)
        one.replica.driver.on_tick()
        one.files.full = None
        one.replica.driver.on_tick()
        assert saved(one.files) == (2, OTHER)


async def test_any_error_while_a_ready_is_performed_ends_the_process() -> None:
    """Also one that is an answer elsewhere: half of what the core has decided would be done."""
    async with node() as one:
        await one.become_master()
        replica = one.replica

        def refuse(*_: object, **__: object) -> None:
            raise DiskFull("no room")

        replica.log.append = refuse  # type: ignore[method-assign]
        last = replica.log.last_index
        frame, _ = build_frame(last + 1, 2, 1, [(RecordKind.NOOP, ())])
        message = Message(
            kind=MessageKind.APPEND,
            source=OTHER,
            target=ME,
            term=2,
            log_index=last,
            log_term=1,
            entries=(EntryMeta(index=last + 1, term=2, size=len(frame)),),
        )
        replica.driver.on_message(message, [frame])
        assert len(one.fatal) == 1
        assert "no room" in one.fatal[0]
        one.fatal.clear()


async def test_a_stream_that_waits_for_room_goes_on_when_a_full_disk_refuses_what_waits() -> None:
    """Else even its pings would stay unread until some entry is made again."""
    async with node(pending_bytes_max=1) as one:
        await one.become_master()
        replica, answers = one.replica, Answers()
        proposer = replica.mastership.proposer
        assert proposer is not None
        head = header(-1)
        proposer.submit_batch(head, head.encode() + bytes(head.body_length), answers)
        waiting = asyncio.create_task(replica.produce_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        replica.log.can_append = lambda *_: False  # type: ignore[method-assign]
        replica.driver.schedule_turn()
        for _ in range(5):
            await asyncio.sleep(0)
        assert [type(error) for error in answers.refused] == [DiskFull]
        assert waiting.done()
