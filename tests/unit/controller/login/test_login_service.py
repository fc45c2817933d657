"""Logins: who is right gets a client's certificate, and others an error that shows nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import argon2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from semel.client.certified import new_request
from semel.controller.login import login_service
from semel.controller.login.clients_ca import CLIENTS_CA_KEY, ClientsCa, requested_key
from semel.controller.login.key_sets import FileSet, KeySets
from semel.controller.login.login_service import LoginService
from semel.controller.login.scram_logins import ScramFacts
from semel.controller.login.slowdown import PAIR
from semel.protos.errors import (
    InvalidRequest,
    NotMaster,
    Throttled,
    Unauthenticated,
    Unavailable,
)
from semel.protos.security import certificates, passwords
from semel.protos.security.identity import Identity
from semel.protos.security.login_facts import LoginFacts, login_facts_of
from semel.protos.security.rules import Scope
from semel.protos.security.scram import HASHES, SALT_BYTES, new_verifier
from semel.protos.security.tls_files import CLIENTS_CA, TlsFileError, identity_of_certificate
from semel.protos.security.token_keys import new_key, public_keys
from semel.protos.security.tokens import TokenVerifier, new_token
from semel.protos.v1.login_pb2 import BeginScramRequest, FinishScramRequest, LogInRequest
from tests.kit import logins
from tests.kit.certificates import CLUSTER, replace
from tests.kit.scram_client import ScramClient

KEY = new_key()
NOW_S = float(int(time.time()))
HOUR_S = 3_600
PASSWORD = "correct horse"


class Called:
    """A call's context."""

    def __init__(self, address: str = "ipv4:10.0.0.1:5") -> None:
        self._address = address

    def peer(self) -> str:
        return self._address


class World:
    """A service with one user, and what it has noted."""

    def __init__(self, directory: Path, threads: ThreadPoolExecutor) -> None:
        self.ca = logins.ClientsCa()
        replace(directory / CLIENTS_CA, self.ca.pem)
        replace(directory / CLIENTS_CA_KEY, certificates.key_pem(self.ca.key), mode=0o600)
        (directory / "keys.json").write_text(public_keys(KEY))
        self.directory = directory
        self.hashes = {"alice": passwords.new_hash(PASSWORD)}
        self.verifiers = {
            ("alice", mechanism): new_verifier(mechanism, PASSWORD, b"s" * SALT_BYTES)
            for mechanism in HASHES
        }
        self.standby = False
        self.now_s = NOW_S
        self.lines: list[Any] = []
        self.checks = passwords.PasswordChecks()
        self.threads = threads
        self.service = self.make()

    def make(self, *, narrows: bool = True) -> LoginService:
        sets = KeySets(
            FileSet(self.directory / "keys.json", lambda text: TokenVerifier(CLUSTER, text))
        )
        return LoginService(
            ca=ClientsCa(self.directory, CLUSTER),
            key_sets=sets,
            hash_of=self._hash_of,
            scram_of=self._scram_of,
            checks=self.checks,
            threads=self.threads,
            audit=self.lines.append,
            wall_s=lambda: self.now_s,
            login_ms_max=HOUR_S * 1000,
            narrows=narrows,
        )

    async def _hash_of(self, user: str) -> str | None:
        if self.standby:
            raise NotMaster("ask another one", master_address="h:1")
        return self.hashes.get(user)

    async def _scram_of(self, user: str, mechanism: str) -> ScramFacts:
        if self.standby:
            raise NotMaster("ask another one", master_address="h:1")
        return ScramFacts(secret=b"k" * 32, verifier=self.verifiers.get((user, mechanism)))

    async def scram(
        self, client: ScramClient, address: str = "ipv4:10.0.0.1:5"
    ) -> tuple[x509.Certificate, bytes]:
        """Both halves of an exchange."""
        mechanism, first, signed = client.mechanism, client.first, new_request()[1]
        began = await self.service.BeginScram(
            BeginScramRequest(mechanism=mechanism, client_first=first, signing_request=signed),
            Called(address),
        )
        done = await self.service.FinishScram(
            FinishScramRequest(
                mechanism=mechanism,
                client_first=first,
                client_final=client.final(began.server_first),
                signing_request=signed,
            ),
            Called(address),
        )
        return x509.load_pem_x509_certificate(done.certificate), done.server_final

    async def log_in(self, address: str = "ipv4:10.0.0.1:5", **proof: str) -> x509.Certificate:
        request = LogInRequest(signing_request=new_request()[1], **proof)
        reply = await self.service.LogIn(request, Called(address))
        return x509.load_pem_x509_certificate(reply.certificate)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    quick = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(passwords, "_HASHER", quick)
    with ThreadPoolExecutor(login_service.CHECKS_AT_ONCE) as threads:
        yield World(tmp_path, threads)


