"""Rules in force: a cluster of real processes with TLS that checks every call."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor

from semel.client import Security, connect
from semel.protos.errors import PermissionDenied, UnknownTopic
from semel.protos.levels import levels_metadata, own_levels
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.security.credentials import channel
from semel.protos.security.declared import declared
from semel.protos.security.rules import Kind
from semel.protos.v1 import broker_pb2, controller_pb2
from semel.protos.v1.common_pb2 import QueueRef
from semel.protos.v1.controller_pb2_grpc import ControllerStub
from tests.kit.calls import call_on
from tests.kit.certificates import TestCa
from tests.kit.declared_calls import METHODS, naming, path_of
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until

NAMES = {
    Kind.TOPIC: "secret",
    Kind.CONSUMER_GROUP: "payroll",
    Kind.PRODUCER: "payer",
    Kind.TRANSACTION: "monthly",
}
ALL = [
    f"allow user:mighty * {kind.value}" + ("" if kind is Kind.CLUSTER else ":*") for kind in Kind
]


class Ruled:
    """A cluster with rules, its administrator and its clients."""

    def __init__(self, up: UpProcess) -> None:
        self.up = up
        ready = next(event for event in up.events if event["event"] == "ready")
        self.directory = Path(ready["ca"]).parent
        self.cluster_id: str = ready["cluster_id"]

    def console(self, who: str, *arguments: str, given: str = "") -> Any:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
        return subprocess.run(
            [sys.executable, "-m", "semel.console", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            input=given,
            env={
                **clean,
                "SEMEL_ROUTES_DIRECTORY": "",
                "SEMEL_CLIENT_CONFIG": str(self.directory / who / "client.toml"),
            },
        )

    def audited(self) -> list[dict[str, Any]]:
        """All lines of the nodes' audit logs."""
        logs = (self.up.directory / "logs").glob("*.audit.jsonl")
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]

    def issue(self, name: str) -> None:
        made = self.console(
            "admin",
            *("security", "issue", "--dir", str(self.directory), "--client", name),
            *("--bootstrap", self.up.bootstrap),
        )
        assert made.returncode == 0, made.stderr

    def security(self, who: str) -> Security:
        return Security.read(self.directory / who)

    def connect(self, who: str) -> Any:
        return connect(self.up.bootstrap, security=self.security(who), keep_routes=False)

    def acl(self, verb: str, *rules: str) -> None:
        with self.connect("admin") as client:
            if verb == "grant":
                client.admin.change_access_rules(add=rules)
            else:
                client.admin.change_access_rules(remove=rules)


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ruled]:
    with UpProcess(tmp_path_factory.mktemp("ruled"), "--secure", "--authorization") as up:
        made = Ruled(up)
        for name in ("alice", "bob", "mighty", "nobody"):
            made.issue(name)
        for topic in ("orders", "secret"):
            done = made.console("admin", "topic", "create", topic, "--queues", "2")
            assert done.returncode == 0, done.stderr
        yield made


def test_up_says_that_rules_are_in_force(ruled: Ruled) -> None:
    (ready,) = [event for event in ruled.up.events if event["event"] == "ready"]
    assert ready["authorization"] is True


def test_who_has_no_right_sees_nothing_and_may_do_nothing(ruled: Ruled) -> None:
    listed = ruled.console("client-nobody", "topic", "list", "--json")
    assert json.loads(listed.stdout) == {"topics": []}
    for name in ("orders", "missing"):
        done = ruled.console("client-nobody", "topic", "describe", name)
        assert done.returncode == 1
        assert f"there is no topic '{name}'" in done.stderr
    for arguments in (("topic", "create", "mine"), ("acl", "list"), ("cluster", "status")):
        done = ruled.console("client-nobody", *arguments)
        assert done.returncode == 4, done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: user:nobody may not")
    who = json.loads(ruled.console("client-nobody", "whoami", "--json").stdout)
    assert who.pop("expires_s") > time.time()
    assert who == {
        "principal": "user:nobody",
        "groups": [],
        "administrator": False,
        "login": "certificate",
        "narrowed_to": None,
        "checked": True,
    }


