"""The edges of a slave's rules: what it takes, cuts and acknowledges, and snapshots it installs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from semel.broker.raft import (
    EntryMeta,
    HardState,
    Message,
    MessageKind,
    RaftCore,
    Role,
    SnapshotMark,
)
from semel.broker.raft.membership_history import add_learner
from semel.protos.ids import NodeId
from tests.sim.disk import Checkpoint, SimDisk, SimEntry
from tests.unit.broker.raft.single_core import (
    CONFIG,
    GROUP,
    ME,
    OTHER,
    THIRD,
    Node,
    asking,
    entry,
    kinds,
    metas,
    standing,
)

# --- taking entries -----------------------------------------------------------------------------


def append(previous: int, previous_term: int, *terms: int, commit: int = 0) -> dict[str, Any]:
    return {
        "log_index": previous,
        "log_term": previous_term,
        "entries": metas(previous + 1, *terms),
        "commit_index": commit,
    }


def test_an_append_is_acknowledged_up_to_what_it_proves() -> None:
    node = Node(1, 1, 1, term=1)
    (reply,) = node.hear(MessageKind.APPEND, **append(1, 1, 1))
    assert (reply.log_index, reply.rejected) == (2, False)
    (reply,) = node.hear(MessageKind.APPEND, **append(2, 1, 1, 1, commit=3))
    assert (reply.log_index, node.core.commit_index) == (4, 3)
    assert node.hear(MessageKind.APPEND, **append(2, 1))[0].log_index == 4


def test_an_entry_is_acknowledged_once_by_its_sync() -> None:
    node = Node(term=1)
    node.core.step(
        Message(kind=MessageKind.APPEND, source=OTHER, target=ME, term=1, **append(0, 0, 1, 1)),
        0,
    )
    node.perform(sync=False)
    assert node.sent == []
    node.sync()
    node.perform()
    assert [(one.kind, one.log_index) for one in node.sent] == [(MessageKind.APPEND_REPLY, 2)]
    node.core.on_synced(2, 1, 10)
    assert not node.core.has_ready()


@pytest.mark.parametrize(
    ("previous", "hint"),
    [((5, 2), (3, 2)), ((3, 1), (2, 1)), ((9, 9), (3, 2))],
)
def test_a_rejection_says_where_the_logs_may_agree(
    previous: tuple[int, int], hint: tuple[int, int]
) -> None:
    node = Node(1, 1, 2, term=9)
    (reply,) = node.hear(MessageKind.APPEND, **append(*previous))
    assert (reply.rejected, reply.log_index) == (True, previous[0])
    assert (reply.hint_index, reply.hint_term) == hint


def test_a_hint_never_points_below_what_is_committed() -> None:
    node = Node(1, 2, 2, term=9)
    node.hear(MessageKind.HEARTBEAT, log_index=2, log_term=2, commit_index=2)
    (reply,) = node.hear(MessageKind.APPEND, **append(3, 1))
    assert (reply.hint_index, reply.hint_term) == (2, 2)


def test_what_is_committed_is_not_compared_again() -> None:
    node = Node(1, 1, 1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=2, log_term=1, commit_index=2)
    node.disk.durable.drop_below(2)
    node.disk.view.drop_below(2)
    (reply,) = node.hear(MessageKind.APPEND, **append(0, 0, 1, 1, 1, 1))
    assert (reply.log_index, reply.rejected) == (4, False)
    assert node.disk.last_index == 4
    (reply,) = node.hear(MessageKind.APPEND, **append(2, 7))
    assert reply.rejected, "but at the commit index the entry before is"


def test_a_conflict_cuts_from_its_entry_on() -> None:
    node = Node(1, 1, 2, 2, term=2)
    node.hear(MessageKind.APPEND, term=3, **append(1, 1, 1, 3))
    assert [one.meta.term for one in node.disk.view.entries] == [1, 1, 3]
    assert node.core.synced_index == 3


def test_a_heartbeat_proves_what_it_names() -> None:
    node = Node(1, 1, 2, term=2)
    for named, commit, matched in (
        ((2, 2), 2, 0),
        ((9, 2), 9, 0),
        ((2, 1), 1, 2),
        ((1, 1), 9, 2),
        ((3, 2), 3, 3),
    ):
        (reply,) = node.hear(
            MessageKind.HEARTBEAT,
            log_index=named[0],
            log_term=named[1],
            commit_index=commit,
            context=6,
        )
        assert node.core.matched_index == matched
        assert (reply.kind, reply.log_index, reply.context) == (
            MessageKind.HEARTBEAT_REPLY,
            matched,
            6,
        )
    assert node.core.commit_index == 3


def test_what_matched_a_master_says_nothing_of_the_next_one() -> None:
    node = Node(1, 1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=2, log_term=1)
    assert (node.core.matched_index, node.core.commit_index) == (2, 0)
    (reply,) = node.hear(MessageKind.HEARTBEAT, THIRD, term=2, commit_index=2)
    assert (node.core.matched_index, reply.log_index, node.core.commit_index) == (0, 0, 0)


# --- what may be torn ---------------------------------------------------------------------------


def test_what_may_be_torn_is_cut_by_a_quiet_slave_alone() -> None:
    node = Node(1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=1, log_term=1)
    node.disk.write((entry(2, 1), entry(3, 1), entry(4, 1)))
    node.core.matched_index = 4
    assert node.core.cut_torn(3, 200) is True
    assert (node.core._now_ms, node.core.matched_index) == (200, 2)
    with pytest.raises(AssertionError, match="take ready"):
        node.core.cut_torn(3, 200)
    node.perform(sync=False)
    assert node.disk.last_index == 2
    node.core.begin_snapshot(SnapshotMark(index=9, term=1, membership=GROUP))
    assert node.core.cut_torn(2, 300) is False
    assert not node.core.has_ready()
    node.core.on_snapshot_failed(300)
    asked = Node(1, term=1)
    asking(asked)
    asked.disk.write((entry(2, 1),))
    assert asked.core.cut_torn(2, asked.now_ms) is False


def test_nothing_is_taken_behind_what_may_be_torn() -> None:
    node = Node(1, 1, 1, torn=2)
    said = node.hear(MessageKind.APPEND, log_index=3, log_term=1, entries=metas(4, 1))
    assert (said, node.disk.last_index) == ([], 3)
    said = node.hear(
        MessageKind.APPEND, log_index=1, log_term=1, entries=metas(2, 1, 1, 1), commit_index=4
    )
    assert (said, node.disk.last_index, node.core.matched_index) == ([], 3, 0)
    # Without news it is told what matches, so that what is missing can be fetched elsewhere.
    said = node.hear(MessageKind.APPEND, log_index=3, log_term=1, commit_index=4)
    assert (said, node.core.matched_index, node.core.commit_index) == ([], 3, 3)
    node.repair()
    assert (node.sent[-1].kind, node.sent[-1].log_index) == (MessageKind.APPEND_REPLY, 3)
    node.hear(MessageKind.APPEND, log_index=3, log_term=1, entries=metas(4, 1))
    assert (node.sent[-1].log_index, node.disk.last_index) == (4, 4)


def test_what_replaces_the_first_that_may_be_torn_is_taken() -> None:
    node = Node(1, 1, 1, torn=2)
    node.hear(MessageKind.APPEND, term=2, log_index=2, log_term=1, entries=metas(3, 2))
    assert node.disk.last_index == 2, "the one before may be torn, too"
    node.hear(MessageKind.APPEND, log_index=1, log_term=1, entries=metas(2, 2, 2))
    assert (node.disk.last_index, node.disk.last_term) == (3, 2)
    assert (node.sent[-1].kind, node.sent[-1].log_index) == (MessageKind.APPEND_REPLY, 3)


def test_nobody_stands_with_entries_that_may_be_torn() -> None:
    node = Node(1, 1, torn=1)
    node.tick(10 * CONFIG.election_max_ms)
    assert (node.core.role, node.sent) == (Role.SLAVE, [])
    node.repair()
    node.tick(2 * CONFIG.election_max_ms)
    assert node.core.role is Role.PRE_CANDIDATE


# --- snapshots ----------------------------------------------------------------------------------


def offer(index: int, term: int = 1) -> dict[str, Any]:
    return {"snapshot": SnapshotMark(index=index, term=term, membership=GROUP)}


def test_an_offer_of_what_is_here_is_an_acknowledgement() -> None:
    node = Node(1, 1, 1, term=1)
    (reply,) = node.hear(MessageKind.SNAPSHOT_OFFER, **offer(2))
    assert (reply.kind, reply.log_index, reply.rejected) == (MessageKind.SNAPSHOT_REPLY, 2, False)
    assert (node.core.matched_index, node.core.commit_index) == (2, 2)
    (reply,) = node.hear(MessageKind.SNAPSHOT_OFFER, **offer(1))
    assert (reply.log_index, node.core.matched_index) == (2, 2)
    assert node.core._snapshot_wanted is None


def test_each_offer_of_what_is_not_here_is_wanted() -> None:
    node = Node(1, term=1)
    wanted = []

    def hear(**fields: Any) -> None:
        message = Message(
            kind=MessageKind.SNAPSHOT_OFFER, source=OTHER, target=ME, term=1, **fields
        )
        node.core.step(message, 0)
        told = node.core.ready().snapshot_wanted
        wanted.append(told and told.snapshot)

    hear(**offer(5))
    hear(**offer(5))
    hear(**offer(1))
    hear(**offer(6))
    assert [mark and mark.index for mark in wanted] == [5, 5, None, 6]


def test_nothing_is_taken_nor_acknowledged_during_a_switch() -> None:
    node = Node(1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=1, log_term=1)
    mark = SnapshotMark(index=9, term=1, membership=GROUP)
    assert node.core.begin_snapshot(mark)
    with pytest.raises(AssertionError, match="one snapshot at a time"):
        node.core.begin_snapshot(mark)
    assert node.hear(MessageKind.APPEND, **append(1, 1, 1)) == []
    assert node.hear(MessageKind.SNAPSHOT_OFFER, **offer(12)) == []
    (reply,) = node.hear(MessageKind.HEARTBEAT, log_index=1, log_term=1, commit_index=1, context=3)
    assert (reply.log_index, reply.context, reply.rejected) == (0, 3, False)
    assert (node.disk.last_index, node.core.commit_index) == (1, 0)
    node.core.on_snapshot_failed(200)
    node.perform()
    told = node.sent[-1]
    assert (told.kind, told.log_index, told.rejected) == (MessageKind.SNAPSHOT_REPLY, 1, True)
    assert node.core._now_ms == 200
    (reply,) = node.hear(MessageKind.APPEND, **append(1, 1, 1))
    assert reply.log_index == 2


def test_a_candidate_that_installs_stands_no_more() -> None:
    node = Node(1)
    asking(node)
    assert node.core.begin_snapshot(SnapshotMark(index=9, term=1, membership=GROUP))
    assert node.core.role is Role.SLAVE
    node.tick(3_000)
    assert node.core.role is Role.SLAVE


def test_an_installed_snapshot_is_where_everything_begins() -> None:
    node = Node(1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=1, log_term=1)
    members = add_learner(GROUP, NodeId(4))
    mark = SnapshotMark(index=9, term=1, membership=members)
    assert node.core.begin_snapshot(mark)
    node.disk.install(Checkpoint(mark, 0))
    node.core.on_snapshot_installed(mark, 200)
    assert (node.core.commit_index, node.core.synced_index, node.core._now_ms) == (9, 9, 200)
    assert node.core.membership == members
    node.perform()
    assert kinds(node.sent)[-1] == (MessageKind.SNAPSHOT_REPLY, OTHER)
    node.sent.clear()
    node.core.on_synced(9, 1, 210)
    assert not node.core.has_ready(), "it is acknowledged already"
    (reply,) = node.hear(MessageKind.APPEND, **append(9, 1, 1))
    assert reply.log_index == 10


def test_a_conflict_right_behind_what_is_committed_is_no_contradiction() -> None:
    node = Node(1, 1, 1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=2, log_term=1, commit_index=2)
    (reply,) = node.hear(MessageKind.APPEND, term=2, **append(1, 1, 1, 2))
    assert (reply.log_index, node.disk.last_term) == (3, 2)


def unsynced_tail(*, master: bool = True) -> Node:
    """Entries 1 and 2 are durable and match; 3 and 4 stand here unsynced, and nobody knows them."""
    node = Node(1, 1, term=1)
    if master:
        node.hear(MessageKind.HEARTBEAT)
    node.disk.write((entry(3, 1), entry(4, 1)))
    return node


@pytest.mark.parametrize("since", ["ever", "the next master", "an own campaign"])
def test_a_sync_of_what_matches_nothing_is_not_told(since: str) -> None:
    node = unsynced_tail()
    if since != "ever":
        term = 2
        if since == "an own campaign":
            node.core._become_pre_candidate()
            node.core._become_candidate()
        message = Message(kind=MessageKind.HEARTBEAT, source=THIRD, target=ME, term=term)
        node.core.step(message, 0)
        node.perform(sync=False)
    node.sent.clear()
    node.sync()
    node.perform()
    assert (node.sent, node.core.synced_index) == ([], 4)


@pytest.mark.parametrize("acked", [1, 2])
def test_what_was_told_before_an_own_campaign_is_told_to_its_winner(acked: int) -> None:
    node = Node(*[1] * acked, term=1)
    node.hear(MessageKind.APPEND, **append(acked, 1))
    assert node.core._acked_index == acked
    standing(node)
    term = node.core.term
    node.core.step(
        Message(
            kind=MessageKind.APPEND,
            source=THIRD,
            target=ME,
            term=term,
            **append(acked - 1, int(acked > 1), term),
        ),
        node.now_ms,
    )
    node.perform(sync=False)
    node.sent.clear()
    node.sync()
    node.perform()
    assert [(one.target, one.log_index) for one in node.sent] == [(THIRD, acked)]


def test_what_one_master_was_told_the_next_one_is_told_too() -> None:
    node = Node(1, 1, term=1)
    node.hear(MessageKind.APPEND, **append(2, 1, 1, 1))
    assert node.core._acked_index == 4
    node.core.step(
        Message(kind=MessageKind.APPEND, source=THIRD, target=ME, term=2, **append(2, 1, 2)), 0
    )
    node.perform(sync=False)
    node.sent.clear()
    node.sync()
    node.perform()
    assert [(one.target, one.log_index) for one in node.sent] == [(THIRD, 3)]


def test_a_change_of_members_right_behind_the_checkpoint_is_found() -> None:
    changed = add_learner(GROUP, NodeId(4))
    disk = SimDisk(GROUP)
    meta = EntryMeta(index=1, term=1, size=100, membership=changed)
    disk.durable.entries.append(SimEntry(meta, 0))
    disk.view = disk.durable.copy()
    core = RaftCore(
        CONFIG,
        node_id=ME,
        hard_state=HardState(term=1),
        membership=GROUP,
        log=disk,
        applied_index=0,
        random=Random(1),
        now_ms=0,
    )
    assert core.membership == changed


def test_what_was_acknowledged_at_once_is_not_acknowledged_again_by_a_sync() -> None:
    node = unsynced_tail()
    node.core.step(
        Message(kind=MessageKind.APPEND, source=OTHER, target=ME, term=1, **append(1, 1, 1)), 0
    )
    node.perform(sync=False)
    assert node.sent[-1].log_index == 2
    count = len(node.sent)
    node.sync()
    node.perform()
    assert (len(node.sent), node.core.synced_index) == (count, 4)


def test_what_a_sync_acknowledged_the_next_one_does_not() -> None:
    node = Node(term=1)
    node.hear(MessageKind.HEARTBEAT)
    node.disk.write((entry(1, 1), entry(2, 1), entry(3, 1), entry(4, 1)))
    node.core.step(
        Message(kind=MessageKind.APPEND, source=OTHER, target=ME, term=1, **append(0, 0, 1, 1)), 0
    )
    node.perform(sync=False)
    node.sent.clear()
    node.disk.start_flush()
    node.disk.end_flush()
    for index, told in ((1, [1]), (2, [1, 2]), (4, [1, 2])):
        node.core.on_synced(index, 1, 10)
        node.perform(sync=False)
        assert [one.log_index for one in node.sent] == told


@pytest.mark.parametrize("why", ["no master", "installing", "standing"])
def test_a_sync_is_told_to_a_master_alone(why: str) -> None:
    node = Node(1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=1, log_term=1)
    node.disk.write((entry(2, 1),))
    node.core.matched_index = 2
    if why == "no master":
        node.core._become_slave(1, None)
    elif why == "installing":
        assert node.core.begin_snapshot(SnapshotMark(index=9, term=1, membership=GROUP)) is True
    else:
        node.core._become_pre_candidate()
    node.sent.clear()
    node.core.ready()
    node.sync()
    assert node.core.synced_index == 2
    assert node.core.ready().messages == ()


def test_a_snapshot_that_is_here_already_is_declined() -> None:
    node = Node(1, 1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=1, log_term=1, commit_index=1)
    for index in (1, 2):
        assert (
            node.core.begin_snapshot(SnapshotMark(index=index, term=1, membership=GROUP)) is False
        )
