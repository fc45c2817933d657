"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): what a server keeps of a password, and the
messages of an exchange. Pure.

How it works. A `Verifier` is made of a password once. The client's first message names a user and
has a nonce; the answer has a longer nonce, the salt and the rounds. The final message proves that
the client knows the password, by both messages before it, and the answer proves that the server
has the verifier. Nothing here remembers an exchange: `final_answer` gets all that was said.

Names and passwords are printable ASCII, for which RFC 4013 (SASLprep) changes nothing: some of
Kafka's clients apply it, others do not, and any other text would be right for some of them alone.

There is no channel binding: a client asks for none, `n` or `y`, and `p=` is refused.

Format. First message: `n,,n=USER,r=NONCE`; in USER `,` is `=2C` and `=` is `=3D`. The answer:
`r=NONCE,s=SALT,i=ITERATIONS`. Final message: `c=BINDING,r=NONCE,p=PROOF`; the answer:
`v=SIGNATURE`. SALT, BINDING, PROOF and SIGNATURE are in base64.

Invariants
1. Whatever the bytes, the readers return or raise InvalidRequest, and no error or repr has anything
   of the message, of a password or of a verifier.
2. How long a comparison with a secret takes does not depend on the secret.

Not here: where verifiers are kept (the controllers' `users.py`), nonces (their
`login/scram_nonces.py`), whose turn it is (`login/scram_logins.py`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from semel.protos.errors import InvalidRequest

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism, by `hashlib`'s name."""
ITERATIONS: Final = 65_536
"""Rounds for new verifiers: 30 to 60 ms of a client for each connection. RFC 7677 asks for 4,096 at
least, and Kafka's clients take a million at most."""
SALT_BYTES: Final = 16
MESSAGE_BYTES_MAX: Final = 4_096

_FIRST: Final = re.compile(
    r"(?P<header>(?P<flag>[ny]|p=[A-Za-z0-9.-]+),(?:a=(?P<acts_as>[^,]+))?,)"
    r"(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z][^,]*)*)"
)
_FINAL: Final = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/]+=*),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z][^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/]+=*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """What checks the proofs of one password by one mechanism."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFirst:
    """A client's first message."""

    header: str = field(repr=False)
    """What the final message repeats as its binding."""
    bare: str = field(repr=False)
    """All behind the header."""
    user: str = field(repr=False)
    """As the client has named it: anything but printable ASCII is nobody's name here."""
    nonce: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFinal:
    """A client's final message."""

    unproved: str = field(repr=False)
    """All but the proof."""
    binding: bytes = field(repr=False)
    nonce: str = field(repr=False)
    proof: bytes = field(repr=False)


def takes(text: str) -> bool:
    """Whether a name or a password can be one for SCRAM."""
    return bool(text) and text.isascii() and text.isprintable()


def untaken(what: str) -> InvalidRequest:
    """Returns the error for a name or a password (`what`) that cannot be one for SCRAM."""
    return InvalidRequest(
        f"{what} for SCRAM has printable characters of ASCII alone, since clients differ in how"
        " they send others; without SCRAM it may have any"
    )


def new_verifier(
    mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS
) -> Verifier:
    """BLOCKING, some 30 ms. The verifier of a password. Raises InvalidRequest unless `takes`."""
    if not takes(password):
        raise untaken("a password")
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return Verifier(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


def nobodys_verifier(secret: bytes, mechanism: str, user: str) -> Verifier:
    """The verifier of somebody who has none: always the same for a name, and no proof is right by
    it. Who does not know `secret` cannot tell its salt from a random one."""

    def part(label: str, name: str) -> bytes:
        text = "\0".join((label, mechanism, user))
        return hmac.digest(secret, text.encode("utf-8", "replace"), name)

    name = HASHES[mechanism]
    return Verifier(
        salt=part("salt", "sha256")[:SALT_BYTES],
        iterations=ITERATIONS,
        stored_key=part("stored key", name),
        server_key=part("server key", name),
    )


def read_first(message: bytes) -> ClientFirst:
    """Reads a client's first message. Raises InvalidRequest."""
    found = _FIRST.fullmatch(_text(message))
    if found is None:
        raise InvalidRequest("the first message of SCRAM makes no sense")
    if found["flag"].startswith("p"):
        raise InvalidRequest("channel binding is not served: the client has to do without")
    user = _unescaped(found["user"])
    if found["acts_as"] is not None and _unescaped(found["acts_as"]) != user:
        raise InvalidRequest("a user cannot act as another one")
    return ClientFirst(header=found["header"], bare=found["bare"], user=user, nonce=found["nonce"])


def read_final(message: bytes) -> ClientFinal:
    """Reads a client's final message. Raises InvalidRequest."""
    found = _FINAL.fullmatch(_text(message))
    if found is None:
        raise InvalidRequest("the final message of SCRAM makes no sense")
    try:
        binding, proof = (
            base64.b64decode(found[name], validate=True) for name in ("binding", "proof")
        )
    except ValueError:
        raise InvalidRequest("the final message of SCRAM is no base64 where it should be") from None
    return ClientFinal(
        unproved=found["unproved"], binding=binding, nonce=found["nonce"], proof=proof
    )


def first_answer(first: ClientFirst, server_nonce: str, verifier: Verifier) -> str:
    """The answer to the first message."""
    salt = base64.b64encode(verifier.salt).decode()
    return f"r={first.nonce}{server_nonce},s={salt},i={verifier.iterations}"


def server_nonce_of(first: ClientFirst, final: ClientFinal) -> str:
    """The nonce that the server added, as the final message has it; empty if that begins with
    another one than the client's."""
    return final.nonce[len(first.nonce) :] if final.nonce.startswith(first.nonce) else ""


def final_answer(
    mechanism: str, verifier: Verifier, first: ClientFirst, final: ClientFinal
) -> str | None:
    """The answer to a final message whose nonce the server has made; None if its proof is wrong,
    or it belongs to another first message."""
    name = HASHES[mechanism]
    answer = first_answer(first, server_nonce_of(first, final), verifier)
    said = f"{first.bare},{answer},{final.unproved}".encode()
    signature = hmac.digest(verifier.stored_key, said, name)
    if len(final.proof) != len(signature):
        return None
    client_key = bytes(a ^ b for a, b in zip(final.proof, signature, strict=True))
    right = hmac.compare_digest(hashlib.new(name, client_key).digest(), verifier.stored_key)
    if not right or final.binding != first.header.encode():
        return None
    return f"v={base64.b64encode(hmac.digest(verifier.server_key, said, name)).decode()}"


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise InvalidRequest(
            f"a message of SCRAM has {MESSAGE_BYTES_MAX} bytes at most, and this has {len(message)}"
        )
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("a message of SCRAM is no UTF-8") from None
    if "\0" in text:
        raise InvalidRequest("a message of SCRAM has a byte 0")
    return text


def _unescaped(text: str) -> str:
    """Raises InvalidRequest."""
    if re.search("=(?!2C|3D)", text):
        raise InvalidRequest("a name in SCRAM has = only as =2C or =3D")
    return text.replace("=2C", ",").replace("=3D", "=")