def test_rights_are_given_taken_and_told(ruled: Ruled) -> None:
    write, read = "allow user:alice write topic:orders", "allow group:readers read topic:ord*"
    commit = "allow group:readers commit consumer-group:billing"
    granted = ruled.console(
        "admin", "acl", "grant", write, read, commit, "--member", "readers=user:bob"
    )
    assert granted.returncode == 0, granted.stderr
    asked = ruled.console("admin", "acl", "check", "user:alice", "write", "topic:orders")
    assert (asked.returncode, asked.stdout) == (0, f"yes: allowed by the rule `{write}`\n")
    asked = ruled.console("admin", "acl", "check", "user:alice", "read", "topic:orders")
    assert asked.returncode == 1
    with (
        ruled.connect("client-alice") as alice,
        ruled.connect("client-bob") as bob,
        alice.producer() as producer,
    ):
        for number in range(100):
            producer.send("orders", b"%d" % number)
        producer.flush()
        found: list[int] = []
        with bob.consumer("billing", ["orders"]) as consumer:

            def all_came() -> bool:
                found.extend(int(message.value) for message in consumer.poll())
                return len(found) >= 100

            until(all_came)
            consumer.commit()
        assert sorted(found) == list(range(100))
        with pytest.raises(PermissionDenied):
            list(alice.reader("orders", end="latest"))
        with pytest.raises(PermissionDenied), bob.consumer("other", ["orders"]) as other:
            other.poll()
        ruled.acl("revoke", write)
        began = time.monotonic()
        with pytest.raises((PermissionDenied, UnknownTopic)):
            send_for(producer, seconds=10)
        assert time.monotonic() - began < 1.5
    lines = ruled.audited()
    assert any(line.get("change") == f"add {write}" for line in lines)
    assert any(
        (line["who"], line.get("action"), line["result"]) == ("user:alice", "read", "denied")
        for line in lines
    )


def test_a_name_is_fenced_by_nobody_who_does_not_own_it(ruled: Ruled) -> None:
    ruled.acl(
        "grant",
        "allow user:alice write topic:orders",
        "allow user:bob write topic:orders",
        "allow user:alice own-name producer:loader",
    )
    with (
        ruled.connect("client-alice") as alice,
        ruled.connect("client-bob") as bob,
        alice.producer("loader") as producer,
    ):
        producer.send("orders", b"1").result(timeout=20)
        with pytest.raises(PermissionDenied), bob.producer("loader") as other:
            other.send("orders", b"2").result(timeout=20)
        producer.send("orders", b"3").result(timeout=20)


async def test_a_producer_that_has_not_begun_is_fenced_by_nobody_else(ruled: Ruled) -> None:
    """Not without a name either, nor an id that is to be given next."""
    ruled.acl(
        "grant",
        "allow user:alice own-name producer:fresh",
        "allow user:bob write topic:orders",
        "allow user:bob own-name producer:bobs",
    )
    metadata = levels_metadata(own_levels())
    async with channel(
        ruled.up.bootstrap, CHANNEL_OPTIONS, ruled.security("client-alice")
    ) as opened:
        reply = await ControllerStub(opened).OpenProducer(
            controller_pb2.OpenProducerRequest(name="fresh", open_id=b"1"), metadata=metadata
        )
    with ruled.connect("admin") as client:
        topic_id = client.admin.describe_topic("orders").topic_id
    (fence,) = [method for method in METHODS if method.name == "FenceProducer"]

    async def fenced(who: str, number: int, name: str) -> set[str]:
        request = broker_pb2.FenceProducerRequest(
            queues=[QueueRef(topic_id=topic_id)],
            producer_id=number,
            epoch=1,
            session=9,
            name=name,
        )
        brokers = [node for node in ruled.up.nodes if node.kind == "broker"]
        got = [await call(one.address, ruled.security(who), fence, request) for one in brokers]
        return set(got) - {"NotMaster"}

    assert await fenced("client-bob", reply.producer_id, "") == {"PermissionDenied"}
    assert await fenced("client-bob", reply.producer_id, "bobs") == {"PermissionDenied"}
    assert await fenced("client-bob", reply.producer_id + 1, "") == {"InvalidRequest"}


def test_a_topic_that_was_just_made_is_written_to_at_once(ruled: Ruled) -> None:
    ruled.acl("grant", "allow user:alice * topic:fresh*")
    with ruled.connect("client-alice") as alice, alice.producer() as producer:
        for number in range(5):
            alice.admin.create_topic(f"fresh-{number}")
            producer.send(f"fresh-{number}", b"1").result(timeout=20)


def test_who_may_not_read_any_more_is_given_nothing_more(ruled: Ruled) -> None:
    read = "allow user:bob read topic:orders"
    ruled.acl("grant", read, "allow user:bob commit consumer-group:bobs")
    with ruled.connect("client-bob") as bob, bob.consumer("bobs", ["orders"]) as consumer:
        until(consumer.poll)
        ruled.acl("revoke", read)
        ruled.acl("revoke", "allow group:readers read topic:ord*")
        with pytest.raises((PermissionDenied, UnknownTopic)):
            poll_for(consumer, seconds=10)


