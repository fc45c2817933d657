"""The live tail of a topic: messages as they are stored.

How it works. A reader begins at the ends of the queues. Ten times a second what came is sent to the
page, at most `ROWS` of it; how many more there were is said, so that a topic with a million
messages a second neither freezes the page nor pretends to be quiet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from semel.client import Message
from semel.console import render
from semel.protos.errors import SemelError
from semel.web import decoding
from semel.web.browsing import FETCH_BYTES, choose_queues, kept
from semel.web.events import EventStream, event
from semel.web.expression import Expression
from semel.web.visits import Visit, page

EVERY_S: Final = 0.1
ROWS: Final = 20
POLL_MESSAGES: Final = 2_000
QUIET_S: Final = 15.0
"""After so long without a message the page is told that the stream lives."""


async def show(visit: Visit) -> Response:
    name = visit.query.needed("topic")
    topic = await visit.client.admin.describe_topic(name)
    text, queue = visit.query.text("filter"), visit.query.text("queue")
    if text:
        Expression(text)
    return visit.show("tail.html", topic=topic, filter=text, queue=queue)


async def feed(visit: Visit) -> Response:
    name = visit.query.needed("topic")
    topic = await visit.client.admin.describe_topic(name)
    number = visit.query.whole("queue") if visit.query.text("queue") else None
    queues = [queue.queue for queue in choose_queues(topic, number, None)]
    text = visit.query.text("filter")
    keeps = Expression(text).fits if text else None

    async def events() -> AsyncGenerator[bytes]:
        reader = visit.client.reader(
            name,
            queues=queues,
            start="latest",
            fetch_bytes=FETCH_BYTES,
            prefetch_bytes=4 * FETCH_BYTES,
            on_lost="skip",
        )
        try:
            async with reader:
                yield event("begun", len(queues))
                while True:
                    messages = await reader.poll(POLL_MESSAGES, QUIET_S)
                    fit = await kept(messages, keeps)
                    rows = [row(message) for message in fit[-ROWS:]]
                    skipped = len(fit) - len(rows)
                    data = {"scanned": len(messages), "skipped": skipped, "rows": rows}
                    yield event("messages", data)
                    await asyncio.sleep(EVERY_S)
        except SemelError as error:
            yield event("problem", error.message or type(error).__name__)

    return EventStream(visit.site, events())


def row(message: Message) -> dict[str, Any]:
    """A message as the page shows it, in texts."""
    return {
        "queue": message.queue,
        "offset": message.offset,
        "time": render.when(message.timestamp_us),
        "key": "" if message.key is None else decoding.line(message.key, 60),
        "value": decoding.line(message.value),
        "size": render.size(len(message.value or b"")),
    }


routes = [Route("/tail", page(show)), Route("/tail/feed", page(feed))]
