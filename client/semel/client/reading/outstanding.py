"""The messages that a consumer's caller was given and has not committed, as spans of offsets.

How it works. The thread that takes a message enters it here in the same step, in a *span* of
offsets of one queue under one fencing token. A commit or a transaction gets the spans that it is
about, as values, and looks nothing up again on the way. If a span's token is no longer that of the
held lock, the commit reports LockLost, no matter where the loss was noticed first. Spans that were
committed or reported as lost are removed.

A transaction that is rolled back has its spans *given back*: the feed begins again where they
begin. They stay noted here until that has happened, because nothing else may be given out before:
a caller that was interrupted in between would leave messages out.

Invariants
1. Only the caller's thread reads and writes it, so no other thread can remove anything unseen.
2. A span ends after the message that was given out last, and at the offset of a seek back: what is
   given out again is covered by no commit before that.

Not here: which locks are held (`consumer/locks.py`), what a commit does (`consumer/commits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from semel.client.message import Message, Rows
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueKey


class Span(NamedTuple):
    """Offsets `[start, end)` of a queue, given out under one token."""

    topic: str
    key: QueueKey
    token: int
    start: int
    end: int


class OpenSpan:
    """The growing span of a queue under a token; empty when all of it is committed."""

    __slots__ = ("end", "key", "start", "token", "topic")

    def __init__(self, topic: str, key: QueueKey, token: int) -> None:
        self.topic = topic
        self.key = key
        self.token = token
        self.start = 0
        self.end = 0
        """One past the last message that was given out."""

    def value(self) -> Span:
        return Span(self.topic, self.key, self.token, self.start, self.end)


class Outstanding:
    """The spans of one consumer, or of a reader, which commits none."""

    def __init__(self) -> None:
        self._open: dict[QueueKey, list[OpenSpan]] = {}
        """Spans by queue, the newest token last. Older ones wait for their LockLost to be
        reported."""
        self.must_give_back = False
        """The spans must be given back before anything else is given out."""
        self.back: list[Span] = []
        """The spans to give back."""
        self.in_doubt = False
        """A COMMIT failed, so it is unknown which of them are stored."""

    def at(self, rows: Rows, row: int) -> OpenSpan:
        """Returns the span to which rows from `row` on belong."""
        return self._at(rows.topic, rows.queue, rows.token, rows.position(row))

    def pass_over(self, rows: Rows, offset: int) -> None:
        """Enters a batch that has no messages from `offset` on: a gap in the offsets counts as
        given out, so that the next commit covers it."""
        self._at(rows.topic, rows.queue, rows.token, offset).end = rows.end_offset

    def pass_lost(self, topic: str, key: QueueKey, token: int, start: int, end: int) -> None:
        """Enters messages that are lost: they count as given out, like a gap."""
        self._at(topic, key, token, start).end = end

    def _at(self, topic: str, key: QueueKey, token: int, offset: int) -> OpenSpan:
        spans = self._open.get(key)
        if spans and spans[-1].token == token:
            span = spans[-1]
        else:
            span = OpenSpan(topic, key, token)
            told = [each for each in spans or () if each.start < each.end]
            self._open[key] = [*told, span]
        if span.start == span.end:
            span.start = span.end = offset
        elif offset < span.end:  # given out again after a seek
            span.start, span.end = min(span.start, offset), offset
        return span

    def on_seek(self, topic: str, number: int, offset: int) -> None:
        """Messages of a queue from `offset` on are given out again."""
        for key, spans in self._open.items():
            span = spans[-1]
            if span.topic == topic and key.queue_id == number and offset < span.end:
                span.end = max(span.start, offset)

    def spans(self) -> list[Span]:
        """Returns everything that was given out and is not committed."""
        return [
            span.value() for spans in self._open.values() for span in spans if span.start < span.end
        ]

    def up_to(self, message: Message) -> list[Span]:
        """Returns the span up to and including a message, for a commit.

        Raises InvalidRequest when the message is to be given out again, after a seek back.
        """
        rows, end = message.rows, message.offset + 1
        span = self._find(rows.queue, rows.token)
        if span is not None and message.offset >= span.end:
            raise InvalidRequest(
                f"offset {message.offset} of queue {message.queue} of topic {message.topic!r} is"
                " given out again, since you sought back: commit what comes then"
            )
        start = end if span is None else min(span.start, end)
        return [Span(rows.topic, rows.queue, rows.token, start, end)]

    def processed_up_to(self, message: Message) -> list[Span]:
        """Returns the same for a message whose results are about to be stored.

        Raises InvalidRequest when they are stored already, or the message was given back.
        """
        rows = message.rows
        span = self._find(rows.queue, rows.token)
        if span is None or not span.start <= message.offset < span.end:
            raise InvalidRequest(
                f"offset {message.offset} of queue {message.queue} of topic {message.topic!r} is"
                " not outstanding: a transaction has stored it, or was rolled back and gave it"
                " back; take messages anew from the consumer"
            )
        return [span.value()._replace(end=message.offset + 1)]

    def settle(self, committed: Iterable[Span], lost: Iterable[Span] = ()) -> None:
        """Removes spans that are durable, and those whose lost locks were reported to the
        caller."""
        for one in committed:
            span = self._find(one.key, one.token)
            if span is not None:
                span.start = min(span.end, max(span.start, one.end))
        for one in lost:
            span = self._find(one.key, one.token)
            if span is not None:
                span.start = span.end

    def give_back(self, *, in_doubt: bool = False) -> None:
        """A transaction failed: everything outstanding must be given out again."""
        self.must_give_back = True
        self.back += self.spans()
        self.in_doubt = self.in_doubt or in_doubt
        self._open.clear()

    def on_given_back(self) -> None:
        """The feed has begun again at the start of the spans."""
        self.must_give_back = self.in_doubt = False
        self.back = []

    def _find(self, key: QueueKey, token: int) -> OpenSpan | None:
        return next((span for span in self._open.get(key, ()) if span.token == token), None)
