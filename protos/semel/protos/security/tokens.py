"""Tokens: signed statements of who somebody is until when, and perhaps of what for.

How it works. A token is a JWT. Semel's own are signed with Ed25519; `sub` is the user, `aud` the
cluster, `exp` the expiry, and `semel_rights`, if it is there, a list of `ACTION RESOURCE` to which
the token is narrowed. `TokenVerifier` has the public keys as a JWK set, as `semel` writes it and as
an OpenID provider publishes it; the set says which algorithm goes with which key.

Invariants
1. A token is good for one audience, before its expiry, and if a key of the set has signed it with
   the algorithm of that key. No token is taken that does not say when it expires.
2. No error, log or repr has any part of a token or of a private key.

Not here: keys (`token_keys.py`), what a token is shown for (the controller's `login/`), what its
user may do (`rules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from semel.protos.errors import InvalidRequest, Unauthenticated
from semel.protos.security.rules import Scope, check_principal
from semel.protos.security.token_keys import key_id

RIGHTS_CLAIM: Final = "semel_rights"
USER_CLAIM: Final = "sub"
ALGORITHMS: Final = ("EdDSA", "ES256", "RS256")
"""Signatures that are taken; all are of key pairs, so that no verifier can sign."""
TOKEN_CHARACTERS_MAX: Final = 6_000
CLOCK_SKEW_S: Final = 60
"""A token that becomes valid within so many seconds is taken: clocks differ a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a good token says."""

    user: str
    """A name that rules can be about: `user:NAME`."""
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
    claims: dict[str, Any] = {USER_CLAIM: user, "aud": cluster, "exp": expires_s}
    if scopes is not None:
        claims[RIGHTS_CLAIM] = [str(scope) for scope in scopes]
    token = jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": key_id(key)})
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the token has {len(token)} characters, and at most {TOKEN_CHARACTERS_MAX} can be"
            " sent: narrow it to fewer rights"
        )
    return token


def issuer_of(token: str) -> str:
    """The issuer that a token names, which nobody has checked; empty for none. Raises
    Unauthenticated for what is no token."""
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise Unauthenticated("the token is too long to be one")
    try:
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss", "")
    except (jwt.PyJWTError, ValueError) as error:
        raise Unauthenticated(f"the token is not valid: {type(error).__name__}") from None
    return issuer if isinstance(issuer, str) else ""


class TokenVerifier:
    """Tells good tokens from others."""

    def __init__(
        self, audience: str, key_set: str, *, issuer: str = "", user_claim: str = USER_CLAIM
    ) -> None:
        """`key_set` is a JWK set as JSON; `issuer`, if it is given, is who must have issued every
        token; `user_claim` is the claim that names the user. Raises InvalidRequest."""
        self._audience = audience
        self._issuer = issuer
        self._user_claim = user_claim
        self._keys = _keys_of(key_set)

    def knows_key(self, token: str) -> bool:
        """Whether the key that a token names is in the set; True for what is no token."""
        try:
            named = jwt.get_unverified_header(token).get("kid")
        except (jwt.PyJWTError, ValueError):
            return True
        return named in self._keys

    def verify(self, token: str, now_s: float) -> Token:
        """What `token` says, at the wall-clock time `now_s`. Raises Unauthenticated."""
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
                audience=self._audience,
                issuer=self._issuer or None,
                # The caller's clock decides about times, not this library's.
                options={
                    "require": ["exp", self._user_claim, "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,
                },
            )
        except jwt.InvalidAudienceError:
            raise Unauthenticated(
                f"the token is for others than {self._audience}: get one for this cluster"
            ) from None
        except (jwt.PyJWTError, ValueError) as error:  # a ValueError is text that is no UTF-8
            # The text of the library's error may quote the token.
            raise Unauthenticated(f"the token is not valid: {type(error).__name__}") from None
        found, begins_s = self._token_of(claims)
        if now_s >= found.expires_s:
            raise Unauthenticated("the token has expired: get a new one")
        if now_s + CLOCK_SKEW_S < begins_s:
            raise Unauthenticated("the token is not valid yet: check the clocks")
        return found

    def _token_of(self, claims: dict[str, Any]) -> tuple[Token, float]:
        """What the claims say, and from when on they are valid. Raises Unauthenticated."""
        try:
            user = claims[self._user_claim]
            check_principal(f"user:{user}")
            rights = claims.get(RIGHTS_CLAIM)
            scopes = None if rights is None else tuple(Scope.parse(text) for text in rights)
            expires_s = float(claims["exp"])
            token = Token(user=str(user), expires_s=expires_s, scopes=scopes)
            return token, float(claims.get("nbf", 0))
        except (InvalidRequest, TypeError, ValueError, AttributeError, OverflowError):
            raise Unauthenticated("the token says nothing that makes sense here") from None


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
