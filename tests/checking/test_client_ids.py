"""The checker's word on ids that the SDK routes: each way to scatter or to lose them is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semel.protos.v1 import common_pb2
from tests.checking.cancel_answers import Committed
from tests.checking.client_ids import SentAnswer, judge_scattered, judge_sent
from tests.checking.id_topics import Arrival, BatchName, IdTopic
from tests.checking.message_ids import IdLog, Moving
from tests.checking.moved_ids import Message, Place

TOPIC = 7
PAYMENT = Message(b"payment", b"v")
OTHER = Message(b"other", b"v")
AT_S = {entry: float(entry) for entry in range(100)}


def arrived(entry: int, message: Message, queue: int, offset: int, *, sent: bool = True) -> Arrival:
    name = BatchName((TOPIC, queue), 1, 1, 1, offset)
    return Arrival(
        message, Place(queue, offset, 0), 0, entry, 0, (name, offset) if sent else None, entry
    )


def log_of(group: int, *arrivals: Arrival, **window: Any) -> IdLog:
    log = IdLog(group, {})
    settings = common_pb2.IdDedup(keep_first=window.pop("keep_first", False))
    log.all_windows[TOPIC] = [IdTopic(settings, arrivals=list(arrivals), **window)]
    return log


def scattered(*logs: IdLog, known: Any = (b"payment", b"other")) -> list[str]:
    groups = {number: Committed(log, AT_S) for number, log in enumerate(logs, 1)}
    return list(judge_scattered(groups, known))


def test_ids_of_two_groups_pass() -> None:
    one = log_of(1, arrived(3, PAYMENT, 0, 0))
    two = log_of(2, arrived(4, OTHER, 1, 0))
    assert scattered(one, two) == []


def test_an_id_that_two_groups_have_stored_is_found() -> None:
    one = log_of(1, arrived(3, PAYMENT, 0, 0))
    two = log_of(2, arrived(9, PAYMENT, 1, 0))
    for logs in ((one, two), (two, one)):
        (problem,) = scattered(*logs)
        assert "payment" in problem
        assert "holds its id" in problem
    assert scattered(one, two, known={b"other"}) == []


def test_an_id_is_held_no_longer_once_it_is_evicted_or_cancelled() -> None:
    two = log_of(2, arrived(9, PAYMENT, 1, 0))
    first = arrived(3, PAYMENT, 0, 0)
    for window in ({"evictions": [(8, 1)]}, {"cancelled": {0: 8}}):
        assert scattered(log_of(1, first, **window), two) == []
    for window in ({"evictions": [(8, 0), (10, 1)]}, {"cancelled": {0: 10, 5: 8}}):
        assert len(scattered(log_of(1, first, **window), two)) == 1


def test_an_id_is_held_no_longer_once_its_queue_moves_away() -> None:
    two = log_of(2, arrived(9, PAYMENT, 1, 0))
    for queue, entry, moved in ((0, 8, True), (4, 8, True), (1, 8, False), (0, 2, False)):
        one = log_of(1, arrived(3, PAYMENT, 0, 0))
        one.parents[TOPIC, 4] = TOPIC, 0
        one.moving.append(Moving(TOPIC, ((TOPIC, queue), 1), entry))
        assert (scattered(one, two) == []) is moved


def test_what_moves_is_held_by_nobody() -> None:
    one = log_of(1, arrived(3, PAYMENT, 0, 0, sent=False))
    two = log_of(2, arrived(9, PAYMENT, 1, 0))
    assert scattered(one, two) == []


ANSWER = SentAnswer(topic_id=TOPIC, message=PAYMENT, queue=0, offset=5, duplicate=False)


def test_an_answer_must_name_the_place_of_the_message() -> None:
    logs = [log_of(1, arrived(3, PAYMENT, 0, 5), arrived(4, OTHER, 0, 6))]
    assert list(judge_sent([ANSWER, replace(ANSWER, offset=-1)], logs)) == []
    for wrong in (
        replace(ANSWER, offset=6),
        replace(ANSWER, offset=7),
        replace(ANSWER, queue=1),
        replace(ANSWER, topic_id=8),
    ):
        (problem,) = judge_sent([wrong], logs)
        assert "loss" in problem


def test_a_duplicate_has_other_content_only_if_the_topic_keeps_the_first() -> None:
    again = replace(ANSWER, message=Message(b"payment", b"other"), duplicate=True)
    stored = arrived(3, PAYMENT, 0, 5)
    assert list(judge_sent([again], [log_of(1, stored, keep_first=True)])) == []
    assert len(list(judge_sent([again], [log_of(1, stored)]))) == 1
    first = replace(again, duplicate=False)
    assert len(list(judge_sent([first], [log_of(1, stored, keep_first=True)]))) == 1
