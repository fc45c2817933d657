"""The door of the core: what a shell may do, and what it is told."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.raft import (
    EntryMeta,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftConfig,
    RaftCore,
    Role,
    SnapshotMark,
)
from semel.broker.raft.raft_state import last_at_most
from semel.protos.errors import InvalidRequest, NotMaster, Throttled
from semel.protos.ids import NodeId
from tests.sim.disk import Checkpoint, SimDisk, SimEntry

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)
GROUP = Membership(voters=frozenset({ME, OTHER, THIRD}))
ALONE = Membership(voters=frozenset({ME}))


def disk_of(membership: Membership, *terms: int) -> SimDisk:
    disk = SimDisk(membership)
    disk.durable.entries.extend(entry(index, term) for index, term in enumerate(terms, 1))
    disk.view = disk.durable.copy()
    return disk


def entry(index: int, term: int) -> SimEntry:
    return SimEntry(EntryMeta(index=index, term=term, size=100), 0)


def core_on(disk: SimDisk, membership: Membership, *, term: int = 0) -> RaftCore:
    return RaftCore(
        RaftConfig(),
        node_id=ME,
        hard_state=HardState(term=term),
        membership=membership,
        log=disk,
        applied_index=0,
        random=Random(1),
        now_ms=0,
    )


def lone_master() -> tuple[RaftCore, SimDisk]:
    """A group of one, elected; its no-op is asked for and not yet appended."""
    disk = disk_of(ALONE)
    core = core_on(disk, ALONE)
    now_ms = 0
    while core.role is Role.SLAVE:
        now_ms += 100
        core.tick(now_ms)
    ready = core.ready()
    assert ready.hard_state == HardState(term=1, voted_for=ME)
    assert core.role is Role.CANDIDATE
    core.on_hard_state_synced(ready.hard_state)
    return core, disk


def append(kind: MessageKind = MessageKind.APPEND, *terms: int, term: int = 1) -> Message:
    entries = tuple(
        EntryMeta(index=index, term=entry_term, size=100)
        for index, entry_term in enumerate(terms, 1)
    )
    return Message(kind=kind, source=OTHER, target=ME, term=term, entries=entries)


def test_a_new_master_asks_for_its_no_op_before_anything_else() -> None:
    core, disk = lone_master()
    assert core.role is Role.MASTER
    assert not core.accepts_proposals
    with pytest.raises(NotMaster):
        core.next_index()
    ready = core.ready()
    assert ready.append_noop
    assert ready.role_changed
    assert not core.ready().append_noop
    assert core.next_index() == 1
    disk.write((entry(1, 1),))
    core.proposed(entry(1, 1).meta)
    assert core.accepts_proposals
    disk.start_flush()
    assert core.commit_index == 0
    disk.end_flush()
    core.on_synced(1, 1, 2000)
    assert core.ready().commit_index == 1


def test_a_slave_names_the_master_it_knows() -> None:
    core = core_on(disk_of(GROUP), GROUP)
    with pytest.raises(NotMaster) as refused:
        core.next_index()
    assert refused.value.master_id == 0
    core.step(append(MessageKind.HEARTBEAT), 10)
    with pytest.raises(NotMaster) as refused:
        core.next_index()
    assert (refused.value.master_id, refused.value.term) == (OTHER, 1)
    with pytest.raises(NotMaster):
        core.transfer_mastership(THIRD, 10)
    with pytest.raises(NotMaster):
        core.propose_membership_allowed(ALONE)


def test_the_next_input_waits_until_an_append_is_performed() -> None:
    disk = disk_of(GROUP)
    core = core_on(disk, GROUP)
    core.step(append(MessageKind.APPEND, 1, 1), 10)
    with pytest.raises(AssertionError, match="ready"):
        core.tick(20)
    ready = core.ready()
    assert [meta.index for meta in ready.append] == [1, 2]
    core.tick(20)


def test_everything_is_handed_out_once() -> None:
    disk = disk_of(GROUP)
    core = core_on(disk, GROUP)
    core.step(append(MessageKind.APPEND, 1, 1), 10)
    ready = core.ready()
    disk.write(tuple(entry(meta.index, meta.term) for meta in ready.append))
    assert ready.hard_state == HardState(term=1)
    assert not core.has_ready()
    again = core.ready()
    assert (again.append, again.hard_state, again.messages, again.role_changed) == (
        (),
        None,
        (),
        False,
    )


def test_acknowledgements_wait_for_log_and_term() -> None:
    disk = disk_of(GROUP)
    core = core_on(disk, GROUP)
    core.step(append(MessageKind.APPEND, 1), 10)
    ready = core.ready()
    disk.write((entry(1, 1),))
    disk.start_flush()
    disk.end_flush()
    core.on_synced(1, 1, 20)
    assert not core.ready().messages, "term 1 is not durable"
    assert ready.hard_state is not None
    core.on_hard_state_synced(ready.hard_state)
    (reply,) = core.ready().messages
    assert (reply.kind, reply.log_index, reply.term) == (MessageKind.APPEND_REPLY, 1, 1)


def test_an_old_hard_state_releases_nothing() -> None:
    core = core_on(disk_of(GROUP), GROUP)
    core.step(append(MessageKind.HEARTBEAT, term=1), 10)
    core.ready()
    core.step(append(MessageKind.HEARTBEAT, term=2), 20)
    core.on_hard_state_synced(HardState(term=1))
    ready = core.ready()
    assert not ready.messages
    assert [message.term for message in ready.messages_after_hard_state] == [2]
    core.step(append(MessageKind.HEARTBEAT, term=2), 30)
    core.on_hard_state_synced(HardState(term=1))
    assert not core.has_ready(), "term 2 is still on its way"
    core.on_hard_state_synced(HardState(term=2))
    assert [message.term for message in core.ready().messages] == [2]


def test_a_completion_of_replaced_entries_is_stale() -> None:
    disk = disk_of(GROUP, 1, 1)
    core = core_on(disk, GROUP, term=1)
    core.step(append(MessageKind.APPEND, 1, 2, term=2), 10)
    ready = core.ready()
    assert ready.truncate_from == 2
    disk.truncate(2)
    disk.write((entry(2, 2),))
    core.on_synced(2, 1, 20)
    status = core.status()
    assert (status.synced_index, status.stale_completions) == (1, 1)


def test_a_committed_entry_is_never_truncated() -> None:
    disk = disk_of(GROUP, 1, 1)
    core = core_on(disk, GROUP, term=1)
    heartbeat = Message(
        kind=MessageKind.HEARTBEAT,
        source=OTHER,
        target=ME,
        term=1,
        log_index=2,
        log_term=1,
        commit_index=2,
    )
    core.step(heartbeat, 10)
    assert core.ready().commit_index == 2
    with pytest.raises(AssertionError, match="committed"):
        core.step(append(MessageKind.APPEND, 1, 2, term=2), 20)


def test_two_masters_in_a_term_halt_a_node() -> None:
    core = core_on(disk_of(GROUP), GROUP)
    core.step(append(MessageKind.HEARTBEAT), 10)
    other = Message(kind=MessageKind.HEARTBEAT, source=THIRD, target=ME, term=1)
    with pytest.raises(AssertionError, match="two masters"):
        core.step(other, 20)


def test_what_was_recovered_and_may_be_torn_is_not_acknowledged() -> None:
    """Its ID tells that it was written, and nothing tells that it is whole."""
    disk = disk_of(GROUP, 1)
    disk.write((entry(2, 1),))
    core = core_on(disk, GROUP, term=1)
    core.step(append(MessageKind.APPEND, 1, 1), 10)
    assert core.ready().messages == ()
    disk.start_flush()
    disk.end_flush()
    core.on_synced(2, 1, 20)
    (reply,) = core.ready().messages
    assert (reply.kind, reply.log_index) == (MessageKind.APPEND_REPLY, 2)


def test_what_the_group_agrees_to_cut_goes() -> None:
    disk = disk_of(GROUP, 1)
    disk.write((entry(2, 1), entry(3, 1)))
    core = core_on(disk, GROUP, term=1)
    core.ready()
    assert core.cut_torn(2, 10)
    assert core.has_ready()
    ready = core.ready()
    assert ready.truncate_from == 2
    disk.truncate(2)
    assert core.status().last_index == 1
    assert core.synced_index == 1


def test_nothing_durable_is_ever_cut() -> None:
    core = core_on(disk_of(GROUP, 1, 1), GROUP, term=1)
    with pytest.raises(AssertionError, match="durable"):
        core.cut_torn(2, 10)


def test_memberships_behind_the_checkpoint_are_found_in_the_log() -> None:
    disk = disk_of(GROUP, 1)
    changed = Membership(voters=GROUP.voters, learners=frozenset({NodeId(4)}))
    meta = EntryMeta(index=2, term=1, size=100, membership=changed)
    disk.durable.entries.append(SimEntry(meta, 0))
    disk.view = disk.durable.copy()
    assert core_on(disk, GROUP, term=1).membership == changed


def test_a_snapshot_that_is_not_needed_is_refused() -> None:
    disk = disk_of(GROUP, 1, 1, 2)
    core = core_on(disk, GROUP, term=2)
    assert not core.begin_snapshot(SnapshotMark(index=2, term=1, membership=GROUP))
    assert core.begin_snapshot(SnapshotMark(index=3, term=3, membership=GROUP))
    core.on_snapshot_failed(10)
    assert core.begin_snapshot(SnapshotMark(index=9, term=3, membership=GROUP))


def test_a_master_does_not_replace_its_log() -> None:
    core, disk = lone_master()
    core.ready()
    disk.write((entry(1, 1),))
    core.proposed(entry(1, 1).meta)
    assert not core.begin_snapshot(SnapshotMark(index=9, term=1, membership=ALONE))


def test_an_installed_snapshot_is_acknowledged_to_the_master() -> None:
    disk = disk_of(GROUP, 1)
    core = core_on(disk, GROUP, term=1)
    core.step(append(MessageKind.HEARTBEAT), 10)
    core.ready()
    mark = SnapshotMark(index=9, term=1, membership=GROUP)
    assert core.begin_snapshot(mark)
    disk.install(Checkpoint(mark, 0))
    core.on_snapshot_installed(mark, 20)
    ready = core.ready()
    assert ready.commit_index == 9
    assert [(reply.kind, reply.log_index) for reply in ready.messages] == [
        (MessageKind.SNAPSHOT_REPLY, 9)
    ]


def test_a_rebuild_stops_acknowledging_and_covers_all_that_was_acknowledged() -> None:
    disk = disk_of(GROUP, 1, 1, 1)
    core = core_on(disk, GROUP, term=1)
    assert core.begin_rebuild() is None, "nobody to follow, nobody to ask"
    core.step(append(MessageKind.HEARTBEAT), 10)
    core.ready()
    assert core.begin_rebuild() == 3
    assert core.begin_rebuild() is None, "one at a time"
    core.step(append(MessageKind.APPEND), 15)
    core.step(append(MessageKind.HEARTBEAT), 15)
    core.on_synced(3, 1, 15)
    assert {message.kind for message in core.ready().messages} == {MessageKind.HEARTBEAT_REPLY}
    mark = SnapshotMark(index=3, term=1, membership=GROUP)
    disk.install(Checkpoint(mark, 0))
    core.on_snapshot_installed(mark, 20)
    ready = core.ready()
    assert ready.commit_index == 3
    assert [(reply.kind, reply.log_index) for reply in ready.messages] == [
        (MessageKind.SNAPSHOT_REPLY, 3)
    ]


def test_a_rebuild_that_fails_leaves_the_log_as_it_was() -> None:
    disk = disk_of(GROUP, 1, 1)
    core = core_on(disk, GROUP, term=1)
    core.step(append(MessageKind.HEARTBEAT), 10)
    core.ready()
    assert core.begin_rebuild() == 2
    core.on_snapshot_failed(20)
    core.ready()
    assert core.begin_rebuild() == 2


def test_who_resigns_is_slave_in_the_same_term() -> None:
    core, _ = lone_master()
    term = core.term
    core.ready()
    core.resign(50)
    assert (core.role, core.term, core.master_id) == (Role.SLAVE, term, None)
    core.resign(60)
    assert core.role is Role.SLAVE


def test_a_snapshot_without_a_master_is_acknowledged_to_nobody() -> None:
    disk = disk_of(GROUP, 1)
    core = core_on(disk, GROUP, term=1)
    mark = SnapshotMark(index=9, term=1, membership=GROUP)
    assert core.begin_snapshot(mark)
    disk.install(Checkpoint(mark, 0))
    core.on_snapshot_installed(mark, 20)
    assert not core.ready().messages


def test_a_snapshot_needs_its_beginning() -> None:
    core = core_on(disk_of(GROUP), GROUP)
    with pytest.raises(AssertionError, match="begin_snapshot"):
        core.on_snapshot_installed(SnapshotMark(index=2, term=1, membership=GROUP), 10)


def test_the_shell_hears_every_offer_but_those_during_a_switch() -> None:
    """An offer that comes while an older pull ends is not taken by the shell: the next one is."""
    disk = disk_of(GROUP)
    core = core_on(disk, GROUP, term=1)
    mark = SnapshotMark(index=9, term=1, membership=GROUP)
    offer = Message(kind=MessageKind.SNAPSHOT_OFFER, source=OTHER, target=ME, term=1, snapshot=mark)
    for now in (10, 20):
        core.step(offer, now)
        assert core.ready().snapshot_wanted == offer
    older = SnapshotMark(index=5, term=1, membership=GROUP)
    assert core.begin_snapshot(older)
    core.step(offer, 30)
    assert core.ready().snapshot_wanted is None
    disk.install(Checkpoint(older, 0))
    core.on_snapshot_installed(older, 40)
    core.ready()
    for now in (50, 60):
        core.step(offer, now)
        assert core.ready().snapshot_wanted == offer


def test_a_refused_reconnect_to_the_master_shortens_the_wait() -> None:
    core = core_on(disk_of(GROUP), GROUP)
    core.step(append(MessageKind.HEARTBEAT), 10)
    core.on_peer_unreachable(THIRD, 20)
    core.tick(180)
    assert core.status().role is Role.SLAVE
    core.on_peer_unreachable(OTHER, 200)
    core.tick(351)
    assert core.status().role is Role.PRE_CANDIDATE


def test_a_damaged_node_votes_and_does_not_stand() -> None:
    core = core_on(disk_of(GROUP), GROUP)
    core.set_electable(False)
    for now_ms in range(0, 3000, 100):
        core.tick(now_ms)
    assert core.role is Role.SLAVE
    core.step(Message(kind=MessageKind.VOTE, source=OTHER, target=ME, term=1, context=7), 3000)
    ready = core.ready()
    assert ready.hard_state == HardState(term=1, voted_for=OTHER)
    (reply,) = ready.messages_after_hard_state
    assert (reply.rejected, reply.context) == (False, 7)


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 15), st.integers(0, 20), st.data())
def test_the_search_for_agreement_finds_the_last_entry_at_or_below_both(
    rises: list[int], index: int, term: int, data: st.DataObject
) -> None:
    terms, at = [], 0
    for rise in rises:
        at += rise
        terms.append(at)
    disk = disk_of(GROUP, *terms)
    first = data.draw(st.integers(1, len(terms) + 1))
    disk.view.drop_below(first)
    known = {i: disk.term_at(i) for i in range(first - 1, len(terms) + 1)}
    fitting = [(i, t) for i, t in known.items() if t is not None and i <= index and t <= term]
    assert last_at_most(disk, index, term) == max(fitting, default=(first - 2, 0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ms": 0},
        {"heartbeat_ms": 400},
        {"election_max_ms": 400},
        {"tick_ms": 300},
        {"append_bytes_max": -1},
    ],
)
def test_a_senseless_config_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("_ms")):
        RaftConfig(**wrong)


def test_a_change_of_membership_is_checked_before_it_is_appended() -> None:
    core, disk = lone_master()
    core.ready()
    disk.write((entry(1, 1),))
    core.proposed(entry(1, 1).meta)
    two = Membership(voters=frozenset({ME}), learners=frozenset({OTHER}))
    with pytest.raises(Throttled, match="committed nothing"):
        core.propose_membership_allowed(two)
    disk.start_flush()
    disk.end_flush()
    core.on_synced(1, 1, 2000)
    core.propose_membership_allowed(two)
    with pytest.raises(InvalidRequest, match="join as a learner"):
        core.propose_membership_allowed(GROUP.__class__(voters=frozenset({ME, OTHER})))
