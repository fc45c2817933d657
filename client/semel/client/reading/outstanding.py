"""What a consumer's caller was given and has not committed: progress, as values.

How it works. Whatever is given out is entered here in the same step, by the thread that takes it:
a *span* of offsets of one queue under one fencing token. A commit or a transaction is handed the
spans that it is about, and nothing about them is looked up again on the way: a span whose token is
not the held lock's any more is LockLost, wherever and whenever the lock was lost, and whoever heard
of it first. What is committed, and what was told as lost, is taken out again.

When a transaction is rolled back its spans are to be *given back*: the feed begins again where they
begin. Until that has really been done they stay noted here, because nothing else may be given out
before: a caller that is interrupted in between would leave messages out.

Invariants
1. Only the caller's thread reads and writes it: no other thread can take anything out unseen.
2. A span ends behind the message that was given out last: after a seek back it falls with it.

Not here: who holds which lock (`consumer/locks.py`), what a commit does (`consumer/commits.py`).
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
    """The span of a queue and a token that grows; empty when all of it is committed."""

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
        """By queue, the newest token last. Older ones wait for their LockLost to be told."""
        self.must_give_back = False
        """Before anything else is given out."""
        self.back: list[Span] = []
        """What is to be given back."""
        self.in_doubt = False
        """A COMMIT failed: nobody knows what of them is stored."""

    def at(self, rows: Rows, row: int) -> OpenSpan:
        """The span that rows from `row` on belong to."""
        spans = self._open.get(rows.queue)
        if spans and spans[-1].token == rows.token:
            span = spans[-1]
        else:
            span = OpenSpan(rows.topic, rows.queue, rows.token)
            told = [each for each in spans or () if each.start < each.end]
            self._open[rows.queue] = [*told, span]
        offset = rows.base_offset + row
        if span.start == span.end:
            span.start = span.end = offset
        elif offset < span.end:  # sought, and given out again
            span.start, span.end = min(span.start, offset), offset
        return span

    def spans(self) -> list[Span]:
        """All that was given out and is not committed."""
        return [
            span.value() for spans in self._open.values() for span in spans if span.start < span.end
        ]

    def up_to(self, message: Message) -> list[Span]:
        """What committing up to and including a message means."""
        rows, end = message.rows, message.offset + 1
        span = self._find(rows.queue, rows.token)
        start = end if span is None else min(span.start, end)
        return [Span(rows.topic, rows.queue, rows.token, start, end)]

    def processed_up_to(self, message: Message) -> list[Span]:
        """The same for a message whose results are about to be stored.

        Raises InvalidRequest when they are stored already, or it was given back.
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
        """Some are durable; the locks of others are lost, which the caller is told."""
        for one in committed:
            span = self._find(one.key, one.token)
            if span is not None:
                span.start = min(span.end, max(span.start, one.end))
        for one in lost:
            span = self._find(one.key, one.token)
            if span is not None:
                span.start = span.end

    def give_back(self, *, in_doubt: bool = False) -> None:
        """A transaction failed: everything that is outstanding is to be given out again."""
        self.must_give_back = True
        self.back += self.spans()
        self.in_doubt = self.in_doubt or in_doubt
        self._open.clear()

    def on_given_back(self) -> None:
        """The feed has begun again where they begin."""
        self.must_give_back = self.in_doubt = False
        self.back = []

    def _find(self, key: QueueKey, token: int) -> OpenSpan | None:
        return next((span for span in self._open.get(key, ()) if span.token == token), None)