def token(user: str = "bob", expires_s: float = NOW_S + 60, **more: Any) -> str:
    return new_token(KEY, user=user, cluster=CLUSTER, expires_s=int(expires_s), **more)


async def test_a_token_gives_a_certificate_that_ends_with_it(world: World) -> None:
    scopes = (Scope.parse("read topic:a"),)
    made = await world.log_in(token=token(scopes=scopes))
    assert identity_of_certificate(made) == Identity("client", "bob", CLUSTER)
    assert login_facts_of(made) == LoginFacts("token", scopes)
    assert made.not_valid_after_utc.timestamp() == NOW_S + 60
    made.verify_directly_issued_by(world.ca.certificate)
    long = await world.log_in(token=token(expires_s=NOW_S + 86_400))
    assert long.not_valid_after_utc.timestamp() == NOW_S + HOUR_S
    assert login_facts_of(long).scopes is None


async def test_only_a_certificate_that_ends_with_its_token_needs_a_newer_one(world: World) -> None:
    for expires_s, expected in ((NOW_S + 60, True), (NOW_S + 86_400, False)):
        request = LogInRequest(signing_request=new_request()[1], token=token(expires_s=expires_s))
        reply = await world.service.LogIn(request, Called())
        assert reply.ends_with_token is expected


async def test_a_password_gives_a_certificate_for_an_hour(world: World) -> None:
    made = await world.log_in(user="alice", password=PASSWORD)
    assert identity_of_certificate(made) == Identity("client", "alice", CLUSTER)
    assert login_facts_of(made) == LoginFacts("password")
    assert made.not_valid_after_utc.timestamp() == NOW_S + HOUR_S
    assert world.lines[-1]["result"] == "logged in"
    assert (world.service.logins, world.service.refused) == (1, 0)


@pytest.mark.parametrize("mechanism", HASHES)
async def test_scram_gives_the_same_certificate_as_a_password(world: World, mechanism: str) -> None:
    client = ScramClient("alice", PASSWORD, mechanism)
    made, server_final = await world.scram(client)
    assert client.believes(server_final)
    assert identity_of_certificate(made) == Identity("client", "alice", CLUSTER)
    assert login_facts_of(made) == LoginFacts("password")
    assert made.not_valid_after_utc.timestamp() == NOW_S + HOUR_S
    made.verify_directly_issued_by(world.ca.certificate)
    assert (world.service.logins, world.service.refused) == (1, 0)
    assert world.lines == [
        {
            "who": "user:alice",
            "from": "ipv4:10.0.0.1:5",
            "method": "/semel.protos.v1.Login/FinishScram",
            "login": "scram",
            "result": "logged in",
        }
    ]


async def test_wrong_proofs_of_scram_are_noted_and_show_nothing(world: World) -> None:
    with pytest.raises(Unauthenticated) as refused:
        await world.scram(ScramClient("alice", "wrong horse"))
    assert "user:alice" in repr(world.lines)
    with pytest.raises(Unauthenticated):
        await world.scram(ScramClient("secret-part is no name", "wrong horse"))
    for secret in ("secret-part", "wrong horse", "fyko"):
        assert secret not in repr(world.lines) + str(refused.value)
    assert (world.service.logins, world.service.refused) == (0, 2)


