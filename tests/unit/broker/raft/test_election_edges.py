"""The edges of an election: when a node waits, asks and stands, and whom it votes for."""

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
from semel.broker.raft.membership_history import add_learner
from semel.protos.ids import NodeId
from tests.unit.broker.raft.single_core import (
    CONFIG,
    GROUP,
    ME,
    OTHER,
    THIRD,
    Node,
    asking,
    role_of,
    standing,
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


# --- time ---------------------------------------------------------------------------------------


def test_election_times_are_uniform_between_their_ends() -> None:
    for high, wait_ms in ((False, CONFIG.election_min_ms), (True, CONFIG.election_max_ms)):
        node = Node(term=1)
        chosen(node, high=high)
        node.hear(MessageKind.HEARTBEAT)
        node.now_ms = node.core._now_ms
        assert node.core._election_deadline_ms == node.now_ms + wait_ms
        node.tick(wait_ms - 1)
        assert role_of(node) is Role.SLAVE
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
    assert (node.core.role, node.core.term) == (Role.SLAVE, 1)
    node = Node(1)
    asked = standing(node)
    node.hear(MessageKind.HEARTBEAT, term=2)
    node.hear(MessageKind.VOTE_REPLY, context=asked.context)
    assert (node.core.role, node.core.master_id) == (Role.SLAVE, OTHER)


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
    assert node.core.role is Role.SLAVE


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
    assert (node.core.role, node.core.master_id) == (Role.SLAVE, None)
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
