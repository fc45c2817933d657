"""Server-sent events: pages that are fed live.

Invariant: the data of an event is one line of ASCII, whatever a message has in it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import StreamingResponse

from semel.web.site import Site


def event(name: str, data: Any) -> bytes:
    """Returns one event with JSON."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")


class EventStream(StreamingResponse):
    """A response that goes on until its reader leaves."""

    def __init__(self, site: Site, events: AsyncGenerator[bytes]) -> None:
        super().__init__(
            _counted(site, events),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )


async def _counted(site: Site, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    if site.streams >= site.config.streams_max:
        yield event("problem", f"{site.streams} pages are fed live already: close some")
        return
    site.streams += 1
    try:
        async for each in events:
            yield each
    finally:
        site.streams -= 1
        await events.aclose()
