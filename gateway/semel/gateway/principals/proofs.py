"""What a client shows to prove who it is: the messages of SASL's mechanisms. Pure.

Format. PLAIN (RFC 4616): who the client wants to act as (empty, or the same user), NUL, the user,
NUL, the password; all UTF-8. OAUTHBEARER (RFC 7628): a GS2 header, `n,a=USER,` or `n,,`, and a byte
1; then pairs `NAME=VALUE` that each end in a byte 1, one of them `auth=Bearer TOKEN`; then one more
byte 1.

Both are one message of the client and one answer; SCRAM's two messages (RFC 5802) go to the
controllers as they are (`semel.protos.security.scram` reads them). RFC 7628 lets a server answer a
bad token with a JSON object, which the client acknowledges before it is refused. Kafka's
SaslAuthenticate has an error code for that, which every client reads, so a bad token is refused at
once.

Invariant: for any bytes, `read_proof` returns a proof or raises BadProof, and neither the error nor
a repr has any of the bytes.

Not here: whether a proof is right (`principal_pool.py`), the order of messages (`sasl_state.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

PROOF_BYTES_MAX: Final = 64 << 10
"""The most of one message; the largest tokens of providers have some ten thousand bytes."""
USER_CHARS_MAX: Final = 1_024
PASSWORD_CHARS_MAX: Final = 4_096
_PLAIN_PARTS: Final = 3
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750's b64token."""


class Mechanism(Enum):
    """The ways to prove who one is, by SASL's name."""

    PLAIN = "PLAIN"
    OAUTHBEARER = "OAUTHBEARER"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def is_scram(self) -> bool:
        """It takes two messages of the client, and the password is not among them."""
        return self in (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


class BadProof(Exception):
    """A message makes no sense. The text is for the client, and has nothing of the message."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A user and a password, or a token."""

    mechanism: Mechanism
    user: str = ""
    """The user that the client names; with a token it may name none."""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def read_proof(mechanism: Mechanism, message: bytes | memoryview) -> Proof:
    """Reads a client's message of PLAIN or OAUTHBEARER. Raises BadProof."""
    if len(message) > PROOF_BYTES_MAX:
        raise BadProof(f"a proof has {PROOF_BYTES_MAX} bytes at most, and this has {len(message)}")
    try:
        text = bytes(message).decode()
    except UnicodeDecodeError:
        raise BadProof("the message is no UTF-8") from None
    return _plain(text) if mechanism is Mechanism.PLAIN else _bearer(text)


def _plain(text: str) -> Proof:
    parts = text.split("\0")
    if len(parts) != _PLAIN_PARTS:
        raise BadProof("a message of PLAIN has a user and a password")
    acts_as, user, password = parts
    if not user or not password:
        raise BadProof("the user or the password is empty")
    if len(user) > USER_CHARS_MAX or len(password) > PASSWORD_CHARS_MAX:
        raise BadProof("the user or the password is too long")
    if acts_as not in ("", user):
        raise BadProof("a user cannot act as another one")
    return Proof(Mechanism.PLAIN, user=user, password=password)


def _bearer(text: str) -> Proof:
    header, found, rest = text.partition("\x01")
    if not found or not rest.endswith("\x01"):
        raise BadProof("a message of OAUTHBEARER has a header, and pairs that end in \\x01")
    flag, comma, name = header.partition(",")
    if flag not in ("n", "y") or not comma or not name.endswith(","):
        raise BadProof("the GS2 header makes no sense")
    name = name[:-1]
    if name and not name.startswith("a="):
        raise BadProof("the GS2 header makes no sense")
    user = name[2:].replace("=2C", ",").replace("=3D", "=")
    if len(user) > USER_CHARS_MAX:
        raise BadProof("the user is too long")
    values = [value for pair in rest.split("\x01") for value in _auth_of(pair)]
    if len(values) != 1:
        raise BadProof("a message of OAUTHBEARER has one pair auth=Bearer TOKEN")
    scheme, _, token = values[0].partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
        raise BadProof("a message of OAUTHBEARER has one pair auth=Bearer TOKEN")
    return Proof(Mechanism.OAUTHBEARER, user=user, token=token)


def _auth_of(pair: str) -> list[str]:
    name, found, value = pair.partition("=")
    return [value] if found and name == "auth" else []
