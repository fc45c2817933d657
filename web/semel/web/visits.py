"""One request of a visitor: who it is, whether it may ask so, and what becomes of errors.

How it works. `page` makes an endpoint of a screen's function. The visitor's session is found by its
cookie, or begun where nobody logs in; a POST must have the session's CSRF token and come from a
page of the console itself. The function gets a `Visit`. An error of the cluster becomes a page that
says what happened, with the status that fits, and one that comes back by itself if the cluster is
away.

Invariants
1. Without a session nothing is asked of the cluster.
2. A POST that is refused has changed nothing.

Not here: headers of all responses (`shield.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from semel.client import AsyncClient
from semel.protos.errors import (
    CallerError,
    InvalidRequest,
    PermissionDenied,
    SemelError,
    Unauthenticated,
    UnknownGroup,
    UnknownProducer,
    UnknownQueue,
    UnknownTopic,
)
from semel.web import pages
from semel.web.forms import Fields, query_of, read_form
from semel.web.sessions import WebSession, is_csrf
from semel.web.site import Site

COOKIE: Final = "semel_session"
SAFE: Final = ("GET", "HEAD")
AWAY: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
AGAIN_S: Final = 3
"""Seconds after which a page asks again for a cluster that was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request, with everything that a screen needs to answer it."""

    site: Site
    request: Request
    session: WebSession
    client: AsyncClient
    query: Fields
    form: Fields
    """Empty for a GET."""

    @property
    def is_part(self) -> bool:
        """A part of a page is asked for, not the whole."""
        return is_part(self.request)

    def show(self, template: str, *, code: int = 200, **context: Any) -> Response:
        """Returns a page, or a part of one if the template's name begins with `_`."""
        return HTMLResponse(
            pages.rendered(template, **_frame(self.request, self.session), **context),
            status_code=code,
        )

    def go(self, path: str, notice: str = "", **fields: object) -> Response:
        """Sends the browser on to a page, which tells the notice."""
        if notice:
            self.session.notices.append(notice)
        return RedirectResponse(pages.link(path, **fields), status_code=303)


Handler = Callable[[Visit], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def is_part(request: Request) -> bool:
    """Htmx asks for a part of a page, and not for a whole one that the visitor goes back to."""
    headers = request.headers
    return (
        headers.get("HX-Request") == "true" and headers.get("HX-History-Restore-Request") != "true"
    )


def page(handler: Handler) -> Endpoint:
    """The endpoint of a screen's function."""

    async def endpoint(request: Request) -> Response:
        return await _answer(request, handler)

    functools.update_wrapper(endpoint, handler, updated=())  # its module says which screen it is of
    return endpoint


async def _answer(request: Request, handler: Handler) -> Response:
    site: Site = request.app.state.site
    session, cookie = site.sessions.find(request.cookies.get(COOKIE)), ""
    if session is None:
        if site.access.mode != "open":
            return _to_login(request)
        if request.method not in SAFE:
            return problem(request, None, InvalidRequest("this page is too old: load it again"))
        cookie, session = site.sessions.begin(None, "")
    try:
        form = await checked_form(request, session)
        visit = Visit(
            site=site,
            request=request,
            session=session,
            client=await site.client_of(session),
            query=query_of(request),
            form=form,
        )
        response = await handler(visit)
    except Unauthenticated as error:
        if session.client is None:
            return problem(request, session, error)
        site.sessions.end(session)
        return _to_login(request)
    except SemelError as error:
        response = problem(request, session, error)
    if cookie:
        set_cookie(response, cookie, https=site.config.https)
    return response


async def checked_form(request: Request, session: WebSession) -> Fields:
    """Returns the form of a POST that a page of the session sent. Raises PermissionDenied for any
    other, InvalidRequest for one that cannot be read."""
    if request.method in SAFE:
        return Fields({})
    check_origin(request)
    form = Fields(await read_form(request))
    if not is_csrf(session, form.raw("csrf")):
        raise PermissionDenied("this form is not one of your session's: load the page again")
    return form


def check_origin(request: Request) -> None:
    """Raises PermissionDenied for a request that a page of another site has sent."""
    origin = request.headers.get("origin")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") or (
        origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    ):
        raise PermissionDenied("another site has sent this request")


def set_cookie(response: Response, cookie: str, *, https: bool) -> None:
    """Gives the browser the cookie of its session."""
    response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=https, path="/")


def problem(request: Request, session: WebSession | None, error: SemelError) -> Response:
    """Returns what tells an error, with the status that fits."""
    status = status_of(error)
    part = is_part(request)
    html = pages.rendered(
        "_problem.html" if part else "problem.html",
        **_frame(request, session),
        status=status,
        title=_title(status),
        reason=error.message or type(error).__name__,
        again=status == 503,
    )
    headers = {}
    if status == 503 and request.method in SAFE and not part:
        headers["Refresh"] = str(AGAIN_S)
    return HTMLResponse(html, status_code=status, headers=headers)


def status_of(error: SemelError) -> int:
    """The HTTP status that tells an error."""
    if error.status in AWAY:
        return 503
    if isinstance(error, PermissionDenied):
        return 403
    if isinstance(error, Unauthenticated):
        return 401
    if isinstance(error, UnknownTopic | UnknownQueue | UnknownGroup | UnknownProducer):
        return 404
    if error.status == "RESOURCE_EXHAUSTED":
        return 429
    return 400 if isinstance(error, CallerError) else 502


_TITLES: Final = {
    400: "This cannot be done",
    401: "The cluster does not know you",
    403: "You may not do this",
    404: "There is no such thing",
    429: "Too much at once",
    502: "The cluster refused",
    503: "The cluster does not answer",
}


def _title(status: int) -> str:
    return _TITLES[status]


def _frame(request: Request, session: WebSession | None) -> dict[str, Any]:
    """What the frame of every page shows."""
    notices: list[str] = []
    if session is not None and not is_part(request):
        notices, session.notices = session.notices, []
    return {
        "path": request.url.path,
        "csrf": "" if session is None else session.csrf,
        "who": "" if session is None else session.who,
        "entered": session is not None,
        "may_leave": session is not None and request.app.state.site.access.mode != "open",
        "notices": notices,
    }


def _to_login(request: Request) -> Response:
    here = request.url.path
    if request.url.query:
        here += f"?{request.url.query}"
    target = f"/login?next={quote(here, safe='')}" if request.method in SAFE else "/login"
    if is_part(request):
        return Response(status_code=401, headers={"HX-Redirect": "/login"})
    return RedirectResponse(target, status_code=303)
