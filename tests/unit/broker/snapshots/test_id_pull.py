"""Missing ids are asked of all members at once, and copied from the first that has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import google_crc32c
import grpc.aio
import pytest

from semel.broker.dedup.run_copies import Piece
from semel.broker.snapshots import id_pull
from semel.broker.snapshots.id_pull import IdPull
from semel.protos import compat
from semel.protos.errors import Unavailable
from semel.protos.ids import NodeId
from semel.protos.rpc import ServerInterceptor
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

OWN, TOPIC, MISSING = NodeId(1), 7, range(10, 30)
OFFER = raft_pb2.IdsChunk(first_arrival=5, end_arrival=25, ids=20)
PIECE = raft_pb2.IdsChunk(id_columns=b"ids", crc=google_crc32c.value(b"ids"))
SPOILT = raft_pb2.IdsChunk(id_columns=b"ids", crc=1)


def lacking(end_arrival: int = 0) -> raft_pb2.IdsChunk:
    return raft_pb2.IdsChunk(lacking=True, end_arrival=end_arrival)


class Member(raft_pb2_grpc.SnapshotsServicer):
    """Answers each request with the next of `answers`, once `ready` is set; None ends a stream with
    an error."""

    def __init__(self, *answers: list[raft_pb2.IdsChunk | None]) -> None:
        self._answers = list(answers)
        self.ready = asyncio.Event()
        self.ready.set()
        self.asked = 0
        self.on_asked: Callable[[], object] = lambda: None
        self.given_up = asyncio.Event()
        """A caller has cancelled its request."""

    async def PullIds(  # noqa: N802
        self, request: raft_pb2.PullIdsRequest, context: object
    ) -> AsyncIterator[raft_pb2.IdsChunk]:
        assert (request.topic_id, request.arrival, request.applied_index) == (TOPIC, 10, 9)
        self.asked += 1
        self.on_asked()
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        for chunk in self._answers.pop(0):
            if chunk is None:
                raise Unavailable("it dies here")
            yield chunk


class Ids:
    """The indexes of the node that lacks ids."""

    def __init__(self) -> None:
        self.forgot: list[tuple[int, int]] = []
        self.left: list[tuple[int, int]] = []

    def index_of(self, topic_id: int) -> object:
        return self

    def forget(self, topic_id: int, arrival: int) -> None:
        self.forgot.append((topic_id, arrival))

    def leave_behind(self, topic_id: int, arrival: int) -> None:
        self.left.append((topic_id, arrival))

    async def write(self, work: Callable[[], Any]) -> Any:
        return work()


class Copy:
    """Stands in for a run in the making."""

    made: list[Copy]

    def __init__(self, index: object, missing: range, *, ids: int, held: range) -> None:
        assert (missing, ids, held) == (MISSING, 20, range(5, 25))
        self.ids = ids
        self.pieces: list[Piece] = []
        self.finished = False
        self.made.append(self)

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Copy]:
    Copy.made = []
    monkeypatch.setattr(id_pull, "RunCopy", Copy)
    return Copy.made


@asynccontextmanager
async def group(*members: Member, voters: int | None = None) -> AsyncIterator[tuple[IdPull, Ids]]:
    """The pull of node 1, whose peers from node 2 on are these; all are voters."""
    servers, addresses = [], {}
    for number, member in enumerate(members, 2):
        server = grpc.aio.server(interceptors=[ServerInterceptor()])
        raft_pb2_grpc.add_SnapshotsServicer_to_server(member, server)
        addresses[NodeId(number)] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    ids = Ids()
    window = SimpleNamespace(settings=SimpleNamespace(seed=b"s" * 16))
    count = 1 + len(members) if voters is None else voters
    replica: Any = SimpleNamespace(
        config=SimpleNamespace(node_id=OWN, cluster_id="c", security=None),
        peers=SimpleNamespace(reachable={OWN: "", **addresses}, address_of=addresses.get),
        state=SimpleNamespace(applied_index=9, id_windows=SimpleNamespace(topics={TOPIC: window})),
        core=SimpleNamespace(
            membership=SimpleNamespace(voters=frozenset(map(NodeId, range(1, count + 1))))
        ),
        ids=ids,
    )
    try:
        async with compat.timeout(30):
            yield IdPull(replica, lambda _: raft_pb2.PeerCaller(), bytes_per_second=1 << 30), ids
    finally:
        for server in servers:
            await server.stop(None)


async def test_all_members_are_asked_at_once() -> None:
    """Each answers only when all have been asked: one by one they would wait for ever."""
    members = [Member([lacking(end)]) for end in (0, 22, 28, 0)]
    for member in members:
        member.ready.clear()

    def maybe_answer() -> None:
        if all(member.asked for member in members):
            for member in members:
                member.ready.set()

    for member in members:
        member.on_asked = maybe_answer
    async with group(*members) as (pull, ids):
        assert await pull._fill(TOPIC, MISSING)
    assert ids.forgot == [(TOPIC, 22)]
    assert [member.asked for member in members] == [1] * 4


async def test_no_more_are_asked_at_a_time_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_pull, "_ASKED_AT_ONCE", 2)
    members = [Member([lacking()]) for _ in range(3)]
    for member in members:
        member.ready.clear()
    asked: list[int] = []

    def answer_both() -> None:
        asked.append(sum(member.asked for member in members))
        if asked[-1] == 2:
            for member in members:
                member.ready.set()

    for member in members:
        member.on_asked = answer_both
    async with group(*members) as (pull, ids):
        assert await pull._fill(TOPIC, MISSING)
    assert (asked, ids.forgot) == ([1, 2, 3], [(TOPIC, MISSING.stop)])


async def test_the_first_that_has_them_counts_and_the_others_are_given_up(
    copies: list[Copy],
) -> None:
    slow, lacks, has = Member(), Member([lacking()]), Member([OFFER, PIECE, PIECE])
    slow.ready.clear()
    has.ready.clear()
    slow.on_asked = has.ready.set  # so that both are asked
    async with group(slow, lacks, has) as (pull, ids):
        assert await pull._fill(TOPIC, MISSING)
        await slow.given_up.wait()
    (copy,) = copies
    assert copy.finished
    assert [piece.ids for piece in copy.pieces] == [b"ids", b"ids"]
    assert (pull.ids_pulled, ids.forgot) == (20, [])


@pytest.mark.parametrize("rest", [[None], [PIECE, None], [SPOILT]])
async def test_a_run_that_one_member_cannot_give_is_asked_of_the_others(
    copies: list[Copy], rest: list[raft_pb2.IdsChunk | None]
) -> None:
    first, second = Member([OFFER, *rest]), Member([OFFER, PIECE])
    first.ready.clear()
    second.ready.clear()

    def on_second_asked() -> None:
        (first if second.asked == 1 else second).ready.set()

    second.on_asked = on_second_asked
    async with group(first, second) as (pull, ids):
        assert await pull._fill(TOPIC, MISSING)
    assert [copy.finished for copy in copies] == [False, True]
    assert (first.asked, second.asked, ids.forgot) == (1, 2, [])


async def test_an_answer_that_does_not_fit_is_no_help(copies: list[Copy]) -> None:
    elsewhere = raft_pb2.IdsChunk(first_arrival=30, end_arrival=40, ids=10)
    async with group(Member([elsewhere]), Member([lacking()])) as (pull, ids):
        assert not await pull._fill(TOPIC, MISSING)
    assert (ids.forgot, copies) == ([], [])


async def test_what_the_window_of_a_member_has_left_behind_is_not_missed() -> None:
    left = raft_pb2.IdsChunk(first_arrival=17, end_arrival=17)
    async with group(Member([left]), Member([None])) as (pull, ids):
        assert await pull._fill(TOPIC, MISSING)
    assert (ids.left, ids.forgot) == ([(TOPIC, 17)], [])


async def test_nothing_is_given_up_while_a_voter_does_not_answer() -> None:
    async with group(Member([lacking()]), Member([None])) as (pull, ids):
        assert not await pull._fill(TOPIC, MISSING)
    async with group(Member([lacking()]), voters=3) as (pull, ids):
        assert not await pull._fill(TOPIC, MISSING)
    assert ids.forgot == []
