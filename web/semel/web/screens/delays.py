"""Delayed messages of a topic: how many are due when, which come first, and taking one out."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from semel.web.visits import Visit, page

MESSAGES_SHOWN: Final = 100
RELEASES_SHOWN: Final = 20
TOPICS_SHOWN: Final = 100


async def show(visit: Visit) -> Response:
    name = visit.query.text("topic")
    if not name:
        search = visit.query.text("search")
        found = await visit.client.admin.find_topics(search, limit=TOPICS_SHOWN)
        return visit.show("delays_topics.html", found=found, search=search)
    admin = visit.client.admin
    stats = await admin.delay_stats(name)
    before = visit.query.time("before")
    messages = await admin.list_delayed(name, before=before, limit=MESSAGES_SHOWN)
    return visit.show(
        "delays.html",
        topic=name,
        stats=stats,
        most=max((bucket.messages for bucket in stats.buckets), default=0),
        messages=messages,
        before=visit.query.text("before"),
        releases=await admin.delay_history(name, limit=RELEASES_SHOWN),
    )


async def cancel(visit: Visit) -> Response:
    topic, message_id = visit.form.needed("topic"), visit.form.raw("id")
    found = await visit.client.admin.cancel(topic, message_id)
    text = {
        "cancelled": "the message is cancelled: it is never delivered",
        "delivered": "it is too late: the message was delivered",
    }.get(found.result, "no message with this id is known")
    return visit.go("/delays", text, topic=topic)


routes = [
    Route("/delays", page(show)),
    Route("/delays/cancel", page(cancel), methods=["POST"]),
]
