"""An intake that makes a span for each message, and one for each bulk call.

How it works. A span begins when the message is handed over, as a child of the caller's current one.
Its context goes into the headers, and it ends on the I/O thread when the chunk with the message is
settled. A message whose headers have a context keeps it, and the span links to that. The span of a
bulk call ends when its last chunk is settled, or the caller gives the rest up.

Invariants
1. A span ends exactly once, with the outcome of its message.
2. Tracing fails no message: a context that would make one too large is left out, and an error of a
   span's end goes to the log.
3. A message whose id is compared gets no context: under the same id another one counts as another
   message, since headers are compared, too.

Not here: attributes (`spans.py`), the context of a batch (`core/batch_context.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry.trace import Span

from semel.client.core.batch_context import encode_context
from semel.client.core.batching import Chunk
from semel.client.core.dues import AT_ONCE
from semel.client.core.fields import Headers, as_pairs
from semel.client.producer.futures import SendFuture
from semel.client.producer.intake import Intake, Piece, TopicIntake
from semel.client.tracing import carrying, spans
from semel.client.tracing.spans import Spans
from semel.protos.errors import MessageTooLarge

logger = logging.getLogger(__name__)


class _Bulk:
    """The span of a bulk call."""

    def __init__(self, span: Span, pieces: int) -> None:
        self._span = span
        self._left = pieces
        """Pieces that are not settled."""
        self._error: BaseException | None = None
        """The first of an error."""
        self._lock = threading.Lock()

    def end(self, settled: int, error: BaseException | None) -> None:
        """Notes the outcome of pieces; ends the span with the last one."""
        with self._lock:
            self._error = self._error or error
            self._left -= settled
            if self._left:
                return
        if self._error is not None:
            spans.fail(self._span, self._error)
        self._span.end()


class TracedIntake(Intake):
    """The intake of one producer whose client traces."""

    def __init__(self, begun: Spans, name: str, *arguments: Any, **options: Any) -> None:
        """`name` is the producer's; the others are those of `Intake`."""
        super().__init__(*arguments, **options)
        self._begun = begun
        self._name = name
        self._under_way: dict[int, list[tuple[int, Span] | _Bulk]] = {}
        """Rows and their spans, by the identity of their chunk."""
        self._spans_lock = threading.Lock()

    # --- any thread -----------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        timestamp_us: int | None,
        queue: int | None,
        position: int | None,
        block: bool,
        due_us: int = AT_ONCE,
        message_id: bytes | None = None,
    ) -> tuple[Chunk, int]:
        """Like `Intake.append`."""
        given = None if headers is None else as_pairs(headers)[0]
        context = None if given is None else carrying.context_in(given)
        span = self._begun.begin(
            spans.SEND,
            topic,
            {
                spans.CLIENT: self._name,
                spans.QUEUE: None if queue is None else str(queue),
                spans.MESSAGE_ID: spans.id_text(message_id),
            },
            () if context is None else (carrying.link_to(context),),
        )
        rest = (timestamp_us, queue, position, block, due_us, message_id)
        try:
            carried = given
            if context is None and self._takes_context(topic, message_id):
                carried = [*(given or ()), *carrying.inject(span)]
            try:
                chunk, row = super().append(topic, value, key, carried, *rest)
            except MessageTooLarge:
                if carried is given:
                    raise
                chunk, row = super().append(topic, value, key, given, *rest)
        except BaseException as error:
            _end_failed(span, error)
            raise
        if span.is_recording():
            self._end_when_settled(chunk, (row, span))
        else:
            span.end()
        return chunk, row

    def bulk_pieces(
        self, topic: str, *arguments: Any, **options: Any
    ) -> tuple[TopicIntake, list[Piece]]:
        """Like `Intake.bulk_pieces`."""
        span = self._begun.begin(spans.SEND, topic, {spans.CLIENT: self._name})
        try:
            intake, pieces = super().bulk_pieces(topic, *arguments, **options)
        except BaseException as error:
            _end_failed(span, error)
            raise
        span.set_attribute(spans.COUNT, sum(len(piece.columns) for piece in pieces))
        if not pieces:
            span.end()
            return intake, pieces
        bulk, context = _Bulk(span, len(pieces)), encode_context(carrying.inject(span))
        return intake, [piece._replace(context=context, settlement=bulk) for piece in pieces]

    def append_piece(
        self, intake: TopicIntake, piece: Piece, queue: int | None, block: bool
    ) -> tuple[Chunk, int, int]:
        """Like `Intake.append_piece`."""
        place = super().append_piece(intake, piece, queue, block)
        if isinstance(piece.settlement, _Bulk):
            self._end_when_settled(place[0], piece.settlement)
        return place

    def on_bulk_given_up(self, pieces: Sequence[Piece], error: BaseException) -> None:
        """Ends the span of the call once what was appended is settled."""
        for piece in pieces:
            if isinstance(piece.settlement, _Bulk):
                piece.settlement.end(1, error)

    def _takes_context(self, topic: str, message_id: bytes | None) -> bool:
        """Whether the message gets a context. It does not as long as nobody knows whether the topic
        compares ids. Raises like `append`."""
        if message_id is None:
            return True
        intake = self._opened.get(topic) or self._begin_topic(topic)
        return intake.opened and not intake.id_rules.compared

    def _end_when_settled(self, chunk: Chunk, ending: tuple[int, Span] | _Bulk) -> None:
        with self._spans_lock:
            # A chunk that is not settled now is released later, and finds what to end.
            if not chunk.settled:
                self._under_way.setdefault(id(chunk), []).append(ending)
                return
        _end_sent(chunk, ending)

    # --- the I/O thread -------------------------------------------------------------------------

    def release(self, chunk: Chunk) -> None:
        """Like `Intake.release`; ends the spans of the chunk."""
        super().release(chunk)
        with self._spans_lock:
            ended = self._under_way.pop(id(chunk), ())
        for ending in ended:
            _end_sent(chunk, ending)


def _end_failed(span: Span, error: BaseException) -> None:
    spans.fail(span, error)
    span.end()


def _end_sent(chunk: Chunk, ending: tuple[int, Span] | _Bulk) -> None:
    """Ends a span with the outcome of a settled row, or chunk."""
    try:
        if isinstance(ending, _Bulk):
            ending.end(1, _error_of_all(chunk))
            return
        row, span = ending
        error = _error_of(chunk, row)
        if error is not None:
            spans.fail(span, error)
        else:
            stored = SendFuture(chunk, row).result()
            span.set_attribute(spans.QUEUE, str(stored.queue))
            if stored.offset >= 0:
                span.set_attribute(spans.OFFSET, stored.offset)
            if stored.duplicate:
                span.set_attribute(spans.DUPLICATE, True)
        span.end()
    except Exception:  # of an exporter: the producer must go on
        logger.exception("a span was not ended topic=%s", chunk.topic)


def _error_of(chunk: Chunk, row: int) -> Exception | None:
    """Returns the error of a settled row. Nobody is told by that: a flush still raises it."""
    found = chunk.outcome_of(row)
    assert found is not None, "its chunk is settled"
    outcome, _, place = found
    if outcome.error is None and outcome.dropped is not None:
        index = outcome.dropped.find(place)
        return None if index is None else outcome.dropped.error(index, chunk.topic)
    return outcome.error


def _error_of_all(chunk: Chunk) -> Exception | None:
    outcomes = chunk.outcomes(0, chunk.count) or ()
    return next((outcome.error for _, outcome in outcomes if outcome.error is not None), None)
