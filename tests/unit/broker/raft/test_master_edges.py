"""The edges of a master's rules: whom it hears, which reads it confirms, who is a member, when it
goes and to whom it hands over. What it sends is `test_sending_edges.py`.
"""

from __future__ import annotations

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
from semel.broker.raft.membership_history import add_learner, promote, remove
from semel.protos.errors import InvalidRequest, NotMaster, Throttled
from semel.protos.ids import NodeId
from tests.unit.broker.raft.single_core import (
    BYTES,
    CONFIG,
    FOURTH,
    GROUP,
    ME,
    OTHER,
    THIRD,
    Node,
    elected,
    kinds,
    replicating,
    role_of,
)

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
    assert (status.role, status.master_id, status.voted_for) == (Role.SLAVE, None, None)
    assert (status.term, status.last_index, status.progress) == (2, 1, {})


# --- hearing peers --------------------------------------------------------------------------------


def test_it_goes_exactly_when_a_quorum_was_silent_for_too_long() -> None:
    node = elected()
    heard_ms = node.now_ms
    node.hear(MessageKind.HEARTBEAT_REPLY)
    node.tick(CONFIG.check_quorum_ms)
    assert (node.now_ms - heard_ms, node.core.role) == (1_000, Role.MASTER)
    node.core.tick(node.now_ms + 1)
    assert (node.core.role, node.core.master_id, node.core.term) == (Role.SLAVE, None, 1)


def test_a_master_that_stood_still_hears_its_quorum_out_before_it_goes() -> None:
    node = elected()
    node.now_ms += 5_000
    node.core.tick(node.now_ms)
    assert role_of(node) is Role.MASTER
    node.perform()
    node.tick(CONFIG.check_quorum_ms)
    assert role_of(node) is Role.MASTER
    node.core.tick(node.now_ms + 1)
    assert role_of(node) is Role.SLAVE


def test_a_master_protects_itself_against_votes() -> None:
    node = elected()
    assert node.hear(MessageKind.VOTE, THIRD, term=9, log_index=9, log_term=9) == []
    (reply,) = node.hear(MessageKind.PRE_VOTE, THIRD, term=9, log_index=9, log_term=9)
    assert (reply.rejected, node.core.role, node.core.term) == (True, Role.MASTER, 1)
    node.hear(MessageKind.VOTE, THIRD, term=9, log_index=9, log_term=9, force=True)
    assert (node.core.role, node.core.voted_for) == (Role.SLAVE, THIRD)


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
    assert (node.core.role, node.reads, node.reads_failed) == (Role.SLAVE, [], [7])


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
    assert (node.core.role, node.core.commit_index) == (Role.SLAVE, 2)


def test_a_transfer_to_a_node_that_is_removed_ends() -> None:
    node = elected()
    node.core.transfer_mastership(THIRD, node.now_ms)
    assert not node.core.accepts_proposals
    node.core._history.append(node.disk.last_index + 1, remove(GROUP, THIRD))
    node.core._on_membership_changed()
    assert node.core.accepts_proposals


# --- handing over ---------------------------------------------------------------------------------


def test_a_successor_that_has_everything_is_told_at_once_and_once() -> None:
    node = replicating()
    node.core.transfer_mastership(OTHER, node.now_ms)
    node.perform()
    assert kinds(node.sent) == [(MessageKind.TIMEOUT_NOW, OTHER)]
    node.hear(MessageKind.APPEND_REPLY, log_index=1)
    node.hear(MessageKind.HEARTBEAT_REPLY, log_index=1)
    assert kinds(node.sent) == [(MessageKind.TIMEOUT_NOW, OTHER)]


def test_news_of_others_does_not_tell_the_successor_again() -> None:
    node = elected(1)
    assert node.core.progress[THIRD].match_index == 0
    node.core.transfer_mastership(OTHER, node.now_ms + 200)
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
    node.core.transfer_mastership(OTHER, node.now_ms)
    node.perform()
    assert node.sent == []
    node.hear(MessageKind.APPEND_REPLY, THIRD, log_index=2)
    assert node.sent == []
    (told,) = node.hear(MessageKind.APPEND_REPLY, log_index=2)
    assert (told.kind, told.target, told.term) == (MessageKind.TIMEOUT_NOW, OTHER, 1)


def test_a_transfer_is_given_up_at_its_deadline() -> None:
    node = replicating()
    node.core.transfer_mastership(OTHER, node.now_ms)
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
    node.core.transfer_mastership(OTHER, node.now_ms)
    node.perform()
    assert (MessageKind.TIMEOUT_NOW, OTHER) in kinds(node.sent), "another try tells it again"


@pytest.mark.parametrize("target", [ME, FOURTH])
def test_mastership_goes_to_another_voter(target: NodeId) -> None:
    node = elected(membership=add_learner(GROUP, FOURTH))
    with pytest.raises(InvalidRequest, match="another voter"):
        node.core.transfer_mastership(target, node.now_ms)
    assert node.core.accepts_proposals


def test_mastership_does_not_go_to_a_non_counting_peer() -> None:
    node = replicating()
    node.hear(MessageKind.HEARTBEAT_REPLY, non_counting=True)
    with pytest.raises(Throttled):
        node.core.transfer_mastership(OTHER, node.now_ms)
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
    assert (node.core.role, node.core._due) == (Role.SLAVE, set())
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
    node.core.transfer_mastership(OTHER, node.now_ms)
    node.hear(MessageKind.HEARTBEAT_REPLY, term=3, rejected=True)
    assert (node.core.role, node.core.term, node.core.master_id) == (Role.SLAVE, 3, None)
    assert (node.core.progress, node.core._due, node.core._transferee) == ({}, set(), None)
    with pytest.raises(NotMaster):
        node.core.next_index()
