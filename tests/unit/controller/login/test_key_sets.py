"""Key sets: files that are replaced, a provider that answers, changes its keys, or is silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jwt
import pytest

from semel.controller.login.key_sets import (
    AGAIN_S,
    FRESH_S,
    SET_BYTES_MAX,
    STALE_S,
    FileSet,
    KeySets,
    UrlSet,
    check_url,
    fetch,
)
from semel.protos.errors import InvalidRequest, Unauthenticated, Unavailable
from semel.protos.security.token_keys import key_id, new_key, public_keys
from semel.protos.security.tokens import TokenVerifier, new_token
from tests.kit.certificates import replace

ISSUER = "https://idp.example"
OWN, PROVIDERS, NEWER = new_key(), new_key(), new_key()


def own_verifier(text: str) -> TokenVerifier:
    return TokenVerifier("c1", text)


def providers_verifier(text: str) -> TokenVerifier:
    return TokenVerifier("semel", text, issuer=ISSUER)


def of_provider(key: Any = PROVIDERS, **claims: Any) -> str:
    said = {"sub": "alice", "aud": "semel", "exp": 100, "iss": ISSUER, **claims}
    return jwt.encode(said, key, algorithm="EdDSA", headers={"kid": key_id(key)})


class Provider:
    """Answers with what it has, and counts."""

    def __init__(self) -> None:
        self.keys = public_keys(PROVIDERS)
        self.asked = 0
        self.error: Exception | None = None
        self.now_s = 0.0

    def get(self, url: str) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.keys

    def key_set(self) -> UrlSet:
        return UrlSet(f"{ISSUER}/keys", providers_verifier, lambda: self.now_s, self.get)


async def test_a_token_is_verified_by_the_set_of_its_issuer(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(public_keys(OWN))
    sets = KeySets(FileSet(path, own_verifier), ISSUER, Provider().key_set())
    own = new_token(OWN, user="bob", cluster="c1", expires_s=100)
    found, way = await sets.verify(own, 0)
    assert (found.user, way) == ("bob", "token")
    found, way = await sets.verify(of_provider(), 0)
    assert (found.user, way) == ("alice", "oidc")
    for wrong in (
        of_provider(OWN),  # signed by Semel's key for the provider
        of_provider(iss="https://other.example"),
        of_provider(aud="c1"),
        jwt.encode(
            {"sub": "bob", "aud": "c1", "exp": 100},
            PROVIDERS,
            algorithm="EdDSA",
            headers={"kid": key_id(PROVIDERS)},
        ),
        "",
        "a.b.c",
    ):
        with pytest.raises(Unauthenticated):
            await sets.verify(wrong, 0)


async def test_without_a_set_no_token_is_taken() -> None:
    token = new_token(OWN, user="bob", cluster="c1", expires_s=100)
    with pytest.raises(Unauthenticated, match="takes no such tokens"):
        await KeySets(None).verify(token, 0)


async def test_a_replaced_file_counts_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(public_keys(OWN))
    keys = FileSet(path, own_verifier)
    token = new_token(NEWER, user="bob", cluster="c1", expires_s=100)
    assert not (await keys.verifier(token)).knows_key(token)
    replace(path, public_keys(OWN, NEWER).encode())
    assert (await keys.verifier(token)).verify(token, 0).user == "bob"
    replace(path, b"{")
    assert (await keys.verifier(token)).verify(token, 0).user == "bob"
    path.unlink()
    assert (await keys.verifier(token)).verify(token, 0).user == "bob"
    with pytest.raises(InvalidRequest):
        FileSet(path, own_verifier)


async def test_a_provider_is_asked_for_what_is_new_and_not_for_every_token() -> None:
    provider = Provider()
    keys = provider.key_set()
    for _ in range(5):
        await keys.verifier(of_provider())
    assert provider.asked == 1
    provider.keys = public_keys(PROVIDERS, NEWER)
    for _ in range(5):  # strangers may send what they like
        await keys.verifier(of_provider(NEWER))
    assert provider.asked == 1
    provider.now_s = AGAIN_S + 1
    token = of_provider(NEWER)
    assert (await keys.verifier(token)).verify(token, 0).user == "alice"
    assert provider.asked == 2
    provider.now_s += FRESH_S + 1
    await keys.verifier(of_provider())
    assert provider.asked == 3


async def test_while_a_provider_is_silent_its_keys_go_on_for_a_day() -> None:
    provider = Provider()
    keys = provider.key_set()
    await keys.verifier(of_provider())
    for error in (OSError("no route"), ValueError("too long")):
        provider.error = error
        provider.now_s += FRESH_S + 1
        assert (await keys.verifier(of_provider())).verify(of_provider(), 0).user == "alice"
    provider.error, provider.keys = None, "{}"
    provider.now_s = STALE_S
    await keys.verifier(of_provider())
    provider.now_s = STALE_S + 1
    with pytest.raises(Unavailable):
        await keys.verifier(of_provider())
    provider.keys = public_keys(PROVIDERS)
    provider.now_s += AGAIN_S + 1
    await keys.verifier(of_provider())


def test_keys_come_by_https_or_from_this_machine() -> None:
    for good in ("https://idp.example/keys", "http://127.0.0.1:1/keys", "http://localhost/keys"):
        check_url(good)
    for bad in ("http://idp.example/keys", "file:///etc/passwd", "ftp://x", "https://a:b@x/", ""):
        with pytest.raises(InvalidRequest):
            check_url(bad)


class _Answer:
    def __init__(self, url: str, body: bytes) -> None:
        self.url, self._body = url, body

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, most: int) -> bytes:
        return self._body[:most]


@pytest.mark.parametrize(
    "answer",
    [
        _Answer("http://evil.example/", b"{}"),
        _Answer("https://idp.example/", b"x" * (SET_BYTES_MAX + 1)),
        _Answer("https://idp.example/", b"\xff"),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_none(
    answer: _Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: answer)
    with pytest.raises(ValueError):  # noqa: PT011 (a UnicodeDecodeError is one as well)
        fetch("https://idp.example/keys")
