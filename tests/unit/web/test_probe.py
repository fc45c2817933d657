"""The console's metrics: what is counted, under which screens, and that names do not get in."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.types import Message, Scope

from semel.web.access import Access
from semel.web.app import make_app
from semel.web.config import WebConfig

pytestmark = pytest.mark.both_loops


def console() -> Starlette:
    """A console whose cluster is away."""
    config = WebConfig(bootstrap="127.0.0.1:1", call_timeout_ms=50)
    return make_app(config, Access(config, {}))


async def ask(app: Starlette, path: str, host: str = "127.0.0.1") -> tuple[int, bytes, str]:
    """Status, body and type of a response."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", host.encode())],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    status, kind, body = 0, "", b""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, kind, body
        if message["type"] == "http.response.start":
            status = message["status"]
            kind = dict(message["headers"]).get(b"content-type", b"").decode()
        body += message.get("body", b"")

    await app(scope, receive, send)
    return status, body, kind


def figures(page: bytes) -> dict[Any, float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


async def test_requests_are_counted_by_screen_and_status() -> None:
    app = console()
    for path in ("/livez", "/livez", "/static/console.css", "/topics", "/nothing/of/the/kind"):
        await ask(app, path)
    assert (await ask(app, "/livez", host="evil.example"))[0] == 421
    status, page, kind = await ask(app, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = figures(page)
    name = "semel_web_requests_total"
    assert found[name, "health", "200"] == 2
    assert found[name, "static", "200"] == 1
    assert found[name, "topics", "503"] == 1
    assert found[name, "none", "404"] == 1
    assert found[name, "none", "421"] == 1
    assert found["semel_web_response_seconds_count",] == 6
    assert found["semel_web_sessions",] == 1
    assert found["semel_web_live_pages",] == 0
    assert b"of/the" not in page
    assert b"process_resident_memory_bytes" in page


async def test_a_fault_of_a_screen_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    app = console()

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(app.state.site.sessions, "find", broken)
    with pytest.raises(RuntimeError):
        await ask(app, "/topics")
    found = figures((await ask(app, "/metrics"))[1])
    assert found["semel_web_requests_total", "topics", "500"] == 1


def test_every_screen_has_its_module() -> None:
    """Or its requests would count as those of none."""
    modules = {
        route.endpoint.__module__ for route in console().routes if hasattr(route, "endpoint")
    }
    own = {name for name in modules if not name.startswith("semel.web.screens.")}
    assert own == {"semel.web.app", "semel.web.probe"}
