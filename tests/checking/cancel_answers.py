"""Compares what those who cancel messages were told with what the log says.

How it works. An answer stands between two moments, and each entry of a log was committed at one, or
before: so an answer is wrong if nothing that was true between its moments explains it. What is
cancelled and known is taken from the records alone (`message_ids.py`).

What is checked
1. "Cancelled": the message was delayed until that time in that queue, and a record of the log has
   cancelled it before the answer. So it is in no queue, see `message_ids.py`.
2. "Delivered": such a message was not cancelled; it is in the queue, at the offset that was told.
3. "Unknown": no window held the id all the time, also that of a message that was cancelled.
4. Refused as never delayed: such a message was stored.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.checking.id_topics import Arrival, IdTopic, homes_of
from tests.checking.message_ids import IdLog
from tests.checking.stored import Row

_ROUTES_S = 2.0
"""Time within which everybody knows where a queue is that has moved."""
NOT_DELAYED = "not delayed"
"""In place of a result: the call was refused for this reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAnswer:
    """What somebody was told who cancelled a message."""

    topic_id: int
    message_id: bytes
    began_s: float
    ended_s: float
    result: str
    queue: int | None = None
    offset: int | None = None
    due_us: int | None = None
    delivered_us: int | None = None


class Committed(NamedTuple):
    """The log of a broker group that was read, and when each entry was committed."""

    log: IdLog
    at_s: Mapping[int, float]
    """When some node at least had applied each entry."""


def judge_cancels(
    answers: Iterable[CancelAnswer], groups: Sequence[Committed], rows: Iterable[Row]
) -> Iterator[str]:
    """Problems; `rows` are those of all queues."""
    offsets = {
        (row.queue, row.producer_id, row.epoch, row.session, row.sequence): row.offset
        for row in rows
    }
    for answer in answers:
        problem = _problem(answer, groups, offsets)
        if problem:
            yield f"{answer}: {problem}"


def _problem(
    answer: CancelAnswer,
    groups: Sequence[Committed],
    offsets: Mapping[tuple[tuple[int, int], int, int, int, int], int],
) -> str:
    if answer.result == "unknown":
        if any(_moves(answer, group) for group in groups):
            return ""  # the routes may name a group that knows less
        known = [
            str(arrival)
            for group in groups
            for topic in group.log.windows(answer.topic_id)
            for arrival in _known_all_the_time(answer, topic, group)
        ]
        return f"the id was known all the time, of {known[0]}" if known else ""
    found = [
        (arrival, topic.cancelled.get(number), group.at_s)
        for group in groups
        for topic in group.log.windows(answer.topic_id)
        for number, arrival in enumerate(topic.arrivals, topic.base or 0)
        if arrival.message.message_id == answer.message_id
        and group.at_s[arrival.arrived] <= answer.ended_s
    ]
    if answer.result == NOT_DELAYED:
        at_once = any(not arrival.place.due_us for arrival, _, _ in found)
        return "" if at_once else "no such message was stored without a delay"
    delayed = [
        each
        for each in found
        if each[0].sent is not None
        and each[0].place.due_us == answer.due_us
        and answer.queue in (each[0].place.queue_id, *(q for _, q in _homes(each[0], groups)))
    ]
    if not delayed:
        return "no such message was delayed"
    if answer.result == "cancelled":
        done = any(
            entry is not None and at_s[entry] <= answer.ended_s for _, entry, at_s in delayed
        )
        return "" if done else "no record has cancelled it"
    places = [
        offsets.get(
            (_homes(arrival, groups)[-1], name.producer_id, name.epoch, name.session, sequence)
        )
        for arrival, entry, _ in delayed
        if entry is None and arrival.sent is not None
        for name, sequence in [arrival.sent]
    ]
    if not [place for place in places if place is not None and answer.offset in (None, place)]:
        return f"loss: the message is not there; it is at {places}"
    if answer.delivered_us is not None and answer.delivered_us < (answer.due_us or 0):
        return "it was delivered before it was due"
    return ""


def _homes(arrival: Arrival, groups: Sequence[Committed]) -> list[tuple[int, int]]:
    """The queues in which a message was, the one where it is last."""
    assert arrival.sent is not None
    name, sequence = arrival.sent
    sent = name.queue, name.producer_id, name.epoch, name.session, sequence
    return homes_of(sent, ChainMap(*(group.log.handed for group in groups)))


def _moves(answer: CancelAnswer, group: Committed) -> bool:
    """Whether a queue of the topic was on its way, or had just come, while somebody asked."""
    for each in group.log.moving:
        end_s = answer.ended_s if each.end is None else group.at_s[each.end]
        began = group.at_s[each.entry] <= answer.ended_s
        if each.topic_id == answer.topic_id and began and end_s >= answer.began_s - _ROUTES_S:
            return True
    return False


def _is_home(answer: CancelAnswer, arrival: Arrival, group: Committed) -> bool:
    """Whether the group had the message's queue all the time."""
    for begin, end in group.log.homes.get((answer.topic_id, arrival.place.queue_id), ()):
        if group.at_s[begin] <= answer.began_s and (
            end is None or group.at_s[end] > answer.ended_s
        ):
            return True
    return False


def _known_all_the_time(
    answer: CancelAnswer, topic: IdTopic, group: Committed
) -> Iterator[Arrival]:
    at_s = group.at_s
    for number, arrival in enumerate(topic.arrivals, topic.base or 0):
        if arrival.message.message_id != answer.message_id:
            continue
        if any(lost.first_arrival > number for lost in topic.forgotten):
            continue  # all nodes had lost it, some time before the window began anew
        if number in topic.superseded or not _is_home(answer, arrival, group):
            continue  # the group that has the queue says what became of the message
        ends = [entry for entry, first_arrival in topic.evictions if first_arrival > number]
        until = min((at_s[entry] for entry in ends), default=answer.ended_s + 1)
        if at_s[arrival.arrived] <= answer.began_s and until > answer.ended_s:
            yield arrival
