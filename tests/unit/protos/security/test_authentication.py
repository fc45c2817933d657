"""Callers are known by certificate, by token, by password; nobody else is let in."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import argon2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from semel.protos.errors import Throttled, Unauthenticated
from semel.protos.security import authentication, passwords
from semel.protos.security.authentication import (
    Authenticator,
    password_metadata,
    token_metadata,
)
from semel.protos.security.identity import Identity
from semel.protos.security.rules import Scope
from semel.protos.security.tokens import TokenVerifier, new_token, public_keys

KEY = Ed25519PrivateKey.generate()


class Context:
    """A call's context as gRPC gives it."""

    def __init__(self, *metadata: tuple[str, Any], identity: Identity | None = None) -> None:
        self._metadata = metadata
        self._names = [] if identity is None else [identity.uri.encode()]

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_subject_alternative_name": self._names} if self._names else {}

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(passwords, "_HASHER", hasher)


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def authenticator(threads: Executor) -> Authenticator:
    hashes = {"alice": passwords.new_hash("correct horse")}
    verifier = TokenVerifier("c1", public_keys(KEY))
    return Authenticator(
        "c1",
        verifier=lambda: verifier,
        hash_of=hashes.get,
        threads=threads,
        wall_s=lambda: 50.0,
    )


async def test_a_nodes_certificate_makes_a_node(authenticator: Authenticator) -> None:
    caller = await authenticator(Context(identity=Identity("broker", "3", "c1")))
    assert (caller.principal, caller.node, caller.administrator) == ("broker:3", "broker", False)
    assert caller.address == "ipv4:10.0.0.1:5"


async def test_an_administrators_certificate_is_not_limited(authenticator: Authenticator) -> None:
    caller = await authenticator(Context(identity=Identity("admin", "root", "c1")))
    assert (caller.principal, caller.node, caller.administrator) == ("user:root", "", True)


async def test_a_token_says_who_and_what_for(authenticator: Authenticator) -> None:
    scopes = (Scope.parse("read topic:a"),)
    token = new_token(KEY, user="bob", cluster="c1", expires_s=60, scopes=scopes)
    caller = await authenticator(Context(token_metadata(token)))
    assert (caller.principal, caller.scopes, caller.expires_s) == ("user:bob", scopes, 60)
    assert not caller.administrator


async def test_a_client_with_a_certificate_may_show_a_token_and_a_node_may_not(
    authenticator: Authenticator,
) -> None:
    shown = token_metadata(new_token(KEY, user="bob", cluster="c1", expires_s=60))
    client = Identity("client", "carol", "c1")
    assert (await authenticator(Context(identity=client))).principal == "user:carol"
    assert (await authenticator(Context(shown, identity=client))).principal == "user:bob"
    node = Identity("controller", "1", "c1")
    assert (await authenticator(Context(shown, identity=node))).principal == "controller:1"


async def test_a_password_makes_its_user(authenticator: Authenticator) -> None:
    for _ in range(2):
        caller = await authenticator(Context(password_metadata("alice", "correct horse")))
        assert (caller.principal, caller.scopes, caller.expires_s) == ("user:alice", None, None)


def basic(text: bytes) -> tuple[str, str]:
    return ("authorization", "Basic " + base64.b64encode(text).decode())


@pytest.mark.parametrize(
    "context",
    [
        Context(),
        Context(("authorization", "")),
        Context(("authorization", "correct horse")),
        Context(("authorization", "Digest x")),
        Context(("authorization", "Bearer")),
        Context(("authorization", b"Bearer \xff")),
        Context(token_metadata(new_token(KEY, user="bob", cluster="c2", expires_s=60))),
        Context(token_metadata(new_token(KEY, user="bob", cluster="c1", expires_s=50))),
        Context(password_metadata("alice", "wrong horse")),
        Context(password_metadata("bob", "correct horse")),
        Context(password_metadata("", "")),
        Context(("authorization", "Basic not base64")),
        Context(basic(b"alice")),
        Context(basic(b"\xff:correct horse")),
        Context(basic(b"alice:" + b"x" * 2_000)),
        Context(identity=Identity("client", "carol", "c2")),
        Context(identity=Identity("admin", "root", "c2")),
        Context(identity=Identity("broker", "3", "c2")),
    ],
)
async def test_nobody_else_is_let_in(authenticator: Authenticator, context: Context) -> None:
    with pytest.raises(Unauthenticated) as refused:
        await authenticator(context)
    for _, value in context.invocation_metadata():
        shown = value.decode("latin-1") if isinstance(value, bytes) else value
        for word in shown.split():
            assert len(word) < 8 or word not in str(refused.value)


async def test_tokens_are_refused_where_none_are_taken(threads: Executor) -> None:
    made = Authenticator(
        "c1",
        verifier=lambda: None,
        hash_of=lambda user: None,
        threads=threads,
        wall_s=lambda: 50.0,
    )
    with pytest.raises(Unauthenticated, match="no tokens"):
        await made(Context(token_metadata("x.y.z")))


async def test_only_so_many_passwords_are_checked_at_a_time(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "CHECKS_WAITING_MAX", 0)
    with pytest.raises(Throttled):
        await authenticator(Context(password_metadata("alice", "correct horse")))
