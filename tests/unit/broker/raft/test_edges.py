"""The edges of the core's rules, one input at a time: limits, flags, what is told to whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.broker.raft import (
    HardState,
    Message,
    MessageKind,
    RaftConfig,
    RaftCore,
    Role,
    SnapshotMark,
)
from semel.protos.ids import NodeId
from tests.unit.broker.raft.single_core import (
    CONFIG,
    GROUP,
    ME,
    OTHER,
    THIRD,
    Node,
    elected,
    entry,
    kinds,
    metas,
)

# --- configuration ------------------------------------------------------------------------------


def test_the_smallest_sensible_config_is_taken() -> None:
    ones = dict.fromkeys(RaftConfig.__slots__, 1)
    RaftConfig(**ones | {"election_min_ms": 2, "election_max_ms": 2, "loop_gap_ms": 2})


# --- every input --------------------------------------------------------------------------------

INPUTS: dict[str, Callable[[RaftCore, int], object]] = {
    "tick": lambda core, now_ms: core.tick(now_ms),
    "step": lambda core, now_ms: core.step(
        Message(kind=MessageKind.HEARTBEAT, source=OTHER, target=ME, term=1), now_ms
    ),
    "on_synced": lambda core, now_ms: core.on_synced(0, 0, now_ms),
    "on_stream_broken": lambda core, now_ms: core.on_stream_broken(THIRD, now_ms),
    "on_peer_unreachable": lambda core, now_ms: core.on_peer_unreachable(THIRD, now_ms),
    "read_index": lambda core, now_ms: core.read_index(1, now_ms),
    "on_hard_state_synced": lambda core, now_ms: core.on_hard_state_synced(HardState(term=1)),
    "begin_snapshot": lambda core, now_ms: core.begin_snapshot(
        SnapshotMark(index=9, term=9, membership=GROUP)
    ),
    "begin_rebuild": lambda core, now_ms: core.begin_rebuild(),
    "resign": lambda core, now_ms: core.resign(now_ms),
}


@pytest.mark.parametrize("name", INPUTS)
def test_no_input_comes_before_the_last_one_is_performed(name: str) -> None:
    node = Node(term=1)
    node.core.step(
        Message(kind=MessageKind.APPEND, source=OTHER, target=ME, term=1, entries=metas(1, 1)),
        10,
    )
    with pytest.raises(AssertionError, match="take ready"):
        INPUTS[name](node.core, 20)


@pytest.mark.parametrize(
    "name",
    [
        "tick",
        "step",
        "on_synced",
        "on_stream_broken",
        "on_peer_unreachable",
        "read_index",
        "resign",
    ],
)
def test_every_input_tells_the_time(name: str) -> None:
    node = Node(term=1)
    INPUTS[name](node.core, 200)
    assert node.core._now_ms == 200
    INPUTS[name](node.core, 100)
    assert node.core._now_ms == 200


# --- stale terms, leases, non-counting nodes ----------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (MessageKind.APPEND, MessageKind.HEARTBEAT_REPLY),
        (MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_REPLY),
        (MessageKind.SNAPSHOT_OFFER, MessageKind.HEARTBEAT_REPLY),
        (MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_REPLY),
        (MessageKind.VOTE, MessageKind.VOTE_REPLY),
        (MessageKind.APPEND_REPLY, None),
        (MessageKind.VOTE_REPLY, None),
        (MessageKind.TIMEOUT_NOW, None),
    ],
)
def test_who_was_left_behind_is_told_the_term(
    kind: MessageKind, answer: MessageKind | None
) -> None:
    node = Node(term=5)
    told = node.hear(kind, term=4, context=3)
    if answer is None:
        assert told == []
    else:
        (reply,) = told
        assert (reply.kind, reply.term, reply.rejected, reply.context) == (answer, 5, True, 3)
    assert (node.core.term, node.core.master_id) == (5, None)


@pytest.mark.parametrize("force", [False, True])
def test_a_slave_that_hears_its_master_does_not_even_answer_a_vote(force: bool) -> None:
    node = Node(term=1)
    node.hear(MessageKind.HEARTBEAT, term=1)
    told = node.hear(MessageKind.VOTE, THIRD, term=2, force=force)
    assert bool(told) == force
    assert node.core.term == (2 if force else 1)


def test_a_lease_ends_with_the_shortest_election_time() -> None:
    for silent_ms, protects in ((499, True), (500, False)):
        node = Node(term=1)
        node.hear(MessageKind.HEARTBEAT, term=1)
        node.now_ms += 250
        node.core.on_synced(0, 0, node.now_ms)
        node.now_ms += silent_ms - 250
        (reply,) = node.hear(MessageKind.PRE_VOTE, THIRD, term=2)
        assert reply.rejected == protects


def test_a_non_counting_node_takes_no_part_in_elections() -> None:
    node = Node(term=1)
    node.core.set_non_counting(True)
    assert node.core.non_counting is True
    for kind in (MessageKind.VOTE, MessageKind.PRE_VOTE, MessageKind.TIMEOUT_NOW):
        assert node.hear(kind, term=2) == []
    assert (node.core.term, node.core.voted_for) == (1, None)
    node.tick(5_000)
    assert node.core.role is Role.SLAVE
    (reply,) = node.hear(MessageKind.HEARTBEAT, term=1)
    assert reply.non_counting
    node.core.set_non_counting(False)
    assert node.core.non_counting is False
    (reply,) = node.hear(MessageKind.VOTE, THIRD, term=2, force=True)
    assert (reply.rejected, reply.non_counting) == (False, False)


# --- non-counting peers, as their master sees them ----------------------------------------------


def test_a_peer_that_lost_its_disk_is_probed_at_once() -> None:
    node = elected()
    node.propose()
    node.hear(MessageKind.APPEND_REPLY, log_index=2)
    assert node.core.commit_index == 2
    told = node.hear(MessageKind.HEARTBEAT_REPLY, non_counting=True)
    appends = [one for one in told if one.kind is MessageKind.APPEND]
    assert [(one.target, one.log_index) for one in appends] == [(OTHER, 1)]
    assert not node.core.progress[OTHER].counts
    node.hear(MessageKind.APPEND_REPLY, log_index=1, rejected=True, non_counting=True)
    node.hear(MessageKind.APPEND_REPLY, log_index=2, non_counting=True)
    node.propose()
    node.hear(MessageKind.APPEND_REPLY, log_index=3, non_counting=True)
    assert node.core.commit_index == 2, "counted by nobody"


def test_a_peer_counts_again_with_the_first_answer_that_proves_it() -> None:
    node = elected()
    node.hear(MessageKind.HEARTBEAT_REPLY, non_counting=True)
    node.propose()
    node.hear(MessageKind.APPEND_REPLY, log_index=2, non_counting=True)
    old = node.core._reads.round
    node.hear(MessageKind.HEARTBEAT_REPLY, log_index=2, context=old)
    node.hear(MessageKind.APPEND_REPLY, log_index=2, context=old + 9)
    assert node.core.commit_index == 1, "a message of before, or no answer to a round"
    node.tick(100)
    node.propose()
    node.hear(MessageKind.HEARTBEAT_REPLY, log_index=3, context=old + 1)
    assert node.core.commit_index == 3, "the answer itself is taken, too"


def test_without_a_round_no_answer_proves_anything() -> None:
    """A master whose disk hung from its election on has begun no round."""
    node = Node()
    while node.core.role is not Role.PRE_CANDIDATE:
        node.tick(50)
    asked = node.sent[-1]
    node.hear(MessageKind.PRE_VOTE_REPLY, term=asked.term, context=asked.context)
    node.core.on_log_stalled(5_000)
    node.hear(MessageKind.VOTE_REPLY, context=node.sent[-1].context)
    assert (node.core.role, node.core._reads.round) == (Role.MASTER, 0)
    node.core.on_log_stalled(0)
    node.hear(MessageKind.APPEND_REPLY, log_index=0, non_counting=True)
    node.hear(MessageKind.APPEND_REPLY, log_index=1)
    assert not node.core.progress[OTHER].counts
    assert node.core.commit_index == 0


# --- completions --------------------------------------------------------------------------------


def test_completions_that_no_longer_count_are_counted() -> None:
    node = Node(1, 1, term=1)
    core, disk = node.core, node.disk
    core.on_synced(2, 1, 10)
    assert core.status().stale_completions == 0
    disk.write((entry(3, 1), entry(4, 1)))
    core.on_synced(4, 1, 20)  # the log itself has only two of them on the disk
    assert (core.status().stale_completions, core.synced_index) == (1, 2)
    core.on_synced(4, 9, 30)
    assert core.status().stale_completions == 2
    node.sync()
    assert (core.status().stale_completions, core.synced_index) == (2, 4)


def test_messages_that_waited_for_the_term_leave_once() -> None:
    node = Node()
    core = node.core
    heartbeat = Message(kind=MessageKind.HEARTBEAT, source=OTHER, target=ME, term=1)
    core.step(heartbeat, 10)
    ready = core.ready()
    assert len(ready.messages_after_hard_state) == 1
    core.step(heartbeat, 20)
    core.step(heartbeat, 30)
    core.on_hard_state_synced(HardState(term=1))
    assert len(core.ready().messages) == 2
    core.step(Message(kind=MessageKind.HEARTBEAT, source=OTHER, target=ME, term=2), 40)
    assert len(core.ready().messages_after_hard_state) == 1


def test_what_was_released_does_not_wait_for_the_next_vote_of_the_term() -> None:
    node = Node(1)
    core = node.core

    def ask(source: NodeId, log_index: int) -> None:
        fields: dict[str, Any] = {"term": 2, "log_index": log_index, "log_term": log_index}
        core.step(Message(kind=MessageKind.VOTE, source=source, target=ME, **fields), 10)

    ask(THIRD, 0)
    assert [one.rejected for one in core.ready().messages_after_hard_state] == [True]
    ask(THIRD, 0)
    core.on_hard_state_synced(HardState(term=2))
    assert [one.rejected for one in core.ready().messages] == [True]
    ask(OTHER, 1)
    ready = core.ready()
    assert ready.hard_state == HardState(term=2, voted_for=OTHER)
    assert [one.rejected for one in ready.messages_after_hard_state] == [False]


def test_what_waits_for_a_term_goes_with_it_and_not_with_the_vote() -> None:
    node = Node(1)
    core = node.core
    votes = [(2, THIRD, 0), (3, THIRD, 0), (3, OTHER, 1)]
    for term, source, log_index in votes:
        fields: dict[str, Any] = {"term": term, "log_index": log_index, "log_term": log_index}
        core.step(Message(kind=MessageKind.VOTE, source=source, target=ME, **fields), 10)
    ready = core.ready()
    assert ready.hard_state == HardState(term=3, voted_for=OTHER)
    told = [(one.term, one.target, one.rejected) for one in ready.messages_after_hard_state]
    assert told == [(3, THIRD, True), (3, OTHER, False)]


def test_a_disk_that_works_again_sends_what_waited() -> None:
    node = elected()
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=1)
    node.sent.clear()
    node.propose(noop=True)  # appended, and not yet handed out
    node.core.on_log_stalled(CONFIG.log_stall_ms + 1)
    node.perform()
    assert (node.sent, node.core.accepts_proposals) == ([], False)
    node.core.on_log_stalled(CONFIG.log_stall_ms)
    assert node.core.accepts_proposals
    node.perform()
    assert kinds(node.sent) == [(MessageKind.APPEND, OTHER), (MessageKind.APPEND, THIRD)]
    node.core.on_log_stalled(0)
    assert not node.core.has_ready(), "nothing waits"
