"""The key sets by which a controller verifies tokens: Semel's own, and those of an OpenID provider.

How it works. A set is a file, read again when it is replaced, or an HTTPS address, which is asked
when a token comes and the set is older than `FRESH_S`, or does not know the token's key. While the
provider does not answer, the set before goes on for `STALE_S`. A token names its issuer, which says
by which set it is verified; that set then checks the issuer.

Invariants
1. The provider is asked at most once in `AGAIN_S`, by one task at a time, whatever tokens come.
2. An answer is at most `SET_BYTES_MAX` long and comes by HTTPS to the end, also behind a
   redirect; only this machine may answer without.

Not here: tokens (`tokens.py` of the protos).
"""

from __future__ import annotations

import asyncio
import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from semel.protos.errors import InvalidRequest, Unauthenticated, Unavailable
from semel.protos.security.followed import Followed
from semel.protos.security.login_facts import OIDC, TOKEN
from semel.protos.security.tokens import Token, TokenVerifier, issuer_of

logger = logging.getLogger(__name__)

TOKEN_KEYS: Final = "token-keys.json"  # noqa: S105 (the name of a file)
"""The file of Semel's own set in a controller's TLS directory."""
FRESH_S: Final = 300.0
STALE_S: Final = 86_400.0
AGAIN_S: Final = 10.0
SET_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 5.0
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

Make = Callable[[str], TokenVerifier]
"""Makes a verifier of a JWK set."""


class KeySet(Protocol):
    """A JWK set that may change."""

    async def verifier(self, token: str) -> TokenVerifier:
        """The verifier for a token. Raises Unavailable while there is no set."""
        ...


class FileSet:
    """A set in a file."""

    def __init__(self, path: Path, make: Make) -> None:
        """BLOCKING. Raises InvalidRequest."""
        self._file = Followed((path,), lambda: make(_read(path)))

    async def verifier(self, token: str) -> TokenVerifier:
        return self._file.current()


class UrlSet:
    """A set at an address."""

    def __init__(
        self,
        url: str,
        make: Make,
        clock_s: Callable[[], float],
        get: Callable[[str], str] | None = None,
    ) -> None:
        """`get` fetches a text, BLOCKING; it raises OSError. Raises InvalidRequest for an address
        that anybody on the way could answer."""
        check_url(url)
        self._url = url
        self._make = make
        self._clock_s = clock_s
        self._get = get or fetch
        self._verifier: TokenVerifier | None = None
        self._fetched_s = float("-inf")
        self._asked_s = float("-inf")
        self._asking = asyncio.Lock()

    async def verifier(self, token: str) -> TokenVerifier:
        async with self._asking:
            now_s = self._clock_s()
            known = self._verifier
            old = now_s - self._fetched_s > FRESH_S
            unknown = known is None or not known.knows_key(token)
            if (old or unknown) and now_s - self._asked_s > AGAIN_S:
                self._asked_s = now_s
                await self._ask(now_s)
            if self._verifier is None or now_s - self._fetched_s > STALE_S:
                raise Unavailable("the keys of the OpenID provider cannot be fetched now")
            return self._verifier

    async def _ask(self, now_s: float) -> None:
        try:
            self._verifier = self._make(await asyncio.to_thread(self._get, self._url))
            self._fetched_s = now_s
        except (OSError, ValueError, InvalidRequest) as error:
            logger.warning("no key set of the OpenID provider url=%s error=%s", self._url, error)


class KeySets:
    """Verifies tokens of all issuers of one cluster."""

    def __init__(
        self, own: KeySet | None, issuer: str = "", provider: KeySet | None = None
    ) -> None:
        """`own` is Semel's set; `provider` is that of the OpenID provider `issuer`."""
        self._own = own
        self._issuer = issuer
        self._provider = provider

    async def verify(self, token: str, now_s: float) -> tuple[Token, str]:
        """What a token says, and the way of logging in that it is. Raises Unauthenticated, and
        Unavailable while the provider's keys are not known."""
        of_provider = self._provider is not None and issuer_of(token) == self._issuer
        chosen = self._provider if of_provider else self._own
        if chosen is None:
            raise Unauthenticated("this cluster takes no such tokens")
        found = (await chosen.verifier(token)).verify(token, now_s)
        return found, OIDC if of_provider else TOKEN


def check_url(url: str) -> None:
    """Raises InvalidRequest for an address that anybody on the way could answer."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise InvalidRequest(f"{url!r} is no place for keys: use https://")
    if parts.username or parts.password:
        raise InvalidRequest("the address of the keys must have no user and no password")


def fetch(url: str) -> str:
    """BLOCKING. The text at an address. Raises OSError, ValueError."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 (checked)
        try:
            check_url(answer.url)
        except InvalidRequest:
            raise ValueError("it leads to an address without HTTPS") from None
        found: bytes = answer.read(SET_BYTES_MAX + 1)
    if len(found) > SET_BYTES_MAX:
        raise ValueError(f"the key set is longer than {SET_BYTES_MAX} bytes")
    return found.decode()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidRequest(f"{path} cannot be read: {reason}") from None
