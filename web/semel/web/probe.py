"""The metrics of the web console at `GET /metrics`: their table, the page, and what counts.

How it works. `Measured` stands before the application and counts each response when it begins, so
that pages that are fed live count like others. A request's screen is the module of its endpoint,
never a part of its path: the number of series does not depend on what visitors ask for. The page
is text of prometheus-client, as that of brokers and controllers.

Invariant: nothing of the cluster stands in the page, no name and no figure. So it may be read
without a login, like `/livez`.

Not here: text of the format (`semel.protos.metrics`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.protos.metrics import CONTENT_TYPE, Histogram, Metric, Samples, render
from semel.web.site import Site

METRICS: Final = (
    Metric(
        name="semel_web_info", kind="gauge", unit="1", text="This program.", labels=("version",)
    ),
    Metric(
        name="semel_web_requests_total",
        kind="counter",
        unit="requests",
        text="Requests that were answered, by screen (`static` for files, `health` for probes,"
        " `none` for what there is not) and by HTTP status.",
        labels=("screen", "status"),
    ),
    Metric(
        name="semel_web_response_seconds",
        kind="histogram",
        unit="seconds",
        text="From a request to the begin of its response.",
    ),
    Metric(
        name="semel_web_sessions", kind="gauge", unit="sessions", text="Visitors with a session."
    ),
    Metric(
        name="semel_web_live_pages", kind="gauge", unit="pages", text="Pages that are fed live now."
    ),
)
_SCREENS: Final = "semel.web.screens."
_OWN: Final = "semel.web."


class WebFigures:
    """What has happened at one console. Lives on its event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """By screen and status."""
        self.seconds = Histogram()

    def count(self, screen: str, status: int, seconds: float) -> None:
        """Counts one response."""
        self.requests[screen, status] += 1
        self.seconds.observe(seconds)

    def page(self, site: Site) -> Samples:
        """All figures as of now."""
        page = Samples(METRICS, {})
        page.add("semel_web_info", 1, version=version("semel"))
        for (screen, status), count in sorted(self.requests.items()):
            page.add("semel_web_requests_total", count, screen=screen, status=status)
        page.add("semel_web_response_seconds", self.seconds)
        page.add("semel_web_sessions", len(site.sessions))
        page.add("semel_web_live_pages", site.streams)
        return page


def screen_of(scope: Scope) -> str:
    """The screen that has answered a request."""
    endpoint: Any = scope.get("endpoint")
    module: str = getattr(endpoint, "__module__", "")
    if module.startswith(_SCREENS):
        return module.removeprefix(_SCREENS)
    if not module.startswith(_OWN):
        return "none"
    return "health" if callable(endpoint) and hasattr(endpoint, "__name__") else "static"


class Measured:
    """ASGI middleware."""

    def __init__(
        self, app: ASGIApp, figures: WebFigures, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._figures = figures
        self._clock_s = clock_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, begun = self._clock_s(), False

        def count(status: int) -> None:
            nonlocal begun
            begun = True
            self._figures.count(screen_of(scope), status, self._clock_s() - began_s)

        async def measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, measured)
        except Exception:
            if not begun:
                count(500)  # what stands before this answers so
            raise


async def show_metrics(request: Request) -> Response:
    """Returns the page."""
    figures: WebFigures = request.app.state.figures
    page = figures.page(request.app.state.site)
    return Response(await asyncio.to_thread(render, page), media_type=CONTENT_TYPE)
