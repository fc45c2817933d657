"""A port that cannot be had is one error, whoever meets it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semel.protos import listening
from semel.protos.errors import Unavailable
from semel.protos.grpc_port import bind, bind_login
from semel.protos.rpc import SERVER_OPTIONS
from semel.protos.security.credentials import Security
from tests.kit.certificates import TestCa


def taken() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize("how", ["plain", "TLS", "logins"])
async def test_every_port_of_grpc_gives_the_system_s_reason(tmp_path: Path, how: str) -> None:
    security = Security.read(TestCa().files(tmp_path, "controller", "1"))
    add: dict[str, Callable[[Any, str], object]] = {
        "plain": lambda server, listen: bind(server, listen, None),
        "TLS": lambda server, listen: bind(server, listen, security),
        "logins": lambda server, listen: bind_login(server, listen, security),
    }
    flag = "--login-listen" if how == "logins" else "--listen"
    server = grpc.aio.server(options=SERVER_OPTIONS)
    with taken() as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(Unavailable) as refused:
            add[how](server, listen)
    assert refused.value.message == (
        f"cannot listen on {listen}: Address already in use; choose another one with {flag}"
    )
    with pytest.raises(Unavailable, match="Cannot assign requested address; choose another"):
        add[how](server, "192.0.2.1:7070")
    await server.stop(None)


async def test_port_0_becomes_a_free_one() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    address = bind(server, "127.0.0.1:0", None)
    assert address.host == "127.0.0.1"
    assert address.port > 0
    await server.stop(None)


def test_a_name_that_nobody_knows_is_the_same_error() -> None:
    with pytest.raises(Unavailable, match=r"cannot listen on no host:1: .*with --listen"):
        listening.check_free("no host:1", "--listen")
    listening.check_free("127.0.0.1:0", "--listen")
