"""The cluster at a glance: groups, masters, disks, rates as live lines, findings with advice.

How it works. The page comes at once; its state is asked for again every two seconds, and the rates
are fed live. Findings are those of `semel doctor`. What is asked of consumer groups and producers
for them is much, so that is a button.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.routing import Route

from semel.console import status
from semel.console.diagnosis import diagnose
from semel.web.events import EventStream, event
from semel.web.rates import Point
from semel.web.visits import Visit, page


async def show(visit: Visit) -> Response:
    return visit.show("cluster.html")


async def show_state(visit: Visit) -> Response:
    found = await visit.client.admin.inspect_cluster()
    reports = {(node.group, node.node): node for node in found.nodes}
    return visit.show(
        "_cluster_state.html",
        found=found,
        status=found.status,
        masterless=status.masterless(found),
        under_replicated=status.under_replicated(found),
        rows=[
            (
                group,
                node,
                reports[group.id, node.id],
                status.state(node, reports[group.id, node.id]),
            )
            for group in found.status.groups
            for node in group.nodes
        ],
        roles={each.address: each.role for each in found.status.controllers},
    )


async def show_findings(visit: Visit) -> Response:
    deep = visit.query.flag("deep")
    found = await visit.client.admin.inspect_cluster(deep=deep)
    return visit.show("_findings.html", findings=diagnose(found), deep=deep)


async def feed_rates(visit: Visit) -> Response:
    rates = visit.site.rates_of(visit.session)

    async def events() -> AsyncGenerator[bytes]:
        yield event("history", [list(point) for point in rates.history])
        async with contextlib.aclosing(rates.follow()) as answers:
            async for answer in answers:
                if isinstance(answer, Point):
                    yield event("point", list(answer))
                else:
                    yield event("problem", answer.reason)

    return EventStream(visit.site, events())


routes = [
    Route("/", page(show)),
    Route("/cluster/state", page(show_state)),
    Route("/cluster/findings", page(show_findings)),
    Route("/cluster/rates", page(feed_rates)),
]
