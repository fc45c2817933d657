"""A pull goes on at the next member: with what arrived whole, and nothing that is damaged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import google_crc32c
import grpc.aio
import pytest

from semel.broker.log import RecordRef
from semel.broker.snapshots import pull as pull_module
from semel.broker.snapshots.pull import SnapshotPull
from semel.protos.errors import Unavailable
from semel.protos.ids import NodeId
from semel.protos.rpc import ServerInterceptor
from semel.protos.security.credentials import channel
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

REFS = [RecordRef(index, 48, 4) for index in range(1, 5)]


class Member(raft_pb2_grpc.SnapshotsServicer):
    """Answers each request with the next of `answers`; None ends a stream with an error."""

    def __init__(self, *answers: list[Any]) -> None:
        self._answers = list(answers)
        self.asked: list[Any] = []
        """The first record's index, or index and position of a checkpoint, by request."""

    async def PullRecords(  # noqa: N802
        self, request: raft_pb2.PullRecordsRequest, context: object
    ) -> AsyncIterator[raft_pb2.RecordChunk]:
        assert request.applied_index == 9
        self.asked.append(request.records[0].index)
        async for chunk in self._answer():
            yield chunk

    async def PullCheckpoint(  # noqa: N802
        self, request: raft_pb2.PullCheckpointRequest, context: object
    ) -> AsyncIterator[raft_pb2.CheckpointChunk]:
        self.asked.append((request.index, request.position))
        async for chunk in self._answer():
            yield chunk

    async def _answer(self) -> AsyncIterator[Any]:
        for chunk in self._answers.pop(0):
            if chunk is None:
                raise Unavailable("it dies here")
            yield chunk


@asynccontextmanager
async def pulling(*members: Member) -> AsyncIterator[SnapshotPull]:
    """A pull that asks these, in this order."""
    servers, addresses = [], []
    for member in members:
        server = grpc.aio.server(interceptors=[ServerInterceptor()])
        raft_pb2_grpc.add_SnapshotsServicer_to_server(member, server)
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    pull = SnapshotPull(
        lambda: [(NodeId(number), address) for number, address in enumerate(addresses, 1)],
        lambda node: raft_pb2.PeerCaller(),
        bytes_per_second=1 << 30,
        connect=lambda _, address: channel(address),
    )
    try:
        yield pull
    finally:
        await pull.close()
        for server in servers:
            await server.stop(None)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "_PAUSE_S", 0.0)


def given(index: int, data: bytes = b"data", **changes: Any) -> raft_pb2.RecordChunk:
    ref = raft_pb2.RecordRef(index=index, position=48, length=4)
    fields = {"record": ref, "data": data, "crc": google_crc32c.value(b"data"), **changes}
    return raft_pb2.RecordChunk(**fields)


def gone(index: int) -> raft_pb2.RecordChunk:
    return given(index, b"", crc=0, gone=True)


async def test_what_arrived_is_not_asked_for_again() -> None:
    first = Member([given(1), given(2), None])
    second = Member([given(3), gone(4)])
    async with pulling(first, second) as pull:
        assert await pull.records(REFS, 9) == [(ref, b"data") for ref in REFS[:3]]
        assert (first.asked, second.asked) == ([1], [3])
        assert pull.bytes_received == 12


@pytest.mark.parametrize(
    "bad",
    [
        given(2, b"dat4"),
        given(2, b"longer", crc=google_crc32c.value(b"longer")),
        given(2, b"", crc=0, damaged=True),
    ],
    ids=["changed on the way", "of another length", "damaged there"],
)
async def test_a_record_that_one_member_cannot_give_is_asked_of_the_next(bad: Any) -> None:
    """It is live: leaving it out would lose it here."""
    first = Member([given(1), bad, given(3), given(4)])
    second = Member([given(2), given(3), given(4)])
    async with pulling(first, second) as pull:
        assert await pull.records(REFS, 9) == [(ref, b"data") for ref in REFS]
        assert (first.asked, second.asked) == ([1], [2])


def piece(index: int, whole: bytes, at: int, end: int, **changes: Any) -> raft_pb2.CheckpointChunk:
    fields = {
        "index": index,
        "term": 2,
        "total_bytes": len(whole),
        "position": at,
        "data": whole[at:end],
        "payload_crc": google_crc32c.value(whole),
        **changes,
    }
    return raft_pb2.CheckpointChunk(**fields)


async def test_a_checkpoint_goes_on_where_it_was_cut_off() -> None:
    first = Member([piece(9, b"checkpoint", 0, 4), None])
    second = Member([piece(9, b"checkpoint", 4, 10)])
    async with pulling(first, second) as pull:
        assert await pull.checkpoint(5) == (9, 2, b"checkpoint")
        assert (first.asked, second.asked) == ([(5, 0)], [(9, 4)])


async def test_a_newer_checkpoint_of_the_next_member_takes_its_place() -> None:
    first = Member([piece(9, b"checkpoint", 0, 4), None])
    second = Member([piece(12, b"a newer one", 0, 11)])
    async with pulling(first, second) as pull:
        assert await pull.checkpoint(5) == (12, 2, b"a newer one")


async def test_a_checkpoint_that_arrives_damaged_is_pulled_again() -> None:
    first = Member([piece(9, b"checkpoint", 0, 10, data=b"checkp0int")])
    second = Member([piece(9, b"checkpoint", 0, 10)])
    async with pulling(first, second) as pull:
        assert await pull.checkpoint(5) == (9, 2, b"checkpoint")
        assert second.asked == [(9, 0)]


async def test_a_member_that_leaves_the_beginning_out_is_not_believed() -> None:
    first = Member([piece(9, b"checkpoint", 4, 10)])
    second = Member([piece(9, b"checkpoint", 0, 10)])
    async with pulling(first, second) as pull:
        assert await pull.checkpoint(5) == (9, 2, b"checkpoint")


async def test_a_pull_that_nobody_gives_anything_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "_PATIENCE_S", -1.0)
    async with pulling(Member([None])) as pull:
        with pytest.raises(Unavailable, match="no member gives record"):
            await pull.records(REFS, 9)
    assert pull.bytes_received == 0
