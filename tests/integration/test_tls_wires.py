"""Every wire of a cluster with TLS, with real processes: streams, replication, metrics."""

from __future__ import annotations

import http.client
import logging
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import connect
from semel.protos.addresses import Address
from semel.protos.security.credentials import Contexts
from tests.kit.cluster import Cluster
from tests.kit.secure_cluster import SecureCluster
from tests.kit.waiting import until

COUNT = 300


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[SecureCluster]:
    with SecureCluster(
        module_path / "cluster", controllers=3, broker_flags=("--metrics-port", "0")
    ) as cluster:
        yield cluster


def pass_messages(cluster: SecureCluster, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """Messages go in and come out on direct streams: nothing falls back to gRPC."""
    caplog.set_level(logging.DEBUG, "semel.client.transport.streams")
    options = {"security": cluster.security, "keep_routes": False, "shared_memory": False}
    with connect(cluster.bootstrap, **options) as client:
        client.admin.create_topic(topic, queues=1)
        values = [b"%d" % number + bytes(2_000) for number in range(COUNT)]
        with client.producer() as producer:
            producer.send_many(topic, values)
            producer.flush(30)
        with client.reader(topic, end="latest") as reader:
            assert [message.value for message in reader] == values
    assert "no direct stream" not in caplog.text
    assert "a ticket is needed" not in caplog.text


def test_messages_pass_on_encrypted_streams(
    cluster: SecureCluster, caplog: pytest.LogCaptureFixture
) -> None:
    pass_messages(cluster, "orders", caplog)
    cluster.wait_caught_up()


def test_a_local_reader_is_offered_memory_on_an_authenticated_stream(
    cluster: SecureCluster,
) -> None:
    with connect(cluster.bootstrap, security=cluster.security, keep_routes=False) as client:
        client.admin.create_topic("local", queues=1)
        with client.producer() as producer:
            producer.send_many("local", [b"%d" % number for number in range(COUNT)])
            producer.flush(30)
        with client.reader("local", end="latest") as reader:
            assert len(list(reader)) == COUNT


def test_a_node_that_was_killed_comes_back(
    cluster: SecureCluster, caplog: pytest.LogCaptureFixture
) -> None:
    slave = cluster.slaves()[0]
    cluster.kill(slave)
    pass_messages(cluster, "meanwhile", caplog)
    cluster.start_node(slave)
    cluster.wait_caught_up()
    master = cluster.master()
    cluster.kill(master)
    cluster.master(timeout=20)
    pass_messages(cluster, "afterwards", caplog)
    cluster.start_node(master)
    cluster.wait_caught_up()


def metrics_address(cluster: Cluster) -> Address:
    found = re.search(r'"metrics": "([^"]+)"', cluster.brokers[0].output_file.read_text())
    assert found is not None
    return Address.parse(found[1])


def test_metrics_are_for_the_cluster_alone(cluster: SecureCluster) -> None:
    place = metrics_address(cluster)
    context = Contexts(cluster.security.files).client()
    with (
        socket.create_connection((place.host, place.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=cluster.security.tls_name()) as secure,
    ):
        secure.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = b""
        while part := secure.recv(65_536):
            page += part
    assert page.startswith(b"HTTP/1.0 200 OK")
    assert b"semel_broker_" in page

    for path, status, text in (
        ("/metrics", 400, b"/metrics needs HTTPS here, with a certificate\n"),
        ("/livez", 200, b"alive\n"),
        ("/readyz", 200, b"ready\n"),
    ):
        plainly = http.client.HTTPConnection(place.host, place.port, timeout=10)
        plainly.request("GET", path)
        answer = plainly.getresponse()
        assert (answer.status, answer.read()) == (status, text)

    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname = False
    nobody.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((place.host, place.port), timeout=10) as plain,
        nobody.wrap_socket(plain) as secure,
    ):
        secure.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with pytest.raises(OSError, match=r"certificate required|alert|reset"):
            secure.recv(100)
    log = cluster.brokers[0].log_file
    until(lambda: "metrics refused" in log.read_text())
    assert "it asks for metrics in plaintext" in log.read_text()


def test_nothing_was_refused(cluster: SecureCluster) -> None:
    """Nodes and the client have met nobody that they do not know."""
    for node in cluster.nodes:
        text = node.log_file.read_text()
        assert "a stranger" not in text, node
        assert "stream to peer fails" not in text, node
        assert "ended by what they sent" not in text, node


def test_replication_in_plaintext_where_it_is_declared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ("--replication-plaintext-within", "127.0.0.0/8")
    with SecureCluster(tmp_path / "cluster", broker_flags=flags) as cluster:
        pass_messages(cluster, "orders", caplog)
        cluster.wait_caught_up()
        for node in cluster.brokers:
            text = node.log_file.read_text()
            assert "REPLICATES IN PLAINTEXT" in text
            assert "stream to peer in plaintext" in text
            status = cluster.status(node)
            assert list(status.replication_plaintext_within) == ["127.0.0.0/8"]
