"""Which damage a node asks its peers for, and what a pass of the scrub survives."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import google_crc32c
import pytest

from semel.broker.log import Damage, RecordRef
from semel.broker.raft import Role
from semel.broker.repair import repair as repair_module
from semel.broker.repair.decision import Verdict
from semel.broker.repair.repair import Repair
from semel.broker.repair.scrub import Scrub
from semel.broker.replica.pools import Pools
from semel.protos.errors import DiskFull
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import NodeId
from semel.protos.v1 import raft_pb2

ME, PEER = NodeId(1), NodeId(2)
LOST = range(1, 301)
"""More entries than one request names."""
ABOVE = 400
FRAME = build_frame(ABOVE, 1, 1_000, [(RecordKind.BATCH, [b"bytes"])])[0]


def _damage(index: int) -> Damage:
    return Damage(
        index=index,
        term=1,
        length=len(FRAME),
        file_name="",
        position=0,
        certain=True,
        torn=False,
    )


class Node:
    """One with many damaged entries and records."""

    def __init__(self) -> None:
        self.log = self.core = self.peers = self
        self.config = SimpleNamespace(node_id=ME, log=None)
        self.state = SimpleNamespace(
            applied_index=1_000,
            live_records=lambda lo, hi: [(lo, 48, 4)],
            live_table=lambda lo, hi: [(lo, 48, 4)],
        )
        self.readers = ThreadPoolExecutor(1)
        self.pools = Pools.of_one(ThreadPoolExecutor(1))
        self.damaged = {index: _damage(index) for index in (*LOST, ABOVE)}
        self.damaged_records = [RecordRef(index, 48, 4) for index in (*LOST, ABOVE)]
        self.lost_entries = frozenset(LOST)
        self.membership = SimpleNamespace(nodes={ME, PEER})
        self.addresses = {ME: "", PEER: ""}
        self.repaired: list[int] = []
        self.kept: list[int] = []

    def repair(self, frame: bytes) -> None:
        assert frame == FRAME
        self.repaired.append(ABOVE)

    def repair_record(self, ref: RecordRef, data: bytes) -> None:
        self.repaired.append(ref.index)

    def has_kept(self, ref: RecordRef) -> bool:
        return False

    def keep_records(self, records: list[tuple[RecordRef, bytes]]) -> None:
        self.kept += [ref.index for ref, _ in records]


class Peer:
    """The peer's stub: it has everything above what is lost, and answers 256 a request."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def PullFrames(  # noqa: N802
        self, request: raft_pb2.PullFramesRequest, timeout: float
    ) -> AsyncIterator[raft_pb2.FrameChunk]:
        self._hear([ref.index for ref in request.entries])
        for ref in request.entries:
            if ref.index == ABOVE:
                yield raft_pb2.FrameChunk(index=ABOVE, data=FRAME)

    async def PullRecords(  # noqa: N802
        self, request: raft_pb2.PullRecordsRequest, timeout: float
    ) -> AsyncIterator[raft_pb2.RecordChunk]:
        self._hear([ref.index for ref in request.records])
        for ref in request.records:
            crc = google_crc32c.value(b"data")
            gone = ref.index != ABOVE
            yield raft_pb2.RecordChunk(record=ref, gone=gone, data=b"data", crc=crc)

    async def DescribeEntries(  # noqa: N802
        self, request: raft_pb2.DescribeEntriesRequest, timeout: float
    ) -> raft_pb2.DescribeEntriesReply:
        self._hear([ref.index for ref in request.entries])
        states = [raft_pb2.ENTRY_STATE_DAMAGED for _ in request.entries]
        return raft_pb2.DescribeEntriesReply(node_id=PEER, states=states)

    def _hear(self, indexes: list[int]) -> None:
        assert 0 < len(indexes) <= 256
        self.asked += indexes


def _parts() -> tuple[Any, Any, Repair]:
    node: Any = Node()
    identity: Any = SimpleNamespace(caller=lambda peer: raft_pb2.PeerCaller())
    return node, Peer(), Repair(node, lambda: None, identity)


async def test_damage_above_many_lost_entries_is_asked_for_first() -> None:
    node, peer, repair = _parts()
    await repair._repair_entries(peer, PEER)
    assert node.repaired == [ABOVE]
    assert peer.asked == [ABOVE, *LOST], "what is lost, too: an operator may have restored a file"


async def test_damaged_records_above_many_that_nobody_has_are_repaired() -> None:
    node, peer, repair = _parts()
    await repair._repair_records(peer, PEER)
    assert node.repaired == [ABOVE]
    peer.asked.clear()
    await repair._keep_records(peer, PEER)
    assert node.kept == [ABOVE]
    assert peer.asked == [*LOST, ABOVE]


