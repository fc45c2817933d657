"""The edges of a slave's rules: what it votes for, takes, cuts and acknowledges; when it stands.

This is one file because the sections share the same few slaves: `chosen` fixes their election
times, `standing` lets them campaign, and most rules hold for several of the inputs.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from semel.broker.raft import (
    EntryMeta,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftCore,
    Role,
    SnapshotMark,
)
from semel.broker.raft.membership import add_learner
from semel.protos.ids import NodeId
from tests.sim.disk import Checkpoint, SimDisk, SimEntry
from tests.unit.broker.raft.single_core import (
    CONFIG,
    GROUP,
    ME,
    OTHER,
    THIRD,
    Node,
    entry,
    kinds,
    metas,
    role_of,
)

FIVE = Membership(voters=frozenset(NodeId(number) for number in range(1, 6)))


class Chosen:
    """In place of a random source: the end that a test wants, and what it was asked for."""

    def __init__(self, *, high: bool) -> None:
        self.high = high
        self.asked: list[tuple[int, int]] = []

    def randint(self, low: int, high: int) -> int:
        self.asked.append((low, high))
        return high if self.high else low

    def random(self) -> float:
        return 0.999_999 if self.high else 0.0


def chosen(node: Node, *, high: bool) -> Chosen:
    source = Chosen(high=high)
    node.core._random = source  # type: ignore[assignment]
    return source


def asking(node: Node) -> Message:
    """The node has lost its master, and asks whether it would be voted for."""
    while node.core.role is not Role.PRE_CANDIDATE:
        node.tick(50)
    return node.sent[-1]


def standing(node: Node) -> Message:
    asked = asking(node)
    node.hear(MessageKind.PRE_VOTE_REPLY, term=asked.term, context=asked.context)
    assert node.core.role is Role.CANDIDATE
    return node.sent[-1]


# --- time ---------------------------------------------------------------------------------------


def test_election_times_are_uniform_between_their_ends() -> None:
    for high, wait_ms in ((False, CONFIG.election_min_ms), (True, CONFIG.election_max_ms)):
        node = Node(term=1)
        chosen(node, high=high)
        node.hear(MessageKind.HEARTBEAT)
        node.now_ms = node.core._now_ms
        assert node.core._election_deadline_ms == node.now_ms + wait_ms
        node.tick(wait_ms - 1)
        assert role_of(node) is Role.FOLLOWER
        node.tick(1)
        assert role_of(node) is Role.PRE_CANDIDATE


def test_every_word_of_the_master_puts_the_election_off() -> None:
    mark = SnapshotMark(index=9, term=1, membership=GROUP)
    words: list[tuple[MessageKind, dict[str, Any]]] = [
        (MessageKind.HEARTBEAT, {}),
        (MessageKind.APPEND, {}),
        (MessageKind.SNAPSHOT_OFFER, {"snapshot": mark}),
    ]
    for kind, fields in words:
        node = Node(term=1)
        chosen(node, high=False)
        node.now_ms = 200
        node.hear(kind, **fields)
        assert (node.core.master_id, node.core._election_deadline_ms) == (OTHER, 700)
        assert node.core._in_lease


def test_a_node_that_stood_still_waits_anew() -> None:
    for gap_ms, waits in ((CONFIG.loop_gap_ms, False), (CONFIG.loop_gap_ms + 1, True)):
        node = Node(term=1)
        chosen(node, high=False)
        node.hear(MessageKind.HEARTBEAT)
        node.tick(400)
        node.core._observe(400 + gap_ms)
        assert (node.core._election_deadline_ms == 400 + gap_ms + 500) == waits


@pytest.mark.parametrize("high", [False, True])
def test_a_refused_reconnect_voids_the_lease_and_shortens_the_wait(high: bool) -> None:
    node = Node(term=1)
    node.hear(MessageKind.HEARTBEAT)
    source = chosen(node, high=high)
    node.core.on_peer_unreachable(THIRD, 100)
    assert (source.asked, node.core._in_lease) == ([], True)
    node.core.on_peer_unreachable(OTHER, 100)
    assert source.asked == [(0, CONFIG.unreachable_max_ms)]
    assert node.core._election_deadline_ms == 100 + (CONFIG.unreachable_max_ms if high else 0)
    assert not node.core._in_lease
    earlier = node.core._election_deadline_ms
    node.core.on_peer_unreachable(OTHER, 200)
    assert node.core._election_deadline_ms == min(earlier, 200 + 150 * high)


def test_a_broken_stream_alone_ends_no_lease() -> None:
    """The master may live: it is gone only if nobody listens there any more."""
    node = Node(term=1)
    node.hear(MessageKind.HEARTBEAT)
    deadline = node.core._election_deadline_ms
    node.core.on_stream_broken(OTHER, 100)
    assert node.core._in_lease
    assert node.core._election_deadline_ms == deadline
    assert not node.core.has_ready()


def test_a_new_node_waits_for_a_master_and_says_nothing() -> None:
    node = Node(1)
    waits_ms = node.core._election_deadline_ms
    assert CONFIG.election_min_ms <= waits_ms <= CONFIG.election_max_ms
    core = Node(1, term=1).core
    assert not core.has_ready()
    fresh = RaftCore(
        CONFIG,
        node_id=ME,
        hard_state=HardState(term=1, voted_for=THIRD),
        membership=GROUP,
        log=node.disk,
        applied_index=1,
        random=Random(1),
        now_ms=0,
    )
    assert fresh.has_ready()
    ready = fresh.ready()
    assert (ready.hard_state, ready.messages, ready.commit_index) == (None, (), 1)
    assert (ready.role_changed, ready.append_noop, ready.snapshot_wanted) == (True, False, None)


def test_entries_of_a_term_prove_the_term() -> None:
    """The log was synced, and the hard state was not."""
    node = Node(1, 5)
    core = RaftCore(
        CONFIG,
        node_id=ME,
        hard_state=HardState(term=4, voted_for=THIRD),
        membership=GROUP,
        log=node.disk,
        applied_index=0,
        random=Random(1),
        now_ms=0,
    )
    assert core.ready().hard_state == HardState(term=5)


def test_who_is_removed_may_stand_until_that_is_committed() -> None:
    node = Node(1, term=1)
    without = Membership(voters=frozenset({OTHER, THIRD}))
    meta = EntryMeta(index=2, term=1, size=100, membership=without)
    node.hear(MessageKind.APPEND, log_index=1, log_term=1, entries=(meta,))
    assert (node.core.membership, node.core._may_stand) == (without, True)
    node.hear(MessageKind.HEARTBEAT, log_index=2, log_term=1, commit_index=2)
    assert not node.core._may_stand


# --- standing -----------------------------------------------------------------------------------


def test_a_campaign_asks_every_other_voter_with_its_last_entry() -> None:
    node = Node(1, 2, term=4, membership=add_learner(GROUP, NodeId(9)))
    asked = asking(node)
    questions = [one for one in node.sent if one.kind is MessageKind.PRE_VOTE]
    assert [one.target for one in questions] == [OTHER, THIRD]
    for one in questions:
        assert (one.term, one.log_index, one.log_term, one.force) == (5, 2, 2, False)
        assert one.context == asked.context
    assert (node.core.term, node.core.voted_for, node.core.master_id) == (4, None, None)
    node.sent.clear()
    node.hear(MessageKind.PRE_VOTE_REPLY, term=5, context=asked.context)
    votes = [one for one in node.sent if one.kind is MessageKind.VOTE]
    assert [(one.target, one.term, one.log_index, one.log_term) for one in votes] == [
        (OTHER, 5, 2, 2),
        (THIRD, 5, 2, 2),
    ]
    assert (node.core.term, node.core.voted_for) == (5, ME)


@pytest.mark.parametrize(
    ("wrong", "role"),
    [
        ({}, Role.CANDIDATE),
        ({"context": 0}, Role.PRE_CANDIDATE),
        ({"term": 3}, Role.PRE_CANDIDATE),
        ({"term": 1}, Role.PRE_CANDIDATE),
    ],
)
def test_a_pre_vote_counts_for_its_own_question(wrong: dict[str, int], role: Role) -> None:
    node = Node(1)
    asked = asking(node)
    fields: dict[str, Any] = {"term": 2, "context": asked.context} | wrong
    node.hear(MessageKind.PRE_VOTE_REPLY, **fields)
    assert node.core.role is role


@pytest.mark.parametrize(("context", "role"), [(0, Role.CANDIDATE), (None, Role.MASTER)])
def test_a_vote_counts_for_its_own_campaign(context: int | None, role: Role) -> None:
    node = Node(1)
    asked = standing(node)
    node.hear(MessageKind.VOTE_REPLY, context=asked.context if context is None else context)
    assert node.core.role is role


def test_what_matched_before_an_own_campaign_says_nothing_of_its_winner() -> None:
    node = Node(1, 1, term=1)
    node.hear(MessageKind.HEARTBEAT, log_index=2, log_term=1)
    assert node.core.matched_index == 2
    standing(node)
    (reply,) = node.hear(MessageKind.HEARTBEAT, THIRD, commit_index=2)
    assert (node.core.matched_index, reply.log_index, node.core.commit_index) == (0, 0, 0)


def test_a_campaign_forgets_the_master_and_takes_its_time() -> None:
    node = Node(1)
    chosen(node, high=False)
    node.hear(MessageKind.HEARTBEAT, term=1)
    asked = asking(node)
    assert (node.core.master_id, node.core._election_deadline_ms) == (None, node.now_ms + 500)
    count = len(node.sent)
    node.tick(400)
    assert len(node.sent) == count, "it waits for answers"
    node.hear(MessageKind.PRE_VOTE_REPLY, term=2, context=asked.context)
    assert node.core._election_deadline_ms == node.now_ms + 500
    node = Node(1)
    node.hear(MessageKind.HEARTBEAT, term=1)
    node.hear(MessageKind.TIMEOUT_NOW)
    assert (node.core.role, node.core.master_id) == (Role.CANDIDATE, None)


def test_late_answers_elect_nobody() -> None:
    node = Node(1)
    asked = asking(node)
    node.hear(MessageKind.HEARTBEAT, term=1)
    node.hear(MessageKind.PRE_VOTE_REPLY, term=2, context=asked.context)
    assert (node.core.role, node.core.term) == (Role.FOLLOWER, 1)
    node = Node(1)
    asked = standing(node)
    node.hear(MessageKind.HEARTBEAT, term=2)
    node.hear(MessageKind.VOTE_REPLY, context=asked.context)
    assert (node.core.role, node.core.master_id) == (Role.FOLLOWER, OTHER)


def test_answers_of_others_than_voters_count_nothing() -> None:
    node = Node(1, membership=FIVE)
    asked = standing_of_five(node)
    for stranger in (7, 8, 9):
        node.hear(MessageKind.VOTE_REPLY, NodeId(stranger), context=asked.context)
    assert node.core.role is Role.CANDIDATE


def standing_of_five(node: Node) -> Message:
    asked = asking(node)
    for peer in (2, 3):
        node.hear(MessageKind.PRE_VOTE_REPLY, NodeId(peer), term=asked.term, context=asked.context)
    assert node.core.role is Role.CANDIDATE
    return node.sent[-1]


@pytest.mark.parametrize("stage", ["asking", "standing"])
def test_who_cannot_win_any_more_gives_up_with_the_refusal_that_says_so(stage: str) -> None:
    node = Node(1, membership=FIVE)
    asked = asking(node) if stage == "asking" else standing_of_five(node)
    before = node.core.role
    kind = MessageKind.PRE_VOTE_REPLY if stage == "asking" else MessageKind.VOTE_REPLY
    for peer in (4, 5):
        node.hear(kind, NodeId(peer), context=asked.context, rejected=True)
        assert node.core.role is before
    node.hear(kind, NodeId(2), context=asked.context, rejected=True)
    assert node.core.role is Role.FOLLOWER


def test_the_own_vote_counts_when_it_is_durable() -> None:
    node = Node(1)
    asked = asking(node)
    node.core.step(
        Message(
            kind=MessageKind.PRE_VOTE_REPLY,
            source=OTHER,
            target=ME,
            term=2,
            context=asked.context,
        ),
        node.now_ms,
    )
    ready = node.core.ready()
    assert ready.hard_state == HardState(term=2, voted_for=ME)
    assert (len(ready.messages), len(ready.messages_after_hard_state)) == (0, 2)
    context = ready.messages_after_hard_state[0].context
    for peer in (OTHER, THIRD):
        node.hear(MessageKind.VOTE_REPLY, peer, context=context)
    assert role_of(node) is Role.CANDIDATE, "two others would be a quorum, but it said its own"
    node.core.on_hard_state_synced(ready.hard_state)
    assert role_of(node) is Role.MASTER


def test_who_may_not_stand_forgets_its_master_and_waits() -> None:
    node = Node(term=1)
    node.hear(MessageKind.HEARTBEAT)
    node.core.set_electable(False)
    first_ms = node.core._election_deadline_ms
    node.tick(first_ms - node.now_ms)
    assert (node.core.role, node.core.master_id) == (Role.FOLLOWER, None)
    assert node.core._election_deadline_ms > first_ms
    assert node.sent[-1].kind is MessageKind.HEARTBEAT_REPLY, "asks nobody"


@pytest.mark.parametrize(
    ("change", "stands"),
    [("nothing", True), ("another node", False), ("stalled", False), ("already asking", False)],
)
def test_an_order_to_stand_is_taken_from_the_master_alone(change: str, stands: bool) -> None:
    node = Node(1)
    node.hear(MessageKind.HEARTBEAT, term=1)
    source = THIRD if change == "another node" else OTHER
    if change == "stalled":
        node.core.on_log_stalled(5_000)
    if change == "already asking":
        asking(node)
    node.sent.clear()
    node.hear(MessageKind.TIMEOUT_NOW, source)
    votes = [one for one in node.sent if one.kind is MessageKind.VOTE]
    assert [(one.force, one.term) for one in votes] == [(True, 2)] * (2 * stands)


# --- voting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "granted"),
    [((1, 2), False), ((2, 1), False), ((2, 2), True), ((3, 2), True), ((1, 3), True)],
)
@pytest.mark.parametrize("kind", [MessageKind.VOTE, MessageKind.PRE_VOTE])
def test_a_vote_goes_to_a_log_that_is_at_least_as_new(
    kind: MessageKind, last: tuple[int, int], granted: bool
) -> None:
    node = Node(1, 2, term=4)
    (reply,) = node.hear(kind, term=5, log_index=last[0], log_term=last[1], context=8)
    assert (reply.rejected, reply.context) == (not granted, 8)
    if kind is MessageKind.VOTE:
        assert (reply.term, node.core.voted_for) == (5, OTHER if granted else None)
    else:
        assert (reply.term, node.core.voted_for) == (5 if granted else 4, None)
        assert node.core.term == 4


def test_a_pre_vote_needs_a_higher_term() -> None:
    node = Node(term=4)
    (reply,) = node.hear(MessageKind.PRE_VOTE, term=4)
    assert reply.rejected


@pytest.mark.parametrize("force", [False, True])
def test_a_pre_vote_respects_the_master_unless_forced(force: bool) -> None:
    node = Node(term=1)
    node.hear(MessageKind.HEARTBEAT)
    (reply,) = node.hear(MessageKind.PRE_VOTE, THIRD, term=2, force=force)
    assert reply.rejected != force


def test_one_vote_a_term_the_same_one_again() -> None:
    node = Node(term=1)
    chosen(node, high=False)
    node.now_ms = 200
    (first,) = node.hear(MessageKind.VOTE, term=2)
    assert node.core._election_deadline_ms == 700, "whom it elects gets time"
    (again,) = node.hear(MessageKind.VOTE, term=2)
    node.now_ms = 300
    (other,) = node.hear(MessageKind.VOTE, THIRD, term=2)
    assert (first.rejected, again.rejected, other.rejected) == (False, False, True)
    assert (node.core.voted_for, node.core._election_deadline_ms) == (OTHER, 700)


def test_nobody_votes_in_a_term_that_has_its_master() -> None:
    node = Node(term=1)
    node.hear(MessageKind.HEARTBEAT)
    (reply,) = node.hear(MessageKind.VOTE, THIRD)
    assert (reply.rejected, node.core.voted_for) == (True, None)


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
    assert (node.core.role, node.sent) == (Role.FOLLOWER, [])
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
    assert node.core.role is Role.FOLLOWER
    node.tick(3_000)
    assert node.core.role is Role.FOLLOWER


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
        node.core._become_follower(1, None)
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
