"""Messages: a page of a topic, one message in full, downloads.

How it works. A page begins at the newest messages, at the oldest, at an offset or at a time, and
goes on by the cursor in its address. A key leads to the queues that may have it, an id to the
message that the topic knows by it. What was looked at is said with each page.

Invariant: a value is shown as text only, at most `decoding.BODY_BYTES` of it. Whole, it leaves as a
file that no browser opens by itself.

Not here: reading (`browsing.py`), the live tail (`tail.py`).
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from semel.client import Message
from semel.client.admin.descriptions import TopicDescription
from semel.console import render
from semel.console.json_fields import bytes_field, header_texts
from semel.protos.errors import InvalidRequest
from semel.web import decoding
from semel.web.browsing import (
    LIMIT,
    LIMIT_MAX,
    Budget,
    Cursor,
    Found,
    Keeps,
    choose_queues,
    parse_cursor,
    print_cursor,
    read_back,
    read_on,
)
from semel.web.expression import Expression
from semel.web.forms import Fields
from semel.web.visits import Visit, page

FROM = ("latest", "earliest", "offset", "time")


async def show_page(visit: Visit) -> Response:
    query = visit.query
    name = query.text("topic")
    if not name:
        found = await visit.client.admin.find_topics(query.text("search"), limit=100)
        return visit.show("messages_topics.html", found=found, search=query.text("search"))
    topic = await visit.client.admin.describe_topic(name)
    filled = {
        field: query.text(field)
        for field in ("queue", "from", "offset", "time", "key", "id", "filter", "limit")
    }
    if message_id := query.raw("id"):
        known = await visit.client.admin.find_message(name, message_id)
        if known is not None and known.offset >= 0:
            return visit.go("/message", topic=name, queue=known.queue, offset=known.offset)
        return visit.show("messages_id.html", topic=topic, filled=filled, known=known)
    reason, found_page, asked = "", None, 0
    begun: Cursor = {}
    try:
        found_page, asked, begun = await _find(visit, topic)
    except InvalidRequest as error:
        reason = error.message
    back = found_page is not None and _is_back(query)
    cursor = None if found_page is None or not found_page.left else print_cursor(found_page.cursor)
    return visit.show(
        "messages.html",
        code=400 if reason else 200,
        topic=topic,
        filled=filled,
        reason=reason,
        found=found_page,
        asked=asked,
        back=back,
        cursor=cursor,
        begun={"before" if back else "at": print_cursor(begun)},
        more={name: value for name, value in filled.items() if value},
        many=len(topic.queues) > 1,
    )


async def download_page(visit: Visit) -> Response:
    name = visit.query.needed("topic")
    topic = await visit.client.admin.describe_topic(name)
    found, _, _ = await _find(visit, topic)
    text = "".join(json.dumps(as_dict(message)) + "\n" for message in found.messages)
    return _file(text.encode(), f"{name}.jsonl", "application/x-ndjson")


async def show_message(visit: Visit) -> Response:
    query = visit.query
    name, queue, offset = query.needed("topic"), query.whole("queue"), query.whole("offset")
    found = await visit.client.admin.show_message(name, queue, offset)
    value = found.value
    forms = [] if value is None else decoding.forms(value)
    form = query.text("as", forms[0] if forms else "text")
    if form not in ("text", "json", "hex"):
        raise InvalidRequest("a value is shown as text, json or hex")
    return visit.show(
        "message.html",
        message=found,
        forms=forms,
        form=form,
        shown=None if value is None else decoding.show(value, form),  # type: ignore[arg-type]
        headers=[(key, decoding.line(data, 1_000)) for key, data in found.headers[:200]],
        headers_left=max(0, len(found.headers) - 200),
        key=decoding.line(found.key, 1_000),
        message_id=decoding.line(found.message_id, 200),
        size=len(value or b""),
    )


async def download_value(visit: Visit) -> Response:
    query = visit.query
    name, queue, offset = query.needed("topic"), query.whole("queue"), query.whole("offset")
    found = await visit.client.admin.show_message(name, queue, offset)
    return _file(found.value or b"", f"{name}-{queue}-{offset}.bin", "application/octet-stream")


def _file(content: bytes, name: str, kind: str) -> Response:
    """A file that a browser stores. Names of topics are letters, digits, dots and lines."""
    return Response(
        content,
        media_type=kind,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def as_dict(message: Message) -> dict[str, Any]:
    """A message as `semel consume --format json` writes it."""
    value: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "timestamp": render.iso(message.timestamp_us, "microseconds"),
    }
    value |= bytes_field("key", message.key)
    value |= bytes_field("value", message.value)
    value["headers"] = header_texts(message.headers)
    if message.message_id is not None:
        value |= bytes_field("message_id", message.message_id)
    return value | {"producer_id": message.producer_id, "sequence": message.sequence}


def _is_back(query: Fields) -> bool:
    """The newest message comes first."""
    if query.text("at"):
        return False
    return bool(query.text("before")) or query.text("from", "latest") == "latest"


async def _find(visit: Visit, topic: TopicDescription) -> tuple[Found, int, Cursor]:
    """Returns what was found, how many offsets there are to look at, and where it began. Raises
    SemelError."""
    query = visit.query
    number = query.whole("queue") if query.text("queue") else None
    key = query.raw("key").encode() if query.raw("key") else None
    limit = min(query.whole("limit", LIMIT, low=1), LIMIT_MAX)
    queues = choose_queues(topic, number, key)
    starts = {queue.queue: queue.log_start_offset for queue in queues}
    ends = {queue.queue: queue.log_end_offset for queue in queues}
    keeps = _keeps(query.text("filter"), key)
    if _is_back(query):
        before = ends | _within(parse_cursor(query.text("before")), starts, ends)
        asked = sum(before[queue] - starts[queue] for queue in starts)
        client, budget = visit.client, Budget()
        found = await read_back(client, topic.name, starts, before, keeps, limit, budget)
        return found, asked, before
    start = starts | _within(parse_cursor(query.text("at")), starts, ends)
    if not query.text("at"):
        start = await _start(visit, topic.name, starts, ends)
    asked = sum(ends[queue] - start[queue] for queue in start)
    found = await read_on(visit.client, topic.name, start, ends, keeps, limit, Budget())
    return found, asked, start


async def _start(visit: Visit, topic: str, starts: Cursor, ends: Cursor) -> Cursor:
    """Raises InvalidRequest."""
    query = visit.query
    match query.text("from"):
        case "earliest":
            return dict(starts)
        case "offset":
            offset = query.whole("offset")
            return _within(dict.fromkeys(starts, offset), starts, ends)
        case "time":
            time = query.time("time")
            if time is None:
                raise InvalidRequest("time: write one such as 2026-01-31T12:00:00Z")
            time_us = round(time.timestamp() * 1_000_000)
            at = await visit.client.admin.offsets_at(topic, time_us)
            return _within({queue: at[queue] for queue in starts if queue in at}, starts, ends)
    raise InvalidRequest(f"from is one of {', '.join(FROM)}")


def _within(places: Cursor, starts: Cursor, ends: Cursor) -> Cursor:
    """The places, moved into what the queues still have."""
    return {
        queue: min(max(at, starts[queue]), ends[queue])
        for queue, at in places.items()
        if queue in starts
    }


def _keeps(text: str, key: bytes | None) -> Keeps | None:
    """Raises InvalidRequest."""
    expression = Expression(text) if text else None
    if key is None:
        return None if expression is None else expression.fits
    if expression is None:
        return lambda message: message.key == key
    return lambda message: message.key == key and expression.fits(message)


routes = [
    Route("/messages", page(show_page)),
    Route("/messages/download", page(download_page)),
    Route("/message", page(show_message)),
    Route("/message/value", page(download_value)),
]
