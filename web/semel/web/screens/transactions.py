"""Transactions: which are open, what they have staged, and ending one."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from semel.protos.errors import InvalidRequest
from semel.web.paging import page_of
from semel.web.visits import Visit, page


async def show_list(visit: Visit) -> Response:
    only_open, search = visit.query.flag("open"), visit.query.text("search")
    every = await visit.client.transactions.list()
    found = [
        one
        for one in every
        if search.casefold() in one.transaction_id.casefold()
        and not (only_open and one.state == "idle")
    ]
    return visit.show(
        "transactions.html",
        page=page_of(found, visit.query.whole("page", 1, low=1), scanned=len(every)),
        search=search,
        only_open=only_open,
    )


async def show_one(visit: Visit) -> Response:
    name = visit.query.needed("id")
    found = await visit.client.transactions.describe(name)
    if found is None:
        raise InvalidRequest(f"no broker knows a transaction {name!r} (any more)")
    return visit.show("transaction.html", one=found)


async def abort(visit: Visit) -> Response:
    name = visit.form.needed("id")
    transactions = visit.client.transactions
    before = await transactions.describe(name)
    await transactions.end(name)
    after = await transactions.describe(name)
    if before is None:
        text = f"no broker knows a transaction {name} (any more)"
    elif after is not None and after.state != "idle":
        text = f"{name} is {after.state} again: a program is at work under it"
    elif before.state == "publishing" or (
        after is not None and after.last_epoch > before.last_epoch
    ):
        text = f"what was open of {name} is committed, and is published"
    else:
        text = f"what was open of {name} is given up"
    return visit.go("/transactions", text)


routes = [
    Route("/transactions", page(show_list)),
    Route("/transaction", page(show_one)),
    Route("/transaction/abort", page(abort), methods=["POST"]),
]
