"""Visitors: sessions behind a cookie, each with its token against forged requests.

How it works. A session's cookie is a random number, `HttpOnly` and `SameSite=Strict`; here only its
hash is kept. Every form of a page has the session's CSRF token, a second random number that pages
of other sites cannot read, and a POST without it is refused.

Invariants
1. A session that was idle for too long, or was ended, is never found again, and its client is
   closed.
2. There are at most so many sessions as the settings say: the one that was idle longest goes.

Not here: who may have a session (`access.py`), cookies in headers (`visits.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from semel.client import AsyncClient

_BYTES: Final = 32


@dataclass(slots=True, kw_only=True, eq=False)
class WebSession:
    """One visitor."""

    csrf: str = field(repr=False)
    """The token that each of its POSTs has."""
    client: AsyncClient | None
    """Its own client; None if all visitors share one."""
    who: str
    """The user, for people; empty where nobody logs in."""
    seen_s: float
    """When its last request came, on the monotonic clock."""
    notices: list[str] = field(default_factory=list)
    """What the next page tells: the result of the form before it."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What screens remember between two requests, such as plans that were shown."""


class Sessions:
    """All visitors. `on_end` gets each session that ends."""

    def __init__(
        self,
        *,
        most: int,
        idle_s: float,
        clock: Callable[[], float],
        on_end: Callable[[WebSession], object],
    ) -> None:
        self._most = most
        self._idle_s = idle_s
        self._clock = clock
        self._on_end = on_end
        self._by_hash: OrderedDict[bytes, WebSession] = OrderedDict()
        """The one that was idle longest is first."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, client: AsyncClient | None, who: str) -> tuple[str, WebSession]:
        """Returns the cookie of a new session, and the session."""
        self.end_idle()
        while len(self._by_hash) >= self._most:
            self._on_end(self._by_hash.popitem(last=False)[1])
        cookie = secrets.token_urlsafe(_BYTES)
        session = WebSession(
            csrf=secrets.token_urlsafe(_BYTES), client=client, who=who, seen_s=self._clock()
        )
        self._by_hash[_hash(cookie)] = session
        return cookie, session

    def find(self, cookie: str | None) -> WebSession | None:
        """Returns the session of a cookie, and notes that it was seen."""
        self.end_idle()
        if not cookie:
            return None
        name = _hash(cookie)
        session = self._by_hash.get(name)
        if session is not None:
            session.seen_s = self._clock()
            self._by_hash.move_to_end(name)
        return session

    def end(self, ending: WebSession) -> None:
        """Ends a session."""
        for name, session in self._by_hash.items():
            if session is ending:
                del self._by_hash[name]
                self._on_end(session)
                return

    def end_idle(self) -> None:
        """Ends those that were idle for too long."""
        oldest_s = self._clock() - self._idle_s
        while self._by_hash:
            name, session = next(iter(self._by_hash.items()))
            if session.seen_s >= oldest_s:
                return
            del self._by_hash[name]
            self._on_end(session)

    def end_all(self) -> list[WebSession]:
        """Ends all without a word to `on_end`, and returns them."""
        found = list(self._by_hash.values())
        self._by_hash.clear()
        return found


def is_csrf(session: WebSession, shown: str) -> bool:
    """The request has the session's token."""
    return hmac.compare_digest(session.csrf.encode(), shown.encode())


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).digest()
