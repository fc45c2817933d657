"""The client of `side_by_side` on a real cluster: what it says it did is what is stored."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from benchmarks import side_by_side_client as roles
from benchmarks.workloads import ClientError, ClientProcess, Workloads
from semel.client import Client
from tests.kit.cluster import Cluster

RECORDS = 60_000
"""More than one call of `send_many` takes at 100 B, and no multiple of it."""


def stored(client: Client, topic: str) -> Counter[bytes]:
    with client.reader(topic, end="latest") as reader:
        return Counter(message.value for message in reader)


@pytest.mark.parametrize("how", ["list", "arrow", "send"])
def test_as_many_messages_are_stored_as_are_counted(
    shared_cluster: Cluster, client: Client, how: str
) -> None:
    topic = f"produce-{how}"
    client.admin.create_topic(topic, queues=4)
    records = RECORDS if how != "send" else 2_000
    lines = how == "arrow"
    result = roles.produce(
        bootstrap=shared_cluster.bootstrap,
        topic=topic,
        records=records,
        size=100,
        how=how,
        lines=lines,
        compression="lz4" if lines else "none",
    )
    found = stored(client, topic)
    assert found.pop(b"warm") == 1
    assert found.total() == records == result["messages"]
    assert {len(value) for value in found} == {100}
    assert result["seconds"] > 0


@pytest.mark.parametrize("how", ["arrow", "messages"])
def test_all_messages_but_the_first_ones_are_consumed(
    shared_cluster: Cluster, client: Client, how: str
) -> None:
    topic = f"consume-{how}"
    client.admin.create_topic(topic, queues=4)
    with client.producer() as producer:
        for _ in range(10):
            producer.send_many(topic, [b"x" * 100] * 100).result(30)
    result = roles.consume(bootstrap=shared_cluster.bootstrap, topic=topic, records=1_000, how=how)
    if how == "messages":
        assert result["messages"] == 999
    assert 0 <= result["messages"] < 1_000


def test_waits_count_from_the_planned_time_on_both_sides(
    shared_cluster: Cluster, client: Client
) -> None:
    client.admin.create_topic("open-loop", queues=4)
    shared: dict[str, Any] = {"topic": "open-loop", "records": 60, "warm": 10}
    with ClientProcess("tail", bootstrap=shared_cluster.bootstrap, **shared) as reader:
        reader.wait_ready()
        before = time.monotonic_ns()
        acks = roles.paced(bootstrap=shared_cluster.bootstrap, **shared, size=1_024, rate=200)
        arrivals = reader.result()
    assert reader.cpu_s > 0
    planned = [int.from_bytes(value[:8], "big") for value in stored(client, "open-loop")]
    steps = {after - one for one, after in zip(sorted(planned), sorted(planned)[1:], strict=False)}
    assert steps == {5_000_000}
    assert min(planned) > before
    for figures in (acks, arrivals):
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]


def test_acknowledgements_go_on_until_after_it_is_told(
    shared_cluster: Cluster, client: Client
) -> None:
    client.admin.create_topic("gap", queues=1)
    with ClientProcess(
        "acknowledgements", bootstrap=shared_cluster.bootstrap, topic="gap", size=100
    ) as process:
        process.wait_ready()
        told = time.monotonic()
        process.tell()
        result = process.result()
    assert result["failed"] == 0
    assert result["acks"][-1] > told


def test_a_client_that_fails_is_one_line(shared_cluster: Cluster) -> None:
    missing = {"bootstrap": shared_cluster.bootstrap, "topic": "missing", "size": 100}
    said = r"acknowledgements failed: .*missing"
    with (
        pytest.raises(ClientError, match=said) as caught,
        ClientProcess("acknowledgements", **missing) as process,
    ):
        process.wait_ready()
    assert "\n" not in str(caught.value)


def test_figures_come_with_the_cpu_and_memory_of_every_process(
    shared_cluster: Cluster, client: Client
) -> None:
    workloads = Workloads(shared_cluster, client, scale=1e-6)
    variants: Any = workloads.run("W1")
    variant, figures = next(variants)
    variants.close()
    assert variant == "send_many, list"
    assert figures["msg_s"] > 0
    assert figures["cpu_s_per_million"] > 0
    each = [value for name, value in figures.items() if name.startswith("rss_mib_")]
    assert len(each) == 4
    assert figures["rss_mib"] == pytest.approx(sum(each))
