"""Spans of messages that are given out, worked on and committed, and their links to the senders."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from semel.client.core.batch_context import encode_context
from semel.client.message import Message
from semel.client.reading.outstanding import Span
from semel.client.reading.untraced import UNTRACED
from semel.client.tracing.carrying import LINKS_MAX, inject
from semel.client.tracing.receiving import Receiving
from semel.client.tracing.spans import Spans
from semel.protos.errors import LockLost, OffsetOutOfRange
from tests.kit.spans import KeptSpans, traits
from tests.unit.client.reading.feeds import KEY, Box

SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)


@pytest.fixture
def kept() -> KeptSpans:
    return KeptSpans()


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def receiving(kept: KeptSpans, box: Box) -> Receiving:
    return Receiving(Spans(kept.provider), box.puller, "billing", lambda: "member-1")


def parent(number: int, trace_number: int = 1) -> bytes:
    return f"00-{trace_number:032x}-{number:016x}-01".encode()


def sent_by(number: int) -> list[tuple[str, bytes]]:
    return [("traceparent", parent(number))]


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


COMMON = {
    "messaging.destination.name": "t",
    "messaging.destination.partition.id": "2",
    "messaging.consumer.group.name": "billing",
    "messaging.client.id": "member-1",
}


def test_a_poll_links_to_the_spans_of_its_messages(
    kept: KeptSpans, box: Box, receiving: Receiving
) -> None:
    box.put([b"a", b"b", b"c"], 0, headers=[sent_by(1), None, sent_by(2)])
    box.put([b"d", b"e"], 3, headers=[sent_by(2), [("traceparent", b"broken \xff")]])
    with receiving.polling():
        assert len(box.puller.messages(4)) == 4
    span = kept.one()
    assert (span.name, span.kind, links(span)) == ("poll t", SpanKind.CLIENT, [1, 2])
    assert traits(span) == {
        **COMMON,
        "messaging.operation.type": "receive",
        "messaging.batch.message_count": 4,
    }
    with receiving.polling():
        box.puller.messages(4)
    assert links(kept.ended()[1]) == [], "a header that is malformed is none"


def test_a_batch_of_a_bulk_call_links_once(kept: KeptSpans, box: Box, receiving: Receiving) -> None:
    box.put([b"x"] * 10, 0, context=encode_context(sent_by(7)))
    with receiving.polling():
        box.puller.messages(4)
    with receiving.polling():
        last = box.puller.messages(10)
    assert [links(span) for span in kept.ended()] == [[7], [7]]
    assert last[0].headers == []
    with receiving.processing(last[0]):
        pass
    assert links(kept.one("process")) == [7], "each message has the batch's context"


def test_a_message_with_a_context_of_its_own_keeps_it(
    kept: KeptSpans, box: Box, receiving: Receiving
) -> None:
    box.put([b"a", b"b"], 0, headers=[None, sent_by(8)], context=encode_context(sent_by(7)))
    found = box.puller.messages(2)
    with receiving.processing(found[1]):
        pass
    assert links(kept.one("process")) == [8]


def test_arrow_and_iteration_are_traced(kept: KeptSpans, box: Box, receiving: Receiving) -> None:
    box.put([b"a", b"b"], 0, headers=[sent_by(1), sent_by(2)])
    with receiving.polling():
        assert box.puller.arrow() is not None
    box.put([b"c"], 2, headers=[sent_by(3)])
    box.put([b"d"], 3)
    assert [message.value for message in box.puller.drain()] == [b"c", b"d"]
    found = kept.ended("poll")
    assert [links(span) for span in found] == [[1, 2], [3], []]
    assert [traits(span)["messaging.batch.message_count"] for span in found] == [2, 1, 1]


def test_an_empty_poll_makes_no_span_and_a_failed_one_does(
    kept: KeptSpans, box: Box, receiving: Receiving
) -> None:
    with receiving.polling():
        assert box.puller.messages(4) == []
    assert kept.ended() == []
    box.feed.fail(OffsetOutOfRange("gone", log_start_offset=1, log_end_offset=2))
    with pytest.raises(OffsetOutOfRange), receiving.polling():
        box.puller.messages(4)
    assert traits(kept.one())["error.type"] == "OffsetOutOfRange"
    assert kept.one().status.status_code is StatusCode.ERROR


def test_very_many_messages_have_a_bounded_number_of_links(
    kept: KeptSpans, box: Box, receiving: Receiving
) -> None:
    count = 3 * LINKS_MAX
    box.put([b"x"] * count, 0, headers=[sent_by(number + 1) for number in range(count)])
    with receiving.polling():
        assert len(box.puller.messages(count)) == count
    assert len(kept.one().links) == LINKS_MAX


def one(box: Box, headers: Any = None) -> Message:
    box.put([b"a"], box.queue.offset, headers=[headers])
    return box.puller.messages(1)[0]


def test_the_work_on_one_message_belongs_to_the_senders_trace(
    kept: KeptSpans, box: Box, receiving: Receiving
) -> None:
    message = one(box, [*sent_by(5), ("baggage", b"tenant=7")])
    with receiving.processing(message) as span:
        assert trace.get_current_span() is span
        assert baggage.get_baggage("tenant") == "7"
        kept.provider.get_tracer("program").start_span("work").end()
    assert not trace.get_current_span().get_span_context().is_valid
    work, span = kept.one("work"), kept.one("process")
    assert (span.name, span.kind, links(span)) == ("process t", SpanKind.CONSUMER, [5])
    assert span.parent is not None
    assert (span.parent.span_id, span.context.trace_id) == (5, 1)
    assert work.parent is not None
    assert work.parent.span_id == span.context.span_id
    assert traits(span) == {
        **COMMON,
        "messaging.operation.type": "process",
        "messaging.semel.offset": 0,
    }


def test_a_span_of_the_program_stays_the_parent(
    kept: KeptSpans, box: Box, receiving: Receiving
) -> None:
    message = one(box, sent_by(5))
    with (
        kept.provider.get_tracer("program").start_as_current_span("request") as request,
        receiving.processing(message),
    ):
        pass
    span = kept.one("process")
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert links(span) == [5]


def test_the_work_on_several_messages_links_to_all(
    kept: KeptSpans, box: Box, receiving: Receiving
) -> None:
    box.put([b"a", b"b"], 0, headers=[sent_by(1), sent_by(2)])
    with receiving.processing(box.puller.messages(2)):
        pass
    span = kept.one("process")
    assert (span.parent, links(span)) == (None, [1, 2])
    assert traits(span)["messaging.batch.message_count"] == 2


def test_work_that_fails_is_marked(kept: KeptSpans, box: Box, receiving: Receiving) -> None:
    with pytest.raises(ZeroDivisionError), receiving.processing(one(box)):
        _ = 1 // 0
    span = kept.one("process")
    assert traits(span)["error.type"] == "ZeroDivisionError"
    assert [event.name for event in span.events] == ["exception"]


def test_a_commit_is_a_span(kept: KeptSpans, receiving: Receiving) -> None:
    spans = [Span("t", KEY, 1, 0, 9), Span("u", KEY, 1, 3, 4)]
    with receiving.settling(spans[:1]):
        pass
    with pytest.raises(LockLost), receiving.settling(spans):
        raise LockLost("gone")
    with receiving.settling([]):
        pass
    first, second = kept.ended()
    assert (first.name, first.kind) == ("commit t", SpanKind.CLIENT)
    assert traits(first) == {**COMMON, "messaging.operation.type": "settle"}
    assert second.name == "commit", "messages of several topics"
    assert traits(second)["error.type"] == "LockLost"


def test_nothing_is_told_where_nothing_is_traced(box: Box) -> None:
    message = one(box, sent_by(1))
    with UNTRACED.polling(), UNTRACED.processing(message), UNTRACED.settling([]):
        assert not trace.get_current_span().get_span_context().is_valid
    assert box.puller.on_given is None


def test_another_propagator_is_obeyed(
    kept: KeptSpans, box: Box, receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Single:
        """A propagator with one header of its own."""

        fields = frozenset({"x-trace"})

        def inject(self, carrier: Any, context: Context | None = None, **_: Any) -> None:
            span = trace.get_current_span(context).get_span_context()
            carrier["x-trace"] = f"{span.trace_id}:{span.span_id}"

        def extract(self, carrier: Any, context: Context | None = None, **_: Any) -> Context:
            trace_id, _, span_id = carrier["x-trace"].partition(":")
            found = trace.SpanContext(int(trace_id), int(span_id), True, SAMPLED)
            return trace.set_span_in_context(trace.NonRecordingSpan(found), context)

    monkeypatch.setattr(propagate, "get_global_textmap", Single)
    span = kept.provider.get_tracer("program").start_span("order")
    headers = inject(span)
    assert [name for name, _ in headers] == ["x-trace"]
    with receiving.processing(one(box, headers)):
        pass
    assert links(kept.one("process")) == [span.get_span_context().span_id]
