"""The edges of what a master sends to one peer: entries, probes, questions, offers of snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.raft import (
    MessageKind,
    RaftConfig,
)
from semel.broker.raft.progress import ProgressState
from semel.protos.errors import NotMaster
from tests.unit.broker.raft.single_core import (
    BYTES,
    FOURTH,
    GROUP,
    OTHER,
    THIRD,
    Node,
    elected,
    replicating,
)

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
    node.core.transfer_mastership(OTHER, node.now_ms)
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
