"""Tokens: signed statements of who somebody is until when, and perhaps of what for.

How it works. A token is a JWT. Semel's own are signed with Ed25519; `sub` is the user, `aud` the
cluster, `exp` the expiry, and `semel_rights`, if it is there, a list of `ACTION RESOURCE` to which
the token is narrowed. `TokenVerifier` has the public keys as a JWK set, as `semel` writes it and as
an OpenID provider publishes it; the set says which algorithm goes with which key. What was verified
is remembered by its digest until it expires, since a signature costs more than a call.

Invariants
1. A token is good for one cluster, before its expiry, and if a key of the set has signed it with
   the algorithm of that key. No token is taken that does not say when it expires.
2. No error, log or repr has any part of a token or of a private key.

Not here: how a token travels (`authentication.py`), what its user may do (`rules.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from semel.protos.errors import InvalidRequest, Unauthenticated
from semel.protos.security.rules import Scope, check_principal

RIGHTS_CLAIM: Final = "semel_rights"
ALGORITHMS: Final = ("EdDSA", "ES256", "RS256")
"""Signatures that are taken; all are of key pairs, so that no verifier can sign."""
TOKEN_CHARACTERS_MAX: Final = 6_000
"""gRPC takes 8 KiB of metadata."""
REMEMBERED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a good token says."""

    principal: str
    """`user:NAME`."""
    expires_s: float
    """Seconds since the epoch."""
    scopes: tuple[Scope, ...] | None
    """What it is narrowed to; None for no limit."""


def new_token(
    key: Ed25519PrivateKey,
    *,
    user: str,
    cluster: str,
    expires_s: int,
    scopes: tuple[Scope, ...] | None = None,
) -> str:
    """Signs a token. Raises InvalidRequest for a name that no rule could be about."""
    check_principal(f"user:{user}")
    claims: dict[str, Any] = {"sub": user, "aud": cluster, "exp": expires_s}
    if scopes is not None:
        claims[RIGHTS_CLAIM] = [str(scope) for scope in scopes]
    token = jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": key_id(key)})
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the token has {len(token)} characters, and at most {TOKEN_CHARACTERS_MAX} can be"
            " sent: narrow it to fewer rights"
        )
    return token


def key_id(key: Ed25519PrivateKey) -> str:
    """The id of a key: a digest of its public half."""
    return hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:16]


def public_keys(*keys: Ed25519PrivateKey) -> str:
    """The JWK set with the public halves of `keys`, as JSON."""
    found = [
        {
            **OKPAlgorithm.to_jwk(key.public_key(), as_dict=True),
            "alg": "EdDSA",
            "use": "sig",
            "kid": key_id(key),
        }
        for key in keys
    ]
    return json.dumps({"keys": found}, indent=2)


class TokenVerifier:
    """Tells good tokens from others, for one cluster."""

    def __init__(self, cluster: str, key_set: str, *, issuer: str = "") -> None:
        """`key_set` is a JWK set as JSON; `issuer`, if it is given, is who must have issued every
        token. Raises InvalidRequest."""
        self._cluster = cluster
        self._issuer = issuer
        self._keys = _keys_of(key_set)
        self._known: OrderedDict[bytes, Token] = OrderedDict()

    def verify(self, token: str, now_s: float) -> Token:
        """What `token` says, at the wall-clock time `now_s`. Raises Unauthenticated."""
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._read(token)
            self._known[digest] = known
            if len(self._known) > REMEMBERED_MAX:
                self._known.popitem(last=False)
        if now_s >= known.expires_s:
            del self._known[digest]
            raise Unauthenticated("the token has expired: get a new one")
        return known

    def _read(self, token: str) -> Token:
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise Unauthenticated("the token is too long to be one")
        try:
            named = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(named) if isinstance(named, str) else None
            if key is None:
                raise Unauthenticated("the token is signed with a key that is not known here")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],
                audience=self._cluster,
                issuer=self._issuer or None,
                # The caller's clock decides about the expiry, not this library's.
                options={
                    "require": ["exp", "sub", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            return _token_of(claims)
        except jwt.InvalidAudienceError:
            raise Unauthenticated(
                f"the token is for another cluster than {self._cluster}"
            ) from None
        except (jwt.PyJWTError, ValueError) as error:  # a ValueError is text that is no UTF-8
            # The text of the library's error may quote the token.
            raise Unauthenticated(f"the token is not valid: {type(error).__name__}") from None


def _keys_of(key_set: str) -> dict[str, jwt.PyJWK]:
    try:
        found = jwt.PyJWKSet.from_json(key_set).keys
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidRequest(f"this is no JWK set: {type(error).__name__}") from None
    keys = {key.key_id: key for key in found if key.key_id and key.algorithm_name in ALGORITHMS}
    if not keys:
        raise InvalidRequest(
            f"the JWK set has no key with a `kid` for one of {', '.join(ALGORITHMS)}"
        )
    return keys


def _token_of(claims: dict[str, Any]) -> Token:
    """Raises Unauthenticated."""
    try:
        principal = check_principal(f"user:{claims['sub']}")
        rights = claims.get(RIGHTS_CLAIM)
        scopes = None if rights is None else tuple(Scope.parse(text) for text in rights)
        return Token(principal=principal, expires_s=float(claims["exp"]), scopes=scopes)
    except (InvalidRequest, TypeError, ValueError, AttributeError, OverflowError):
        raise Unauthenticated("the token says nothing that makes sense here") from None
