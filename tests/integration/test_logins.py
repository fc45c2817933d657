"""Clients without certificates: a cluster of real processes, to which they log in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc.aio
import jwt
import pytest
from google.protobuf.descriptor import MethodDescriptor

from semel.client import Login, Security, connect, connect_async
from semel.console.authority import Authority
from semel.controller.login.slowdown import PAIR
from semel.protos.errors import PermissionDenied, TimedOut, Unauthenticated, UnknownTopic
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.security.credentials import channel
from semel.protos.security.declared import declared
from semel.protos.security.identity import Identity
from semel.protos.security.rules import Kind
from semel.protos.security.token_keys import key_id, new_key, public_keys
from semel.protos.security.tokens import new_token
from tests.kit.calls import call_on
from tests.kit.declared_calls import METHODS, naming, path_of
from tests.kit.logins import ClientsCa
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until

LOGIN_S = 5
"""How long a login lasts here, so that many end during a test."""
ISSUER = "https://idp.example"
PASSWORD = "correct horse battery"
PROVIDER = new_key()
SECRETS: set[str] = set()
"""Everything that must be found nowhere."""


class Logins:
    """A cluster, and those who log in."""

    def __init__(self, up: UpProcess, audit: Path) -> None:
        self.up = up
        self.audit = audit
        self.ready = next(event for event in up.events if event["event"] == "ready")
        self.directory = Path(self.ready["ca"]).parent
        self.ca = Path(self.ready["ca"]).read_bytes()
        self.said: list[str] = []
        """All output of the console."""

    def console(self, *arguments: str, config: str = "admin", **variables: str) -> Any:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
        done = subprocess.run(
            [sys.executable, "-m", "semel.console", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
            env={
                **clean,
                "SEMEL_ROUTES_DIRECTORY": "",
                "SEMEL_CLIENT_CONFIG": str(self.directory / config / "client.toml"),
                **variables,
            },
        )
        self.said += [done.stdout, done.stderr]
        return done

    def sign(self, user: str, seconds: int) -> str:
        """A token for so many seconds, at once."""
        made = new_token(
            Authority(self.directory).token_key(),
            user=user,
            cluster=self.ready["cluster_id"],
            expires_s=int(time.time()) + seconds,
        )
        SECRETS.add(made)
        return made

    def token(self, user: str, *allowed: str) -> Path:
        """The file of a token that the console has made."""
        path = self.directory.parent / f"token-{user}-{len(SECRETS)}"
        narrowed = [word for right in allowed for word in ("--allow", right)]
        done = self.console(
            *("security", "token", "--dir", str(self.directory.parent), "--user", user),
            *("--expires", "1h", "--out", str(path), *narrowed, "--json"),
        )
        assert done.returncode == 0, done.stderr
        assert path.stat().st_mode & 0o777 == 0o600
        SECRETS.add(path.read_text().strip())
        return path

    def login(self, **proof: Any) -> Login:
        return Login(addresses=self.ready["login"], ca=self.ready["ca"], **proof)

    def connect(self, *, connect_timeout_ms: int = 30_000, **proof: Any) -> Any:
        return connect(
            self.up.bootstrap,
            login=self.login(**proof),
            keep_routes=False,
            connect_timeout_ms=connect_timeout_ms,
        )

    def administrator(self) -> Any:
        security = Security.read(self.directory / "admin")
        return connect(self.up.bootstrap, security=security, keep_routes=False)

    def password_file(self, password: str = PASSWORD) -> Path:
        SECRETS.add(password)
        path = self.directory.parent / f"password-{len(SECRETS)}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(password + "\n")
        return path

    def grant(self, *rules: str) -> None:
        with self.administrator() as client:
            client.admin.change_access_rules(add=rules)


class _Keys(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(public_keys(PROVIDER).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    directory = tmp_path_factory.mktemp("logins")
    provider = HTTPServer(("127.0.0.1", 0), _Keys)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    settings = {
        "LOGIN_MS_MAX": str(LOGIN_S * 1000),
        "OIDC_ISSUER": ISSUER,
        "OIDC_KEYS": f"http://127.0.0.1:{provider.server_port}/keys",
        "OIDC_AUDIENCE": "semel",
        "OIDC_USER_CLAIM": "email",
    }
    with pytest.MonkeyPatch.context() as patch:
        for part in ("BROKER", "CONTROLLER"):
            patch.setenv(f"SEMEL_{part}_AUTHORIZATION", "1")
            patch.setenv(f"SEMEL_{part}_AUDIT_LOG", str(directory / f"{part}.jsonl"))
        for name, value in settings.items():
            patch.setenv(f"SEMEL_CONTROLLER_{name}", value)
        with UpProcess(directory / "cluster", "--secure", "--brokers", "1") as up:
            made = Logins(up, directory / "CONTROLLER.jsonl")
            done = made.console("topic", "create", "orders", "--queues", "2")
            assert done.returncode == 0, done.stderr
            made.grant(
                "allow user:alice * topic:orders*", "allow user:alice commit consumer-group:*"
            )
            yield made
    provider.shutdown()
    provider.server_close()


def test_a_token_logs_in_and_says_so(logins: Logins) -> None:
    path = logins.token("alice")
    done = logins.console("whoami", "--token-file", str(path), "--json", config="login")
    assert done.returncode == 0, done.stderr
    who = json.loads(done.stdout)
    assert (who["principal"], who["login"], who["narrowed_to"]) == ("user:alice", "token", None)
    assert 0 < who["expires_s"] - time.time() <= LOGIN_S
    done = logins.console("topic", "list", config="login", SEMEL_TOKEN=path.read_text().strip())
    assert done.returncode == 0, done.stderr
    assert "orders" in done.stdout


@pytest.mark.parametrize("direct", [True, False])
def test_no_send_fails_while_logins_end_and_are_renewed(logins: Logins, direct: bool) -> None:
    login = logins.login(token_file=logins.token("alice"))
    topic = f"orders-{direct}"
    with (
        connect(
            logins.up.bootstrap, login=login, keep_routes=False, direct_streams=direct
        ) as client,
        client.producer() as producer,
    ):
        client.admin.create_topic(topic, queues=2)
        with client.consumer(topic, [topic]) as consumer:
            found: list[int] = []

            def poll() -> None:
                found.extend(int(message.value) for message in consumer.poll(timeout=0))

            sent = renewed = 0
            ends_s = client.admin.who_am_i().expires_s or 0
            while renewed < 2:
                time.sleep(0.05)  # a program at rest, mostly
                for _ in range(5):
                    producer.send(topic, b"%d" % sent).result(timeout=20)
                    sent += 1
                poll()
                if time.time() > ends_s + 0.5:  # streams that began with that login have ended
                    renewed, ends_s = renewed + 1, client.admin.who_am_i().expires_s or 0

            def all_came() -> bool:
                poll()
                return len(found) >= sent

            until(all_came)
            assert sorted(found) == list(range(sent))
            consumer.commit()


async def test_asyncio_logs_in_as_well(logins: Logins) -> None:
    login = logins.login(user="alice", password_file=add_user(logins, "alice"))
    async with connect_async(logins.up.bootstrap, login=login, keep_routes=False) as client:
        assert (await client.admin.who_am_i()).login == "password"
        async with client.producer() as producer:
            await producer.send("orders", b"1")


def add_user(logins: Logins, name: str) -> Path:
    path = logins.password_file()
    with logins.administrator() as client:
        client.admin.add_user(name, PASSWORD)
    return path


def test_users_are_added_changed_listed_and_removed(logins: Logins) -> None:
    path = logins.password_file()
    done = logins.console("security", "user", "add", "carol", "--password-file", str(path))
    assert done.returncode == 0, done.stderr
    with logins.connect(user="carol", password_file=path) as client:
        assert client.admin.who_am_i().principal == "user:carol"
        with pytest.raises(PermissionDenied):
            client.admin.list_users()
    listed = json.loads(logins.console("security", "user", "list", "--json").stdout)
    assert "carol" in [one["user"] for one in listed["users"]]
    newer = logins.password_file("another horse altogether")
    done = logins.console("security", "user", "passwd", "carol", "--password-file", str(newer))
    assert done.returncode == 0, done.stderr
    with pytest.raises(Unauthenticated, match="no user has this name and this password"):
        logins.connect(user="carol", password_file=path)
    logins.connect(user="carol", password_file=newer).close()
    assert logins.console("security", "user", "remove", "carol").returncode == 0
    with pytest.raises(Unauthenticated):
        logins.connect(user="carol", password_file=newer)


def test_a_user_has_scram_if_somebody_says_so(logins: Logins) -> None:
    def user(*arguments: str) -> None:
        path = logins.password_file()
        done = logins.console("security", "user", *arguments, "--password-file", str(path))
        assert done.returncode == 0, done.stderr

    def has_scram() -> bool:
        listed = json.loads(logins.console("security", "user", "list", "--json").stdout)
        (found,) = [one for one in listed["users"] if one["user"] == "frank"]
        assert found.keys() == {"user", "changed_s", "scram"}  # and nothing of the password
        return bool(found["scram"])

    user("add", "frank")
    for arguments, expected in ((["--scram"], True), ([], True), (["--no-scram"], False)):
        user("passwd", "frank", *arguments)
        assert has_scram() is expected
    user("passwd", "frank")
    assert not has_scram()
    logins.connect(user="frank", password_file=logins.password_file()).close()


def test_a_token_narrows_what_its_user_may_do(logins: Logins) -> None:
    path = logins.token("alice", "write topic:orders")
    with logins.connect(token_file=path) as client:
        assert client.admin.who_am_i().narrowed_to == ("write topic:orders",)
        with client.producer() as producer:
            producer.send("orders", b"1").result(timeout=20)
        with pytest.raises(PermissionDenied):
            list(client.reader("orders", end="latest"))
    # bob may do nothing, whatever his token says
    path = logins.token("bob", "write topic:orders")
    with logins.connect(token_file=path) as client, pytest.raises(UnknownTopic):
        client.producer().send("orders", b"1").result(timeout=20)


def test_a_token_of_the_openid_provider_logs_in(logins: Logins) -> None:
    def of_provider(**claims: Any) -> str:
        said = {"iss": ISSUER, "aud": "semel", "sub": "00u1", "email": "alice", **claims}
        said = {"exp": int(time.time()) + 60, **said}
        made = jwt.encode(said, PROVIDER, algorithm="EdDSA", headers={"kid": key_id(PROVIDER)})
        SECRETS.add(made)
        return made

    with logins.connect(token=of_provider()) as client:
        who = client.admin.who_am_i()
        assert (who.principal, who.login) == ("user:alice", "oidc")
    for wrong in (of_provider(aud="c"), of_provider(exp=1), of_provider(iss="https://evil")):
        with pytest.raises(Unauthenticated):
            logins.connect(token=wrong)


def test_a_newer_token_in_the_file_is_taken_before_the_login_ends(
    logins: Logins, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(logins.sign("alice", 4))
    with logins.connect(token_file=path) as client:
        first = client.admin.who_am_i().expires_s
        path.write_text(logins.sign("alice", 3_600))
        until(lambda: client.admin.who_am_i().expires_s > first)


def test_who_proves_nothing_is_told_in_one_line_and_status_3(
    logins: Logins, tmp_path: Path
) -> None:
    expired, wrong = tmp_path / "expired", tmp_path / "wrong"
    expired.write_text(logins.sign("alice", -1))
    wrong.write_text("not.a.token\n")
    for path, reason in ((expired, "expired"), (wrong, "not valid")):
        done = logins.console("topic", "list", "--token-file", str(path), config="login")
        assert done.returncode == 3, done.stderr
        (line,) = done.stderr.splitlines()
        assert reason in line
    done = logins.console("topic", "list", config="login")
    assert done.returncode == 3
    assert "SEMEL_TOKEN" in done.stderr


def test_a_login_that_ended_is_over_until_there_is_a_newer_token(
    logins: Logins, tmp_path: Path
) -> None:
    """A stream that is open ends with its certificate, and goes on with a newer token."""
    path = tmp_path / "token"
    path.write_text(logins.sign("alice", 4))
    with logins.connect(token_file=path) as client, client.producer() as producer:
        producer.send("orders", b"1").result(timeout=20)
        until(lambda: _is_logged_out(client))
        late = producer.send("orders", b"2")
        with pytest.raises((TimedOut, Unauthenticated)):  # it waits, or was refused
            late.result(timeout=0.5)
        path.write_text(logins.sign("alice", 3_600))
        until(lambda: not _is_logged_out(client))
        with contextlib.suppress(Unauthenticated):
            late.result(timeout=60)
        producer.send("orders", b"3").result(timeout=60)
        assert client.admin.who_am_i().principal == "user:alice"


def _is_logged_out(client: Any) -> bool:
    try:
        client.admin.who_am_i()
    except Unauthenticated:
        return True
    return False


def refusals(method: MethodDescriptor, *errors: str) -> tuple[str, ...]:
    """What a refused call may end with: gRPC may tell a stream of its end before it tells why, and
    a node does not have each service."""
    return (*errors, "UnsupportedVersion", *(("Unavailable",) if method.client_streaming else ()))


async def test_an_open_connection_serves_nobody_whose_certificate_has_expired(
    logins: Logins,
) -> None:
    """Each method on a connection that was open when the certificate expired, at every node."""
    clients = ClientsCa(logins.directory)
    identity = Identity("client", "alice", logins.ready["cluster_id"])
    names = {Kind.TOPIC: "orders", Kind.CONSUMER_GROUP: "g", Kind.PRODUCER: "p"}
    names[Kind.TRANSACTION] = "t"
    for address in (logins.up.bootstrap, logins.up.node(1).address):
        certificate, key = clients.forge(identity, seconds=2)
        source = clients.source(logins.ca, certificate, key, identity)
        async with channel(address, CHANNEL_OPTIONS, Security(source)) as opened:
            who = next(method for method in METHODS if declared(path_of(method)).anybody)
            assert await call_on(opened, who, naming(who, names, 1)) != "Unauthenticated"
            while time.time() < source.loaded.expires_at:
                await asyncio.sleep(0.05)
            for method in METHODS:
                got = await call_on(opened, method, naming(method, names, 1))
                assert got in refusals(method, "Unauthenticated"), path_of(method)


@pytest.mark.parametrize("kind", ["admin", "broker", "controller"])
async def test_the_key_of_the_clients_ca_makes_no_node_and_no_administrator(
    logins: Logins, kind: str
) -> None:
    clients = ClientsCa(logins.directory)
    identity = Identity(kind, "1", logins.ready["cluster_id"])
    certificate, key = clients.forge(identity)
    source = clients.source(logins.ca, certificate, key, identity)
    for address in (logins.up.bootstrap, logins.up.node(1).address):
        async with channel(address, CHANNEL_OPTIONS, Security(source)) as opened:
            for method in METHODS:
                got = await call_on(opened, method, naming(method, dict.fromkeys(Kind, "x"), 1))
                assert got in refusals(method, "Unauthenticated"), path_of(method)


async def test_nobody_is_served_at_the_login_port_but_logins(logins: Logins) -> None:
    ca = logins.ca
    credentials = grpc.ssl_channel_credentials(root_certificates=ca)
    name = f"node.{logins.ready['cluster_id']}.semel"
    options = (("grpc.ssl_target_name_override", name),)
    async with grpc.aio.secure_channel(
        logins.ready["login"], credentials, options=options
    ) as opened:
        for method in METHODS:
            got = await call_on(opened, method, naming(method, dict.fromkeys(Kind, "x"), 1))
            if method.containing_service.name == "Login":
                assert got == "InvalidRequest"
            else:
                assert got in refusals(method), path_of(method)


def test_who_guesses_passwords_is_slowed_down(logins: Logins) -> None:
    add_user(logins, "dave")
    wrong = logins.password_file("wrong horse battery")

    def guess(_: int) -> None:
        with pytest.raises(Unauthenticated, match="no user has this name and this password"):
            logins.connect(user="dave", password_file=wrong, connect_timeout_ms=60_000)

    with ThreadPoolExecutor(PAIR.free + 1) as threads:  # at once; the last one has to wait
        list(threads.map(guess, range(PAIR.free + 1)))
    reasons = [
        line["reason"]
        for line in map(json.loads, logins.audit.read_text().splitlines())
        if line.get("who") == "user:dave" and line["result"] == "refused"
    ]
    assert any("too many wrong passwords" in reason for reason in reasons)


def test_no_secret_is_found_anywhere(logins: Logins) -> None:
    """After all other tests: the console's output, command lines, and all files of all nodes: logs,
    audit logs, data."""
    with logins.connect(token=logins.sign("alice", 60)) as client:
        assert client.admin.who_am_i().login == "token"
    secrets = {part.encode() for secret in SECRETS for part in _parts(secret)}
    for key in logins.directory.glob("*-key.pem"):
        secrets.add(key.read_bytes().splitlines()[1])
    said = "".join(logins.said).encode()
    assert not [secret for secret in secrets if secret in said]
    for node in logins.up.nodes:
        shown = Path(f"/proc/{node.pid}/cmdline").read_bytes()
        assert not [secret for secret in secrets if secret in shown]
    looked, leaks = _leaks(logins, secrets)
    assert looked > 20
    assert leaks == []
    planted = logins.up.directory / "logs" / "planted.log"
    planted.write_bytes(b"metadata=" + min(secrets))
    assert _leaks(logins, secrets) == (looked + 1, [planted])
    planted.unlink()


def _leaks(logins: Logins, secrets: set[bytes]) -> tuple[int, list[Path]]:
    """How many files were looked into, and those that hold a secret which are not made for it."""
    top = logins.audit.parent
    own = {*top.rglob("token-*"), *top.rglob("password-*"), *top.rglob("*-key.pem")}
    looked = sorted(path for path in {*top.rglob("*")} - own if path.is_file())
    contents = ((path, path.read_bytes()) for path in looked)
    return len(looked), [
        path for path, content in contents if any(secret in content for secret in secrets)
    ]


def _parts(secret: str) -> list[str]:
    """A token, and its signature alone; a password as it is."""
    return [secret, secret.rpartition(".")[2]] if secret.count(".") == 2 else [secret]
