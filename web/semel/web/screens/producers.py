"""Named producers, their rows of the sequence table, and what became of one message."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from semel.client.admin.descriptions import ProduceOutcome
from semel.protos.errors import CallerError, PermissionDenied
from semel.web.paging import page_of
from semel.web.visits import Visit, page, status_of

OUTCOMES = {
    "committed": "It is committed: stored, and never stored again.",
    "not_committed": "It is not committed. That may still change while the producer that sent it"
    " lives.",
    "too_old": "It is too old to know one by one: the producer has stored later ones since.",
}


async def show_list(visit: Visit) -> Response:
    search = visit.query.text("search")
    every = await visit.client.admin.list_producers()
    wanted = search.casefold()
    found = [one for one in every if wanted in one.name.casefold()]
    number = visit.query.whole("page", 1, low=1)
    return visit.show(
        "producers.html", page=page_of(found, number, scanned=len(every)), search=search
    )


async def show_one(visit: Visit) -> Response:
    query = visit.query
    name = query.needed("name")
    found = await visit.client.admin.describe_producer(name)
    outcome: ProduceOutcome | None = None
    reason, code = "", 200
    if query.text("topic"):
        try:
            outcome = await visit.client.admin.produce_outcome(
                name, query.text("topic"), query.whole("queue"), query.whole("sequence")
            )
        except CallerError as error:
            if isinstance(error, PermissionDenied):
                raise
            reason, code = error.message, status_of(error)
    return visit.show(
        "producer.html",
        code=code,
        producer=found,
        page=page_of(found.queues, query.whole("page", 1, low=1)),
        outcome=outcome,
        meaning=OUTCOMES[outcome.outcome] if outcome else "",
        reason=reason,
        filled={field: query.text(field) for field in ("topic", "queue", "sequence")},
    )


routes = [
    Route("/producers", page(show_list)),
    Route("/producer", page(show_one)),
]
