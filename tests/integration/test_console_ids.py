"""The console finds messages by their ids, and cancels those that are not due."""

from __future__ import annotations

import time
from datetime import datetime

import grpc
import pytest

from semel.client import Client
from semel.protos.errors import InvalidRequest
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, control_pb2
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def semel(shared_cluster: Cluster) -> Console:
    return Console(shared_cluster.bootstrap)


@pytest.fixture
def topic(client: Client, shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two queues that compares message ids."""
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=2)
    session = client._session  # no public call makes a topic compare ids so far
    routes = session.run(session.cluster.topic(name))
    dedup = common_pb2.IdDedup(window_bytes=1 << 20, seed=b"0123456789abcdef")
    record = control_pb2.ControlRecord(
        alter_topic=control_pb2.AlterTopic(
            topic_id=routes.topic_id, settings=common_pb2.TopicSettings(dedup=dedup)
        )
    )
    with grpc.insecure_channel(shared_cluster.master().address) as channel:
        broker_pb2_grpc.BrokerStub(channel).ApplyQueues(
            broker_pb2.ApplyQueuesRequest(
                cluster_id=session.cluster.routes.cluster_id, records=[record]
            ),
            timeout=10,
        )
    return name


def microseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


def test_messages_are_found_cancelled_and_sent_again(
    semel: Console, topic: str, client: Client
) -> None:
    before_us = time.time_ns() // 1_000
    with client.producer(name="kitchen") as producer:
        sent = producer.send(topic, b"tea", queue=1, key=b"k", message_id="plain").result(10)
        producer.send_many(
            topic,
            [b"1", b"2", b"3"],
            queue=0,
            message_ids=["a", "b", "c"],
            deliver_at=before_us + 3_600_000_000,
        )
        producer.flush(10)
        found = semel.json("message", "find", topic, "--id", "plain")
        assert before_us <= microseconds(found.pop("arrived")) <= time.time_ns() // 1_000
        appended = found.pop("appended")
        shown = semel.json("message", "show", topic, "1", str(sent.offset))
        assert appended == shown.pop("appended")
        assert found == {**shown, "found": True, "state": "stored"}
        waiting = semel.json("message", "find", topic, "--id", "b")
        assert (waiting["state"], waiting["queue"], waiting["offset"]) == ("delayed", 0, None)
        assert (waiting["value"], waiting["producer"]) == ("2", "kitchen")
        assert semel.json("delay", "cancel", topic, "b") == {
            "topic": topic,
            "message_id": "b",
            "result": "cancelled",
            "queue": 0,
            "offset": None,
            "due": waiting["deliver_at"],
            "delivered": None,
        }
        assert semel("delay", "cancel", topic, "b").stdout == b"cancelled\n"
        assert semel("delay", "cancel", topic, "nothing").stdout == b"unknown\n"
        assert semel.json("delay", "cancel", topic, "nothing")["result"] == "unknown"
        assert semel.json("message", "find", topic, "--id", "b")["state"] == "cancelled"
        assert semel.json("message", "find", topic, "--id", "z") == {
            "topic": topic,
            "message_id": "z",
            "found": False,
        }
        listed = semel.json("delay", "list", topic)["messages"]
        assert [each["message_id"] for each in listed] == ["a", "c"]
        assert semel.json("delay", "stats", topic)["messages"] == 2
        again = producer.send(topic, b"again", queue=0, message_id="b").result(10)
        assert again.offset == 0
        producer.send_many(
            topic,
            [b"4", b"5", b"6"],
            queue=0,
            message_ids=["d", "e", "f"],
            deliver_at=time.time_ns() // 1_000 + 3_000_000,
        )
        producer.flush(10)
        assert client.admin.cancel(topic, "e").result == "cancelled"
    until(
        lambda: client.admin.describe_topic(topic).queues[0].log_end_offset == 3,
        20,
        "the other two messages",
    )
    values: dict[tuple[int, int], bytes] = {}
    with client.reader(topic, start="earliest") as reader:
        while len(values) < 4:
            values |= {(each.queue, each.offset): each.value for each in reader.poll(10)}
    assert values == {(0, 0): b"again", (0, 1): b"4", (0, 2): b"6", (1, 0): b"tea"}
    result = semel.json("delay", "cancel", topic, "f")
    assert (result["result"], result["queue"], result["offset"]) == ("delivered", 0, 2)
    assert microseconds(result["delivered"]) >= microseconds(result["due"])
    text = semel("delay", "cancel", topic, "f").stdout.decode()
    assert text.startswith("already delivered at ")
    assert text.endswith("UTC: queue 0, offset 2\n")
    verified = client.admin.verify(topic)
    assert verified.ok, verified


def test_what_cannot_be_found_or_cancelled_is_refused(
    semel: Console, topic: str, client: Client
) -> None:
    with client.producer() as producer:
        producer.send(topic, b"tea", message_id="plain").result(10)
    assert "was not delayed" in semel.fails("delay", "cancel", topic, "plain")
    for arguments in (["delay", "cancel", topic, ""], ["message", "find", topic, "--id", ""]):
        assert "topics compare ids of 1 to 128" in semel.fails(*arguments)
    assert "no topic" in semel.fails("message", "find", "nowhere", "--id", "a")
    semel.fails("message", "find", topic, status=2)
    client.admin.create_topic("plain-topic")
    error = semel.fails("message", "find", "plain-topic", "--id", "a", "--json")
    assert "compares no message ids" in error
    assert "semel topic alter plain-topic --dedup-by-id" in error
    with pytest.raises(InvalidRequest):
        client.admin.cancel("plain-topic", b"a")
