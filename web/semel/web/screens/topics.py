"""Topics: the list, paged and searched at the server, and one topic with its queues and settings.

How it works. A page of the list asks for the sizes of its own topics alone. The rate of one topic
is the growth of its queues between two looks at it.

Not here: changes (`topic_changes.py`).
"""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from semel.client.admin.descriptions import TopicDescription
from semel.protos.errors import SemelError, UnknownTopic
from semel.web.paging import Page, page_of
from semel.web.visits import Visit, page

TOPICS_SHOWN = 25
QUEUES_SHOWN = 100


async def show_list(visit: Visit) -> Response:
    search, number = visit.query.text("search"), visit.query.whole("page", 1, low=1)
    admin, start = visit.client.admin, (number - 1) * TOPICS_SHOWN
    found = await admin.find_topics(search, start=start, limit=TOPICS_SHOWN)
    names = [topic.name for topic in found.topics]
    described: dict[str, TopicDescription] = {}
    reason = ""
    try:
        described = {each.name: each for each in await admin.describe_topics(names)}
    except UnknownTopic:
        reason = "a topic was deleted meanwhile: load the page again for sizes"
    except SemelError as error:  # the list itself needs no broker
        reason = f"sizes are not known: {error.message}"
    rows = [(topic, described.get(topic.name)) for topic in found.topics]
    shown = Page(
        rows=rows,
        number=number,
        pages=max(1, -(-found.matched // TOPICS_SHOWN)),
        matched=found.matched,
        scanned=found.scanned,
    )
    template = "_topic_rows.html" if visit.is_part else "topics.html"
    return visit.show(template, page=shown, search=search, reason=reason, messages=messages_of)


def messages_of(topic: TopicDescription) -> int:
    """Offsets that the topic holds."""
    return sum(queue.messages for queue in topic.queues)


async def show_one(visit: Visit) -> Response:
    name = visit.query.needed("name")
    return visit.show("topic.html", **await _figures(visit, name))


async def show_figures(visit: Visit) -> Response:
    return visit.show("_topic_figures.html", **await _figures(visit, visit.query.needed("name")))


async def _figures(visit: Visit, name: str) -> dict[str, Any]:
    admin = visit.client.admin
    topic = await admin.describe_topic(name)
    moves = await admin.list_moves(name)
    end = sum(queue.log_end_offset for queue in topic.queues)
    now_s = time.monotonic()
    seen: dict[int, tuple[float, int]] = visit.session.memory.setdefault("ends", {})
    before_s, before = seen.pop(topic.topic_id, (0.0, 0))
    while len(seen) > 50:
        seen.pop(next(iter(seen)))
    seen[topic.topic_id] = now_s, end
    rate = (end - before) / (now_s - before_s) if 0.2 < now_s - before_s < 30 else None
    number = visit.query.whole("page", 1, low=1)
    return {
        "topic": topic,
        "moves": {move.queue: move for move in moves},
        "page": page_of(topic.queues, number, size=QUEUES_SHOWN),
        "rate": rate,
        "messages": messages_of(topic),
        "size": sum(queue.bytes for queue in topic.queues),
        "delayed": sum(queue.delayed_messages for queue in topic.queues),
        "lost": sum(queue.lost_messages for queue in topic.queues),
    }


routes = [
    Route("/topics", page(show_list)),
    Route("/topic", page(show_one)),
    Route("/topic/figures", page(show_figures)),
]
