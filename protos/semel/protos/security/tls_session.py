"""One TLS connection in memory: bytes from the network in, bytes for the network out. No I/O.

How it works. Python's `ssl` works on two memory buffers. Up to the end of the handshake the session
takes bytes by `advance`; from then on it decrypts by `feed` and `decrypt`, and encrypts by
`encrypt`. Large writes are cut into few large pieces: each call of `ssl` gives up the interpreter,
and takes it back from whoever has it then.

Invariants
1. Before the handshake is complete, the other end gets `HANDSHAKE_BYTES_MAX` bytes taken and no
   more, and no byte of it is passed on.
2. Buffers hold what the caller has fed and not yet decrypted, and one piece of `PIECE_BYTES`.
3. Messages have to tell their own end: a connection that breaks is not told from one that an
   attacker cuts off.

Not here: sockets, time limits, pausing (`tls_connection.py`); which certificates count
(`credentials.py`).
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias, cast

Bytes: TypeAlias = bytes | bytearray | memoryview

RECORD_BYTES: Final = 16 << 10
"""The largest record of TLS."""
PIECE_BYTES: Final = 64 << 10
"""Bytes that are encrypted in one call."""
HANDSHAKE_BYTES_MAX: Final = 64 << 10
TLS_REFUSAL: Final = bytes.fromhex("15030300020246")
"""The answer of a port with TLS to a connection in plaintext: the alert `protocol_version`."""
PLAINTEXT_REFUSAL: Final = b"\x02"
"""The answer of a port without TLS to a connection that begins a handshake."""

_STEP_BYTES: Final = 4 << 10
_HANDSHAKE: Final = 0x16
_ALERT: Final = 0x15
_MAJOR: Final = 0x03
_REFUSES: Final = {
    "CERTIFICATE_REQUIRED": "it wants a certificate, and this end has shown none",
    "UNKNOWN_CA": "it does not trust the CA of this end's certificate",
    "CERTIFICATE_EXPIRED": "this end's certificate has expired",
    "BAD_CERTIFICATE": "it does not accept this end's certificate",
    "UNSUPPORTED_CERTIFICATE": "it does not accept this end's certificate for this use",
    "CERTIFICATE_UNKNOWN": "it does not accept this end's certificate",
    "PROTOCOL_VERSION": "it speaks no version of TLS that this end speaks",
    "HANDSHAKE_FAILURE": "it has no cipher in common with this end",
}
"""What an alert of the other end means, by a part of its name in `ssl`."""


class TlsFailed(ConnectionError):
    """A handshake failed, or what came behind it is not what the other end has sent."""

    def __init__(self, reason: str, *, plaintext: bool = False) -> None:
        super().__init__(reason)
        self.plaintext = plaintext
        """The other end does not speak TLS."""


def begins_tls(data: Bytes) -> bool:
    """Whether the first bytes of a connection are those of a TLS handshake."""
    return bool(data) and data[0] == _HANDSHAKE and (len(data) < 2 or data[1] == _MAJOR)


def is_tls_alert(data: Bytes) -> bool:
    """Whether the first bytes of an answer are those of a port with TLS that refuses plaintext."""
    return bool(data) and data[0] == _ALERT


class TlsSession:
    """One end of a connection. Raises TlsFailed where it says so, and nothing after that."""

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        """`server_hostname` is the name that the called end's certificate must have."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._read = cast("Callable[[int, memoryview], int]", self.ssl.read)
        self.established = False
        self.ended = False
        """The other end has said that nothing more comes."""
        self._server_side = server_side
        self._taken = 0
        """Bytes that came before the handshake was complete."""

    @property
    def readable(self) -> bool:
        """Whether `decrypt` may have something."""
        return not self.ended and bool(self._incoming.pending or self.ssl.pending())

    @property
    def pending(self) -> int:
        """Number of bytes that wait to be taken by `take`."""
        return self._outgoing.pending

    def take(self) -> bytes:
        """Returns the bytes to send that no call has returned yet."""
        return self._outgoing.read()

    def advance(self, data: Bytes) -> None:
        """Goes on with the handshake; `established` says whether it is complete. Whatever comes of
        it, `take` has something to send. Raises TlsFailed."""
        assert not self.established
        if data and not self._taken:
            self._check_first(data)
        view, at = memoryview(data), 0
        # In small steps: what comes behind the handshake, in the same read, does not count.
        while not self.established and (at < len(view) or not data):
            step = view[at : at + _STEP_BYTES]
            at += len(step)
            self._taken += len(step)
            if self._taken > HANDSHAKE_BYTES_MAX:
                raise TlsFailed(f"its TLS handshake is longer than {HANDSHAKE_BYTES_MAX} bytes")
            self._incoming.write(step)
            try:
                self.ssl.do_handshake()
                self.established = True
            except ssl.SSLWantReadError:
                if not data:
                    return
            except ssl.SSLError as error:
                raise TlsFailed(explain(error)) from None
        self._incoming.write(view[at:])

    def feed(self, data: Bytes) -> None:
        """Takes bytes that came after the handshake."""
        self._incoming.write(data)

    def decrypt(self, target: memoryview) -> int:
        """Fills `target` as far as possible and returns the number of bytes. Raises TlsFailed."""
        filled, room = 0, len(target)
        try:
            while filled < room:
                count = self._read(room - filled, target[filled:])
                if not count:
                    self.ended = True
                    break
                filled += count
                if not (self._incoming.pending or self.ssl.pending()):
                    break  # which saves the exception
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise TlsFailed(explain(error)) from None
        return filled

    def encrypt(self, parts: Sequence[Bytes]) -> Iterator[bytes]:
        """Yields what is to be sent for the parts of a message, in order.

        Small parts share a record; a large one is not copied before it is encrypted.
        """
        small: list[Bytes] = []
        size = 0
        for part in parts:
            rest = part
            if size and size + len(part) > RECORD_BYTES:
                rest = memoryview(part)
                small.append(rest[: RECORD_BYTES - size])
                rest = rest[RECORD_BYTES - size :]
                yield self._encrypted(b"".join(small))
                small, size = [], 0
            if len(rest) > RECORD_BYTES:
                view = memoryview(rest)
                for at in range(0, len(view), PIECE_BYTES):
                    yield self._encrypted(view[at : at + PIECE_BYTES])
            elif rest:
                small.append(rest)
                size += len(rest)
        if small:
            yield self._encrypted(small[0] if len(small) == 1 else b"".join(small))

    def end(self) -> None:
        """Says to the other end that nothing more comes."""
        if self.established:
            with contextlib.suppress(ssl.SSLError):  # it does not wait for the other end's word
                self.ssl.unwrap()

    def _encrypted(self, data: Bytes) -> bytes:
        done = self.ssl.write(data)
        while done < len(data):
            done += self.ssl.write(memoryview(data)[done:])
        return self._outgoing.read()

    def _check_first(self, data: Bytes) -> None:
        """Raises TlsFailed for an other end that does not speak TLS."""
        if self._server_side:
            if not begins_tls(data):
                raise TlsFailed(
                    "it speaks plaintext, and this port speaks TLS: give it the CA, a certificate "
                    "and a key",
                    plaintext=True,
                )
        elif not (begins_tls(data) or is_tls_alert(data)):
            raise TlsFailed(
                "it answers in plaintext, and this end wants TLS: its port is without TLS, or "
                "another program's",
                plaintext=True,
            )


def explain(error: ssl.SSLError) -> str:
    """Returns what is wrong at, or according to, the other end."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    reason = error.reason or str(error)
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate, and this end wants one"
    if "ALERT" in reason:
        for name, meaning in _REFUSES.items():
            if name in reason:
                return f"the other end refuses: {meaning}"
        return f"the other end refuses: {_words(reason)}"
    return f"TLS fails: {_words(reason)}"


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
