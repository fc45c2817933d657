"""The web console as an ASGI application: its routes, its files, its health and metrics.

Not here: the server (`serving.py`), one request (`visits.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest, SemelError, UnknownTopic
from semel.web import pages
from semel.web.access import Access
from semel.web.config import WebConfig
from semel.web.probe import Measured, WebFigures, show_metrics
from semel.web.screens import (
    audit,
    cluster,
    delays,
    groups,
    letters,
    login,
    messages,
    producers,
    resets,
    tail,
    topic_changes,
    topics,
    transactions,
    verify,
)
from semel.web.shield import Shield
from semel.web.site import Site
from semel.web.visits import problem

READY_S = 3.0
KEPT_S = 31_536_000


class _Kept(StaticFiles):
    """Files that browsers keep: their paths change with their content."""

    async def get_response(self, path: str, scope: object) -> Response:
        response = await super().get_response(path, scope)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = f"public, max-age={KEPT_S}, immutable"
        return response


def make_app(config: WebConfig, access: Access) -> Starlette:
    """Returns the application."""
    site = Site(config, access)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with site.running():
            yield

    names = {Address.parse(config.listen).host.lower(), *(name.lower() for name in config.names)}
    screens = (
        login,
        cluster,
        topics,
        topic_changes,
        messages,
        tail,
        groups,
        resets,
        letters,
        delays,
        transactions,
        producers,
        verify,
        audit,
    )
    figures = WebFigures()
    app = Starlette(
        routes=[
            *(route for screen in screens for route in screen.routes),
            Route("/livez", _alive),
            Route("/readyz", _ready),
            Route("/metrics", show_metrics),
            Mount("/static", _Kept(directory=pages.STATIC)),
        ],
        middleware=[
            Middleware(Measured, figures=figures),
            Middleware(Shield, names=frozenset(names)),
        ],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_bug},
        lifespan=lifespan,
    )
    app.state.site = site
    app.state.figures = figures
    return app


async def _alive(_: Request) -> Response:
    return PlainTextResponse("alive\n")


async def _ready(request: Request) -> Response:
    """Whether the cluster answers. Where every visitor has a client of its own there is none to ask
    with, and the console itself is ready."""
    site: Site = request.app.state.site
    if site.access.mode == "token":
        return PlainTextResponse("ready\n")
    try:
        async with compat.timeout(READY_S):
            await (await site.access.shared()).admin.cluster_status()
    except (SemelError, TimeoutError):
        return PlainTextResponse("the cluster does not answer\n", 503)
    return PlainTextResponse("ready\n")


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem(request, None, UnknownTopic(f"there is no page {request.url.path}"))
    return problem(request, None, InvalidRequest(error.detail))


async def _on_bug(_: Request, __: Exception) -> Response:
    return PlainTextResponse("a fault of the console itself: its log has the details\n", 500)
