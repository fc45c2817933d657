"""Trace contexts in the headers of messages, written and read by the program's own propagator.

How it works. The propagator is the global one of OpenTelemetry, by default W3C's: `traceparent`,
`tracestate`, `baggage`. A batch of a bulk call carries one context for all its messages
(`core/batch_context.py`).

Invariants
1. Headers come from strangers: one that is malformed is no context, and raises nothing.
2. A context that is read has nothing of the reader's own.

Not here: spans (`spans.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, TypeAlias

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanContext

from semel.client.core.batch_context import decode_context
from semel.client.message import Message, Rows

Pairs: TypeAlias = list[tuple[str, bytes]]
Given: TypeAlias = tuple[Rows, int, int]
"""Messages of a batch that were given out: their rows `[start, end)`."""

LINKS_MAX: Final = 128
"""Links of a span; the default limit of OpenTelemetry's SDK, which drops what is above it."""


def inject(span: Span) -> Pairs:
    """Returns the headers with the context of a span."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return [(name, value.encode()) for name, value in carrier.items()]


def context_in(headers: Iterable[tuple[str, bytes]]) -> Context | None:
    """Returns the context in headers, or None."""
    pairs = context_headers(headers)
    if not pairs:
        return None
    found = _extract(pairs)
    return found if _span_context(found).is_valid else None


def context_headers(headers: Iterable[tuple[str, bytes]]) -> Pairs:
    """Returns the headers that belong to a context."""
    names = propagate.get_global_textmap().fields
    return _chosen(headers, names)


def link_to(context: Context) -> Link:
    return Link(_span_context(context))


def links_of_batches(given: Iterable[Given]) -> list[Link]:
    """Returns links to the contexts of messages, each once, LINKS_MAX at most. Only the first of
    very many messages of a batch are looked at."""
    propagator = propagate.get_global_textmap()
    found: list[Pairs] = []
    for rows, start, end in given:
        if (stored := rows.stored_context) is not None:
            found.append(_pairs_of_batch(propagator, stored))
        if headers := rows.headers_of(start, min(end, start + LINKS_MAX)):
            names = propagator.fields
            found += [_chosen(each, names) for each in headers]
    return _links(found)


def links_of(messages: Iterable[Message]) -> list[Link]:
    """Returns links to the contexts of messages, each once, LINKS_MAX at most."""
    return _links(context_headers(message.carried_headers) for message in messages)


def _chosen(headers: Iterable[tuple[str, bytes]], names: Collection[str]) -> Pairs:
    return [pair for pair in headers if pair[0] in names]


def _links(contexts: Iterable[Pairs]) -> list[Link]:
    distinct = dict.fromkeys(tuple(pairs) for pairs in contexts if pairs)
    propagator = propagate.get_global_textmap()
    found = (_link_of(propagator, pairs) for pairs in islice(distinct, LINKS_MAX))
    return [link for link in found if link is not None]


@functools.lru_cache(maxsize=LINKS_MAX)
def _pairs_of_batch(propagator: TextMapPropagator, stored: bytes) -> Pairs:
    """Returns the context of a batch; asked again and again, like `_link_of`."""
    return _chosen(decode_context(stored), propagator.fields)


@functools.lru_cache(maxsize=LINKS_MAX)
def _link_of(propagator: object, pairs: tuple[tuple[str, bytes], ...]) -> Link | None:
    """Returns the link to a context, or None if the headers are malformed. The batches of a bulk
    call have one context, so the same is asked again and again; `propagator` is what reads it."""
    context = _span_context(_extract(pairs))
    return Link(context) if context.is_valid else None


def _extract(pairs: Iterable[tuple[str, bytes]]) -> Context:
    carrier = {name: value.decode(errors="replace") for name, value in pairs}
    return propagate.extract(carrier, Context())


def _span_context(context: Context) -> SpanContext:
    return trace.get_current_span(context).get_span_context()
