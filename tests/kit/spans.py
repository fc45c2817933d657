"""Spans that a test looks at, kept in memory."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class KeptSpans:
    """A tracer provider, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def ended(self, operation: str = "") -> list[ReadableSpan]:
        """The spans of an operation that have ended, in that order; all without a name."""
        found = self._exporter.get_finished_spans()
        return [each for each in found if operation in ("", each.name.partition(" ")[0])]

    def one(self, operation: str = "") -> ReadableSpan:
        """The only span of an operation."""
        (span,) = self.ended(operation)
        return span


def traits(span: ReadableSpan) -> dict[str, object]:
    """A span's attributes, without those that all spans have."""
    attributes: dict[str, object] = dict(span.attributes or {})
    assert attributes.pop("messaging.system") == "semel"
    assert attributes.pop("messaging.operation.name") == span.name.partition(" ")[0]
    return attributes


def as_json(spans: list[ReadableSpan]) -> list[dict[str, object]]:
    """Spans as a program hands them to its test: names and ids."""
    return [
        {
            "name": span.name,
            "trace": span.context.trace_id,
            "span": span.context.span_id,
            "parent": span.parent.span_id if span.parent is not None else None,
            "links": [link.context.span_id for link in span.links],
        }
        for span in spans
    ]
