"""An intake that traces: one span a message or bulk batch, ended once, with the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from semel.client.config import ProducerConfig, build
from semel.client.core.batch_context import decode_context
from semel.client.core.batching import Chunk, Outcome, Part
from semel.client.core.message_ids import IdRules
from semel.client.producer.intake import Intake, Piece
from semel.client.tracing import spans
from semel.client.tracing.spans import Spans
from semel.client.tracing.traced_intake import TracedIntake
from semel.protos.errors import Closed, InvalidRequest, MessageTooLarge, TimedOut
from semel.protos.ids import QueueId, QueueKey, TopicId
from tests.kit.spans import KeptSpans, traits

OTHER = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.fixture
def kept() -> KeptSpans:
    return KeptSpans()


@pytest.fixture
def intake(kept: KeptSpans) -> TracedIntake:
    return make_intake(kept)


def make_intake(kept: KeptSpans, **options: Any) -> TracedIntake:
    spans = Spans(kept.provider)
    config = build(ProducerConfig, options)
    return TracedIntake(spans, "loader", config, wake=lambda: None, open_topic=None)


def send(
    intake: Intake, value: Any = b"v", headers: Any = None, message_id: bytes | None = None
) -> tuple[Chunk, int]:
    return intake.append("t", value, None, headers, None, None, None, True, 0, message_id)


def settle(intake: Intake, chunk: Chunk, outcome: Outcome) -> None:
    """As the I/O thread does with a chunk that became one batch for queue 3."""
    part = Part(chunk, QueueKey(TopicId(1), QueueId(3)), 0, chunk.count, chunk.bytes)
    chunk.open_parts, chunk.parts = 1, [part]
    chunk.settle(part, outcome)
    intake.release(chunk)


def context_of(span: Any) -> str:
    found = span.context
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def test_a_message_has_a_span_until_it_is_stored(kept: KeptSpans, intake: TracedIntake) -> None:
    tracer = kept.provider.get_tracer("program")
    with tracer.start_as_current_span("order") as order:
        chunk, _ = send(intake, headers={"a": b"1"}, message_id=None)
    assert kept.ended("send") == []
    settle(intake, chunk, Outcome(base_offset=40, base_sequence=7))
    span = kept.one("send")
    assert (span.name, span.kind) == ("send t", SpanKind.PRODUCER)
    assert span.parent is not None
    assert span.parent.span_id == order.get_span_context().span_id
    assert span.status.status_code is StatusCode.UNSET
    assert traits(span) == {
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "3",
        "messaging.client.id": "loader",
        "messaging.semel.offset": 40,
    }
    assert chunk.headers == [[("a", b"1"), ("traceparent", context_of(span).encode())]]


def test_each_message_of_a_chunk_has_its_own(kept: KeptSpans, intake: TracedIntake) -> None:
    for number in range(3):
        chunk, row = send(intake, b"%d" % number)
        assert row == number
    settle(intake, chunk, Outcome(base_offset=10, base_sequence=0, duplicate=True))
    found = kept.ended("send")
    assert [traits(span)["messaging.semel.offset"] for span in found] == [10, 11, 12]
    assert all(traits(span)["messaging.semel.duplicate"] for span in found)
    assert [pairs[0][1].decode() for pairs in chunk.headers] == [*map(context_of, found)]


def test_a_message_that_fails_says_why_and_nobody_counts_as_told(
    kept: KeptSpans, intake: TracedIntake
) -> None:
    chunk, _ = send(intake, message_id=b"id-\xff")
    chunk.fail(TimedOut("not in time"))
    intake.release(chunk)
    intake.release(chunk)
    span = kept.one("send")
    assert traits(span)["error.type"] == "TimedOut"
    assert traits(span)["messaging.message.id"] == "id-\\xff"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "not in time")
    assert not chunk.told, "the next flush raises the error"


def test_a_call_that_is_refused_ends_its_span(kept: KeptSpans, intake: TracedIntake) -> None:
    with pytest.raises(MessageTooLarge):
        send(intake, bytes((1 << 20) + 1))
    assert traits(kept.one())["error.type"] == "MessageTooLarge"
    with pytest.raises(InvalidRequest):
        send(intake, None)
    intake.fail(Closed("closed"))
    with pytest.raises(Closed):
        send(intake)
    names = [traits(span)["error.type"] for span in kept.ended()]
    assert names == ["MessageTooLarge", "InvalidRequest", "Closed"]


def test_a_context_makes_no_message_too_large(kept: KeptSpans, intake: TracedIntake) -> None:
    chunk, _ = send(intake, bytes(1 << 20))
    assert chunk.headers is None
    settle(intake, chunk, Outcome(base_offset=0, base_sequence=0))
    assert kept.one().status.status_code is StatusCode.UNSET


def test_a_context_that_the_caller_gave_is_kept_and_linked(
    kept: KeptSpans, intake: TracedIntake
) -> None:
    chunk, _ = send(intake, headers=[("traceparent", OTHER.encode())])
    settle(intake, chunk, Outcome(base_offset=0, base_sequence=0))
    (link,) = kept.one().links
    assert f"{link.context.trace_id:032x}" == "a" * 32
    assert f"{link.context.span_id:016x}" == "b" * 16
    assert chunk.headers == [[("traceparent", OTHER.encode())]]


def test_messages_whose_ids_are_compared_carry_none(kept: KeptSpans, intake: TracedIntake) -> None:
    """Sent again, such a message would have another context, and be another message."""
    chunk, _ = send(intake, b"unknown whether", message_id=b"1")
    place = intake.topic("t")
    place.opened = True
    send(intake, b"not compared", message_id=b"2")
    place.id_rules = IdRules("t", 128, 1)
    send(intake, b"compared", message_id=b"3")
    send(intake, b"no id")
    carries = [bool(pairs) for pairs in chunk.headers]
    assert dict(zip(chunk.values, carries, strict=True)) == {
        b"unknown whether": False,
        b"not compared": True,
        b"compared": False,
        b"no id": True,
    }


def bulk(intake: Intake, count: int, size: int = 1) -> tuple[Any, list[Piece]]:
    values = pa.array([b"x" * size] * count)
    return intake.bulk_pieces("t", values, None, None, None, None)


def test_a_bulk_call_has_one_span_until_all_of_it_is_stored(kept: KeptSpans) -> None:
    intake = make_intake(kept, batch_bytes=1_000)
    place, pieces = bulk(intake, 25, 100)
    assert len(pieces) == 3
    chunks = [intake.append_piece(place, piece, None, True)[0] for piece in pieces]
    for chunk in reversed(chunks):
        assert kept.ended() == []
        settle(intake, chunk, Outcome(base_offset=0, base_sequence=0))
    span = kept.one("send")
    assert traits(span) == {
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.client.id": "loader",
        "messaging.batch.message_count": 25,
    }
    for chunk in chunks:
        assert decode_context(chunk.context) == [("traceparent", context_of(span).encode())]
        assert chunk.headers is None, "each batch has it once"


def test_a_bulk_call_that_fails_says_why(kept: KeptSpans, intake: TracedIntake) -> None:
    with pytest.raises(InvalidRequest):
        intake.bulk_pieces("t", [None], None, None, None, None)
    place, pieces = bulk(intake, 1)
    chunk, _, _ = intake.append_piece(place, pieces[0], None, True)
    settle(intake, chunk, Outcome(error=TimedOut("late")))
    names = [traits(span)["error.type"] for span in kept.ended()]
    assert names == ["InvalidRequest", "TimedOut"]
    assert bulk(intake, 0)[1] == []
    assert kept.ended()[2].status.status_code is StatusCode.UNSET


def test_a_bulk_call_that_is_given_up_ends_with_what_was_sent(kept: KeptSpans) -> None:
    intake = make_intake(kept, batch_bytes=1_000)
    place, pieces = bulk(intake, 25, 100)
    chunk, _, _ = intake.append_piece(place, pieces[0], None, True)
    intake.on_bulk_given_up(pieces[1:], KeyboardInterrupt())
    assert kept.ended() == []
    settle(intake, chunk, Outcome(base_offset=0, base_sequence=0))
    assert traits(kept.one())["error.type"] == "KeyboardInterrupt"


@pytest.mark.parametrize("moment", ["before", "between"])
def test_a_chunk_that_is_settled_meanwhile_loses_no_span(
    kept: KeptSpans, intake: TracedIntake, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The I/O thread may settle and release a chunk before the caller has noted the span."""
    plain: Callable[..., Any] = Intake.append

    def append(self: Intake, *arguments: Any) -> tuple[Chunk, int]:
        chunk, row = plain(self, *arguments)
        if moment == "before":
            settle(self, chunk, Outcome(base_offset=5, base_sequence=0))
        else:
            chunk.fail(Closed("x"))
        return chunk, row

    monkeypatch.setattr(Intake, "append", append)
    chunk, _ = send(intake)
    if moment == "between":
        assert len(kept.ended()) == 1, "settled, not released yet"
        intake.release(chunk)
    assert len(kept.ended()) == 1
    assert intake._under_way == {}


def test_spans_that_are_not_sampled_cost_no_memory(kept: KeptSpans) -> None:
    kept.provider.sampler = ALWAYS_OFF
    intake = make_intake(kept)
    chunk, _ = send(intake)
    assert intake._under_way == {}
    flags = int(chunk.headers[0][0][1].rpartition(b"-")[2], 16)
    assert not flags & 1, "the context travels, and says so"


def test_an_exporter_that_fails_stops_no_producer(
    kept: KeptSpans, intake: TracedIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("full")

    chunk, _ = send(intake)
    monkeypatch.setattr(spans, "fail", broken)
    chunk.fail(Closed("x"))
    intake.release(chunk)
    assert intake.buffered == 0
    assert kept.ended() == []


def test_without_a_current_span_each_message_begins_a_trace(
    kept: KeptSpans, intake: TracedIntake
) -> None:
    assert not trace.get_current_span().get_span_context().is_valid
    chunk, _ = send(intake)
    send(intake)
    settle(intake, chunk, Outcome(base_offset=0, base_sequence=0))
    first, second = kept.ended()
    assert first.parent is None
    assert first.context.trace_id != second.context.trace_id
