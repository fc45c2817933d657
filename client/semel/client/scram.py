"""Leading a client of somebody else through SCRAM, as the Kafka gateway does.

How it works. The client's messages go on to a controller as they are, and the answers back. The
password never comes here, so the certificate that the exchange ends with cannot be renewed: the
client has to prove again who it is.

Not here: the exchange itself (the controllers' `login/scram_logins.py`), logins that a program
makes for itself (`login.py`).
"""

from __future__ import annotations

import asyncio

from semel.client.certified import Certified, Place, new_request, read_ca


class ScramLogin(Certified):
    """One exchange (`credentials.Source` once it has ended well). `begin`, then `finish`."""

    def __init__(self, place: Place, mechanism: str) -> None:
        """BLOCKING. Reads the CA. `mechanism` is SASL's name. Raises InvalidRequest."""
        super().__init__(place)
        self._mechanism = mechanism
        self._key, self._request = new_request()
        self._client_first = b""

    async def begin(self, client_first: bytes, timeout_s: float) -> bytes:
        """The answer to a client's first message. Raises SemelError."""
        from semel.protos.v1.login_pb2 import BeginScramReply, BeginScramRequest

        ca, _ = await asyncio.to_thread(read_ca, self._ca_path)
        self._client_first = client_first
        message = BeginScramRequest(
            mechanism=self._mechanism, client_first=client_first, signing_request=self._request
        )
        reply: BeginScramReply = await self._ask("BeginScram", message, ca, timeout_s)
        return reply.server_first

    async def finish(self, client_final: bytes, timeout_s: float) -> bytes:
        """The answer to the client's final message; whose it is, the certificate says from now on.
        Raises SemelError, of it Unauthenticated for a wrong proof."""
        from semel.protos.v1.login_pb2 import FinishScramReply, FinishScramRequest

        ca, ca_expires_at = await asyncio.to_thread(read_ca, self._ca_path)
        message = FinishScramRequest(
            mechanism=self._mechanism,
            client_first=self._client_first,
            client_final=client_final,
            signing_request=self._request,
        )
        reply: FinishScramReply = await self._ask("FinishScram", message, ca, timeout_s)
        self._take(ca, ca_expires_at, self._key, reply.certificate)
        return reply.server_final

    async def run(self) -> None:
        """Waits: only another login brings another certificate."""
        await asyncio.Event().wait()
