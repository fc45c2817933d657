"""Whole clusters whose queues are split under faults: nothing lost, twice or out of order."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from semel.broker.state.apply.producers import SequenceTable
from semel.client.reading.fetch import _FetchLink
from semel.protos.queue_refs import queue_key_of
from tests.world.soak import first_failure, run_seeds, run_until_seen

SEEDS = 4


@pytest.mark.timeout(300)
def test_queues_are_split_under_faults() -> None:
    seen, failures, _ = run_seeds(range(SEEDS), more=("splits",))
    assert not failures
    assert seen["queue split"] > SEEDS


@contextmanager
def planted(target: Any, name: str, value: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, value)
        yield


def children_inherit_nothing() -> Any:
    """A retry, or a loader that starts again, meets an empty table."""
    return planted(SequenceTable, "inherit", lambda *_: None)


@pytest.mark.timeout(300)
def test_a_planted_bug_of_splits_is_found() -> None:
    """Others need many seeds here, and are found by the histories of one queue alone."""
    first_failure(range(10), children_inherit_nothing, more=("splits",))


def peeks_beyond_the_end() -> Any:
    """A client takes the next batch of a queue that was split, though there is none."""
    on_reply = _FetchLink.on_reply

    def bad(link: Any, header: Any, parts: Any) -> None:
        asked = link._asked[header.correlation_id]
        peeked = {each.queue.key for each in asked if each.peek}
        for result in header.results:
            if queue_key_of(result.queue) in peeked and not result.HasField("error"):
                _ = result.batches[0]
        on_reply(link, header, parts)

    return planted(_FetchLink, "on_reply", bad)


RETRIES = ("alone", "deliveries", "retries", "splits")


@pytest.mark.timeout(300)
def test_messages_to_be_tried_again_come_though_their_queues_are_split() -> None:
    run_until_seen(range(6), {"at rest": 3, "queue split": 6}, more=RETRIES)


@pytest.mark.timeout(300)
def test_a_consumer_that_peeks_a_queue_beyond_its_end_is_found() -> None:
    first_failure(range(40), peeks_beyond_the_end, match="not at rest", more=RETRIES)
