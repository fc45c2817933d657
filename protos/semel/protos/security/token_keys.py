"""Keys that sign tokens: Ed25519, in PEM, and their public halves as a JWK set.

Not here: tokens (`tokens.py`), the files (the console's `authority.py`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from semel.protos.errors import InvalidRequest


def new_key() -> Ed25519PrivateKey:
    """Makes a key."""
    return Ed25519PrivateKey.generate()


def key_id(key: Ed25519PrivateKey) -> str:
    """The id of a key: a digest of its public half."""
    return hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:16]


def private_pem(key: Ed25519PrivateKey) -> bytes:
    """The private key as PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def read_private(pem: bytes) -> Ed25519PrivateKey:
    """The key in a PEM. Raises InvalidRequest."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidRequest("this is no Ed25519 key in PEM")
    return key


def public_jwk(key: Ed25519PrivateKey) -> dict[str, Any]:
    """The public half as a JWK."""
    raw = base64.urlsafe_b64encode(key.public_key().public_bytes_raw()).rstrip(b"=").decode()
    return {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": raw,
        "alg": "EdDSA",
        "use": "sig",
        "kid": key_id(key),
    }


def public_keys(*keys: Ed25519PrivateKey) -> str:
    """The JWK set with the public halves of `keys`, as JSON."""
    return json.dumps({"keys": [public_jwk(key) for key in keys]}, indent=2)
