"""One queue as a channel consumes it: settling, requeuing, resting."""

from __future__ import annotations

import pytest

from semel.client import Message
from semel.contrib.kombu.queue_feed import QueueFeed, Verdict
from semel.protos.errors import InvalidRequest, LockLost, Unavailable
from tests.unit.contrib.given_messages import GivenConsumer, message


def feed_of(
    count: int, *, keeps_letters: bool = True, retries: bool = False
) -> tuple[QueueFeed, GivenConsumer]:
    consumer = GivenConsumer()
    consumer.ready.extend(message(offset=offset) for offset in range(count))
    feed = QueueFeed(consumer.as_consumer(), keeps_letters=keeps_letters, retries=retries)
    return feed, consumer


def test_what_is_acknowledged_is_committed_as_far_as_all_before_it() -> None:
    feed, consumer = feed_of(3)
    taken = [feed.take() for _ in range(3)]
    assert feed.take() is None
    first, second, third = (each for each in taken if each is not None)
    feed.settle(second, Verdict.DONE)
    assert consumer.calls == []
    feed.settle(first, Verdict.DONE)
    assert consumer.calls == [("commit", 1)]
    feed.settle(third, Verdict.DONE)
    assert consumer.calls[-1] == ("commit", 2)
    assert feed.outstanding == 0


def test_a_rejected_message_is_a_dead_letter_with_the_commit() -> None:
    feed, consumer = feed_of(1)
    taken = feed.take()
    assert taken is not None
    feed.settle(taken, Verdict.REJECT)
    assert consumer.calls == [("reject", 0), ("commit", 0)]


def test_without_dead_letters_a_rejected_message_is_gone() -> None:
    feed, consumer = feed_of(1, keeps_letters=False)
    taken = feed.take()
    assert taken is not None
    feed.settle(taken, Verdict.REJECT)
    assert consumer.calls == [("commit", 0)]


def test_a_requeued_message_comes_again_before_newer_ones() -> None:
    feed, consumer = feed_of(3)
    first, second = feed.take(), feed.take()
    assert first is not None
    assert second is not None
    feed.settle(second, Verdict.DONE)
    feed.settle(first, Verdict.AGAIN)
    again = feed.take()
    assert again is first
    assert again.redelivered
    assert consumer.calls == []
    feed.settle(again, Verdict.DONE)
    assert consumer.calls == [("commit", 1)]


def test_with_steps_a_requeued_message_is_retried_by_the_cluster() -> None:
    feed, consumer = feed_of(1, retries=True)
    taken = feed.take()
    assert taken is not None
    feed.settle(taken, Verdict.AGAIN)
    assert consumer.calls == [("retry", 0), ("commit", 0)]
    assert feed.take() is None


def test_what_was_given_out_under_a_lost_lock_is_not_settled() -> None:
    feed, consumer = feed_of(2)
    first, second = feed.take(), feed.take()
    assert first is not None
    assert second is not None

    def lost(_: Message) -> None:
        raise LockLost("another member has it")

    consumer.on_commit = lost
    feed.settle(first, Verdict.DONE)
    consumer.on_commit = lambda _: None
    feed.settle(second, Verdict.DONE)
    feed.settle(second, Verdict.AGAIN)
    assert consumer.calls == []
    assert feed.take() is None


def test_a_commit_that_no_master_took_is_made_with_the_next_look() -> None:
    feed, consumer = feed_of(1)
    taken = feed.take()
    assert taken is not None

    def away(_: Message) -> None:
        raise Unavailable("no master")

    consumer.on_commit = away
    feed.settle(taken, Verdict.DONE)
    assert feed.take() is None
    assert consumer.calls == []
    consumer.on_commit = lambda _: None
    assert feed.take() is None
    assert consumer.calls == [("commit", 0)]
    feed.take()
    assert consumer.calls == [("commit", 0)]


def test_what_waiting_does_not_help_is_raised() -> None:
    feed, consumer = feed_of(1)
    taken = feed.take()
    assert taken is not None

    def refused(_: Message) -> None:
        raise InvalidRequest("too much")

    consumer.on_commit = refused
    with pytest.raises(InvalidRequest):
        feed.settle(taken, Verdict.DONE)


def test_a_feed_at_rest_ends_when_nobody_works_on_anything() -> None:
    feed, consumer = feed_of(3)
    first, second = feed.take(), feed.take()
    assert first is not None
    assert second is not None
    feed.rest()
    assert feed.take() is None
    feed.settle(first, Verdict.DONE)
    assert not consumer.closed
    feed.settle(second, Verdict.AGAIN)
    assert consumer.closed, "others get what was requeued"
    assert feed.closed
    assert not feed.wake()


def test_a_feed_that_is_woken_goes_on() -> None:
    feed, consumer = feed_of(2)
    assert feed.take() is not None
    feed.rest()
    assert feed.wake()
    assert feed.take() is not None
    assert not consumer.closed


def test_settling_after_the_end_changes_nothing() -> None:
    feed, consumer = feed_of(1)
    taken = feed.take()
    assert taken is not None
    feed.close()
    feed.settle(taken, Verdict.DONE)
    assert consumer.calls == []