async def test_guesses_by_scram_and_by_password_are_counted_together(world: World) -> None:
    with pytest.raises(Unauthenticated):
        await world.log_in(user="alice", password="wrong horse")
    for _ in range(PAIR.free - 1):
        with pytest.raises(Unauthenticated):
            await world.scram(ScramClient("alice", "wrong horse"))
    for refused in (
        world.scram(ScramClient("alice", PASSWORD)),
        world.log_in(user="alice", password=PASSWORD),
    ):
        with pytest.raises(Throttled):
            await refused
    await world.scram(ScramClient("alice", PASSWORD), "ipv4:10.0.0.2:5")


async def test_both_halves_of_scram_are_logins_that_a_flood_is_made_of(world: World) -> None:
    answers: list[type[Exception]] = []
    for _ in range(300):
        try:
            await world.service.BeginScram(BeginScramRequest(), Called())
        except (InvalidRequest, Throttled) as error:
            answers.append(type(error))
    assert Throttled in answers
    with pytest.raises(Throttled):
        await world.service.FinishScram(FinishScramRequest(), Called())


async def test_a_standby_sends_on_an_exchange_of_scram(world: World) -> None:
    world.standby = True
    with pytest.raises(NotMaster):
        await world.scram(ScramClient("alice", PASSWORD))


@pytest.mark.parametrize(
    "proof",
    [
        {},
        {"token": "x"},
        {"token": "secret-part.secret-part.secret-part"},
        {"token": token(expires_s=NOW_S)},
        {"token": token() + "x"},
        {"token": token(), "password": "secret-part"},
        {"user": "alice"},
        {"user": "alice", "password": "secret-part"},
        {"user": "bob", "password": PASSWORD},
        {"user": "secret-part is no name", "password": "secret-part"},
        {"user": "x" * 249, "password": "secret-part"},
        {"user": "alice", "password": "secret-part" * 1_000},
        {"user": "*", "password": PASSWORD},
        {"password": PASSWORD},
    ],
)
async def test_nobody_else_gets_one_and_nothing_shows(world: World, proof: dict[str, str]) -> None:
    with pytest.raises((Unauthenticated, InvalidRequest)) as refused:
        await world.log_in(**proof)
    shown = str(refused.value) + repr(refused.value.__cause__) + repr(world.lines)
    assert "secret-part" not in shown
    assert PASSWORD not in shown
    for part in proof.get("token", "").split("."):
        assert len(part) < 4 or part not in shown
    assert world.lines[-1]["result"] == "refused"
    assert world.service.refused == 1


async def test_a_user_that_does_not_exist_is_not_told_from_a_wrong_password(world: World) -> None:
    errors = []
    for user in ("alice", "nobody"):
        with pytest.raises(Unauthenticated) as refused:
            await world.log_in(user=user, password="wrong horse")
        errors.append(str(refused.value))
    assert len(set(errors)) == 1


async def test_who_guesses_is_told_to_wait_before_anything_is_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(PAIR.free):
        with pytest.raises(Unauthenticated):
            await world.log_in(user="alice", password="wrong horse")
    monkeypatch.setattr(world.checks, "right", lambda *_: pytest.fail("it was looked at"))
    with pytest.raises(Throttled) as refused:
        await world.log_in(user="alice", password=PASSWORD)
    assert 0 < refused.value.retry_after_ms <= PAIR.first_ms
    monkeypatch.undo()
    await world.log_in("ipv4:10.0.0.2:5", user="alice", password=PASSWORD)


