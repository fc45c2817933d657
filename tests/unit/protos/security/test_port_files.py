"""A port's own certificate, which is replaced while it serves."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.protos.errors import InvalidRequest
from semel.protos.security.port_files import port_context
from tests.kit.authority import Authority


class Ends:
    """A client's and a port's end of one connection, in memory."""

    def __init__(self, port: ssl.SSLContext, client: ssl.SSLContext) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.port = port.wrap_bio(up, down, server_side=True)
        self.client = client.wrap_bio(down, up, server_hostname="127.0.0.1")

    def open(self) -> bytes:
        """Returns the port's certificate. Raises ssl.SSLError of either side."""
        for step in (self.client.do_handshake, self.port.do_handshake) * 2:
            _try(step)
        self.port.write(b"hello")
        assert self.client.read(5) == b"hello"
        found = self.client.getpeercert(binary_form=True)
        assert found is not None
        return found


def _try(step: Callable[[], None]) -> None:
    with contextlib.suppress(ssl.SSLWantReadError):
        step()


class Machine:
    """Files of a port, as an administrator replaces them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authorities = [Authority(directory / name, "c") for name in ("one", "two")]
        self.made = [each.write_machine("127.0.0.1") for each in self.authorities]
        self.certificate, self.key, self.ca = (
            directory / name for name in ("port.pem", "port-key.pem", "clients-ca.pem")
        )
        self.replace(self.certificate, 0)
        self.replace(self.key, 0)
        self.replace(self.ca, 0)

    def replace(self, path: Path, number: int) -> None:
        """Replaces a file by that of an authority, as programs that renew files do."""
        ca, both = self.made[number]
        new = path.with_suffix(".new")
        shutil.copyfile(ca if path == self.ca else both, new)
        new.chmod(0o600)
        new.rename(path)

    def client(self, trusts: int, shows: int | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.made[trusts][0])
        if shows is not None:
            context.load_cert_chain(self.made[shows][1])
        return context


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return Machine(tmp_path)


def test_connections_use_the_files_of_their_moment(machine: Machine) -> None:
    port = port_context(machine.certificate, machine.key)
    open_one = Ends(port, machine.client(0))
    first = open_one.open()
    machine.replace(machine.certificate, 1)
    machine.replace(machine.key, 1)
    assert Ends(port, machine.client(1)).open() != first
    with pytest.raises(ssl.SSLCertVerificationError):
        Ends(port, machine.client(0)).open()
    open_one.port.write(b"still")
    assert open_one.client.read(5) == b"still"


def test_files_that_do_not_fit_change_nothing(machine: Machine) -> None:
    port = port_context(machine.certificate, machine.key)
    first = Ends(port, machine.client(0)).open()
    machine.replace(machine.certificate, 1)
    assert Ends(port, machine.client(0)).open() == first
    machine.certificate.unlink()
    assert Ends(port, machine.client(0)).open() == first
    machine.replace(machine.certificate, 1)
    machine.replace(machine.key, 1)
    assert Ends(port, machine.client(1)).open() != first


def test_the_ca_of_the_clients_is_replaced_too(machine: Machine) -> None:
    port = port_context(machine.certificate, machine.key, machine.ca)
    Ends(port, machine.client(0, shows=0)).open()
    with pytest.raises(ssl.SSLError):
        Ends(port, machine.client(0, shows=1)).open()
    with pytest.raises(ssl.SSLError):
        Ends(port, machine.client(0)).open()
    machine.replace(machine.ca, 1)
    Ends(port, machine.client(0, shows=1)).open()
    with pytest.raises(ssl.SSLError):
        Ends(port, machine.client(0, shows=0)).open()


def test_files_that_cannot_be_used_at_the_start_are_named(machine: Machine) -> None:
    machine.replace(machine.key, 1)
    with pytest.raises(InvalidRequest, match=r"port\.pem cannot be used"):
        port_context(machine.certificate, machine.key)
