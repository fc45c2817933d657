"""What callers' certificates prove: who they are, and that the clients' CA makes clients alone."""

from __future__ import annotations

import asyncio
import datetime
from contextvars import Context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from semel.protos.errors import InvalidRequest, Unauthenticated
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.security import certificates, peers
from semel.protos.security.access import AccessControl
from semel.protos.security.credentials import Security, channel
from semel.protos.security.enforcement import Caller
from semel.protos.security.guard import Guard
from semel.protos.security.identity import Identity
from semel.protos.security.login_facts import LoginFacts, login_facts_of
from semel.protos.security.peers import Peers
from semel.protos.security.rules import Scope
from semel.protos.security.tls_files import CLIENTS_CA, TlsFileError, TlsFiles
from tests.kit.certificates import CLUSTER, TestCa, replace
from tests.kit.logins import ClientsCa
from tests.kit.who_port import ask_on, serving

EVERY_KIND = [
    Identity(kind, "1" if kind in ("broker", "controller") else "eve", CLUSTER)
    for kind in ("broker", "controller", "client", "admin")
]


class Certified:
    """A call's context with a certificate, as gRPC gives it."""

    def __init__(self, certificate: bytes, *chain: bytes) -> None:
        self._told = {"x509_pem_cert": [certificate], "x509_pem_cert_chain": [b"".join(chain)]}

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._told

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def node(ca: TestCa, clients: ClientsCa | None, directory: Path) -> Path:
    """The files of broker 2, which trusts a clients' CA."""
    ca.files(directory, "broker", "2")
    if clients is not None:
        replace(directory / CLIENTS_CA, clients.pem)
    return directory


@pytest.mark.parametrize("identity", EVERY_KIND, ids=lambda one: one.kind)
def test_the_ca_makes_every_kind_and_the_clients_ca_makes_clients(
    identity: Identity, tmp_path: Path
) -> None:
    ca, clients = TestCa(), ClientsCa()
    known = Peers(TlsFiles.in_directory(node(ca, clients, tmp_path)))
    shown, _ = ca.issue(identity.kind, identity.name)
    found = known.of(Certified(shown).auth_context())
    assert found is not None
    assert (found.identity, found.login, found.scopes) == (identity, "certificate", None)
    forged, _ = clients.forge(identity)
    for chain in ((), (clients.pem,), (clients.pem, ca.pem)):
        found = known.of(Certified(forged, *chain).auth_context())
        assert (found is not None) is (identity.kind == "client"), identity


def test_a_ca_of_ones_own_may_have_another_below_it(tmp_path: Path) -> None:
    root, between = TestCa(), TestCa()
    pem = root.sign_authority(between)
    known = Peers(TlsFiles.in_directory(node(root, ClientsCa(), tmp_path)))
    shown, _ = between.issue("admin", "root")
    found = known.of(Certified(shown, pem).auth_context())
    assert found is not None
    assert found.identity.kind == "admin"
    assert known.of(Certified(shown + b"\n").auth_context()) is None


def test_a_clients_certificate_signs_nobody(tmp_path: Path) -> None:
    """A certificate that is of no CA does not stand between one and the CA, whatever its key has
    signed."""
    root, eve = TestCa(), TestCa()
    known = Peers(TlsFiles.in_directory(node(root, ClientsCa(), tmp_path)))
    no_authority = root.sign_authority(eve, authority=False)
    shown, _ = eve.issue("admin", "root")
    assert known.of(Certified(shown, no_authority).auth_context()) is None


@pytest.mark.parametrize("identity", EVERY_KIND, ids=lambda one: one.kind)
async def test_a_stolen_clients_ca_is_no_node_and_no_administrator_on_a_port(
    identity: Identity, tmp_path: Path
) -> None:
    ca, clients = TestCa(), ClientsCa()
    directory = tmp_path / "eve"
    ca.files(directory, "client", "x")
    certificate, key = clients.forge(identity)
    eve = Security(clients.source(ca.pem, certificate, key, identity))
    async with (
        serving(Security.read(node(ca, clients, tmp_path / "node"))) as address,
        channel(address, CHANNEL_OPTIONS, eve) as opened,
    ):
        if identity.kind == "client":
            assert await ask_on(opened) == identity.uri
        else:
            with pytest.raises(Unauthenticated, match="names no one"):
                await ask_on(opened)


