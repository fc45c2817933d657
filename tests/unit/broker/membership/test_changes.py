"""An operator's changes, and the entry that lets a node count again: what must be so before."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.config import BrokerConfig
from semel.broker.membership import changes as changes_module
from semel.broker.membership import memory_safety
from semel.broker.membership.changes import MembershipChanges
from semel.broker.raft import Membership, Role
from semel.broker.replica.member_book import Members
from semel.protos import compat
from semel.protos.errors import InvalidRequest, NotMaster, Throttled, Unavailable
from semel.protos.frames import RecordKind
from semel.protos.ids import GroupId, NodeId
from tests.kit.waiting import until_async

ME, OTHER, THIRD, JOINING = map(NodeId, (1, 2, 3, 4))


class FakeReplica:
    """A master whose entries are applied when the test says so."""

    def __init__(self) -> None:
        addresses = {node: f"h{node}:1" for node in (ME, OTHER, THIRD)}
        members = Members(voters=addresses, learners={JOINING: "h4:1"})
        self.peers = SimpleNamespace(
            addresses=members.addresses, book=SimpleNamespace(current=members, index=5)
        )
        self.driver = self
        self.progress = {
            node: SimpleNamespace(counts=True, recently_active=True, match_index=9)
            for node in (OTHER, THIRD, JOINING)
        }
        self.core = SimpleNamespace(
            progress=self.progress,
            membership=Membership(voters=frozenset(addresses), learners=frozenset({JOINING})),
            status=lambda: SimpleNamespace(progress=self.progress),
            propose_membership_allowed=lambda changed: None,
            role=Role.MASTER,
        )
        self.bodies = SimpleNamespace(bytes=0, missing_to=0)
        self.config = SimpleNamespace(node_id=ME, security=None)
        self.state = SimpleNamespace(queues={})
        self.drained = False
        self.appended: list[RecordKind] = []
        self.applied = asyncio.Event()
        self.waited_for: list[int] = []
        self.terms = {10: 3}
        self.log = SimpleNamespace(term_at=self.terms.get)

    async def wait_master(self) -> None:
        pass

    def set_fit(self, reason: str, fit: bool) -> None:
        assert reason == "drained"
        self.drained = not fit

    def append_alone(
        self, kind: RecordKind, payload: bytes = b"", members: Members | None = None
    ) -> tuple[int, int]:
        self.appended.append(kind)
        return 10, 3

    async def wait_applied(self, index: int, timeout_s: float | None) -> None:
        self.waited_for.append(index)
        if index == 10:
            await self.applied.wait()

    def not_master(self) -> NotMaster:
        return NotMaster("not any more")


@pytest.fixture
def replica() -> FakeReplica:
    return FakeReplica()


@pytest.fixture
def changes(replica: FakeReplica) -> MembershipChanges:
    config = BrokerConfig(
        data=Path("unused"),
        cluster_id="c",
        group_id=GroupId(1),
        node_id=ME,
        listen="h1:1",
        members={node: f"h{node}:1" for node in (ME, OTHER, THIRD)},
    )
    stand_in: Any = replica
    return MembershipChanges(config, stand_in)


async def test_a_node_is_readmitted_by_an_entry_that_is_committed_without_it(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    """While its acknowledgements count, the entry proves nothing about what it forgot."""
    replica.applied.set()
    with pytest.raises(InvalidRequest, match="no other member"):
        await changes.readmit(NodeId(9))
    with pytest.raises(Throttled, match="has not said yet"):
        await changes.readmit(OTHER)
    assert replica.appended == [], "nothing is written for a node that counts"
    replica.progress[OTHER].counts = False
    replica.applied.clear()
    readmitting = asyncio.create_task(changes.readmit(OTHER))
    for _ in range(5):
        await asyncio.sleep(0)
    assert replica.appended == [RecordKind.NOOP]
    assert not readmitting.done(), "the entry is not applied"
    replica.applied.set()
    assert await readmitting == (10, 3)


async def test_an_entry_that_another_master_replaced_readmits_nobody(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    """What stands at its index now may be older than what the node forgot."""
    replica.progress[OTHER].counts = False
    replica.terms[10] = 4
    replica.applied.set()
    with pytest.raises(NotMaster):
        await changes.readmit(OTHER)


async def test_a_learner_is_promoted_when_everybody_there_knows_its_address(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    replica.applied.set()
    replica.progress[THIRD].match_index = 4
    with pytest.raises(Throttled, match=r"\[3\] do not know node 4"):
        await changes.promote(JOINING)
    assert replica.appended == []
    replica.progress[THIRD].match_index = 5
    await changes.promote(JOINING)
    assert replica.appended == [RecordKind.MEMBERSHIP]
    assert replica.waited_for[-1] == 10, "it is applied"


async def test_a_silent_node_keeps_no_learner_from_being_promoted_while_there_is_a_quorum(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    replica.applied.set()
    replica.progress[THIRD].match_index = 4
    replica.progress[THIRD].recently_active = False
    await changes.promote(JOINING)
    assert replica.appended == [RecordKind.MEMBERSHIP]
    replica.progress[OTHER].recently_active = False
    with pytest.raises(InvalidRequest, match=r"no quorum, because \[2, 3\] are silent"):
        await changes.promote(JOINING)
    assert len(replica.appended) == 1


async def test_who_joins_must_answer_as_that_node_of_this_group_at_an_address_of_its_own(
    replica: FakeReplica, changes: MembershipChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.applied.set()
    told = SimpleNamespace(cluster_id="c", group_id=1, node_id=5)
    asked: list[str] = []

    async def ask(address: str, security: None = None) -> Any:
        asked.append(address)
        if told.node_id is None:
            raise Unavailable("nobody is there")
        return told

    monkeypatch.setattr(changes_module, "ask_status", ask)
    for node, address, reason in (
        (NodeId(5), "h2:1", "another member listens at h2:1"),
        (OTHER, "h9:1", "node 2 is a member at h2:1, not at h9:1"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            await changes.add_learner(node, address)
    assert asked == []
    for wrong in ({"cluster_id": "d"}, {"group_id": 2}, {"node_id": 6}, {"node_id": None}):
        with monkeypatch.context() as patched:
            for name, value in wrong.items():
                patched.setattr(told, name, value)
            with pytest.raises(InvalidRequest, match=r"not node 5 of group 1|does not answer"):
                await changes.add_learner(NodeId(5), "h5:1")
    assert replica.appended == []
    await changes.add_learner(NodeId(5), "h5:1")
    assert replica.appended == [RecordKind.MEMBERSHIP]


async def test_who_is_a_member_already_is_added_once_that_is_committed(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    """A call is repeated when its answer was lost: then the first one may still be on its way."""
    replica.peers.book.index = 10
    again = asyncio.create_task(changes.add_learner(JOINING, "h4:1"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not again.done()
    replica.applied.set()
    await again
    assert replica.appended == []


@pytest.mark.parametrize("field", ["recently_active", "counts"])
async def test_no_node_is_removed_if_too_few_would_be_left_that_count(
    replica: FakeReplica, changes: MembershipChanges, field: str
) -> None:
    replica.applied.set()
    setattr(replica.progress[THIRD], field, False)
    with pytest.raises(InvalidRequest, match="would have no quorum"):
        await changes.remove(OTHER)
    assert replica.appended == []
    await changes.remove(THIRD)
    assert replica.appended == [RecordKind.MEMBERSHIP]


# --- handed over ----------------------------------------------------------------------------------


async def test_mastership_goes_to_the_furthest_that_counts_would_take_it_and_lacks_little(
    replica: FakeReplica, changes: MembershipChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    fourth = NodeId(7)
    core: Any = replica.core
    core.membership = Membership(voters=frozenset({ME, OTHER, THIRD, fourth}))
    core.master_id, core.term, core.accepts_proposals = ME, 3, True
    core.log = SimpleNamespace(last_index=100)
    handed: list[NodeId] = []

    def hand_over(successor: NodeId) -> None:
        handed.append(successor)
        core.role, core.master_id, core.term = Role.SLAVE, successor, 4

    stand_in: Any = replica
    stand_in.hand_over = hand_over
    stand_in.config = SimpleNamespace(raft=SimpleNamespace(transfer_ms=50))
    replica.peers.address_of = lambda node: f"h{node}:1"
    for node, match_index, counts in ((OTHER, 99, False), (THIRD, 98, True), (fourth, 10, True)):
        replica.progress[node] = SimpleNamespace(
            recently_active=True, match_index=match_index, counts=counts
        )
    asked: list[str] = []

    async def ask(address: str, security: None = None) -> Any:
        asked.append(address)
        return SimpleNamespace(electable=address != "h3:1")

    monkeypatch.setattr(changes_module, "ask_status", ask)
    handing = asyncio.create_task(changes.transfer(None))
    await until_async(lambda: len(asked) == 2)
    await asyncio.sleep(0.02)
    assert asked == ["h3:1", "h7:1"], "not who may have forgotten what it acknowledged"
    assert handed == [], "proposals would stop for as long as it gets 90 entries"
    replica.progress[fourth].match_index = 36
    assert await handing == (fourth, 4)
    assert handed == [fourth]


def in_memory(replica: FakeReplica, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """This node has bodies of topics in memory; what the others say, by address, to be changed."""
    replica.bodies.bytes = 100
    answers: dict[str, Any] = {
        f"h{node}:1": SimpleNamespace(electable=True, memory_pulling=False, memory_bytes=100)
        for node in (OTHER, THIRD)
    }

    async def ask_all(addresses: dict[NodeId, str], security: None) -> dict[NodeId, Any]:
        return {node: answers[at] for node, at in addresses.items() if at in answers}

    async def ask(address: str, security: None) -> Any:
        return answers[address]

    monkeypatch.setattr(memory_safety, "ask_all", ask_all)
    monkeypatch.setattr(changes_module, "ask_status", ask)
    return answers


async def test_a_node_with_bodies_is_not_drained_while_another_one_lacks_some(
    replica: FakeReplica, changes: MembershipChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = in_memory(replica, monkeypatch)
    replica.core.role = Role.SLAVE
    answers["h2:1"].memory_pulling = True
    with pytest.raises(Throttled, match=r"if node 1 stopped now: node 2 still pulls") as refused:
        await changes.drain(HOUR_MS)
    assert refused.value.retry_after_ms > 0
    del answers["h2:1"]
    with pytest.raises(Throttled, match="node 2 does not answer"):
        await changes.drain(HOUR_MS)
    assert not replica.drained
    await changes.drain(HOUR_MS, ignore_memory=True)
    assert replica.drained
    await changes.drain(0)
    replica.bodies.bytes = 0  # it has nothing that could be lost
    await changes.drain(HOUR_MS)
    assert replica.drained


async def test_a_member_with_bodies_leaves_once_all_others_have_them(
    replica: FakeReplica, changes: MembershipChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = in_memory(replica, monkeypatch)
    replica.applied.set()
    answers["h2:1"].memory_pulling = True
    with pytest.raises(Throttled, match=r"if node 3 stopped now: node 2 still pulls"):
        await changes.remove(THIRD)
    answers["h2:1"].memory_pulling = False
    replica.bodies.missing_to = 7  # the master itself lacks some
    with pytest.raises(Throttled, match=r"node 1 still pulls"):
        await changes.remove(THIRD)
    assert replica.appended == []
    answers["h3:1"].memory_bytes = 0
    await changes.remove(THIRD)
    del answers["h3:1"]  # dead: what it had is gone
    await changes.remove(THIRD)
    assert replica.appended == [RecordKind.MEMBERSHIP] * 2


async def test_mastership_goes_to_a_node_that_lacks_bodies_only_if_that_is_meant(
    replica: FakeReplica, changes: MembershipChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = in_memory(replica, monkeypatch)
    core: Any = replica.core
    core.master_id, core.term, core.accepts_proposals = ME, 3, True
    core.log = SimpleNamespace(last_index=9)
    handed: list[NodeId] = []

    def hand_over(successor: NodeId) -> None:
        handed.append(successor)
        core.role, core.master_id, core.term = Role.SLAVE, successor, 4

    stand_in: Any = replica
    stand_in.hand_over = hand_over
    replica.config.raft = SimpleNamespace(transfer_ms=50)
    replica.peers.address_of = lambda node: f"h{node}:1"
    answers["h2:1"].memory_pulling = True
    with pytest.raises(Throttled, match="node 2 still pulls messages"):
        await changes.transfer(OTHER)
    assert await changes.transfer(None) == (THIRD, 4)
    answers["h3:1"].memory_pulling = True
    core.role, core.master_id = Role.MASTER, ME
    with pytest.raises(Throttled, match="node 1 stays master"):
        await changes.transfer(None)
    assert await changes.transfer(None, ignore_memory=True) == (OTHER, 4)
    answers["h2:1"].electable = False
    core.role, core.master_id = Role.MASTER, ME
    assert await changes.transfer(None, ignore_memory=True) == (THIRD, 4)
    assert handed == [THIRD, OTHER, THIRD]


# --- drained ------------------------------------------------------------------------------------

HOUR_MS = 3_600_000


class Transfers:
    """Hand-overs under way, in the order in which they began; the test ends them."""

    def __init__(self, changes: MembershipChanges) -> None:
        self.ends: list[asyncio.Future[None]] = []
        changes.transfer = self.transfer  # type: ignore[method-assign]

    async def transfer(
        self, wanted: NodeId | None, *, ignore_memory: bool = False
    ) -> tuple[NodeId, int]:
        self.ends.append(asyncio.get_running_loop().create_future())
        await self.ends[-1]
        return OTHER, 4


async def draining(changes: MembershipChanges, drain_ms: int) -> asyncio.Task[bool]:
    """A call that hands mastership over now."""
    call = asyncio.create_task(changes.drain(drain_ms))
    await asyncio.sleep(0)
    return call


async def test_a_drain_is_ended_while_another_call_hands_mastership_over(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    transfers = Transfers(changes)
    for done in (True, False):
        call = await draining(changes, HOUR_MS)
        assert replica.drained
        assert not await changes.drain(0)
        assert not replica.drained
        if done:
            transfers.ends[-1].set_result(None)
            assert await call
        else:
            transfers.ends[-1].set_exception(Unavailable("nobody takes it"))
            with pytest.raises(Unavailable):
                await call
        assert not replica.drained


@pytest.mark.parametrize("failing", [0, 1])
async def test_a_drain_that_fails_leaves_another_one_alone(
    replica: FakeReplica, changes: MembershipChanges, failing: int
) -> None:
    """Two operators drain the master at once, and one of the two hand-overs is refused."""
    transfers = Transfers(changes)
    calls = [await draining(changes, HOUR_MS), await draining(changes, HOUR_MS)]
    transfers.ends[failing].set_exception(Throttled("one hand-over at a time"))
    with pytest.raises(Throttled):
        await calls[failing]
    assert replica.drained
    transfers.ends[1 - failing].set_result(None)
    assert await calls[1 - failing]
    assert replica.drained
    assert not await changes.drain(0)
    assert not replica.drained


async def test_a_node_from_which_nobody_takes_over_is_not_drained(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    """It stays master, and would be nothing at the next election."""
    transfers = Transfers(changes)
    call = await draining(changes, HOUR_MS)
    assert replica.drained
    transfers.ends[0].set_exception(Unavailable("nobody has room"))
    with pytest.raises(Unavailable):
        await call
    assert not replica.drained


async def test_the_newest_drain_says_for_how_long(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    replica.core.role = Role.SLAVE
    assert not await changes.drain(HOUR_MS)
    assert not await changes.drain(1)
    async with compat.timeout(60):
        while replica.drained:
            await asyncio.sleep(0.001)


async def test_a_node_is_restarted_unless_its_settings_are_good_for_one_start(
    replica: FakeReplica, changes: MembershipChanges
) -> None:
    changes.restart()
    assert changes.restart_asked.is_set()
    founding = dataclasses.replace(changes._config, found="2026-11-26")
    stand_in: Any = replica
    changes = MembershipChanges(founding, stand_in)
    with pytest.raises(InvalidRequest, match="was started with --found"):
        changes.restart()
    assert not changes.restart_asked.is_set()
