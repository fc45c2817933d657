"""What a certificate says about the login that it was issued for, in an extension of its own.

Format. The extension `OID` holds a DER UTF8String with JSON: `by` (how the client has proved who it
is: one of `WAYS`) and, if the client is narrowed to some rights, `rights`, a list of
`ACTION RESOURCE`. It is not critical: TLS libraries refuse critical extensions that they do not
know. Nodes that take such certificates read it, all others do not trust their CA.

Not here: the certificate (`certificates.py`), what rights mean (`rules.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from semel.protos.errors import InvalidRequest
from semel.protos.security.rules import Scope

OID: Final = x509.ObjectIdentifier("2.25.98043834046223173916955184109768041332")
"""The extension; the arc 2.25 is for random numbers, which need no registry."""
CERTIFICATE: Final = "certificate"
"""The way of those who have a certificate from elsewhere."""
TOKEN: Final = "token"  # noqa: S105 (a way to log in)
OIDC: Final = "oidc"
PASSWORD: Final = "password"  # noqa: S105 (a way to log in)
WAYS: Final = (TOKEN, OIDC, PASSWORD)

_UTF8_STRING: Final = 0x0C
_LONG_FORM: Final = 0x80


@dataclass(frozen=True, slots=True)
class LoginFacts:
    """How a client has logged in, and what for."""

    by: str
    """One of WAYS."""
    scopes: tuple[Scope, ...] | None = None
    """What it is narrowed to; None for no limit."""

    def extension(self) -> x509.UnrecognizedExtension:
        """The extension of a certificate."""
        said: dict[str, object] = {"by": self.by}
        if self.scopes is not None:
            said["rights"] = [str(scope) for scope in self.scopes]
        text = json.dumps(said).encode()
        return x509.UnrecognizedExtension(OID, bytes([_UTF8_STRING]) + _length(text) + text)


def login_facts_of(certificate: x509.Certificate) -> LoginFacts:
    """What a certificate says; `CERTIFICATE` and no limit if it says nothing. Raises InvalidRequest
    for an extension that makes no sense."""
    try:
        value = certificate.extensions.get_extension_for_oid(OID).value
    except x509.ExtensionNotFound:
        return LoginFacts(CERTIFICATE)
    try:
        assert isinstance(value, x509.UnrecognizedExtension)
        said = json.loads(_content(value.value))
        rights = said.get("rights")
        scopes = None if rights is None else tuple(Scope.parse(text) for text in rights)
        if said["by"] not in WAYS or isinstance(rights, str):
            raise InvalidRequest("it names no way to log in")
        return LoginFacts(said["by"], scopes)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest):
        raise InvalidRequest("the certificate's login makes no sense here") from None


def _length(content: bytes) -> bytes:
    size = len(content)
    if size < _LONG_FORM:
        return bytes([size])
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([_LONG_FORM | len(octets)]) + octets


def _content(der: bytes) -> bytes:
    """The bytes of a UTF8String. Raises ValueError."""
    count = der[1] & ~_LONG_FORM if len(der) > 1 and der[1] & _LONG_FORM else 0
    content = der[2 + count :]
    if der[:1] != bytes([_UTF8_STRING]) or der[1 : 2 + count] != _length(content):
        raise ValueError("no UTF8String")
    return content
