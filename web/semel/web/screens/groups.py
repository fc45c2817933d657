"""Consumer groups: the list, paged and searched at the server, and one with members, queues, lag.

Not here: resetting offsets (`resets.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from semel.client.admin.descriptions import GroupQueue
from semel.console import render
from semel.web import lag_lines
from semel.web.lag_lines import GroupLines
from semel.web.paging import Page, page_of
from semel.web.visits import Visit, page

GROUPS_SHOWN = 10
QUEUES_SHOWN = 100
MEMBERS_SHOWN = 100
ORDERS: dict[str, Callable[[GroupQueue], int]] = {
    "lag": lambda queue: -queue.lag,
    "held": lambda queue: -queue.lock.held_ms if queue.lock else 1,
    "uncommitted": lambda queue: -queue.lock.uncommitted_ms if queue.lock else 1,
}
"""How queues are ordered, beside by topic: the most first."""
REMEMBERED = 5
"""Groups whose lines are remembered for a visitor."""


async def show_list(visit: Visit) -> Response:
    search, number = visit.query.text("search"), visit.query.whole("page", 1, low=1)
    found = await visit.client.admin.find_groups(
        search, start=(number - 1) * GROUPS_SHOWN, limit=GROUPS_SHOWN
    )
    shown = Page(
        rows=found.groups,
        number=number,
        pages=max(1, -(-found.matched // GROUPS_SHOWN)),
        matched=found.matched,
        scanned=found.scanned,
    )
    template = "_group_rows.html" if visit.is_part else "groups.html"
    return visit.show(template, page=shown, search=search)


async def show_one(visit: Visit) -> Response:
    return visit.show("group.html", **await _figures(visit))


async def show_figures(visit: Visit) -> Response:
    return visit.show("_group_figures.html", **await _figures(visit))


async def _figures(visit: Visit) -> dict[str, Any]:
    name = visit.query.needed("name")
    group = await visit.client.admin.describe_group(name)
    order = visit.query.text("order")
    queues = group.queues
    if order in ORDERS:
        queues = sorted(queues, key=ORDERS[order])
    shown = page_of(queues, visit.query.whole("page", 1, low=1), size=QUEUES_SHOWN)
    remembered: dict[str, GroupLines] = visit.session.memory.setdefault("lag", {})
    lines = remembered.pop(name, GroupLines())
    while len(remembered) >= REMEMBERED:
        remembered.pop(next(iter(remembered)))
    remembered[name] = lines
    looked = [((queue.topic, queue.queue), queue.lag) for queue in shown.rows]
    lines.add(time.monotonic(), group.lag, looked)
    return {
        "group": group,
        "order": order,
        "page": shown,
        "members": group.members[:MEMBERS_SHOWN],
        "members_left": max(0, len(group.members) - MEMBERS_SHOWN),
        "locks": sum(bool(queue.owner) for queue in group.queues),
        "lines": lines,
        "most": max(point.lag for point in lines.whole),
        "watched_s": round(lines.whole[-1].time_s - lines.whole[0].time_s),
        "drawn": lag_lines,
        "ranges": render.ranges,
    }


async def delete(visit: Visit) -> Response:
    name = visit.form.needed("name")
    if visit.form.text("typed") != name:
        return visit.go("/group", f"nothing was deleted: type {name} to delete it", name=name)
    await visit.client.admin.delete_group(name)
    return visit.go("/groups", f"group {name} is deleted")


routes = [
    Route("/groups", page(show_list)),
    Route("/group", page(show_one)),
    Route("/group/figures", page(show_figures)),
    Route("/group/delete", page(delete), methods=["POST"]),
]
