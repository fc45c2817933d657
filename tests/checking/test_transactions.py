"""The checker's word on transactions: a good one passes, each way to spoil one is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.protos.v1 import common_pb2
from tests.checking.history import Outcome, Send
from tests.checking.small_transaction import VALUES, Teller


def test_what_is_staged_for_a_queue_after_it_was_split_is_refused() -> None:
    """And staged for its child, by another session of the same stager."""
    run = Teller()
    run.split()
    run.stage(*VALUES)
    child = common_pb2.QueueRef(topic_id=7, queue_id=1)
    run.open(2, child)
    run.stage(*VALUES, session=2, queue=1)
    run.pin()
    run.publish(ref=child)
    run.sent()
    assert run.problems() == ""


def _whole(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.stage(b"c")
    run.pin()
    run.publish()
    run.sent()


def _a_resent_batch(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.stage(b"a", b"b", previous=-1)
    run.stage(b"c", session=0)  # of a life that was fenced
    run.stage(b"c", previous=1)
    run.pin()
    run.publish()
    run.sent()


def _one_that_was_given_up(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.sent(Outcome.FAIL)


@pytest.mark.parametrize("good", [_whole, _a_resent_batch, _one_that_was_given_up])
def test_a_good_run_passes(good: Callable[[Teller], None]) -> None:
    run = Teller()
    good(run)
    assert run.problems() == ""


def _never_published(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.stage(b"c")
    run.pin()
    run.sent()


def _published_in_part(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.pin()
    run.publish(messages=2)
    run.sent(Outcome.UNKNOWN)


def _published_though_given_up(run: Teller) -> None:
    _whole(run)
    for send in run.history.of(Send):
        send.outcome = Outcome.FAIL


def _published_twice(run: Teller) -> None:
    _whole(run)
    run.publish(base_offset=3, messages=0)


def _published_without_a_pin(run: Teller) -> None:
    run.stage(*VALUES)
    run.publish()
    run.sent()


def _published_for_another_attempt(run: Teller) -> None:
    run.stage(*VALUES)
    run.pin(attempt=2)
    run.publish(attempt=1)
    run.sent()


def _published_at_another_offset(run: Teller) -> None:
    run.stage(*VALUES)
    run.pin()
    run.publish(base_offset=1)
    run.sent()


def _published_more_than_staged(run: Teller) -> None:
    run.stage(*VALUES)
    run.pin()
    run.publish(messages=4)
    run.sent()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (_never_published, "loss: message 0 of t1"),
        (_published_in_part, "torn: of transaction t1/0 2 of 3 messages are stored"),
        (_published_though_given_up, "failed for certain, and is stored"),
        (_published_twice, "epoch 0 of transaction closing is published twice"),
        (_published_without_a_pin, "is published, pinned is -1"),
        (_published_for_another_attempt, "is published, pinned is -1"),
        (_published_at_another_offset, "at 1, not 0"),
        (_published_more_than_staged, "4 messages of closing are published, 3 were staged"),
    ],
)
def test_a_spoilt_run_is_found(bad: Callable[[Teller], None], said: str) -> None:
    run = Teller()
    bad(run)
    assert said in run.problems()
