"""The edges of a master's rules: what it sends, counts, confirms, hands over, and when it goes.

This is one file because each section tests another duty of the same master: the sections share the
master of `replicating`, and none of them stands for a module of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.raft import (
    Membership,
    Message,
    MessageKind,
    PeerProgress,
    RaftConfig,
    RaftStatus,
    Role,
)
from semel.broker.raft.membership import add_learner, promote, remove
from semel.broker.raft.progress import ProgressState
from semel.protos.errors import InvalidRequest, NotMaster, Throttled
from semel.protos.ids import NodeId
from tests.unit.broker.raft.single_core import (
    BYTES,
    CONFIG,
    GROUP,
    ME,
    OTHER,
    THIRD,
    Node,
    elected,
    kinds,
    role_of,
)

FOURTH = NodeId(4)


def replicating(*terms: int, config: RaftConfig = CONFIG) -> Node:
    """Both peers have everything, and are sent more without waiting."""
    node = elected(*terms, config=config)
    for peer in (OTHER, THIRD):
        node.hear(MessageKind.APPEND_REPLY, peer, log_index=node.disk.last_index)
        assert node.core.progress[peer].state is ProgressState.REPLICATE
    node.sent.clear()
    return node


# --- what it is -----------------------------------------------------------------------------------


def test_its_status_tells_all() -> None:
    node = replicating()
    node.propose()
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=2)
    node.hear(MessageKind.HEARTBEAT_REPLY, THIRD, non_counting=True)
    peer = PeerProgress(
        match_index=1,
        next_index=3,
        state="replicate",
        inflight_bytes=BYTES,
        recently_active=True,
        counts=True,
    )
    third = PeerProgress(
        match_index=0,
        next_index=2,
        state="probe",
        inflight_bytes=0,
        recently_active=True,
        counts=False,
    )
    assert node.core.status() == RaftStatus(
        node_id=ME,
        role=Role.MASTER,
        term=1,
        voted_for=ME,
        master_id=ME,
        commit_index=2,
        last_index=2,
        synced_index=2,
        membership=GROUP,
        progress={OTHER: peer, THIRD: third},
        stale_completions=0,
    )
    node.now_ms += CONFIG.check_quorum_ms
    node.core._observe(node.now_ms - CONFIG.check_quorum_ms + 200)
    heard_ms = node.core.progress[OTHER].last_contact_ms
    for silent_ms, active in ((1_000, True), (1_001, False)):
        node.core._now_ms = heard_ms + silent_ms
        assert node.core.status().progress[OTHER].recently_active == active


def test_a_slave_has_no_peers_in_its_status() -> None:
    node = Node(1, term=2)
    status = node.core.status()
    assert (status.role, status.master_id, status.voted_for) == (Role.FOLLOWER, None, None)
    assert (status.term, status.last_index, status.progress) == (2, 1, {})


# --- hearing peers --------------------------------------------------------------------------------


def test_it_goes_exactly_when_a_quorum_was_silent_for_too_long() -> None:
    node = elected()
    heard_ms = node.now_ms
    node.hear(MessageKind.HEARTBEAT_REPLY)
    node.tick(CONFIG.check_quorum_ms)
    assert (node.now_ms - heard_ms, node.core.role) == (1_000, Role.MASTER)
    node.core.tick(node.now_ms + 1)
    assert (node.core.role, node.core.master_id, node.core.term) == (Role.FOLLOWER, None, 1)


def test_a_master_that_stood_still_hears_its_quorum_out_before_it_goes() -> None:
    node = elected()
    node.now_ms += 5_000
    node.core.tick(node.now_ms)
    assert role_of(node) is Role.MASTER
    node.perform()
    node.tick(CONFIG.check_quorum_ms)
    assert role_of(node) is Role.MASTER
    node.core.tick(node.now_ms + 1)
    assert role_of(node) is Role.FOLLOWER


def test_a_master_protects_itself_against_votes() -> None:
    node = elected()
    assert node.hear(MessageKind.VOTE, THIRD, term=9, log_index=9, log_term=9) == []
    (reply,) = node.hear(MessageKind.PRE_VOTE, THIRD, term=9, log_index=9, log_term=9)
    assert (reply.rejected, node.core.role, node.core.term) == (True, Role.MASTER, 1)
    node.hear(MessageKind.VOTE, THIRD, term=9, log_index=9, log_term=9, force=True)
    assert (node.core.role, node.core.voted_for) == (Role.FOLLOWER, THIRD)


def test_any_answer_of_a_quorum_keeps_it() -> None:
    for kind in (
        MessageKind.APPEND_REPLY,
        MessageKind.HEARTBEAT_REPLY,
        MessageKind.SNAPSHOT_REPLY,
    ):
        node = elected()
        for _ in range(4):
            node.tick(600)
            node.hear(kind, THIRD)
        assert node.core.role is Role.MASTER


def test_a_non_counting_peer_does_not_keep_a_master_in_its_role() -> None:
    node = elected()
    for _ in range(4):
        node.tick(600)
        node.hear(MessageKind.HEARTBEAT_REPLY, non_counting=True)
    assert node.core.role is not Role.MASTER


def test_a_stranger_changes_nothing() -> None:
    node = replicating()
    node.propose()
    node.sent.clear()
    for kind in (MessageKind.APPEND_REPLY, MessageKind.HEARTBEAT_REPLY):
        assert node.hear(kind, FOURTH, log_index=2, context=99) == []
    assert node.core.commit_index == 1


def test_it_beats_when_it_is_due_and_not_before() -> None:
    node = replicating()
    node.tick(200)
    node.sent.clear()
    due_ms = node.core._heartbeat_due_ms
    node.core.tick(due_ms - 1)
    node.perform()
    assert node.sent == []
    node.core.tick(due_ms)
    node.perform()
    assert kinds(node.sent) == [(MessageKind.HEARTBEAT, OTHER), (MessageKind.HEARTBEAT, THIRD)]
    assert node.core._heartbeat_due_ms == due_ms + CONFIG.heartbeat_ms


def test_a_heartbeat_names_the_match_and_commits_no_further() -> None:
    node = replicating(1, 1)
    node.propose()
    node.propose()
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=5)
    assert node.core.commit_index == 5
    node.sent.clear()
    beats = {one.target: one for one in node.tick(200) if one.kind is MessageKind.HEARTBEAT}
    told = {peer: (one.log_index, one.log_term, one.commit_index) for peer, one in beats.items()}
    assert told == {OTHER: (3, 2, 3), THIRD: (5, 2, 5)}


# --- sending --------------------------------------------------------------------------------------


def test_an_append_is_packed_to_its_limit() -> None:
    config = RaftConfig(append_bytes_max=2 * BYTES, inflight_messages_max=2)
    node = replicating(config=config)
    for _ in range(5):
        node.propose(noop=True)
    node.perform()
    appends = [one for one in node.sent if one.target == OTHER]
    assert [(one.log_index, one.log_term, len(one.entries)) for one in appends] == [
        (1, 1, 2),
        (3, 1, 2),
    ]
    node.sent.clear()
    node.hear(MessageKind.APPEND_REPLY, log_index=3)
    (last,) = [one for one in node.sent if one.target == OTHER]
    assert (last.log_index, [meta.index for meta in last.entries]) == (5, [6])
    assert last.commit_index == 3


def test_a_non_counting_peer_that_loses_its_disk_once_more_is_fed_again() -> None:
    """Nothing that it had meanwhile was counted, so all of it may be forgotten."""
    node = replicating(1, 1)
    progress = node.core.progress[OTHER]
    node.hear(MessageKind.APPEND_REPLY, log_index=2, non_counting=True)
    node.hear(MessageKind.HEARTBEAT_REPLY, log_index=2, non_counting=True)
    assert progress.match_index == 2, "it has what it said"
    told = node.hear(MessageKind.HEARTBEAT_REPLY, log_index=1, non_counting=True)
    assert (progress.match_index, progress.next_index) == (1, 3)
    assert MessageKind.APPEND in [one.kind for one in told]


def test_a_non_counting_peer_that_has_what_it_said_keeps_what_is_on_its_way() -> None:
    node = replicating()
    progress = node.core.progress[OTHER]
    node.hear(MessageKind.APPEND_REPLY, log_index=1, non_counting=True)
    assert progress.state is ProgressState.REPLICATE
    node.propose()
    assert progress.inflight_bytes == BYTES
    (asked,) = node.hear(MessageKind.HEARTBEAT_REPLY, log_index=1, non_counting=True)
    assert (progress.inflight_bytes, asked.entries) == (BYTES, ()), "nothing is sent twice"


def test_a_non_counting_rejection_below_the_match_makes_it_void() -> None:
    node = replicating(1, 1)
    progress = node.core.progress[OTHER]
    node.hear(MessageKind.APPEND_REPLY, log_index=2, non_counting=True)
    rejection: dict[str, Any] = {
        "log_index": 2,
        "rejected": True,
        "non_counting": True,
        "hint_term": 1,
    }
    node.hear(MessageKind.APPEND_REPLY, hint_index=2, **rejection)
    assert progress.match_index == 2
    node.hear(MessageKind.APPEND_REPLY, hint_index=1, **rejection)
    assert progress.match_index == 0


def test_a_non_counting_peer_with_an_empty_log_is_probed_from_the_end() -> None:
    for terms in ((), (1,), (1, 1)):
        node = replicating(*terms)
        last = node.disk.last_index
        node.hear(MessageKind.APPEND_REPLY, log_index=last, non_counting=True)
        progress = node.core.progress[OTHER]
        assert (progress.match_index, progress.counts) == (last, False)
        told = node.hear(MessageKind.HEARTBEAT_REPLY, non_counting=True, log_index=0)
        assert progress.match_index == 0
        appends = [one for one in told if one.kind is MessageKind.APPEND]
        assert [one.log_index for one in appends][:1] == [max(last, 1) - 1]


def test_a_non_counting_rejection_is_news_whatever_it_refuses() -> None:
    node = replicating(1, 1)
    told = node.hear(MessageKind.APPEND_REPLY, log_index=9, rejected=True, non_counting=True)
    assert [(one.target, one.log_index, len(one.entries)) for one in told] == [(OTHER, 2, 1)]
    again = node.hear(MessageKind.APPEND_REPLY, log_index=9, rejected=True, non_counting=True)
    assert again == [], "the second one is no news"


def test_a_peer_that_lags_is_asked_by_an_empty_append() -> None:
    node = replicating()
    node.propose()
    for kind, asked in ((MessageKind.HEARTBEAT_REPLY, 1), (MessageKind.APPEND_REPLY, 0)):
        told = node.hear(kind, log_index=1)
        appends = [(one.log_index, one.log_term, one.entries) for one in told]
        assert appends == [(2, 1, ())] * asked
    node.hear(MessageKind.APPEND_REPLY, log_index=2)
    assert node.hear(MessageKind.HEARTBEAT_REPLY, log_index=2) == [], "it has everything"


def test_a_probe_is_asked_again_too() -> None:
    node = elected(1)
    assert node.core.progress[THIRD].probe_sent
    (asked,) = node.hear(MessageKind.HEARTBEAT_REPLY, THIRD)
    assert (asked.kind, asked.log_index, asked.entries) == (MessageKind.APPEND, 1, ())


def test_a_stalled_master_asks_nobody() -> None:
    node = replicating()
    node.propose()
    node.core.on_log_stalled(5_000)
    assert node.hear(MessageKind.HEARTBEAT_REPLY, log_index=1) == []


@pytest.mark.parametrize("heard", ["on_stream_broken", "on_peer_unreachable"])
def test_what_was_in_flight_is_sent_again_when_the_stream_broke(heard: str) -> None:
    node = replicating()
    node.propose()
    node.propose()
    node.hear(MessageKind.APPEND_REPLY, log_index=2)
    node.sent.clear()
    getattr(node.core, heard)(OTHER, node.now_ms)
    node.perform()
    (again,) = node.sent
    assert (again.target, again.log_index) == (OTHER, 2)
    assert [meta.index for meta in again.entries] == [3]
    getattr(node.core, heard)(FOURTH, node.now_ms)
    assert not node.core.has_ready()


def test_a_late_rejection_is_ignored() -> None:
    node = replicating(1, 1)
    node.propose()
    for refused in (1, 3):  # at or below what it has acknowledged
        told = node.hear(MessageKind.APPEND_REPLY, log_index=refused, rejected=True)
        assert told == []
    assert node.core.progress[OTHER].state is ProgressState.REPLICATE
    (again,) = node.hear(
        MessageKind.APPEND_REPLY, log_index=4, rejected=True, hint_index=3, hint_term=2
    )
    assert (again.log_index, len(again.entries)) == (3, 1)
    assert node.core.progress[OTHER].state is ProgressState.PROBE
    told = node.hear(
        MessageKind.APPEND_REPLY, log_index=4, rejected=True, hint_index=3, hint_term=2
    )
    assert told == [], "a probe waits for the answer to its own question"


def test_a_hint_never_leads_forward_nor_below_the_match() -> None:
    node = elected(1, 1, 1, 1)
    progress = node.core.progress[THIRD]
    node.hear(
        MessageKind.APPEND_REPLY, THIRD, log_index=4, rejected=True, hint_index=9, hint_term=9
    )
    assert progress.next_index == 4
    node.hear(MessageKind.HEARTBEAT_REPLY, THIRD, log_index=2)
    node.hear(
        MessageKind.APPEND_REPLY, THIRD, log_index=3, rejected=True, hint_index=0, hint_term=0
    )
    assert (progress.match_index, progress.next_index) == (2, 3)


def test_it_takes_entries_only_as_the_master_with_its_no_op_in_place() -> None:
    node = elected(commit=False)
    assert node.core.accepts_proposals
    assert node.core.next_index() == 2
    node.core.transfer_leadership(OTHER, node.now_ms)
    assert not node.core.accepts_proposals
    with pytest.raises(NotMaster) as refused:
        node.core.next_index()
    assert (refused.value.master_id, refused.value.term) == (0, 1)


# --- snapshots ------------------------------------------------------------------------------------


def compacted(first_index: int) -> Node:
    """The log begins at `first_index`; THIRD has nothing and is offered the snapshot before."""
    node = elected(1, 1, 1, 1)
    node.disk.durable.drop_below(first_index)
    node.disk.view.drop_below(first_index)
    refused = {"log_index": 4, "rejected": True, "hint_index": 0, "hint_term": 0}
    node.hear(MessageKind.APPEND_REPLY, THIRD, **refused)
    return node


def test_a_peer_below_the_first_entry_is_offered_the_oldest_snapshot_that_helps() -> None:
    node = compacted(3)
    offer = node.sent[-1]
    mark = offer.snapshot
    assert mark is not None
    assert (offer.kind, offer.target) == (MessageKind.SNAPSHOT_OFFER, THIRD)
    assert (mark.index, mark.term, mark.membership) == (2, 1, GROUP)
    assert offer.commit_index == node.core.commit_index
    assert node.core.progress[THIRD].state is ProgressState.SNAPSHOT
    (again,) = node.hear(MessageKind.HEARTBEAT_REPLY, THIRD)
    assert again.kind is MessageKind.SNAPSHOT_OFFER
    node.propose()
    assert all(one.target != THIRD for one in node.sent if one.kind is MessageKind.APPEND)


def test_a_peer_at_the_first_entry_gets_entries() -> None:
    node = elected(1, 1, 1, 1)
    node.disk.durable.drop_below(3)
    node.disk.view.drop_below(3)
    (append,) = node.hear(
        MessageKind.APPEND_REPLY, THIRD, log_index=4, rejected=True, hint_index=2, hint_term=1
    )
    assert (append.log_index, append.log_term, len(append.entries)) == (2, 1, 3)


@pytest.mark.parametrize(("index", "done"), [(1, False), (2, True), (3, True)])
def test_a_snapshot_is_done_when_entries_can_go_on(index: int, done: bool) -> None:
    node = compacted(3)
    told = node.hear(MessageKind.SNAPSHOT_REPLY, THIRD, log_index=index)
    appends = [one for one in told if one.kind is MessageKind.APPEND]
    assert bool(appends) == bool(told) == done
    if done:
        assert appends[0].log_index == index
        assert node.core.progress[THIRD].state is ProgressState.REPLICATE


def test_a_pull_that_failed_is_offered_again_at_once() -> None:
    node = compacted(3)
    assert node.hear(MessageKind.SNAPSHOT_REPLY, THIRD) == []
    (again,) = node.hear(MessageKind.SNAPSHOT_REPLY, THIRD, rejected=True)
    assert again.kind is MessageKind.SNAPSHOT_OFFER
    replicates = node.core.progress[OTHER]
    node.hear(MessageKind.SNAPSHOT_REPLY, OTHER, log_index=5, rejected=True)
    assert replicates.state is ProgressState.REPLICATE, "it had pulled nothing"


def test_a_match_that_is_gone_from_the_log_is_not_named() -> None:
    node = compacted(4)
    (beat,) = [one for one in node.tick(200) if one.target == THIRD][:1]
    assert beat.kind is MessageKind.HEARTBEAT
    assert (beat.log_index, beat.log_term, beat.commit_index) == (0, 0, 0)


def test_the_acknowledgement_of_a_snapshot_commits() -> None:
    node = elected(1, commit=False)
    node.hear(MessageKind.SNAPSHOT_REPLY, log_index=2)
    assert node.core.commit_index == 2


def drop_below(node: Node, first_index: int) -> None:
    node.disk.durable.drop_below(first_index)
    node.disk.view.drop_below(first_index)


def test_a_question_to_a_lagging_peer_becomes_an_offer_when_its_entries_are_gone() -> None:
    node = elected(1, 1, 2, 2)
    refused = {"log_index": 4, "rejected": True, "hint_index": 2, "hint_term": 1}
    (append,) = node.hear(MessageKind.APPEND_REPLY, THIRD, **refused)
    assert (append.log_index, append.log_term) == (2, 1)
    drop_below(node, 3)
    (asked,) = node.hear(MessageKind.HEARTBEAT_REPLY, THIRD)
    assert (asked.kind, asked.log_index, asked.log_term) == (MessageKind.APPEND, 2, 1)
    drop_below(node, 4)
    (asked,) = node.hear(MessageKind.HEARTBEAT_REPLY, THIRD)
    assert asked.snapshot is not None
    assert (asked.kind, asked.snapshot.index) == (MessageKind.SNAPSHOT_OFFER, 3)


# --- reads ----------------------------------------------------------------------------------------


def test_a_read_before_an_own_entry_is_committed_waits_for_it() -> None:
    node = elected(1, commit=False)
    node.core.read_index(7, node.now_ms)
    node.perform()
    node.tick(100)
    round_ = node.core._reads.round
    node.hear(MessageKind.HEARTBEAT_REPLY, context=round_)
    assert node.reads == []
    node.hear(MessageKind.APPEND_REPLY, log_index=2)
    node.hear(MessageKind.HEARTBEAT_REPLY, context=node.core._reads.round)
    assert node.reads == [(7, 2)]


def test_a_non_counting_peer_confirms_no_read() -> None:
    """It may have forgotten that it voted for another master."""
    node = elected()
    node.core.read_index(7, node.now_ms)
    node.perform()
    round_ = node.core._reads.round
    node.hear(MessageKind.HEARTBEAT_REPLY, context=round_, log_index=1, non_counting=True)
    assert node.reads == []
    node.hear(MessageKind.HEARTBEAT_REPLY, THIRD, context=round_, log_index=1)
    assert node.reads == [(7, 1)]


def test_a_read_starts_a_round_at_once_and_one_answer_of_three_confirms_it() -> None:
    node = elected()
    node.sent.clear()
    node.core.read_index(7, node.now_ms)
    assert node.core.has_ready()
    node.perform()
    beats = [one for one in node.sent if one.kind is MessageKind.HEARTBEAT]
    assert len(beats) == 2
    node.hear(MessageKind.HEARTBEAT_REPLY, context=beats[0].context - 1)
    assert node.reads == []
    node.hear(MessageKind.HEARTBEAT_REPLY, context=beats[0].context)
    assert node.reads == [(7, 1)]
    node.hear(MessageKind.HEARTBEAT_REPLY, context=beats[0].context)
    assert node.reads == [(7, 1)]


def test_of_four_voters_three_decide() -> None:
    four = Membership(voters=GROUP.voters | {FOURTH})
    node = Node(membership=four)
    while node.core.role is not Role.PRE_CANDIDATE:
        node.tick(50)
    asked = node.sent[-1]
    for peer in (OTHER, THIRD):
        node.hear(MessageKind.PRE_VOTE_REPLY, peer, term=asked.term, context=asked.context)
    won = node.sent[-1]
    node.hear(MessageKind.VOTE_REPLY, OTHER, context=won.context)
    assert role_of(node) is Role.CANDIDATE
    node.hear(MessageKind.VOTE_REPLY, THIRD, context=won.context)
    assert role_of(node) is Role.MASTER
    node.hear(MessageKind.APPEND_REPLY, OTHER, log_index=1)
    assert node.core.commit_index == 0
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=1)
    assert node.core.commit_index == 1
    node.core.read_index(7, node.now_ms)
    node.perform()
    asked_round = node.core._reads.round
    node.hear(MessageKind.HEARTBEAT_REPLY, OTHER, context=asked_round)
    assert node.reads == []
    node.hear(MessageKind.HEARTBEAT_REPLY, FOURTH, context=asked_round)
    assert node.reads == [(7, 1)]


def test_only_an_entry_of_the_own_term_is_counted() -> None:
    node = elected(1, 1, commit=False)
    node.hear(MessageKind.APPEND_REPLY, log_index=2)
    assert node.core.commit_index == 0
    node.hear(MessageKind.APPEND_REPLY, log_index=3)
    assert node.core.commit_index == 3


def test_an_answer_to_an_older_round_takes_nothing_back() -> None:
    node = elected()
    node.tick(300)
    newest = node.core._reads.round
    node.hear(MessageKind.HEARTBEAT_REPLY, context=newest)
    node.hear(MessageKind.HEARTBEAT_REPLY, context=newest - 1)
    assert node.core.progress[OTHER].acked_round == newest


def test_a_master_that_stood_still_trusts_no_answer_of_before() -> None:
    for gap_ms, trusts in ((CONFIG.loop_gap_ms, True), (CONFIG.loop_gap_ms + 1, False)):
        node = elected()
        node.core.read_index(7, node.now_ms)
        node.perform()
        asked = node.core._reads.round
        node.now_ms += gap_ms
        node.hear(MessageKind.HEARTBEAT_REPLY, context=asked)
        assert bool(node.reads) == trusts
        assert node.core.role is Role.MASTER


def test_a_slave_and_a_master_that_goes_fail_their_reads() -> None:
    slave = Node(term=1)
    slave.core.read_index(3, 10)
    assert slave.core.has_ready()
    slave.perform()
    assert slave.reads_failed == [3]
    node = elected()
    node.core.read_index(7, node.now_ms)
    node.hear(MessageKind.HEARTBEAT_REPLY, term=9, rejected=True)
    assert (node.core.role, node.reads, node.reads_failed) == (Role.FOLLOWER, [], [7])


def test_a_stalled_master_starts_no_round() -> None:
    node = elected()
    node.core.on_log_stalled(5_000)
    node.core.read_index(7, node.now_ms)
    assert not node.core.has_ready()
    node.core.on_log_stalled(0)
    node.sent.clear()
    node.perform()
    assert MessageKind.HEARTBEAT in [one.kind for one in node.sent]


def test_a_group_of_one_answers_reads_by_itself() -> None:
    alone = Membership(voters=frozenset({ME}))
    node = Node(membership=alone)
    node.tick(1_100)
    assert (node.core.role, node.core.commit_index) == (Role.MASTER, 1)
    node.core.read_index(7, node.now_ms)
    node.perform()
    assert node.reads == [(7, 1)]


# --- members --------------------------------------------------------------------------------------


def test_a_change_takes_effect_when_it_is_appended() -> None:
    node = replicating()
    node.propose(membership=add_learner(GROUP, FOURTH))
    assert node.core.membership == add_learner(GROUP, FOURTH)
    progress = node.core.progress[FOURTH]
    (append,) = [one for one in node.sent if one.target == FOURTH]
    assert (append.log_index, [meta.index for meta in append.entries]) == (1, [2])
    assert (progress.next_index, progress.last_contact_ms) == (2, node.now_ms)
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=2)
    node.propose(membership=remove(node.core.membership, FOURTH))
    assert FOURTH not in node.core.progress
    assert FOURTH not in node.core._due


def test_a_learner_is_promoted_when_it_lags_no_more_than_allowed() -> None:
    config = RaftConfig(promote_lag_max=3)
    learner = add_learner(GROUP, FOURTH)
    node = elected(membership=learner, config=config)
    for _ in range(3):
        node.propose()
    node.hear(MessageKind.APPEND_REPLY, log_index=4)
    wanted = promote(learner, FOURTH)
    with pytest.raises(Throttled, match="4 entries behind"):
        node.core.propose_membership_allowed(wanted)
    node.hear(MessageKind.APPEND_REPLY, FOURTH, log_index=1)
    node.core.propose_membership_allowed(wanted)
    node.hear(MessageKind.HEARTBEAT_REPLY, FOURTH, log_index=4, non_counting=True)
    node.hear(MessageKind.APPEND_REPLY, FOURTH, log_index=4, non_counting=True)
    with pytest.raises(Throttled):
        node.core.propose_membership_allowed(wanted)


def test_changes_come_one_after_the_other() -> None:
    node = elected(1, commit=False)
    wanted = add_learner(GROUP, FOURTH)
    with pytest.raises(Throttled, match="committed nothing"):
        node.core.propose_membership_allowed(wanted)
    node.hear(MessageKind.APPEND_REPLY, log_index=2)
    node.propose(membership=wanted)
    with pytest.raises(Throttled, match="under way"):
        node.core.propose_membership_allowed(promote(wanted, FOURTH))
    node.hear(MessageKind.APPEND_REPLY, log_index=3)
    node.core.propose_membership_allowed(promote(wanted, FOURTH))
    with pytest.raises(InvalidRequest):
        node.core.propose_membership_allowed(wanted)


def test_a_change_that_is_not_allowed_is_not_appended_unnoticed() -> None:
    node = elected(commit=False)
    with pytest.raises(Throttled):
        node.propose(membership=add_learner(GROUP, FOURTH))


def test_nothing_is_sent_to_a_node_that_was_just_removed() -> None:
    learner = add_learner(GROUP, FOURTH)
    node = elected(membership=learner)
    node.propose(noop=True)
    node.propose(noop=True, membership=remove(learner, FOURTH))
    node.sent.clear()
    node.perform()
    assert FOURTH not in [one.target for one in node.sent]


def test_a_removed_master_goes_with_the_commit_and_not_before() -> None:
    node = replicating()
    node.propose(membership=remove(GROUP, ME))
    assert node.core.role is Role.MASTER
    node.hear(MessageKind.APPEND_REPLY, log_index=2)
    assert (node.core.role, node.core.commit_index) == (Role.MASTER, 1), "two of two others"
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=2)
    assert (node.core.role, node.core.commit_index) == (Role.FOLLOWER, 2)


def test_a_transfer_to_a_node_that_is_removed_ends() -> None:
    node = elected()
    node.core.transfer_leadership(THIRD, node.now_ms)
    assert not node.core.accepts_proposals
    node.core._history.append(node.disk.last_index + 1, remove(GROUP, THIRD))
    node.core._on_membership_changed()
    assert node.core.accepts_proposals


# --- handing over ---------------------------------------------------------------------------------


def test_a_successor_that_has_everything_is_told_at_once_and_once() -> None:
    node = replicating()
    node.core.transfer_leadership(OTHER, node.now_ms)
    node.perform()
    assert kinds(node.sent) == [(MessageKind.TIMEOUT_NOW, OTHER)]
    node.hear(MessageKind.APPEND_REPLY, log_index=1)
    node.hear(MessageKind.HEARTBEAT_REPLY, log_index=1)
    assert kinds(node.sent) == [(MessageKind.TIMEOUT_NOW, OTHER)]


def test_news_of_others_does_not_tell_the_successor_again() -> None:
    node = elected(1)
    assert node.core.progress[THIRD].match_index == 0
    node.core.transfer_leadership(OTHER, node.now_ms + 200)
    assert node.core._now_ms == node.now_ms + 200
    node.now_ms += 200
    node.perform()
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=1)
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=2)
    told = [one for one in node.sent if one.kind is MessageKind.TIMEOUT_NOW]
    assert len(told) == 1


def test_a_successor_is_told_as_soon_as_it_has_everything() -> None:
    node = replicating()
    node.propose()
    node.sent.clear()
    node.core.transfer_leadership(OTHER, node.now_ms)
    node.perform()
    assert node.sent == []
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=2)
    assert node.sent == []
    (told,) = node.hear(MessageKind.APPEND_REPLY, log_index=2)
    assert (told.kind, told.target, told.term) == (MessageKind.TIMEOUT_NOW, OTHER, 1)


def test_a_transfer_is_given_up_at_its_deadline() -> None:
    node = replicating()
    node.core.transfer_leadership(OTHER, node.now_ms)
    end_ms = node.now_ms + CONFIG.transfer_ms
    while node.now_ms < end_ms - 100:
        node.hear(MessageKind.HEARTBEAT_REPLY, THIRD)
        node.tick(100)
    node.core.tick(end_ms - 1)
    assert not node.core.accepts_proposals
    node.core.tick(end_ms)
    assert node.core.accepts_proposals
    node.now_ms = end_ms
    node.sent.clear()
    node.core.transfer_leadership(OTHER, node.now_ms)
    node.perform()
    assert (MessageKind.TIMEOUT_NOW, OTHER) in kinds(node.sent), "another try tells it again"


@pytest.mark.parametrize("target", [ME, FOURTH])
def test_mastership_goes_to_another_voter(target: NodeId) -> None:
    node = elected(membership=add_learner(GROUP, FOURTH))
    with pytest.raises(InvalidRequest, match="another voter"):
        node.core.transfer_leadership(target, node.now_ms)
    assert node.core.accepts_proposals


def test_mastership_does_not_go_to_a_non_counting_peer() -> None:
    node = replicating()
    node.hear(MessageKind.HEARTBEAT_REPLY, non_counting=True)
    with pytest.raises(Throttled):
        node.core.transfer_leadership(OTHER, node.now_ms)
    assert node.core.accepts_proposals


def test_a_master_that_goes_with_entries_to_send_sends_none_and_waits() -> None:
    node = replicating()
    for _ in range(4):
        node.tick(500)
        node.hear(MessageKind.HEARTBEAT_REPLY)
    node.propose(noop=True)
    deposed = Message(
        kind=MessageKind.HEARTBEAT_REPLY, source=OTHER, target=ME, term=3, rejected=True
    )
    node.core.step(deposed, node.now_ms)
    assert (node.core.role, node.core._due) == (Role.FOLLOWER, set())
    assert node.core._election_deadline_ms >= node.now_ms + CONFIG.election_min_ms


def test_a_master_that_goes_before_its_no_op_asks_for_none() -> None:
    node = Node()
    while node.core.role is not Role.PRE_CANDIDATE:
        node.tick(50)
    asked = node.sent[-1]
    node.hear(MessageKind.PRE_VOTE_REPLY, term=asked.term, context=asked.context)
    won = node.sent[-1]
    for kind, source, term, fields in (
        (MessageKind.VOTE_REPLY, OTHER, 1, {"context": won.context}),
        (MessageKind.HEARTBEAT, THIRD, 2, {}),
    ):
        message = Message(kind=kind, source=source, target=ME, term=term, **fields)  # type: ignore[arg-type]
        node.core.step(message, node.now_ms)
    assert node.core.ready().append_noop is False
    assert node.core.master_id == THIRD
    with pytest.raises(NotMaster):
        node.core.next_index()


def test_a_master_that_goes_forgets_its_mastership() -> None:
    node = replicating()
    node.core.transfer_leadership(OTHER, node.now_ms)
    node.hear(MessageKind.HEARTBEAT_REPLY, term=3, rejected=True)
    assert (node.core.role, node.core.term, node.core.master_id) == (Role.FOLLOWER, 3, None)
    assert (node.core.progress, node.core._due, node.core._transferee) == ({}, set(), None)
    with pytest.raises(NotMaster):
        node.core.next_index()
