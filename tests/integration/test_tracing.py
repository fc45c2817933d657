"""Traces from senders to consumers through a real cluster, on every way that a message may take."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.client import Client, IdDedup, Message, RetryPolicy, connect, connect_async
from semel.client.api.mirrors import promote_mirrored, run_mirror
from semel.protos.errors import InvalidRequest
from tests.kit.cluster import Cluster
from tests.kit.consuming import take
from tests.kit.spans import KeptSpans, traits

SENDER = """
import json, sys
from semel.client import connect
from tests.kit.spans import KeptSpans, as_json
kept = KeptSpans()
with connect(sys.argv[1], tracing=kept.provider) as client, client.producer("shop") as producer:
    with kept.provider.get_tracer("shop").start_as_current_span("order"):
        producer.send("traced", b"one", key=b"k").result(20)
print(json.dumps(as_json(kept.ended())))
"""
CONSUMER = """
import json, sys
from semel.client import connect
from tests.kit.spans import KeptSpans, as_json
kept = KeptSpans()
tracer = kept.provider.get_tracer("billing")
with connect(sys.argv[1], tracing=kept.provider) as client:
    with client.consumer("billing", "traced") as consumer:
        message, = consumer.poll(timeout=30)
        with consumer.processing(message):
            tracer.start_span("invoice").end()
        consumer.commit(message)
