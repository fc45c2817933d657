"""gRPC's health service of real nodes says what `/readyz` says, in every state, to everybody."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthStub

from semel.client import connect
from semel.protos.security.credentials import Security, channel_credentials
from tests.kit.certificates import TestCa
from tests.kit.cluster import Cluster, Node
from tests.kit.declared_calls import METHODS, path_of
from tests.kit.secure_cluster import SecureCluster
from tests.kit.waiting import until

SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
BROKER_SERVICES = {
    *("Audit", "Broker", "BrokerStream", "Controller", "Members", "Mirrors", "Moves"),
    *("RaftPeer", "Restores", "Settings", "Snapshots", "Transactions"),
}
CONTROLLER_SERVICES = {"Audit", "Controller", "Settings"}
FLAGS = ("--metrics-port", "0")


class Probed(Cluster):
    """All nodes have a metrics port."""

    def _controller_flags(self) -> list[str]:
        return list(FLAGS)


class SecurelyProbed(SecureCluster, Probed):
    """The same with TLS."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probed]:
    with Probed(tmp_path_factory.mktemp("health"), broker_flags=FLAGS) as running:
        yield running


def is_ready(node: Node) -> bool:
    """What `/readyz` says."""
    where = json.loads(node.output_file.read_text().partition("\n")[0])["metrics"]
    try:
        with urllib.request.urlopen(f"http://{where}/readyz", timeout=30) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False


@contextmanager
def asking(address: str, security: Security | None = None, name: str = "") -> Iterator[Any]:
    """A stub, as probes of others have it: without anything of ours."""
    if security is None:
        opened = grpc.insecure_channel(address)
    else:
        options = (("grpc.ssl_target_name_override", name),)
        credentials = channel_credentials(security.files)
        opened = grpc.secure_channel(address, credentials, options=options)
    with opened as channel:
        yield HealthStub(channel)


def is_serving(stub: Any) -> bool:
    return bool(stub.Check(pb.HealthCheckRequest(), timeout=10).status == SERVING)


def status(node: Node, service: str = "") -> int:
    with asking(node.address) as stub:
        reply = stub.Check(pb.HealthCheckRequest(service=service), timeout=30)
        return int(reply.status)


def says(node: Node, expected: int) -> bool:
    """Whether both probes say the same, and this."""
    return (status(node), is_ready(node)) == (expected, expected == SERVING)


def served(address: str) -> set[str]:
    """The services of ours that answer at a port, whatever they answer."""
    found = set()
    with grpc.insecure_channel(address) as channel:
        for method in METHODS:
            if method.client_streaming or method.server_streaming:
                continue
            call: Any = channel.unary_unary(path_of(method))
            try:
                call(b"\xff", timeout=30)  # no message at all
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    continue
            found.add(method.containing_service.name)
    return found


def test_every_node_names_its_services_and_serves_them(cluster: Probed) -> None:
    for node, names in (
        (cluster.brokers[0], BROKER_SERVICES),
        (cluster.controller, CONTROLLER_SERVICES),
    ):
        with asking(node.address) as stub:
            listed = stub.List(pb.HealthListRequest(), timeout=30).statuses
        assert {name: each.status for name, each in listed.items()} == {
            "": SERVING,
            **{f"semel.protos.v1.{name}": SERVING for name in names},
        }
        assert served(node.address) == names
        assert status(node, f"semel.protos.v1.{min(names)}") == SERVING
        with pytest.raises(grpc.RpcError) as refused:
            status(node, "semel.protos.v1.Login")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_both_probes_follow_a_drain_and_a_lost_majority(cluster: Probed) -> None:
    first, *others = cluster.brokers
    until(lambda: all(says(node, SERVING) for node in cluster.nodes))
    told: list[int] = []
    with asking(first.address) as stub, connect(cluster.bootstrap) as client:
        stream = stub.Watch(pb.HealthCheckRequest())

        def watch() -> None:
            with suppress(grpc.RpcError):
                told.extend(reply.status for reply in stream)

        watcher = threading.Thread(target=watch)
        watcher.start()
        until(lambda: told == [SERVING])
        client.admin.drain_node(first.id, seconds=600)
        until(lambda: says(first, NOT_SERVING))
        until(lambda: told == [SERVING, NOT_SERVING])
        assert all(says(node, SERVING) for node in others)
        client.admin.drain_node(first.id, seconds=0)
        until(lambda: says(first, SERVING))
        until(lambda: told == [SERVING, NOT_SERVING, SERVING])
        for node in others:
            cluster.kill(node)
        until(lambda: says(first, NOT_SERVING))  # it alone is no majority
        until(lambda: told[-1] == NOT_SERVING)
        assert says(cluster.controller, SERVING)
        for node in others:
            cluster.start_node(node)
        until(lambda: all(says(node, SERVING) for node in cluster.nodes))
        until(lambda: told[-1] == SERVING)
        before = len(told)
        cluster.kill(first, signal.SIGTERM)
        watcher.join(30)
        assert not watcher.is_alive()
        assert told[before:] == [NOT_SERVING]
        cluster.start_node(first)


def test_a_controller_without_a_majority_does_not_serve(tmp_path: Path) -> None:
    with Probed(tmp_path, brokers=1, controllers=3, broker_flags=FLAGS) as cluster:
        until(lambda: all(says(node, SERVING) for node in cluster.controllers))
        with asking(cluster.controllers[0].address) as stub:
            listed = stub.List(pb.HealthListRequest(), timeout=30).statuses
        assert "semel.protos.v1.MetadataGroup" in listed


def test_with_tls_whoever_the_port_lets_in_may_ask(tmp_path: Path) -> None:
    with SecurelyProbed(tmp_path, brokers=1, broker_flags=FLAGS) as cluster:
        name = cluster.security.tls_name()
        for node in cluster.nodes:
            with asking(node.address, cluster.security, name) as stub:
                until(partial(is_serving, stub))
            for caller in (None, Security.read(TestCa().files(tmp_path / "other", "client", "x"))):
                with (
                    asking(node.address, caller, name) as stub,
                    pytest.raises(grpc.RpcError) as refused,
                ):
                    is_serving(stub)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # no handshake