async def test_few_passwords_are_checked_at_once_and_few_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_service, "CHECKS_WAITING_MAX", 4)
    going, gate, most = [], threading.Event(), [0]
    lock = threading.Lock()

    def slow(password: str, stored: str | None) -> bool:
        with lock:
            going.append(password)
            most[0] = max(most[0], len(going))
        gate.wait(10)
        with lock:
            going.pop()
        return True

    monkeypatch.setattr(world.checks, "right", slow)
    calls = [
        asyncio.ensure_future(
            world.log_in(f"ipv4:10.0.0.{number}:5", user=f"u{number}", password=PASSWORD)
        )
        for number in range(12)
    ]
    while sum(call.done() for call in calls) < 8:
        await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, Throttled) for result in results) == 8
    assert sum(isinstance(result, x509.Certificate) for result in results) == 4
    assert most[0] == login_service.CHECKS_AT_ONCE


async def test_a_standby_sends_on_a_password_and_takes_a_token(world: World) -> None:
    world.standby = True
    await world.log_in(token=token())
    with pytest.raises(NotMaster):
        await world.log_in(user="alice", password=PASSWORD)


async def test_a_narrowed_token_is_refused_where_no_rights_are_checked(world: World) -> None:
    world.service = world.make(narrows=False)
    await world.log_in(token=token())
    with pytest.raises(Unauthenticated, match="--authorization"):
        await world.log_in(token=token(scopes=()))


async def test_a_new_clients_ca_signs_once_its_key_is_there(world: World) -> None:
    newer = logins.ClientsCa()
    replace(world.directory / CLIENTS_CA, newer.pem + world.ca.pem)
    (await world.log_in(token=token())).verify_directly_issued_by(world.ca.certificate)
    replace(world.directory / CLIENTS_CA_KEY, certificates.key_pem(newer.key), mode=0o600)
    (await world.log_in(token=token())).verify_directly_issued_by(newer.certificate)
    replace(world.directory / CLIENTS_CA_KEY, certificates.key_pem(world.ca.key), mode=0o644)
    (await world.log_in(token=token())).verify_directly_issued_by(newer.certificate)


async def test_a_clients_ca_that_has_expired_issues_nothing(world: World) -> None:
    old = logins.ClientsCa(days=0)
    replace(world.directory / CLIENTS_CA, old.pem)
    replace(world.directory / CLIENTS_CA_KEY, certificates.key_pem(old.key), mode=0o600)
    world.now_s = old.certificate.not_valid_after_utc.timestamp()
    with pytest.raises(Unavailable, match="renew --logins"):
        await world.log_in(token=token(expires_s=world.now_s + 60))


def test_a_key_of_the_clients_ca_that_others_can_read_is_refused(world: World) -> None:
    (world.directory / CLIENTS_CA_KEY).chmod(0o640)
    with pytest.raises(TlsFileError, match="chmod 600"):
        ClientsCa(world.directory, CLUSTER)


P256 = bytes.fromhex("2a8648ce3d030107")
"""How a key says which curve it is of."""


def csr(key: Any) -> bytes:
    made = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def test_a_request_has_a_key_that_its_sender_has() -> None:
    good = csr(ec.generate_private_key(ec.SECP256R1()))
    assert P256 in good
    assert isinstance(requested_key(good), ec.EllipticCurvePublicKey)
    for wrong in (
        b"",
        b"x",
        good[:-1],
        good[:-8] + bytes(8),
        good + bytes(5_000),
        good.replace(b"\x02\x01\x00", b"\x02\x01\x27", 1),  # its version
        good.replace(P256, P256[:-2] + b"\x7f\x07"),  # a curve that nobody knows
        csr(ec.generate_private_key(ec.SECP384R1())),
        csr(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
    ):
        with pytest.raises(InvalidRequest):
            requested_key(wrong)


async def test_what_is_asked_for_in_the_request_counts_for_nothing(world: World) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    greedy = (
        x509.CertificateSigningRequestBuilder(x509.Name([]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.UniformResourceIdentifier(Identity("admin", "eve", CLUSTER).uri)]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    request = LogInRequest(
        token=token(), signing_request=greedy.public_bytes(serialization.Encoding.DER)
    )
    reply = await world.service.LogIn(request, Called())
    made = x509.load_pem_x509_certificate(reply.certificate)
    assert identity_of_certificate(made) == Identity("client", "bob", CLUSTER)
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