print(json.dumps(as_json(kept.ended())))
"""


@pytest.fixture
def kept() -> KeptSpans:
    return KeptSpans()


@pytest.fixture
def traced(shared_cluster: Cluster, kept: KeptSpans) -> Iterator[Client]:
    with connect(shared_cluster.bootstrap, tracing=kept.provider) as client:
        yield client


def run(program: str, bootstrap: str) -> dict[str, dict[str, Any]]:
    """The spans of a program by the first word of their names."""
    command = [sys.executable, "-c", program, bootstrap]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True)
    return {span["name"].partition(" ")[0]: span for span in json.loads(done.stdout)}


def test_two_programs_one_trace(shared_cluster: Cluster, client: Client) -> None:
    client.admin.create_topic("traced", queues=2)
    sender = run(SENDER, shared_cluster.bootstrap)
    consumer = run(CONSUMER, shared_cluster.bootstrap)
    order, send = sender["order"], sender["send"]
    process, invoice = consumer["process"], consumer["invoice"]
    assert (send["parent"], process["parent"]) == (order["span"], send["span"])
    assert invoice["parent"] == process["span"]
    assert {span["trace"] for span in (order, send, process, invoice)} == {order["trace"]}
    assert process["links"] == consumer["poll"]["links"] == [send["span"]]
    assert consumer["poll"]["name"] == "poll traced"
    assert consumer["commit"]["name"] == "commit traced"


def sender_of(message: Message) -> int:
    """The span in the header of a message."""
    headers = dict(message.carried_headers)
    assert "semel-batch-context" not in headers or message.headers == message.carried_headers
    return int(headers["traceparent"].decode().split("-")[2], 16)


def read_all(client: Client, topic: str) -> list[Message]:
    with client.reader(topic, end="latest") as reader:
        return list(reader)


def test_a_bulk_call_has_a_span_and_each_of_its_batches_the_context(
    traced: Client, client: Client, kept: KeptSpans
) -> None:
    client.admin.create_topic("bulk", queues=4)
    keys = [b"%d" % number for number in range(2_000)]
    with traced.producer(batch_bytes=20_000, compression="lz4") as producer:
        producer.send_many("bulk", [b"v" * 100] * 2_000, keys=keys).result(20)
        assert producer.stats.batches > 8
    span = kept.one("send")
    assert traits(span)["messaging.batch.message_count"] == 2_000
    messages = read_all(client, "bulk")
    assert len(messages) == 2_000
    assert {sender_of(message) for message in messages} == {span.context.span_id}
    assert not any(message.headers for message in messages)
    with traced.reader("bulk", end="latest") as reader:
        while not reader.finished:
            reader.poll_arrow(5)
    for poll in kept.ended("poll"):
        assert [link.context.span_id for link in poll.links] == [span.context.span_id]


async def test_asyncio_traces_alike(
    shared_cluster: Cluster, client: Client, kept: KeptSpans
) -> None:
    client.admin.create_topic("alike", queues=1)
    async with connect_async(shared_cluster.bootstrap, tracing=kept.provider) as traced:
        async with traced.producer() as producer:
            stored = await producer.send("alike", b"one")
            await (await producer.send_many("alike", [b"two", b"three"]))
        async with traced.consumer("alike", "alike") as consumer:
            found: list[Message] = []
            async for message in consumer:
                found.append(message)
                with consumer.processing(message):
                    pass
                if len(found) == 3:
                    break
            await consumer.commit()
    first, bulk = kept.ended("send")
    assert traits(first)["messaging.semel.offset"] == stored.offset
    assert [sender_of(message) for message in found] == [
        *(first.context.span_id, bulk.context.span_id, bulk.context.span_id)
    ]
    processed = kept.ended("process")
    assert [span.parent and span.parent.span_id for span in processed] == [
        sender_of(message) for message in found
    ]
    assert kept.one("commit").name == "commit alike"


def test_delayed_messages_and_transactions_carry_it(
    traced: Client, client: Client, kept: KeptSpans
) -> None:
    client.admin.create_topic("later", queues=1)
    with traced.producer() as producer:
        producer.send("later", b"delayed", deliver_after=1).result(20)
        with producer.transaction("booking") as work:
            work.send("later", b"staged")
            work.send_many("later", [b"many"] * 3)
    spans = [span.context.span_id for span in kept.ended("send")]
    assert len(spans) == 3
    with client.consumer("later", "later") as consumer:
        found = {message.value: sender_of(message) for message in take(consumer, 5)}
    assert sorted(found.values()) == sorted(spans)


def test_retries_dead_letters_and_what_is_brought_back_keep_it(
    traced: Client, client: Client, kept: KeptSpans
) -> None:
    client.admin.create_topic("failing", queues=1)
    with traced.producer() as producer:
        producer.send("failing", b"one").result(20)
        producer.send_many("failing", [b"two", b"three"]).result(20)
    senders = [span.context.span_id for span in kept.ended("send")]
    expected = {b"one": senders[0], b"two": senders[1], b"three": senders[1]}
    policy = RetryPolicy(steps_ms=(100,), queues=1)
    with traced.consumer("failing", "failing", retry=policy) as consumer:
        for message in take(consumer, 3):
            consumer.retry(message)
        consumer.commit()
        retried = take(consumer, 3)
        assert {message.topic for message in retried} == {"failing.retry-1"}
        assert {message.value: sender_of(message) for message in retried} == expected
        for message in retried:
            consumer.reject(message)
        consumer.commit()
    letters = read_all(client, "failing.dead-letters")
    assert {letter.value: sender_of(letter) for letter in letters} == expected
    assert client.admin.redrive("failing.dead-letters").redriven == 3
    back = read_all(client, "failing")[3:]
    assert {message.value: sender_of(message) for message in back} == expected


def test_an_id_that_is_sent_again_is_a_duplicate(traced: Client, client: Client) -> None:
    """Ids are compared with headers: another context would make another message of it."""
    client.admin.create_topic("once", queues=1, dedup=IdDedup(window_bytes=1 << 20))
    for _ in range(2):
        with traced.producer() as producer:
            producer.send("once", b"v", message_id=b"1").result(20)
            summary = producer.send_many("once", [b"v", b"w"], message_ids=[b"1", b"2"]).result(20)
            assert summary.conflicts == 0
    assert [message.value for message in read_all(client, "once")] == [b"v", b"w"]


def test_a_mirror_copies_it(tmp_path: Path, kept: KeptSpans) -> None:
    with (
        Cluster(tmp_path / "near", brokers=1, cluster_id="a" * 32) as near,
        Cluster(tmp_path / "far", brokers=1, cluster_id="b" * 32) as far,
        connect(near.bootstrap, tracing=kept.provider) as source,
        connect(far.bootstrap) as target,
    ):
        source.admin.create_topic("copied", queues=1)
        with source.producer() as producer:
            producer.send("copied", b"one", headers={"a": b"1"}).result(20)
            producer.send_many("copied", [b"two", b"three"]).result(20)
        here = [message.headers for message in read_all(source, "copied")]
        run_mirror(source, target, ["copied"], once=True)
        promote_mirrored(target, ["copied"])
        there = read_all(target, "copied")
        assert [message.headers for message in there] == here
        senders = [span.context.span_id for span in kept.ended("send")]
        assert [sender_of(message) for message in there] == [senders[0], senders[1], senders[1]]


def test_tracing_that_is_off_imports_nothing(shared_cluster: Cluster) -> None:
    program = (
        "import sys; from semel.client import connect\n"
        "with connect(sys.argv[1]) as c, c.producer() as p: p.send_many('off', [b'x']).result(20)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    with connect(shared_cluster.bootstrap) as client:
        client.admin.create_topic("off", queues=1)
        command = [sys.executable, "-c", program, shared_cluster.bootstrap]
        subprocess.run(command, timeout=60, check=True)
        assert read_all(client, "off")[0].headers == []


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("semel.client.tracing"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'semel\[otel\]'"):
        connect("127.0.0.1:1", tracing=True)
    with pytest.raises(InvalidRequest, match="tracing must be True, False or a TracerProvider"):
        connect("127.0.0.1:1", tracing="yes")
