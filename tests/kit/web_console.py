"""`semel web` as a process, and a visitor with a cookie and no script, for tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import quote_plus, urlencode, urlsplit

_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


@contextlib.contextmanager
def web_console(*arguments: str, **variables: str) -> Iterator[str]:
    """Runs it on a free port, and yields its URL as it prints it; ends it as Ctrl-C does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
    command = [sys.executable, "-m", "semel.console", "web", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=clean | variables,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = json.loads(line)
            assert ready["event"] == "ready", line
            yield ready["url"]
        finally:
            process.terminate()
            status = process.wait(20)
        assert status == 0, f"semel web ended with {status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def html(self) -> str:
        return self.body.decode()

    @property
    def text(self) -> str:
        """What a person reads of it, with single blanks."""
        reader = _Text()
        reader.feed(self.html)
        return " ".join(" ".join(reader.parts).split())


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def tags(html: str) -> set[str]:
    """The elements of a page."""
    reader = _Text()
    reader.feed(html)
    return set(reader.tags)


class Visitor:
    """Somebody with a browser that keeps the cookie, follows redirects, and runs no script."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.address = (parts.hostname, parts.port)
        self.origin = f"http://{parts.netloc}"
        self.cookie = ""
        self._page = ""
        """The last page: forms are taken from it."""

    def get(self, path: str, **fields: object) -> Answer:
        """Opens a page."""
        if fields:
            path += f"?{urlencode(fields, quote_via=quote_plus)}"
        return self._follow("GET", path, None, {})

    def post(self, path: str, **fields: object) -> Answer:
        """Sends a form of the last page."""
        found = _CSRF.search(self._page)
        csrf = {"csrf": found[1]} if found else {}
        return self._follow("POST", path, urlencode(csrf | fields, doseq=True), {})

    def part(self, path: str, **fields: object) -> Answer:
        """Asks for a part of a page, as htmx does."""
        if fields:
            path += f"?{urlencode(fields, quote_via=quote_plus)}"
        return self.ask("GET", path, None, {"HX-Request": "true"})

    def ask(
        self, method: str, path: str, body: str | bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """Sends one request, and follows nowhere."""
        own = {"Cookie": self.cookie} if self.cookie else {}
        if body is not None:
            own |= {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.origin}
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            connection.request(method, path, body, own | dict(headers))
            response = connection.getresponse()
            answer = Answer(
                status=response.status,
                headers={name.lower(): value for name, value in response.getheaders()},
                body=response.read(),
            )
        finally:
            connection.close()
        if (given := answer.headers.get("set-cookie")) is not None:
            self.cookie = given.partition(";")[0]
        return answer

    @contextlib.contextmanager
    def events(self, path: str, **fields: object) -> Iterator[Iterator[tuple[str, object]]]:
        """Opens a stream of events, as names with their data."""
        if fields:
            path += f"?{urlencode(fields, quote_via=quote_plus)}"
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            connection.request("GET", path, None, {"Cookie": self.cookie})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert (response.getheader("content-type") or "").startswith("text/event-stream")

            def found() -> Iterator[tuple[str, object]]:
                while line := response.readline():
                    if line.startswith(b"event: "):
                        data = response.readline().removeprefix(b"data: ")
                        yield line[7:].decode().strip(), json.loads(data)

            yield found()
        finally:
            connection.close()

    def _follow(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> Answer:
        answer = self.ask(method, path, body, headers)
        for _ in range(5):
            if answer.status != 303:
                break
            answer = self.ask("GET", answer.headers["location"], None, {})
        if answer.headers.get("content-type", "").startswith("text/html"):
            self._page = answer.html
        return answer
