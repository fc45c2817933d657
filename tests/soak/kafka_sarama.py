"""sarama's functional tests, from the Go module proxy.

How it works. They want five brokers behind proxies of Toxiproxy, with which they cut connections
and delay them, at ports of 127.0.0.1 that are written in them (29091 to 29095). The gateways are
told to advertise the first two of those, Toxiproxy stands there, and the other three lead to the
same gateways. Where a test stops a broker or starts it, it calls `docker compose`: a program of
that name is on its PATH that ends a gateway, or starts it, instead. It knows nothing else, so what
needs more of Docker fails. Each test runs alone, in a process that makes its topics anew.

`KAFKA_VERSION` chooses the tests: 4.0 is the version that has no requests any more that the gateway
refuses for their age. Which of the newer ones there are, sarama asks the gateway.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from semel.console.cluster_file import is_taken
from tests.kit.kafka_gateway import KafkaGatewayProcess, await_acquainted
from tests.kit.maven import Missing
from tests.kit.ports import free_ports
from tests.kit.verdicts import Verdict
from tests.kit.waiting import until
from tests.soak.kafka_go import Go, Module, functions_of
from tests.soak.kafka_suites import Judged

MODULE: Final = Module(
    "github.com/IBM/sarama", "v1.61.1", "h1:I59MWPHQUWqJNdRpsDUcbeCriog8SxjQaPfHNWxidEg="
)
TOXIPROXY: Final = Module(
    "github.com/Shopify/toxiproxy/v2", "v2.5.0", "h1:i4LPT+qrSlKNtQf5QliVjdP08GyAH8+BUIc9gT0eahc="
)
JUDGE: Final = f"sarama {MODULE.version}"
KAFKA_VERSION: Final = "4.0.0"
SECONDS_MAX: Final = 90
"""How long each test may take: sarama repeats without end what is refused for good."""
PROXIES: Final = tuple(f"127.0.0.1:{29091 + number}" for number in range(5))
"""Where the tests go to."""
ADVERTISED: Final = (PROXIES[0], PROXIES[1])
"""What the gateways have to advertise."""
_FUNCTIONAL: Final = "//go:build functional"
_DOCKER: Final = """
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({path!r})
    connection.sendall("\\0".join(sys.argv[1:]).encode() + b"\\n")
    said = connection.makefile().read()
print(said, file=sys.stderr)
sys.exit(said != "done")
"""


def run(judged: Judged) -> Iterator[Verdict]:
    """Runs them. Raises Missing."""
    if taken := [address for address in PROXIES if is_taken(address)]:
        raise Missing(f"sarama's tests need {', '.join(taken)}, where somebody listens")
    programs = judged.place / "bin"
    programs.mkdir()
    proxy = Go(judged.place / "proxy", {"GOBIN": str(programs)})
    proxy.get(TOXIPROXY)
    proxy.call("install", f"{TOXIPROXY.path}/cmd/server")
    port = free_ports(1)[0]
    environment = {
        "TOXIPROXY_ADDR": f"http://127.0.0.1:{port}",
        "KAFKA_VERSION": KAFKA_VERSION,
        "PATH": f"{programs}:{proxy.environment['PATH']}",
    }
    go = Go(judged.place / "tests", environment)
    source = go.get(MODULE)
    tests = [name for name in functional(source) if judged.only.lower() in name.lower()]
    if not tests:
        return
    with (
        _proxies(programs / "server", port, judged),
        _docker(programs / "docker", judged.gateways),
    ):
        yield from go.test_alone(JUDGE, source, tests, tags="functional", seconds_max=SECONDS_MAX)


def functional(package: Path) -> list[str]:
    """The tests of a package that are compiled for functional tests alone."""
    return [
        name
        for file in sorted(package.glob("*_test.go"))
        if file.read_text(encoding="utf-8").startswith(_FUNCTIONAL)
        for name, _ in functions_of(file)
    ]


@contextlib.contextmanager
def _proxies(program: Path, port: int, judged: Judged) -> Iterator[None]:
    """Toxiproxy, which leads from each address of the tests to a gateway."""
    listeners = [gateway.listener for gateway in judged.gateways]
    config = [
        {
            "name": f"kafka{number + 1}",
            "listen": address,
            "upstream": listeners[number % len(listeners)],
            "enabled": True,
        }
        for number, address in enumerate(PROXIES)
    ]
    file = judged.place / "proxies.json"
    file.write_text(json.dumps(config))
    with (judged.place / "proxy.log").open("w") as log:
        process = subprocess.Popen(
            [program, "-host", "127.0.0.1", "-port", str(port), "-config", file],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LOG_LEVEL": "warn"},
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: all(map(is_taken, PROXIES)), what="Toxiproxy to listen")
        await_acquainted(*judged.gateways)
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def _docker(program: Path, gateways: list[KafkaGatewayProcess]) -> Iterator[None]:
    """A program that tests call as `docker`, while this lasts: `compose stop kafka-ID` ends the
    gateway with that number, and `compose start kafka-ID` starts it."""
    brokers = (
        AdminClient({"bootstrap.servers": gateways[0].address}).list_topics(timeout=30).brokers
    )
    by_address = {gateway.address: gateway for gateway in gateways}
    services = {
        f"kafka-{number}": by_address[f"{place.host}:{place.port}"]
        for number, place in brokers.items()
    }
    stopped: set[str] = set()

    class Asked(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            match self.rfile.readline().decode().rstrip("\n").split("\0"):
                case ["compose", "stop", service] if service in services:
                    if service not in stopped:
                        stopped.add(service)
                        services[service].stop()
                case ["compose", "start", service] if service in services:
                    if service in stopped:
                        services[service].start()
                        stopped.remove(service)
                case asked:
                    self.wfile.write(f"no docker is here for {' '.join(asked)}".encode())
                    return
            self.wfile.write(b"done")

    path = program.with_name("socket")
    script = program.with_name("docker.py")
    script.write_text(_DOCKER.format(path=str(path)))
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(script)])} "$@"\n')
    program.chmod(0o755)
    with socketserver.UnixStreamServer(str(path), Asked) as server:
        thread = threading.Thread(target=server.serve_forever, name="docker")
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            for service in stopped:
                services[service].start()
