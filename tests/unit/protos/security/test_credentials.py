"""TLS on real sockets: who is let in, whom a caller speaks to, replaced files."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor

from semel.protos.errors import InternalError, Unauthenticated, Unavailable
from semel.protos.rpc import (
    CHANNEL_OPTIONS,
)
from semel.protos.security.credentials import (
    Contexts,
    Security,
    channel,
    client_context,
    server_context,
)
from semel.protos.security.declared import declared
from semel.protos.security.guard import Guard
from semel.protos.security.identity import KINDS, Identity, any_node, identity_of_ssl
from tests.kit.certificates import CLUSTER, TestCa, replace
from tests.kit.declared_calls import METHODS, path_of
from tests.kit.who_port import ECHO, RAFT, UNDECLARED, ask, ask_on, serving

TWO = Identity("broker", "2", CLUSTER)


def secured(ca: TestCa, directory: Path, kind: str, name: str, **options: Any) -> Security:
    return Security.read(ca.files(directory / f"{kind}-{name}", kind, name, **options))


async def test_both_ends_know_each_other(tmp_path: Path) -> None:
    ca = TestCa()
    client = secured(ca, tmp_path, "client", "loader")
    async with serving(secured(ca, tmp_path, "broker", "2")) as address:
        assert await ask(address, client) == f"semel://{CLUSTER}/client/loader"
        assert await ask(address, client, TWO) == f"semel://{CLUSTER}/client/loader"


async def test_a_caller_speaks_to_the_node_that_it_means_and_to_no_other(tmp_path: Path) -> None:
    ca = TestCa()
    client = secured(ca, tmp_path, "broker", "1")
    async with serving(secured(ca, tmp_path, "broker", "2")) as address:
        for wrong in (Identity("broker", "3", CLUSTER), Identity("controller", "2", CLUSTER)):
            with pytest.raises(Unavailable, match=f"{address}: the certificate there is not that"):
                await ask(address, client, wrong)
    async with serving(secured(ca, tmp_path, "client", "eve")) as address:
        with pytest.raises(Unavailable, match="is not that of a node"):
            await ask(address, client)


async def test_only_nodes_may_call_what_is_between_nodes(tmp_path: Path) -> None:
    ca = TestCa()
    async with serving(secured(ca, tmp_path, "broker", "2")) as address:
        broker = secured(ca, tmp_path, "broker", "1")
        assert await ask(address, broker, TWO, RAFT) == f"semel://{CLUSTER}/broker/1"
        for kind, name in (("client", "eve"), ("admin", "admin"), ("controller", "1")):
            with pytest.raises(Unauthenticated, match=f"that of {kind} {name}"):
                await ask(address, secured(ca, tmp_path, kind, name), TWO, RAFT)


async def test_what_declares_nothing_is_called_by_nobody(tmp_path: Path) -> None:
    ca = TestCa()
    async with serving(secured(ca, tmp_path, "broker", "2")) as address:
        for kind, name in (("client", "eve"), ("admin", "admin"), ("broker", "1")):
            with pytest.raises(InternalError):
                await ask(address, secured(ca, tmp_path, kind, name), TWO, UNDECLARED)


@pytest.fixture(scope="module")
def guard_and_callers(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Guard, dict[str, Any]]:
    """The guard of a node, and the contexts of calls by a program of each kind."""
    ca = TestCa()
    guard = Guard(secured(ca, tmp_path_factory.mktemp("node"), "broker", "2"))
    contexts = {}
    for kind in KINDS:
        told = {"x509_pem_cert": [ca.issue(kind, "1")[0]]}
        contexts[kind] = SimpleNamespace(auth_context=lambda told=told: told)
    return guard, contexts


@pytest.mark.parametrize("method", [each for each in METHODS if declared(path_of(each)).nodes])
def test_each_method_between_nodes_is_for_the_declared_nodes(
    method: MethodDescriptor, guard_and_callers: tuple[Guard, dict[str, Any]]
) -> None:
    """The guard of a node with TLS and without rules lets in whom the declaration names."""
    what = declared(path_of(method))
    guard, contexts = guard_and_callers
    allowed = what.nodes if what.for_nodes_only else set(KINDS)
    for kind, context in contexts.items():
        if kind in allowed:
            guard.admit(path_of(method), context)
        else:
            with pytest.raises(Unauthenticated):
                guard.admit(path_of(method), context)


async def test_another_cluster_of_the_same_ca_is_refused(tmp_path: Path) -> None:
    ca = TestCa()
    async with serving(secured(ca, tmp_path, "broker", "2")) as address:
        ca.cluster = "other"
        stranger = secured(ca, tmp_path / "other", "broker", "1")
        with pytest.raises(Unavailable, match="is not that of the node that is meant"):
            await ask(address, stranger)
        with pytest.raises(Unauthenticated, match="broker 1 of cluster other"):
            await ask(address, stranger, TWO)


@pytest.mark.parametrize("wrong", ["another CA", "expired"])
async def test_a_certificate_that_is_not_good_is_refused(tmp_path: Path, wrong: str) -> None:
    ca = TestCa()
    async with serving(secured(ca, tmp_path, "broker", "2")) as address:
        other = ca if wrong == "expired" else TestCa()
        certificate, key = other.issue("broker", "1", ended=wrong == "expired")
        credentials = grpc.ssl_channel_credentials(ca.pem, key, certificate)
        options = (("grpc.ssl_target_name_override", any_node(CLUSTER)),)
        async with grpc.aio.secure_channel(address, credentials, options) as opened:
            with pytest.raises(Unavailable, match="its certificate is refused there"):
                await ask_on(opened)


async def test_plain_and_tls_end_with_one_clear_line(tmp_path: Path) -> None:
    ca = TestCa()
    client = secured(ca, tmp_path, "client", "loader")
    async with serving(secured(ca, tmp_path, "broker", "2")) as address:
        with pytest.raises(Unavailable, match=f"{address}: .*the port speaks TLS") as failure:
            await ask(address, None)
        assert "\n" not in failure.value.message
    async with serving(None) as address:
        assert await ask(address, None) == "nobody"
        with pytest.raises(Unavailable, match=f"{address}: .*speaks TLS, and the port") as failure:
            await ask(address, client)
        assert "\n" not in failure.value.message


async def test_files_are_replaced_under_a_stream_and_no_call_fails(tmp_path: Path) -> None:
    """The CA changes in three steps; a stream of before goes on, new calls use the new files."""
    old, new = TestCa(), TestCa()
    both = old.pem + new.pem
    node = secured(old, tmp_path, "broker", "2")
    client = secured(old, tmp_path, "client", "loader")
    places = [tmp_path / "broker-2", tmp_path / "client-loader"]
    async with serving(node) as address, channel(address, CHANNEL_OPTIONS, client) as opened:
        call: Any = opened.stream_stream(f"/{ECHO}")
        stream = call()

        async def all_is_well() -> None:
            await stream.write(b"still here")
            assert await stream.read() == b"still here"
            await ask_on(opened)
            await ask(address, client)

        await all_is_well()
        for place in places:
            replace(place / "ca.pem", both)
            await all_is_well()
        for place, kind, name in zip(places, ("broker", "client"), ("2", "loader"), strict=True):
            new.files(place, kind, name, trusted=both)
            await all_is_well()
        for place in places:
            replace(place / "ca.pem", new.pem)
            await all_is_well()
        assert node.files.current().version == client.files.current().version == 4
        before = secured(old, tmp_path / "before", "client", "loader", trusted=both)
        with pytest.raises(Unavailable, match="its certificate is refused there"):
            await ask(address, before)
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        inner: Any = opened
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(inner._under_way) == 1, "channels of before are closed after their last call"


async def test_a_channel_connects_again_with_the_new_files(tmp_path: Path) -> None:
    old, new = TestCa(), TestCa()
    node = secured(old, tmp_path, "broker", "2")
    client = secured(old, tmp_path, "client", "loader")
    async with serving(node) as address:
        opened = channel(address, CHANNEL_OPTIONS, client)
        await ask_on(opened)
    for kind, name in (("broker", "2"), ("client", "loader")):
        new.files(tmp_path / f"{kind}-{name}", kind, name)
    async with serving(node, address), opened:
        assert await ask_on(opened) == client.identity.uri


# --- ssl ----------------------------------------------------------------------------------------


async def exchange(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> Any:
    """Whom each end has seen: (server's view, client's view). Raises ssl.SSLError."""
    seen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(identity_of_ssl(writer.get_extra_info("ssl_object")))
        writer.write(b"x")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname=name
        )
        met = identity_of_ssl(writer.get_extra_info("ssl_object"))
        try:
            assert await reader.read(1) == b"x", "closed without a word"
        finally:
            writer.close()
        return await seen, met


async def test_ssl_contexts_prove_the_same(tmp_path: Path) -> None:
    ca = TestCa()
    node = secured(ca, tmp_path, "broker", "2")
    client = secured(ca, tmp_path, "client", "loader")
    server = server_context(node.files)
    for to in (None, TWO):
        found = await exchange(server, client_context(client.files), client.tls_name(to))
        assert found == (client.identity, TWO)
    wrong = client.tls_name(Identity("broker", "3", CLUSTER))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await exchange(server, client_context(client.files), wrong)
    assert server.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_a_port_s_context_follows_the_files(tmp_path: Path) -> None:
    old, new = TestCa(), TestCa()
    node = secured(old, tmp_path, "broker", "2")
    client = secured(old, tmp_path, "client", "loader")
    contexts, server = Contexts(client.files), Contexts(node.files).server()
    name = client.tls_name()
    assert await exchange(server, contexts.client(), name)
    first = contexts.client()
    for kind, number in (("broker", "2"), ("client", "loader")):
        new.files(tmp_path / f"{kind}-{number}", kind, number)
    assert await exchange(server, contexts.client(), name) == (client.identity, TWO)
    assert contexts.client() is not first
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await exchange(server, first, name)
