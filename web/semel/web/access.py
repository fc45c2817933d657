"""How the console reaches the cluster, and as whom.

How it works. What the client's file says decides (`SEMEL_CLIENT_CONFIG`, `SEMEL_PROFILE`):

| the file has | who a visitor is | what a visitor shows |
|---|---|---|
| nothing of security | everybody, as in the whole cluster | nothing |
| where to log in | the user of a token, with that user's rights | the token |
| a certificate | the certificate's owner | the key that `semel web` printed |

With tokens every session has a client of its own, so that the cluster itself decides what it may
see. Else all sessions share one, which connects when it is first needed and again after a failure:
the console starts while the cluster is away.

Invariant: no log, error or page has a token or the key.

Not here: cookies (`sessions.py`).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal

from semel.client import AsyncClient, connect_async
from semel.client.client_file import TOKEN, TOKEN_FILE, chosen
from semel.client.login import Login
from semel.protos.errors import SemelError, Unauthenticated
from semel.web.config import WebConfig

Mode = Literal["open", "token", "key"]
TOKEN_CHARACTERS_MAX: Final = 8_192


class Access:
    """The way to one cluster."""

    def __init__(self, config: WebConfig, environment: Mapping[str, str]) -> None:
        """BLOCKING. Reads the client's file. Raises InvalidRequest."""
        self._config = config
        self._environment = {
            name: value for name, value in environment.items() if name not in (TOKEN, TOKEN_FILE)
        }
        try:
            found = chosen(self._environment)
        except Unauthenticated:  # it says where to log in, and not as whom: as intended
            found = chosen({**self._environment, TOKEN: "a visitor's"})
        self._security: Final = found.security
        self._bootstrap: Final = config.bootstrap or found.bootstrap or None
        self.mode: Mode = "open"
        if found.login is not None:
            self.mode = "token"
        elif found.security is not None:
            self.mode = "key"
        self.key: Final = secrets.token_urlsafe(24) if self.mode == "key" else ""
        """What a visitor must show if the console has a certificate."""
        self._shared: AsyncClient | None = None
        self._connecting = asyncio.Lock()

    def is_key(self, shown: str) -> bool:
        """The visitor has shown the key."""
        return bool(self.key) and hmac.compare_digest(shown.encode(), self.key.encode())

    async def shared(self) -> AsyncClient:
        """Returns the client of all visitors. Raises SemelError while the cluster is away."""
        if self._shared is None:
            async with self._connecting:
                if self._shared is None:
                    self._shared = await self._connect(security=self._security)
        return self._shared

    async def log_in(self, token: str) -> AsyncClient:
        """Returns a client with the rights of a token's user. Raises Unauthenticated, and
        SemelError while the cluster is away."""
        if not token or len(token) > TOKEN_CHARACTERS_MAX:
            raise Unauthenticated("this is no token")
        login = await asyncio.to_thread(self._login, token)
        return await self._connect(login=login)

    async def close(self) -> None:
        """Closes the client of all visitors."""
        client, self._shared = self._shared, None
        if client is not None:
            await close_quietly(client)

    def _login(self, token: str) -> Login:
        """BLOCKING."""
        found = chosen({**self._environment, TOKEN: token}).login
        assert found is not None, "the file says where to log in"
        return found

    async def _connect(self, **proof: Any) -> AsyncClient:
        config = self._config
        return await connect_async(
            self._bootstrap,
            **{name: value for name, value in proof.items() if value is not None},
            connect_timeout_ms=config.call_timeout_ms,
            request_timeout_ms=config.call_timeout_ms,
            close_timeout_ms=2_000,
            keep_routes=False,
        )


async def close_quietly(client: AsyncClient) -> None:
    """Closes a client; what it could not say any more matters to nobody."""
    try:
        await client.close()
    except SemelError:
        return
