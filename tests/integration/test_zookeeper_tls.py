"""TLS between the controllers' store and a real ZooKeeper that wants certificates."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.controller.config import ControllerConfig
from semel.controller.opening import open_store
from semel.controller.store import Transaction
from semel.controller.store.zookeeper import ZooKeeperStore, ZooKeeperTls
from semel.protos.errors import InvalidRequest, Unavailable
from tests.kit.authority import Authority
from tests.kit.zookeeper import Server

REQUEST_S = 3.0


@pytest.fixture(scope="module")
def authority(module_path: Path) -> Authority:
    return Authority(module_path / "ca")


@pytest.fixture(scope="module")
def server(module_path: Path, authority: Authority) -> Iterator[Server]:
    server = Server(module_path / "zookeeper", tls=authority.write_machine("127.0.0.1"))
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> Path:
    return Path(shutil.copytree(authority.write(authority.controller(1)), tmp_path / "tls"))


async def refused(address: str, files: Path | None) -> str:
    """Why no session begins."""
    tls = None if files is None else ZooKeeperTls(files)
    with pytest.raises(Unavailable) as told:
        await ZooKeeperStore.open((address,), "/semel", tls=tls, request_s=REQUEST_S)
    return str(told.value)


async def test_a_store_behind_tls(server: Server, files: Path, tmp_path: Path) -> None:
    store = await open_store(
        ControllerConfig(
            data=tmp_path / "data",
            metadata=f"zookeeper://{server.secure_address}/semel",
            metadata_tls=files,
        )
    )
    try:
        await store.transact(Transaction(puts={"/n": b"1"}))
        found = await store.get("/n")
        assert found is not None
        assert found.value == b"1"
    finally:
        await store.close()


async def test_a_mismatch_says_what_to_do(server: Server, files: Path) -> None:
    assert "hangs up: it speaks TLS (--metadata-tls)" in await refused(server.secure_address, None)
    assert "TLS fails" in await refused(server.address, files)


async def test_a_server_of_another_ca_or_host_is_not_spoken_to(
    server: Server, files: Path, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    strange = other.write(other.controller(1))
    assert "its certificate is not accepted" in await refused(server.secure_address, strange)
    port = server.secure_address.rpartition(":")[2]
    assert "IP address mismatch" in await refused(f"127.0.0.2:{port}", files)


async def test_a_controller_without_a_certificate_is_refused(server: Server, files: Path) -> None:
    (files / "cert.pem").unlink()
    (files / "key.pem").unlink()
    assert await refused(server.secure_address, files)


def test_files_that_cannot_be_used(files: Path) -> None:
    (files / "key.pem").write_text("no key")
    with pytest.raises(InvalidRequest, match=r"the TLS files for ZooKeeper in .* cannot be used"):
        ZooKeeperTls(files)
    (files / "ca.pem").unlink()
    with pytest.raises(InvalidRequest, match="cannot be used"):
        ZooKeeperTls(files)