def test_a_login_says_how_and_what_for(tmp_path: Path) -> None:
    clients = ClientsCa()
    known = Peers(TlsFiles.in_directory(node(TestCa(), clients, tmp_path)))
    for scopes in (None, (), (Scope.parse("read topic:a*"),) * 40):
        pem = clients.log_in("alice", LoginFacts("token", scopes))
        found = known.of(Certified(pem).auth_context())
        assert found is not None
        assert (found.login, found.scopes) == ("token", scopes)


def test_an_extension_that_makes_no_sense_is_not_let_in(tmp_path: Path) -> None:
    clients = ClientsCa()
    known = Peers(TlsFiles.in_directory(node(TestCa(), clients, tmp_path)))
    good = LoginFacts("token", ()).extension().value
    for value in (b"", b"\x0c", good[:-1], good + b"x", b"\x04" + good[1:], b"\x0c\x04null"):
        pem = clients.log_in("alice", value)
        with pytest.raises(InvalidRequest):
            login_facts_of(x509.load_pem_x509_certificate(pem))
        assert known.of(Certified(pem).auth_context()) is None


def test_callers_are_remembered_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "REMEMBERED_MAX", 2)
    ca = TestCa()
    directory = node(ca, None, tmp_path)
    known = Peers(TlsFiles.in_directory(directory))
    shown = [ca.issue("client", name)[0] for name in "abc"]
    for pem in (*shown, *shown):
        assert known.of(Certified(pem).auth_context()) is not None
    assert known.of(Certified(pem).auth_context()) is known.of(Certified(pem).auth_context())
    assert known.of({}) is None


def test_an_end_is_looked_at_in_every_call(tmp_path: Path) -> None:
    ca = TestCa()
    now = [0.0]
    guard = Guard(Security.read(node(ca, None, tmp_path)), lambda: now[0])
    for kind, name in (("client", "a"), ("admin", "a"), ("broker", "1")):
        pem, _ = ca.issue(kind, name)
        ends_s = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
        now[0] = ends_s - 1
        left_s = guard.admit("/semel.protos.v1.Broker/GetNodeStatus", Certified(pem))
        assert left_s == (None if kind == "broker" else 1)
        now[0] = ends_s
        if kind == "broker":
            guard.admit("/semel.protos.v1.Broker/GetNodeStatus", Certified(pem))
            continue
        with pytest.raises(Unauthenticated, match="has expired"):
            guard.admit("/semel.protos.v1.Broker/GetNodeStatus", Certified(pem))


def test_a_certificate_is_read_once_for_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = TestCa()
    guard = Guard(Security.read(node(ca, None, tmp_path)))
    control = AccessControl(CLUSTER, guard, cast("Any", SimpleNamespace()), None)
    pem, _ = ca.issue("client", "alice")
    read = Mock(wraps=TlsFiles.current)
    monkeypatch.setattr(TlsFiles, "current", lambda self: read(self))

    async def call() -> Caller:
        context = Certified(pem)
        guard.admit("/semel.protos.v1.Broker/GetNodeStatus", context)
        return await control._authenticate(context)

    for calls in (1, 2):
        assert asyncio.run(call()).principal == "user:alice"
        assert read.call_count == calls
    with pytest.raises(Unauthenticated):  # nobody was admitted here
        Context().run(asyncio.run, control._authenticate(Certified(pem)))


def test_one_ca_is_not_both(tmp_path: Path) -> None:
    ca = TestCa()
    directory = node(ca, None, tmp_path)
    replace(directory / CLIENTS_CA, ca.pem)
    with pytest.raises(TlsFileError, match="trusted for nodes as well"):
        TlsFiles.in_directory(directory)


def test_a_clients_ca_counts_from_when_it_is_there(tmp_path: Path) -> None:
    directory = node(TestCa(), None, tmp_path)
    files = TlsFiles.in_directory(directory)
    assert files.current().clients_ca == b""
    clients = ClientsCa()
    replace(directory / CLIENTS_CA, clients.pem)
    assert files.current().clients_ca == clients.pem
    assert files.current().version == 2


def test_a_login_never_outlives_the_clients_ca() -> None:
    now = datetime.datetime.now(datetime.UTC)
    ca, key = certificates.new_clients_authority(CLUSTER, now, 1)
    own = ec.generate_private_key(ec.SECP256R1())
    made = certificates.issue_login(
        "a", CLUSTER, LoginFacts("token"), own.public_key(), ca, key, now,
        now + datetime.timedelta(days=9),
    )  # fmt: skip
    assert made.not_valid_after_utc == ca.not_valid_after_utc
    made.verify_directly_issued_by(ca)
    assert isinstance(made.signature_hash_algorithm, hashes.SHA256)