def poll_for(consumer: Any, seconds: float) -> None:
    """Polls again and again. Raises what a poll raises."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        consumer.poll()
        time.sleep(0.01)


def send_for(producer: Any, seconds: float) -> None:
    """Sends one message after the other. Raises what a send raises."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        producer.send("orders", b"late").result(timeout=10)


async def test_the_whole_table_on_every_node(ruled: Ruled) -> None:
    """Each method, at a broker and at the controller, by a client without rights, by one with all
    of them, and by one of another cluster."""
    ruled.acl("grant", *ALL)
    with ruled.connect("admin") as client:
        topic_id = client.admin.describe_topic("secret").topic_id
    other = Security.read(TestCa().files(ruled.directory / "other", "client", "nobody"))
    skipped = {"DrainNode", "RefoundNode", "DeleteTopic"}  # these would do it
    for address in (ruled.up.bootstrap, ruled.up.node(1).address):
        for method in METHODS:
            path = path_of(method)
            what = declared(path)
            request = naming(method, NAMES, topic_id)
            got = await call(address, ruled.security("client-nobody"), method, request)
            if got == "UnsupportedVersion":
                continue  # the other kind of node has the service
            if what.anybody or what.each_message:
                assert got not in ("PermissionDenied", "Unauthenticated"), f"{path}: {got}"
            else:
                refused = (
                    ("Unauthenticated",)
                    if what.for_nodes_only
                    else ("PermissionDenied", "UnknownTopic")
                )
                # A stager that does not exist is nobody's.
                open_to_see = method.name == "Drop"
                assert got in refused or open_to_see, f"{path}: {got or 'served'}"
            if not what.for_nodes_only and method.name not in skipped:
                got = await call(address, ruled.security("client-mighty"), method, request)
                assert got not in ("PermissionDenied", "Unauthenticated"), f"{path}: {got}"
        got = await call(address, other, METHODS[0], naming(METHODS[0], NAMES, topic_id))
        assert got == "Unavailable"


async def call(address: str, security: Security, method: MethodDescriptor, request: Any) -> str:
    """The class of the error; "" for an answer."""
    async with channel(address, CHANNEL_OPTIONS, security) as opened:
        return await call_on(opened, method, request)


def test_brokers_go_on_by_their_rules_without_controllers_also_after_a_restart(
    ruled: Ruled,
) -> None:
    ruled.acl("grant", "allow user:alice write topic:orders")
    with (
        ruled.connect("client-alice") as alice,
        ruled.connect("client-nobody") as nobody,
        alice.producer() as producer,
    ):
        producer.send("orders", b"1").result(timeout=20)
        (controller,) = [node for node in ruled.up.nodes if node.kind == "controller"]
        brokers = [node for node in ruled.up.nodes if node.kind == "broker"]
        assert controller.pid is not None
        os.kill(controller.pid, signal.SIGSTOP)
        try:
            for _ in range(20):
                producer.send("orders", b"1").result(timeout=20)
            for broker in brokers:
                ruled.up.kill(broker)
            for _ in range(20):
                producer.send("orders", b"1").result(timeout=30)
            with pytest.raises((PermissionDenied, UnknownTopic)):
                list(nobody.reader("orders", end="latest"))
        finally:
            os.kill(controller.pid, signal.SIGCONT)
    for broker in brokers:
        assert stat.S_IMODE((broker.data / "RIGHTS").stat().st_mode) == 0o600


def test_a_quota_slows_the_user_that_has_it_and_nobody_else(ruled: Ruled) -> None:
    ruled.issue("slow")
    ruled.issue("fast")
    ruled.acl("grant", "allow user:slow write topic:orders", "allow user:fast write topic:orders")
    done = ruled.console("admin", "quota", "set", "user:slow", "write-bytes=256k")
    assert done.returncode == 0, done.stderr
    denied = ruled.console("client-slow", "quota", "set", "user:slow", "write-bytes=1G")
    assert (denied.returncode, denied.stdout) == (4, ""), denied.stderr

    def throttled_ms(who: str) -> int:
        with ruled.connect(who) as client, client.producer(batch_bytes=64 << 10) as producer:
            for _ in range(12):
                producer.send("orders", b"q" * (64 << 10))
            producer.flush()
            found: int = producer.stats.throttled_ms
            return found

    until(lambda: throttled_ms("client-slow") > 500, what="the user's quota")
    assert throttled_ms("client-fast") == 0
    with ruled.connect("admin") as client:
        assert client.admin.remove_quotas("user:slow")