async def test_every_damaged_entry_is_decided_about(monkeypatch: pytest.MonkeyPatch) -> None:
    node, peer, repair = _parts()
    states: Any = {}
    await repair._ask(peer, PEER, states)
    assert set(states) == {(index, 1) for index in node.damaged}
    decided: list[int] = []

    def decide(members: object, said: Any, *, torn: bool) -> Verdict:
        decided.append(len(said))
        return Verdict.WAIT

    monkeypatch.setattr(repair_module, "decide", decide)
    monkeypatch.setattr(Repair, "_is_kept", lambda self, index: False)
    repair._decide(states)
    assert decided == [1] * len(node.damaged)


async def test_what_another_node_says_is_nobodys_word() -> None:
    """Addresses are reused: the node that answers may never have had the entries."""
    _, peer, repair = _parts()
    states: Any = {}
    await repair._ask(peer, NodeId(3), states)
    assert states == {}


async def test_what_follows_an_entry_that_was_cut_is_decided_about_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cut has dropped all of it; what is said of it now is about another log."""
    node, _, repair = _parts()
    decided: list[bool] = []
    cut: list[int] = []

    def decide(members: object, said: object, *, torn: bool) -> Verdict:
        decided.append(torn)
        return Verdict.CUT

    def cut_torn(index: int) -> bool:
        cut.append(index)
        return True

    node.driver = SimpleNamespace(cut_torn=cut_torn)
    monkeypatch.setattr(repair_module, "decide", decide)
    repair._decide({})
    assert cut == [1]
    assert len(decided) == 1


async def test_an_entry_is_given_up_for_kept_records_only_when_all_have_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that is silent may have the entry whole."""
    node, _, repair = _parts()
    lost: list[frozenset[int]] = []
    node.set_lost = lost.append
    node.log.describe = str
    monkeypatch.setattr(Repair, "_is_kept", lambda self, index: True)
    repair._decide({})
    assert lost == []
    repair._decide({(ABOVE, 1): {PEER: raft_pb2.ENTRY_STATE_HELD}})
    assert lost == [node.lost_entries | {ABOVE}]


@pytest.mark.parametrize(("applied", "fit"), [(1_000, True), (LOST[-1] - 1, False)])
def test_who_cannot_apply_a_lost_entry_stands_for_no_election(applied: int, fit: bool) -> None:
    node, _, repair = _parts()
    told: list[bool] = []
    node.damaged = {index: _damage(index) for index in LOST}
    node.state.applied_index = applied
    node.log.describe = str
    node.set_lost = lambda lost: None
    node.set_fit = lambda reason, value: told.append(value)
    repair._note()
    assert told == [fit]


def test_a_master_that_nobody_helps_resigns_after_the_second_round() -> None:
    node, _, repair = _parts()
    resigned: list[bool] = []
    node.damaged = {ABOVE: _damage(ABOVE)}
    node.state.applied_index = ABOVE - 1
    node.role = Role.MASTER
    node.log.describe = str
    node.resign = lambda: resigned.append(True)
    states = {(ABOVE, 1): {PEER: raft_pb2.ENTRY_STATE_ABSENT}}
    repair._give_up_stuck(states)
    assert not resigned, "what it was told may be old: it asks once more"
    repair._give_up_stuck({})
    repair._give_up_stuck(states)
    assert not resigned, "not twice in a row"
    repair._give_up_stuck(states)
    assert resigned == [True]


async def test_a_repaired_entry_that_changed_the_membership_needs_a_new_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, peer, repair = _parts()
    fatal: list[str] = []
    node.on_fatal = fatal.append
    meta = SimpleNamespace(membership=object(), index=ABOVE)
    monkeypatch.setattr(repair_module, "frame_meta", lambda frame, header: meta)
    await repair._repair_entries(peer, PEER)
    assert not fatal, "it is applied: the members are known from the state"
    node.state.applied_index = ABOVE - 1
    await repair._repair_entries(peer, PEER)
    assert "start this node again" in fatal[0]


@pytest.mark.parametrize("error", [DiskFull("full"), OSError(errno.EIO, "input/output error")])
async def test_a_scrub_survives_a_checkpoint_that_cannot_be_written(error: Exception) -> None:
    """The older checkpoint still counts, and the next pass tries again."""
    checked: list[str] = []

    async def write(*, anew: bool) -> int:
        assert anew
        raise error

    node: Any = SimpleNamespace(
        pools=Pools.of_one(ThreadPoolExecutor(1)),
        state=SimpleNamespace(applied_index=9, live_table=lambda lo, hi: []),
        log=SimpleNamespace(
            stats=lambda: SimpleNamespace(segment_bytes=0, kept_bytes=0),
            scrub=lambda: iter(()),
            note_missing=list,
            first_index=1,
            checkpoints_damaged=True,
        ),
        driver=SimpleNamespace(repair_hard_state=lambda: checked.append("vote")),
    )
    checkpoints: Any = SimpleNamespace(write=write)
    scrub = Scrub(node, checkpoints, lambda: checked.append("identity"))
    await scrub._pass()
    assert checked == ["vote", "identity"]
