"""The client's side of SCRAM, written from RFC 5802 for tests alone."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One exchange. Everything that it says may be changed before it is sent."""

    def __init__(
        self,
        user: str,
        password: str,
        mechanism: str = "SCRAM-SHA-256",
        *,
        nonce: str = "fyko+d2lbbFgONRv9qkxdawL",
        header: str = "n,,",
    ) -> None:
        self.mechanism = mechanism
        self.header = header
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._password = password
        self._hash = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self._server_key = b""
        self._said = b""

    @property
    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, server_first: bytes, *, binding: str | None = None) -> bytes:
        answer = server_first.decode()
        said = dict(part.split("=", 1) for part in answer.split(","))
        salted = hashlib.pbkdf2_hmac(
            self._hash, self._password.encode(), base64.b64decode(said["s"]), int(said["i"])
        )
        bound = base64.b64encode((self.header if binding is None else binding).encode()).decode()
        unproved = f"c={bound},r={said['r']}"
        self._said = f"{self.bare},{answer},{unproved}".encode()
        self._server_key = hmac.digest(salted, b"Server Key", self._hash)
        key = hmac.digest(salted, b"Client Key", self._hash)
        signature = hmac.digest(hashlib.new(self._hash, key).digest(), self._said, self._hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def believes(self, server_final: bytes) -> bool:
        """Whether the server has proved that it knows the password as well."""
        expected = hmac.digest(self._server_key, self._said, self._hash)
        return server_final == b"v=" + base64.b64encode(expected)
