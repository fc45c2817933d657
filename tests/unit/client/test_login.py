"""A client's login: what it shows, what it renews and when, and what it never shows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semel.client import login as module
from semel.client.login import LoggedIn, Login
from semel.controller.login.clients_ca import requested_key
from semel.protos.errors import (
    InvalidRequest,
    NotMaster,
    SemelError,
    Throttled,
    Unauthenticated,
    Unavailable,
)
from semel.protos.rpc import ServerInterceptor
from semel.protos.security.credentials import Contexts, Security, add_login_port
from semel.protos.security.login_facts import LoginFacts
from semel.protos.v1.login_pb2 import LogInReply, LogInRequest
from semel.protos.v1.login_pb2_grpc import LoginServicer, add_LoginServicer_to_server
from tests.kit.certificates import CLUSTER, TestCa, replace
from tests.kit.logins import ClientsCa
from tests.kit.waiting import until_async


class Port(LoginServicer):
    """A port for logins that takes everything, for so many seconds."""

    def __init__(self, directory: Path, seconds: float = 3_600) -> None:
        self.seconds = seconds
        self.with_token = False
        self.errors: list[SemelError] = []
        """What the next calls get."""
        self.asked: list[LogInRequest] = []
        self.ca = TestCa()
        self.clients = ClientsCa()
        self.directory = directory
        self.addresses = ""

    async def LogIn(self, request: LogInRequest, context: Any) -> LogInReply:  # noqa: N802
        self.asked.append(request)
        if self.errors:
            raise self.errors.pop(0)
        key = requested_key(request.signing_request)
        return LogInReply(
            certificate=self.clients.log_in(
                "alice", LoginFacts("token"), key=key, seconds=self.seconds
            ),
            ends_with_token=self.with_token,
        )

    def login(self, **proof: Any) -> Login:
        return Login(
            addresses=self.addresses, ca=self.directory / "ca.pem", **(proof or {"token": "t-1"})
        )


@asynccontextmanager
async def serving(directory: Path, seconds: float = 3_600) -> AsyncIterator[Port]:
    port = Port(directory, seconds)
    security = Security.read(port.ca.files(directory, "controller", "1"))
    server = grpc.aio.server(interceptors=[ServerInterceptor()])
    add_LoginServicer_to_server(port, server)
    number = add_login_port(server, "127.0.0.1:0", security)
    await server.start()
    port.addresses = f"127.0.0.1:{number}"
    try:
        yield port
    finally:
        await server.stop(None)


@asynccontextmanager
async def running(logged_in: LoggedIn) -> AsyncIterator[None]:
    task = asyncio.ensure_future(logged_in.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_login_gives_what_connections_need(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        logged_in = LoggedIn(port.login())
        assert logged_in.cluster == CLUSTER
        with pytest.raises(Unauthenticated, match="not logged in"):
            logged_in.current()
        await logged_in.start(5)
        loaded = logged_in.current()
        assert (loaded.identity.kind, loaded.identity.name) == ("client", "alice")
        assert loaded.ca == port.ca.pem
        Contexts(logged_in).client()  # ssl takes the key, which is in memory only
        await logged_in.start(5)
        assert len(port.asked) == 1
        assert not _files_with(tmp_path, loaded.key)


def _is_over(logged_in: LoggedIn) -> bool:
    try:
        logged_in.current()
    except Unauthenticated:
        return True
    return False


def _files_with(directory: Path, content: bytes) -> list[Path]:
    return [path for path in directory.iterdir() if content in path.read_bytes()]


async def test_it_is_renewed_at_half_time_with_another_key(tmp_path: Path) -> None:
    async with serving(tmp_path, 4) as port:
        logged_in = LoggedIn(port.login())
        await logged_in.start(5)
        first = logged_in.current()
        async with running(logged_in):
            await until_async(lambda: logged_in.current().version > 1)
        second = logged_in.current()
        assert first.expires_at > time.time()
        assert second.key != first.key
        assert second.identity == first.identity


async def test_what_the_file_says_by_then_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t-1\n")
    async with serving(tmp_path, 4) as port:
        logged_in = LoggedIn(port.login(token_file=path))
        await logged_in.start(5)
        path.write_text("t-2")
        async with running(logged_in):
            await until_async(lambda: len(port.asked) > 1)
        assert [request.token for request in port.asked] == ["t-1", "t-2"]


async def test_a_login_that_ends_with_its_token_waits_for_another_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t-1")
    async with serving(tmp_path, 3) as port:
        port.with_token = True
        logged_in = LoggedIn(port.login(token_file=path))
        await logged_in.start(5)
        async with running(logged_in):
            await until_async(lambda: _is_over(logged_in))
            assert len(port.asked) == 1  # the same token would have been shown in vain
            replace(path, b"t-2")
            await until_async(lambda: not _is_over(logged_in))
            assert len(port.asked) == 2
            assert logged_in.current().version == 2


async def test_a_controller_that_is_none_or_a_standby_is_passed_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        port.errors = [NotMaster("ask another one"), Throttled("later", retry_after_ms=10)]
        login = port.login()
        addresses = f"127.0.0.1:1,{login.addresses}"
        logged_in = LoggedIn(Login(addresses=addresses, ca=login.ca, token="t-1"))
        await logged_in.start(10)
        assert len(port.asked) == 3


@pytest.mark.parametrize("error", [Unauthenticated("no"), InvalidRequest("no")])
async def test_a_refusal_is_told_at_once(tmp_path: Path, error: SemelError) -> None:
    async with serving(tmp_path) as port:
        port.errors = [error]
        with pytest.raises(type(error)):
            await LoggedIn(port.login()).start(10)


async def test_where_nobody_answers_it_says_where(tmp_path: Path) -> None:
    TestCa().files(tmp_path, "client", "a")
    login = Login(addresses="127.0.0.1:1", ca=tmp_path / "ca.pem", token="t-1")
    with pytest.raises(Unavailable, match="nobody logs clients in"):
        await LoggedIn(login).start(0.3)


async def test_nothing_is_shown_to_a_server_of_another_ca(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        replace(tmp_path / "other.pem", TestCa().pem)
        login = Login(addresses=port.addresses, ca=tmp_path / "other.pem", token="t-1")
        with pytest.raises(Unavailable, match="not of a CA that this program trusts"):
            await LoggedIn(login).start(0.5)
        assert not port.asked


async def test_a_login_that_fails_later_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    monkeypatch.setattr(module, "AGAIN_S_MAX", 0.05)
    async with serving(tmp_path, 4) as port:
        logged_in = LoggedIn(port.login())
        await logged_in.start(5)
        port.errors = [Unauthenticated("not now"), Unauthenticated("not now")]
        async with running(logged_in):
            await until_async(lambda: logged_in.current().version > 1)
        assert len(port.asked) == 4


async def test_a_replaced_ca_counts_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        logged_in = LoggedIn(port.login())
        await logged_in.start(5)
        both = TestCa().pem + port.ca.pem
        replace(tmp_path / "ca.pem", both)
        assert (logged_in.current().ca, logged_in.current().version) == (both, 2)
        replace(tmp_path / "ca.pem", b"no certificate")
        assert logged_in.current().version == 2


def test_a_login_shows_no_secret(tmp_path: Path) -> None:
    login = Login(addresses="h:1", ca="ca.pem", token="secret-part")
    assert "secret-part" not in repr(login) + str(login)
    proof = module._Proof("secret-part", "alice", "secret-part")
    assert "secret-part" not in repr(proof)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"token": "t", "token_file": "f"},
        {"token": "t", "user": "alice"},
        {"user": "alice"},
        {"password_file": "f"},
        {"token": "t", "addresses": ""},
        {"token": "t", "addresses": "h"},
    ],
)
def test_a_login_that_makes_no_sense_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        Login(**{"addresses": "h:1", "ca": "ca.pem", **wrong})


def test_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    TestCa().files(tmp_path, "client", "a")
    path = tmp_path / "password"
    path.write_text("correct horse\n")
    path.chmod(0o644)
    logged_in = LoggedIn(
        Login(addresses="h:1", ca=tmp_path / "ca.pem", user="alice", password_file=path)
    )
    with pytest.raises(InvalidRequest, match="chmod 600"):
        logged_in._read_proof()
    path.chmod(0o600)
    assert logged_in._read_proof() == module._Proof(user="alice", password="correct horse")
    for text in ("", "\n"):
        path.write_text(text)
        with pytest.raises(InvalidRequest, match="is empty"):
            logged_in._read_proof()


def test_a_ca_that_names_no_cluster_needs_its_name(tmp_path: Path) -> None:
    pem, _ = TestCa().issue("client", "a")
    (tmp_path / "ca.pem").write_bytes(pem)
    with pytest.raises(InvalidRequest, match="cluster_id"):
        LoggedIn(Login(addresses="h:1", ca=tmp_path / "ca.pem", token="t"))
    named = Login(addresses="h:1", ca=tmp_path / "ca.pem", token="t", cluster_id="c")
    assert LoggedIn(named).cluster == "c"
