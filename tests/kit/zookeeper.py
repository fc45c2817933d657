"""Real ZooKeeper servers for tests: one, or an ensemble of three."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from semel.console import zookeeper
from semel.protos.addresses import Address
from tests.kit.ports import free_ports

START_S = 60.0


class Server:
    """One ZooKeeper process; `start` returns when it answers."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        server_id: int = 1,
        ensemble: dict[int, str] | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        """`tls` has the files of the CA, and of key and certificate: it then serves with TLS too,
        at `secure_address`."""
        self.address = f"127.0.0.1:{port or free_ports(1)[0]}"
        self._directory = directory
        self._command = zookeeper.prepare(
            directory, self.address, server_id=server_id, ensemble=ensemble
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.secure_address = ""
        if tls is not None:
            self._serve_tls(*tls)

    def _serve_tls(self, ca: Path, server: Path) -> None:
        port = free_ports(1)[0]
        self.secure_address = f"127.0.0.1:{port}"
        settings = {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": port,
            "secureClientPortAddress": "0.0.0.0",  # reached at 127.0.0.2 by a test
            "ssl.clientAuth": "need",
            "ssl.keyStore.location": server,
            "ssl.trustStore.location": ca,
        }
        with (self._directory / "zoo.cfg").open("a") as config:
            config.writelines(f"{name}={value}\n" for name, value in settings.items())

    def launch(self) -> None:
        """Starts the process."""
        assert self.process is None
        with (self._directory / "out").open("ab") as out:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def start(self, *modes: str) -> None:
        """Starts the process and waits until it says that it is in one of these modes."""
        self.launch()
        self.wait_for(*modes or ("standalone",))

    def wait_for(self, *modes: str) -> None:
        """Returns when the server is in one of the modes: standalone, leader, follower, …"""
        deadline = time.monotonic() + START_S
        while self.mode() not in modes:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self._directory / "out").read_text())
            time.sleep(0.02)

    def mode(self) -> str:
        """The mode of the server by its own word; empty while it does not answer."""
        with contextlib.suppress(OSError):
            server = Address.parse(self.address)
            with socket.create_connection((server.host, server.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
            return answer.decode().partition("Mode: ")[2].partition("\n")[0]
        return ""

    def end(self, number: int = signal.SIGKILL) -> None:
        """Ends the process, if it runs, and waits for it."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait(20)
            self.process = None


@contextlib.contextmanager
def running_server(directory: Path) -> Iterator[Server]:
    """One server, which runs inside the block."""
    server = Server(directory)
    try:
        server.start()
        yield server
    finally:
        server.end()


@contextlib.contextmanager
def running_ensemble(directory: Path) -> Iterator[list[Server]]:
    """Three servers, which run inside the block."""
    ports = free_ports(9)
    ensemble = {
        number: f"127.0.0.1:{ports[3 * number - 2]}:{ports[3 * number - 1]}" for number in (1, 2, 3)
    }
    servers = [
        Server(
            directory / str(number),
            port=ports[3 * number - 3],
            server_id=number,
            ensemble=ensemble,
        )
        for number in ensemble
    ]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_for("leader", "follower")
        yield servers
    finally:
        for server in servers:
            server.end()
