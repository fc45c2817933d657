"""A cluster with TLS as real processes: who is let in, who is not, and certificates that change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semel.client import Security, connect
from semel.console.authority import Authority
from semel.protos.errors import InvalidRequest, Unauthenticated, Unavailable
from semel.protos.rpc import PEER_CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.credentials import channel
from semel.protos.security.identity import Identity
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, raft_pb2, raft_pb2_grpc
from tests.kit.certificates import TestCa
from tests.kit.up_process import UpProcess


class Secured:
    """`semel up --secure`, and its administrator."""

    def __init__(self, up: UpProcess) -> None:
        self.up = up
        ready = next(event for event in up.events if event["event"] == "ready")
        self.cluster_id: str = ready["cluster_id"]
        self.admin_config: str = ready["admin_config"]
        self.directory = Path(ready["ca"]).parent

    def console(
        self, *arguments: str, config: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return semel(*arguments, SEMEL_CLIENT_CONFIG=config or self.admin_config)

    def security(self, name: str = "admin") -> Security:
        return Security.read(self.directory / name)

    def connect(self, name: str = "admin") -> Any:
        return connect(self.up.bootstrap, security=self.security(name), keep_routes=False)


def semel(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
    return subprocess.run(
        [sys.executable, "-m", "semel.console", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**clean, "SEMEL_ROUTES_DIRECTORY": "", **environment},
    )


def node(kind: str, *flags: str) -> str:
    """The last line of a node that must not start."""
    done = subprocess.run(
        [sys.executable, "-m", f"semel.{kind}", *flags],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return " ".join(done.stderr.split("Error: ")[-1].split())


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with UpProcess(tmp_path_factory.mktemp("secured"), "--secure", "--controllers", "3") as up:
        yield Secured(up)


def test_messages_pass_and_the_nodes_talk_to_each_other(secured: Secured) -> None:
    assert secured.console("topic", "create", "orders", "--queues", "2").returncode == 0
    made = secured.console("security", "issue", "--dir", str(secured.directory), "--client", "a")
    assert made.returncode == 0, made.stderr
    with secured.connect("client-a") as client:
        with client.producer("loader") as producer:
            futures = [producer.send("orders", b"%d" % n) for n in range(100)]
            for future in futures:
                future.result(timeout=20)
        with client.reader("orders", end="latest") as reader:
            assert sorted(int(message.value) for message in reader) == list(range(100))
    status = json.loads(secured.console("cluster", "status", "--json").stdout)
    (group,) = status["groups"]
    assert [n["alive"] for n in group["nodes"]] == [True] * 3
    assert secured.console("verify", "--exactly-once", "orders").returncode == 0


def test_who_speaks_plainly_is_told_what_is_missing(secured: Secured) -> None:
    done = semel("topic", "list", "--bootstrap", secured.up.bootstrap)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "the port speaks TLS and this program does not (give it a client's file" in line
    logs = (secured.up.directory / "logs").glob("controller-*.log")
    said = "".join(path.read_text() for path in logs)
    assert "Handshake failed" in said
    assert "WRONG_VERSION_NUMBER" in said


def test_a_profile_leads_to_the_cluster(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "semel").mkdir()
    where = secured.directory / "admin"
    (tmp_path / "semel" / "profiles.toml").write_text(
        f'[prod]\nbootstrap = "{secured.up.bootstrap}"\nca = "{where}/ca.pem"\n'
        f'certificate = "{where}/cert.pem"\nkey = "{where}/key.pem"\n'
    )
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert semel("topic", "list", "--profile", "prod", **home).returncode == 0
    assert semel("topic", "list", SEMEL_PROFILE="prod", **home).returncode == 0
    wrong = semel("topic", "list", "--profile", "test", **home)
    assert wrong.returncode == 1
    assert "has no profile 'test', its profiles are: prod" in wrong.stderr


async def test_a_client_s_certificate_is_not_a_node_and_a_node_is_no_other_node(
    secured: Secured,
) -> None:
    broker = secured.up.node(1)
    one = Identity("broker", "1", secured.cluster_id)
    async with channel(broker.address, PEER_CHANNEL_OPTIONS, secured.security(), one) as opened:
        status: Any = broker_pb2_grpc.BrokerStub(opened)
        founding = (await status.GetNodeStatus(broker_pb2.NodeStatusRequest())).founding_id
    request = raft_pb2.DescribeEntriesRequest(
        caller=raft_pb2.PeerCaller(
            cluster_id=secured.cluster_id, group_id=1, node_id=3, founding_id=founding
        )
    )
    for name, text in (
        ("admin", "the certificate is that of admin admin"),
        ("controller-1", "the certificate is that of controller 1"),
        ("broker-2", "for a broker 3 .*the certificate is that of broker 2"),
    ):
        with pytest.raises(Unauthenticated, match=text):
            await _describe(broker.address, secured.security(name), one, request)
    await _describe(broker.address, secured.security("broker-3"), one, request)
    two = Identity("broker", "2", secured.cluster_id)
    with pytest.raises(Unavailable, match="is not that of the node that is meant"):
        await _describe(broker.address, secured.security("broker-3"), two, request)


async def _describe(
    address: str, security: Security, to: Identity, request: raft_pb2.DescribeEntriesRequest
) -> None:
    async with channel(address, PEER_CHANNEL_OPTIONS, security, to) as opened:
        stub: Any = raft_pb2_grpc.SnapshotsStub(opened)
        try:
            await stub.DescribeEntries(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None


def test_certificates_and_ca_change_under_load_and_no_send_fails(secured: Secured) -> None:
    """Every step of a change of the CA, while messages and new connections go on."""
    assert secured.console("topic", "create", "changing").returncode == 0
    stop, failures, sent = threading.Event(), list[BaseException](), list[int]()
    before = secured.security().files.current().certificate

    def send() -> None:
        with secured.connect() as client, client.producer() as producer:
            while not stop.is_set():
                try:
                    producer.send("changing", b"x").result(timeout=20)
                except Exception as error:
                    failures.append(error)
                sent.append(1)

    def change(*step: str) -> None:
        done = semel("security", "renew", "--dir", str(secured.directory), *step)
        assert done.returncode == 0, done.stderr
        assert secured.console("topic", "list").returncode == 0
        seen = len(sent)
        deadline = time.monotonic() + 20
        while len(sent) < seen + 20:
            assert time.monotonic() < deadline, "nothing is stored any more"
            time.sleep(0.02)

    loader = threading.Thread(target=send)
    loader.start()
    try:
        change("--ca")
        too_early = semel("security", "renew", "--dir", str(secured.directory), "--forget-old-ca")
        assert "has a certificate of an older CA" in too_early.stderr
        change()
        change("--forget-old-ca")
        with secured.connect() as client:
            (group,) = client.admin.cluster_status().groups
        secured.up.kill(
            secured.up.node(group.master)
        )  # all of its streams and connections begin anew
        change()
    finally:
        stop.set()
        loader.join(30)
    assert failures == []
    assert secured.security().files.current().certificate != before
    with secured.connect() as client, client.reader("changing", end="latest") as reader:
        assert len(list(reader)) == len(sent)


def test_doctor_warns_thirty_days_ahead(secured: Secured) -> None:
    found = json.loads(secured.console("doctor", "--json").stdout)["findings"]
    assert not [one for one in found if one["check"].startswith("certificate")]
    done = semel("security", "renew", "--dir", str(secured.directory), "--days", "10")
    assert done.returncode == 0
    found = json.loads(secured.console("doctor", "--json").stdout)["findings"]
    near = {one["subject"]: one for one in found if one["check"] == "certificate-expires"}
    assert {"broker 1", "broker 2", "broker 3", "this client"} <= set(near)
    assert "expires in 9 days" in near["broker 2"]["text"]
    assert "semel security renew" in near["broker 2"]["advice"]
    assert "the clients' CA" not in near
    Authority(secured.directory).renew_logins(days=20)
    found = json.loads(secured.console("doctor", "--json").stdout)["findings"]
    (near_ca,) = [one for one in found if one["subject"].startswith("the clients' CA")]
    assert (near_ca["check"], near_ca["subject"]) == ("certificate-expires", "the clients' CA")
    assert "expires in 19 days" in near_ca["text"]
    shown = semel("security", "show", "--dir", str(secured.directory)).stdout
    assert "clients' CA, for those who log in, in" in shown
    assert "(19 days)" in shown


def test_a_node_refuses_a_network_without_tls(tmp_path: Path) -> None:
    member = ("--data", str(tmp_path / "b"), "--cluster-id", "c1", "--group", "1", "--node", "1")
    line = node("broker", *member, "--listen", "0.0.0.0:0")
    assert "reached from other machines, and there is no TLS" in line
    assert "there is no TLS" in node("controller", "--data", str(tmp_path), "--listen", "0.0.0.0:0")
    done = semel("up", "--data", str(tmp_path / "up"), "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 1
    assert "say --secure for TLS, or --insecure" in done.stderr


def test_a_node_refuses_files_that_are_not_its_own(tmp_path: Path) -> None:
    ca = TestCa("c1")
    files = ca.files(tmp_path / "tls", "broker", "1")

    def refused(cluster: str = "c1", number: int = 1) -> str:
        flags = ("--data", str(tmp_path / "b"), "--cluster-id", cluster, "--group", "1")
        tls = ("--tls-dir", str(files))
        return node("broker", *flags, "--node", str(number), "--listen", "127.0.0.1:0", *tls)

    assert "is that of broker 1 of cluster c1, and this is broker 2" in refused(number=2)
    assert "and this is broker 1 of cluster other" in refused(cluster="other")
    (files / "key.pem").chmod(0o644)
    assert "mode 0644, which others can read: chmod 600" in refused()
    ca.files(files, "broker", "1", ended=True)
    assert "expired on" in refused()
    assert not (tmp_path / "b").exists()


def test_a_client_is_told_of_its_own_files(tmp_path: Path) -> None:
    files = TestCa().files(tmp_path, "client", "a")
    (files / "key.pem").chmod(0o640)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        Security.read(files)
