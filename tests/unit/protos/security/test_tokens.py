"""Tokens: what is taken, what is not, and that no part of one ever shows."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import RSAAlgorithm

from semel.protos.errors import InvalidRequest, Unauthenticated
from semel.protos.security import tokens
from semel.protos.security.rules import Scope
from semel.protos.security.token_keys import (
    key_id,
    new_key,
    private_pem,
    public_keys,
    read_private,
)
from semel.protos.security.tokens import TokenVerifier, issuer_of, new_token

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
VERIFIER = TokenVerifier("c1", public_keys(KEY))


def signed(claims: dict[str, Any], key: Any = KEY, **header: Any) -> str:
    headers = {"kid": key_id(KEY), **header}
    return jwt.encode(claims, key, algorithm="EdDSA", headers=headers)


CLAIMS: dict[str, Any] = {"sub": "alice", "aud": "c1", "exp": 100}


def test_a_token_says_who_until_when_and_what_for() -> None:
    scopes = (Scope.parse("read topic:a*"), Scope.parse("* consumer-group:g"))
    token = new_token(KEY, user="alice", cluster="c1", expires_s=100, scopes=scopes)
    found = VERIFIER.verify(token, 99.9)
    assert (found.user, found.expires_s, found.scopes) == ("alice", 100, scopes)
    unlimited = new_token(KEY, user="alice", cluster="c1", expires_s=100)
    assert VERIFIER.verify(unlimited, 0).scopes is None


def test_a_token_without_any_right_may_do_nothing() -> None:
    token = new_token(KEY, user="alice", cluster="c1", expires_s=100, scopes=())
    assert VERIFIER.verify(token, 0).scopes == ()


def test_a_token_is_good_from_its_beginning_to_its_end() -> None:
    token = signed({**CLAIMS, "nbf": 1_000, "exp": 2_000})
    assert VERIFIER.verify(token, 1_000 - tokens.CLOCK_SKEW_S).user == "alice"
    with pytest.raises(Unauthenticated, match="not valid yet"):
        VERIFIER.verify(token, 999 - tokens.CLOCK_SKEW_S)
    with pytest.raises(Unauthenticated, match="expired"):
        VERIFIER.verify(token, 2_000)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "a.b.c",
        "\ud800",
        "é" * 50,
        "x" * (tokens.TOKEN_CHARACTERS_MAX + 1),
        signed({**CLAIMS, "aud": "c2"}),
        signed({**CLAIMS, "aud": ""}),
        signed({key: value for key, value in CLAIMS.items() if key != "aud"}),
        signed({key: value for key, value in CLAIMS.items() if key != "exp"}),
        signed({key: value for key, value in CLAIMS.items() if key != "sub"}),
        signed(CLAIMS, OTHER),
        signed(CLAIMS, kid="unknown"),
        signed({**CLAIMS, "sub": "a*"}),
        signed({**CLAIMS, "sub": "a b"}),
        signed({**CLAIMS, "semel_rights": "read topic:a"}),
        signed({**CLAIMS, "semel_rights": 7}),
        signed({**CLAIMS, "semel_rights": ["peruse topic:a"]}),
        signed({**CLAIMS, "semel_rights": [7]}),
        jwt.encode(CLAIMS, "", algorithm="none", headers={"kid": key_id(KEY)}),
        jwt.encode(
            CLAIMS,
            KEY.public_key().public_bytes_raw(),
            algorithm="HS256",
            headers={"kid": key_id(KEY)},
        ),
    ],
)
def test_no_other_token_is_taken_and_no_part_of_it_shows(token: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        VERIFIER.verify(token, 0)
    shown = repr(refused.value) + repr(refused.value.__cause__)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    for part in token.split("."):
        assert len(part) < 4 or part not in shown


def test_every_damaged_character_of_a_token_is_noticed() -> None:
    token = new_token(KEY, user="alice", cluster="c1", expires_s=100)
    for place in range(len(token) - 1):  # the last one has bits that mean nothing
        other = "B" if token[place] != "B" else "C"
        with pytest.raises(Unauthenticated):
            VERIFIER.verify(token[:place] + other + token[place + 1 :], 0)


def test_the_key_set_of_an_openid_provider_is_taken() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    key_set = json.dumps({"keys": [{**public, "kid": "k", "alg": "RS256", "use": "sig"}]})
    verifier = TokenVerifier("c1", key_set, issuer="https://idp.example")
    token = jwt.encode(
        {**CLAIMS, "iss": "https://idp.example"}, key, algorithm="RS256", headers={"kid": "k"}
    )
    assert verifier.verify(token, 0).user == "alice"
    other = jwt.encode(CLAIMS, key, algorithm="RS256", headers={"kid": "k"})
    with pytest.raises(Unauthenticated):
        verifier.verify(other, 0)


@pytest.mark.parametrize(
    "key_set",
    [
        "",
        "[]",
        "{}",
        '{"keys": []}',
        '{"keys": [7]}',
        '{"keys": [{"kty": "oct", "k": "AAAA", "kid": "k", "alg": "HS256"}]}',
    ],
)
def test_a_key_set_with_no_key_of_use_is_refused(key_set: str) -> None:
    with pytest.raises(InvalidRequest):
        TokenVerifier("c1", key_set)


def test_a_key_set_with_a_private_key_is_no_danger_but_none_is_written() -> None:
    private = KEY.private_bytes_raw().hex()
    assert private not in public_keys(KEY)
    assert '"d"' not in public_keys(KEY)


def test_a_token_that_could_not_be_sent_is_not_made() -> None:
    scopes = tuple(Scope.parse(f"read topic:{number:0100}") for number in range(100))
    with pytest.raises(InvalidRequest, match="fewer rights"):
        new_token(KEY, user="alice", cluster="c1", expires_s=100, scopes=scopes)
    with pytest.raises(InvalidRequest):
        new_token(KEY, user="a*", cluster="c1", expires_s=100)


def test_the_claim_that_names_the_user_can_be_another() -> None:
    verifier = TokenVerifier("c1", public_keys(KEY), user_claim="email")
    assert verifier.verify(signed({**CLAIMS, "email": "a@b.c"}), 0).user == "a@b.c"
    with pytest.raises(Unauthenticated):
        verifier.verify(signed(CLAIMS), 0)


def test_a_key_that_is_not_in_the_set_is_told() -> None:
    assert VERIFIER.knows_key(signed(CLAIMS))
    assert VERIFIER.knows_key("no token")
    assert not VERIFIER.knows_key(signed(CLAIMS, kid="newer"))


def test_the_issuer_is_told_before_anything_is_verified() -> None:
    assert issuer_of(signed({**CLAIMS, "iss": "https://idp"}, OTHER)) == "https://idp"
    assert issuer_of(signed(CLAIMS)) == ""
    for token in ("", "a.b.c", "\ud800", "x" * (tokens.TOKEN_CHARACTERS_MAX + 1)):
        with pytest.raises(Unauthenticated):
            issuer_of(token)


def test_a_key_is_read_as_it_was_written() -> None:
    key = new_key()
    assert key_id(read_private(private_pem(key))) == key_id(key)
    for pem in (b"", b"x", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        with pytest.raises(InvalidRequest):
            read_private(pem)
