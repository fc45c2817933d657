"""Spans of one reader or consumer: messages that are given out, worked on, committed.

How it works. The puller tells which rows it gives out. A call of `poll` makes one span of them, an
iteration one span a batch, both with links to the producers' spans. The caller says what it works
on: the span of a single message is a child of the producer's span unless the caller has a span
already, and it always links to it.

Not here: attributes (`spans.py`), contexts (`carrying.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span

from semel.client.message import Message, Rows
from semel.client.reading.outstanding import Span as OffsetSpan
from semel.client.reading.pulling import Puller
from semel.client.reading.untraced import Untraced
from semel.client.tracing import carrying, spans
from semel.client.tracing.carrying import Given
from semel.client.tracing.spans import Spans


class Receiving(Untraced):
    """Contexts of the calls of one reader or consumer that is traced."""

    def __init__(
        self, begun: Spans, puller: Puller, group: str, client_id: Callable[[], str]
    ) -> None:
        self._begun = begun
        self._group = group
        self._client_id = client_id
        self._given: list[Given] | None = None
        """What the call under way has given out; None while the caller iterates."""
        puller.on_given = self._on_given

    def polling(self) -> AbstractContextManager[Any]:
        poll = _Polling(self._on_polled)
        self._given = poll.given
        return poll

    def processing(self, messages: Message | Iterable[Message]) -> AbstractContextManager[Any]:
        found = [messages] if isinstance(messages, Message) else list(messages)
        return self._processing(found)

    def settling(self, spans: Sequence[OffsetSpan]) -> AbstractContextManager[Any]:
        return self._settling(spans) if spans else super().settling(spans)

    def _on_polled(self, poll: _Polling, error: BaseException | None) -> None:
        self._given = None
        if isinstance(error, Exception) or (error is None and poll.given):
            self._tell(poll.given, poll.start_ns, error)

    def _on_given(self, rows: Rows, start: int, end: int) -> None:
        if self._given is None:
            self._tell([(rows, start, end)], time.time_ns(), None)
        else:
            self._given.append((rows, start, end))

    def _tell(self, given: Sequence[Given], start_ns: int, error: Exception | None) -> None:
        """Makes the span of messages that were given out, or of an error."""
        places = {(rows.topic, int(rows.queue.queue_id)) for rows, _, _ in given}
        count = sum(end - start for _, start, end in given)
        span = self._begun.begin(
            spans.POLL,
            _one_topic(places),
            {**self._of_reader(places), spans.COUNT: count},
            carrying.links_of_batches(given),
            start_ns=start_ns,
        )
        if error is not None:
            spans.fail(span, error)
        span.end()

    @contextlib.contextmanager
    def _processing(self, messages: Sequence[Message]) -> Iterator[Span]:
        places = {(message.topic, message.queue) for message in messages}
        attributes: dict[str, Any] = self._of_reader(places)
        parent = contexts.get_current()
        if len(messages) == 1:
            (message,) = messages
            attributes[spans.OFFSET] = message.offset
            attributes[spans.MESSAGE_ID] = spans.id_text(message.message_id)
            if not trace.get_current_span().get_span_context().is_valid:
                parent = carrying.context_in(message.carried_headers) or parent
        else:
            attributes[spans.COUNT] = len(messages)
        span = self._begun.begin(
            spans.PROCESS,
            _one_topic(places),
            attributes,
            carrying.links_of(messages),
            parent=parent,
        )
        token = contexts.attach(trace.set_span_in_context(span, parent))
        try:
            yield span
        except Exception as error:
            span.record_exception(error)
            spans.fail(span, error)
            raise
        finally:
            contexts.detach(token)
            span.end()

    @contextlib.contextmanager
    def _settling(self, settled: Sequence[OffsetSpan]) -> Iterator[None]:
        places = {(each.topic, int(each.key.queue_id)) for each in settled}
        span = self._begun.begin(spans.COMMIT, _one_topic(places), self._of_reader(places))
        try:
            yield
        except BaseException as error:
            spans.fail(span, error)
            raise
        finally:
            span.end()

    def _of_reader(self, places: set[tuple[str, int]]) -> dict[str, Any]:
        """Returns the attributes of all spans that concern messages of these queues."""
        return {
            spans.GROUP: self._group,
            spans.CLIENT: self._client_id(),
            spans.QUEUE: str(next(iter(places))[1]) if len(places) == 1 else None,
        }


class _Polling:
    """The context of one call that gives out messages; a class, since a generator takes longer."""

    __slots__ = ("_on_polled", "given", "start_ns")

    def __init__(self, on_polled: Callable[[_Polling, BaseException | None], None]) -> None:
        self._on_polled = on_polled
        self.given: list[Given] = []
        self.start_ns = time.time_ns()

    def __enter__(self) -> None:
        """Begun with its making."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._on_polled(self, error)


def _one_topic(places: set[tuple[str, int]]) -> str:
    topics = {topic for topic, _ in places}
    return topics.pop() if len(topics) == 1 else ""
