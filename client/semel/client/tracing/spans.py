"""Spans by OpenTelemetry's conventions for messaging: their names, attributes and errors.

How it works. A span is named after the operation and the topic: `send orders`. The attributes that
a sampler may look at are there when the span begins; what an acknowledgement tells comes later. The
conventions are those of version 1.44; what they do not know begins with `messaging.semel.`.

| operation | type | kind | when |
|---|---|---|---|
| `send` | send | PRODUCER | a message, or a batch of a bulk call, until it is acknowledged |
| `poll` | receive | CLIENT | messages are given to the caller |
| `process` | process | CONSUMER | the caller works on messages |
| `commit` | settle | CLIENT | progress is made durable |

Not here: contexts (`carrying.py`), when spans begin and end (`traced_intake.py`, `receiving.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
TOPIC: Final = "messaging.destination.name"
QUEUE: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
CLIENT: Final = "messaging.client.id"
MESSAGE_ID: Final = "messaging.message.id"
COUNT: Final = "messaging.batch.message_count"
ERROR: Final = "error.type"
OFFSET: Final = "messaging.semel.offset"
DUPLICATE: Final = "messaging.semel.duplicate"

SEND: Final = ("send", "send", SpanKind.PRODUCER)
POLL: Final = ("poll", "receive", SpanKind.CLIENT)
PROCESS: Final = ("process", "process", SpanKind.CONSUMER)
COMMIT: Final = ("commit", "settle", SpanKind.CLIENT)
Operation = tuple[str, str, SpanKind]
"""Name, type and kind of a span."""


class Spans:
    """Begins the spans of one client."""

    def __init__(self, provider: TracerProvider | None) -> None:
        """None: the global provider."""
        self._tracer = trace.get_tracer(
            "semel.client", version("semel"), tracer_provider=provider, schema_url=SCHEMA
        )

    def begin(
        self,
        operation: Operation,
        topic: str,
        attributes: Mapping[str, Any],
        links: Sequence[Link] = (),
        *,
        parent: Context | None = None,
        start_ns: int | None = None,
    ) -> Span:
        """Begins a span, as a child of the current one if there is no `parent`.

        `topic` is empty if messages of several are concerned. Attributes that are None or empty are
        left out.
        """
        name, kind_of_operation, kind = operation
        found = {SYSTEM: "semel", OPERATION_NAME: name, OPERATION_TYPE: kind_of_operation}
        if topic:
            found[TOPIC] = topic
        found.update((key, value) for key, value in attributes.items() if value not in (None, ""))
        return self._tracer.start_span(
            f"{name} {topic}" if topic else name,
            parent,
            kind,
            found,
            links,
            start_ns,
        )


def id_text(message_id: bytes | None) -> str | None:
    """Returns a message id as an attribute."""
    return None if message_id is None else message_id.decode(errors="backslashreplace")


def fail(span: Span, error: BaseException) -> None:
    """Says that a span's operation has failed; does not end it."""
    span.set_attribute(ERROR, type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
