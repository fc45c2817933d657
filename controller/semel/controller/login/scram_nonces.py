"""Nonces of SCRAM that no controller has to remember. Pure.

How it works. What the server adds to a client's nonce says when it was made, has random bytes, and
ends with a MAC over these and over all that the exchange is bound to. The MAC's key is known to all
controllers, so any of them can take the second half of an exchange that another one has begun.

Within `GOOD_S` the second half can be shown again: it brings another certificate for the key that
the exchange is bound to, which only the program has that began it. So whoever has overheard an
exchange gets nothing by it, and without the client's proof there is nothing to show.

Format. In base64: milliseconds since the epoch (8 bytes, big-endian), 16 random bytes, HMAC-SHA-256
(32 bytes).

Not here: the exchange (`scram_logins.py`), its messages (`scram.py` of the protos).
"""

from __future__ import annotations

import base64
import hmac
from typing import Final

GOOD_S: Final = 30.0
"""Seconds for the second half of an exchange, also between two clocks that differ."""
RANDOM_BYTES: Final = 16
_TIME_BYTES: Final = 8
_MAC_BYTES: Final = 32


def new_nonce(secret: bytes, bound_to: tuple[bytes, ...], now_s: float, random: bytes) -> str:
    """A nonce; `random` are RANDOM_BYTES."""
    head = int(now_s * 1000).to_bytes(_TIME_BYTES) + random
    return base64.b64encode(head + _mac(secret, head, bound_to)).decode()


def is_good(secret: bytes, bound_to: tuple[bytes, ...], now_s: float, nonce: str) -> bool:
    """Whether `new_nonce` has made it for the same exchange, lately."""
    try:
        data = base64.b64decode(nonce, validate=True)
    except ValueError:
        return False
    head, mac = data[: _TIME_BYTES + RANDOM_BYTES], data[_TIME_BYTES + RANDOM_BYTES :]
    if not hmac.compare_digest(mac, _mac(secret, head, bound_to)):
        return False
    return abs(now_s - int.from_bytes(head[:_TIME_BYTES]) / 1000) <= GOOD_S


def _mac(secret: bytes, head: bytes, bound_to: tuple[bytes, ...]) -> bytes:
    parts = b"".join(len(part).to_bytes(4) + part for part in (head, *bound_to))
    return hmac.digest(secret, b"nonce\0" + parts, "sha256")
