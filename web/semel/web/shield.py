"""Headers of every response, and requests that no browser of an honest page sends.

How it works. The policy lets a page load scripts, styles and pictures from the console alone, and
no script that stands in the page itself: even markup that found its way into a page could do
nothing. A request under a foreign name is refused, so that no page elsewhere can point a name of
its own at this console and read it (DNS rebinding). Addresses cannot be pointed elsewhere, so they
pass.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Shield:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if not is_own(host, self._names):
            refusal = PlainTextResponse(
                "this console is not reached under that name: see semel web --name", 421
            )
            await refusal(scope, receive, shielded)
            return
        await self._app(scope, receive, shielded)


def is_own(host: str, names: frozenset[str]) -> bool:
    """The host that a request names is an address, this machine, or one of these names."""
    name = host.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
