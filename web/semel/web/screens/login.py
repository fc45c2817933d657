"""Logging in with a token of the cluster, or with the key that the console printed; leaving.

How it works. Nothing is known of a visitor yet, so the form has no CSRF token. It is enough that
the browser says that the form came from a page of this console.

Invariant: what was typed into the form stands in no page, log or address. Only the key, which
`semel web` printed as part of an address, may come in the query, and the answer takes it out.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from semel.protos.errors import SemelError, Unauthenticated
from semel.web import pages
from semel.web.forms import Fields, query_of, read_form
from semel.web.site import Site
from semel.web.visits import (
    COOKIE,
    Visit,
    check_origin,
    page,
    problem,
    set_cookie,
    status_of,
)

KEY: Final = "key"


async def show_login(request: Request) -> Response:
    site: Site = request.app.state.site
    query = query_of(request)
    if site.access.mode == "open" or site.sessions.find(request.cookies.get(COOKIE)) is not None:
        return RedirectResponse(_next(query), status_code=303)
    if site.access.is_key(query.raw(KEY)):
        return _entered(site, "/", *site.sessions.begin(None, "the console's certificate"))
    return _form(site, _next(query))


async def log_in(request: Request) -> Response:
    site: Site = request.app.state.site
    try:
        check_origin(request)
        form = Fields(await read_form(request))
    except SemelError as error:
        return problem(request, None, error)
    proof, target = form.text("proof"), _next(form)
    try:
        if site.access.mode == "token":
            client = await site.access.log_in(proof)
            who = (await client.admin.who_am_i()).principal
            return _entered(site, target, *site.sessions.begin(client, who))
        if site.access.is_key(proof):
            return _entered(site, target, *site.sessions.begin(None, "the console's certificate"))
        raise Unauthenticated("this is not the key that `semel web` printed")
    except SemelError as error:
        return _form(site, target, error.message, status_of(error))


async def leave(visit: Visit) -> Response:
    visit.site.sessions.end(visit.session)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, path="/")
    return response


def _form(site: Site, target: str, reason: str = "", status: int = 200) -> Response:
    frame = {"entered": False, "who": "", "may_leave": False, "notices": [], "csrf": ""}
    html = pages.rendered(
        "login.html",
        **frame,
        path="/login",
        target=target,
        reason=reason,
        mode=site.access.mode,
    )
    return HTMLResponse(html, status_code=status)


def _entered(site: Site, target: str, cookie: str, _: object) -> Response:
    response = RedirectResponse(target, status_code=303)
    set_cookie(response, cookie, https=site.config.https)
    return response


def _next(fields: Fields) -> str:
    """Where the visitor wanted to go: a path of this console, and nothing else."""
    target = fields.text("next", "/")
    is_path = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_path and "\n" not in target and "\r" not in target else "/"


routes = [
    Route("/login", show_login, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", page(leave), methods=["POST"]),
]
