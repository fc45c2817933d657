"""Metrics: what is documented exists, pages are what Prometheus reads, strangers cost little."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from semel.broker import metric_table as broker_metrics
from semel.broker import probe as broker_probe
from semel.broker.state.apply.locks import ConsumerGroups, GroupQueue
from semel.controller import probe as controller_probe
from semel.gateway import probe as gateway_probe
from semel.protos import compat
from semel.protos import metrics as protos_metrics
from semel.protos.errors import Unavailable
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.metrics import Histogram, Metric, MetricsServer, Samples, render
from semel.web import probe as web_probe
from tools import metrics
from tools.alerts import unknown_names

pytestmark = pytest.mark.both_loops

TABLES = {
    "broker": broker_metrics.METRICS,
    "controller": controller_probe.METRICS,
    "web": web_probe.METRICS,
    "gateway": gateway_probe.METRICS,
}
ROWS = [
    Metric(name="semel_test_things_total", kind="counter", unit="things", text="T.", labels=("a",)),
    Metric(name="semel_test_level", kind="gauge", unit="things", text="L."),
    Metric(name="semel_test_seconds", kind="histogram", unit="seconds", text="S."),
]


@pytest.mark.parametrize("part", TABLES)
def test_names_say_part_and_unit(part: str) -> None:
    names = [metric.name for metric in TABLES[part]]
    assert len(set(names)) == len(names)
    for metric in TABLES[part]:
        assert re.fullmatch(rf"semel_{part}_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        without = metric.name.removesuffix("_total")
        for unit in ("seconds", "bytes"):
            assert without.endswith(f"_{unit}") == (metric.unit == unit), metric.name
        assert not set(without.split("_")) & {"total", "max", "min", "ms", "mb"}, metric.name
        assert metric.text.endswith("."), metric.name
        assert metric.unit


def test_the_page_in_the_docs_is_what_the_probes_say() -> None:
    assert (metrics.DOCS / "metrics.md").read_text() == metrics.page(), "python -m tools.metrics"
    for table in TABLES.values():
        for metric in table:
            assert f"| `{metric.name}` | {metric.kind} | {metric.unit} |" in metrics.page()


def test_every_metric_of_the_dashboard_exists() -> None:
    written = (metrics.DOCS / "grafana.json").read_text()
    assert written == metrics.dashboard(), "python -m tools.metrics"
    panels = json.loads(written)["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert len(queries) > 20
    assert unknown_names(queries) == set()
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_a_page_is_prometheus_text() -> None:
    samples = Samples(ROWS, {"node": "7"})
    samples.add("semel_test_things_total", 3, a='quo"te\n')
    samples.add("semel_test_level", True)
    histogram = Histogram()
    for seconds in (0.0001, 0.0005, 0.02, 99.0):
        histogram.observe(seconds)
    samples.add("semel_test_seconds", histogram)
    found: dict[Any, float] = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render(samples).decode())
        for sample in family.samples
    }
    assert found["semel_test_things_total", ("a", 'quo"te\n'), ("node", "7")] == 3
    assert found["semel_test_level", ("node", "7")] == 1
    buckets = {
        dict(key[1:])["le"]: value
        for key, value in found.items()
        if key[0] == "semel_test_seconds_bucket"
    }
    assert (buckets["0.0005"], buckets["0.01"], buckets["0.025"]) == (2, 2, 3)
    assert (buckets["10.0"], buckets["+Inf"]) == (3, 4)
    assert found["semel_test_seconds_count", ("node", "7")] == histogram.count == 4
    assert found["semel_test_seconds_sum", ("node", "7")] == pytest.approx(99.0206)


def test_what_the_table_does_not_have_cannot_be_shown() -> None:
    samples = Samples(ROWS, {})
    with pytest.raises(KeyError):
        samples.add("semel_test_other", 1)
    with pytest.raises(AssertionError):
        samples.add("semel_test_level", 1, a="b")
    with pytest.raises(AssertionError):
        samples.add("semel_test_level", Histogram())


async def _ask(address: str, request: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        async with compat.timeout(20):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def _page() -> Samples:
    samples = Samples(ROWS, {})
    samples.add("semel_test_level", 5)
    return samples


def ready() -> str:
    return ""


async def test_probes_are_answered_with_the_reason() -> None:
    reason = "this node knows no master of its group"
    server = MetricsServer("127.0.0.1", 0, _page, lambda: reason)
    await server.start()
    try:
        assert b" 200 OK" in await _ask(server.address, b"GET /livez HTTP/1.1\r\n\r\n")
        answer = await _ask(server.address, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert b" 503 " in answer
        assert answer.endswith(b"\r\n\r\nthis node knows no master of its group\n")
        reason = ""
        answer = await _ask(server.address, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert b" 200 OK" in answer
        assert answer.endswith(b"ready\n")
    finally:
        await server.close()


async def test_the_page_is_served_and_nothing_else() -> None:
    server = MetricsServer("127.0.0.1", 0, _page, ready)
    await server.start()
    try:
        answer = await _ask(server.address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200 OK\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"\nsemel_test_level 5.0\n" in body
        assert b"process_resident_memory_bytes" in body
        assert b" 404 " in await _ask(server.address, b"GET / HTTP/1.1\r\n\r\n")
        assert b" 405 " in await _ask(server.address, b"POST /metrics HTTP/1.1\r\n\r\n")
        only_head = await _ask(server.address, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert only_head.endswith(b"\r\n\r\n")
        assert await _ask(server.address, b"x" * (32 << 10)) == b""  # no end of line, too long
        answer = await _ask(server.address, b"GET /metrics?x=1 HTTP/1.1\r\n\r\n")
        assert b" 200 OK" in answer
    finally:
        await server.close()


async def test_one_page_is_made_at_a_time() -> None:
    making, most = 0, 0

    async def slow() -> Samples:
        nonlocal making, most
        making += 1
        most = max(most, making)
        await asyncio.sleep(0.01)
        making -= 1
        return await _page()

    server = MetricsServer("127.0.0.1", 0, slow, ready)
    await server.start()
    try:
        request = b"GET /metrics HTTP/1.1\r\n\r\n"
        answers = await asyncio.gather(*(_ask(server.address, request) for _ in range(5)))
        assert all(b" 200 OK" in answer for answer in answers)
        assert most == 1
    finally:
        await server.close()


async def test_strangers_who_say_nothing_hold_a_bounded_number_of_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = MetricsServer("127.0.0.1", 0, _page, ready)
    await server.start()
    host, _, port = server.address.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
    try:
        assert await _ask(server.address, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        silent[0][1].close()
        async with compat.timeout(20):
            while b" 200 " not in await _ask(server.address, b"GET /metrics HTTP/1.1\r\n\r\n"):
                await asyncio.sleep(0)
        monkeypatch.setattr(protos_metrics, "_TIMEOUT_S", 0.05)
        silent.append(await asyncio.open_connection(host, int(port)))
        assert await silent[-1][0].read() == b""  # thrown out
    finally:
        for _, writer in silent:
            writer.close()
        await server.close()


async def test_a_page_of_many_queues_lets_the_loop_turn() -> None:
    """And bears that a queue and a group end meanwhile."""
    queues = {
        QueueKey(TopicId(topic), QueueId(queue)): SimpleNamespace(
            topic=f"t{topic}", log_start_offset=1, log_end_offset=11, bytes=100, children=()
        )
        for topic in range(300)
        for queue in range(20)
    }
    groups = ConsumerGroups()
    for name in ("a", "b"):
        groups._groups[name] = {
            key: GroupQueue(token=1, owner="m" if key.queue_id else "", committed_offset=5)
            for key in queues
        }
    probe = object.__new__(broker_probe.Probe)
    state: Any = SimpleNamespace(queues=dict(queues), groups=groups)
    probe._replica = SimpleNamespace(state=state)  # type: ignore[assignment]
    page = Samples(broker_metrics.METRICS, {})

    async def gather() -> None:
        await probe._add_topics(page)
        await probe._add_consumers(page)

    gathering = asyncio.create_task(gather())
    turns = 0
    while not gathering.done():
        await asyncio.sleep(0)
        turns += 1
        if turns == 10:  # topics are done, consumers are not
            state.queues.pop(QueueKey(TopicId(299), QueueId(19)))
            groups._groups["b"].pop(QueueKey(TopicId(299), QueueId(18)))
    await gathering
    assert turns > 10
    assert len(page.rows["semel_broker_topic_bytes"]) == 300
    lags = dict(page.rows["semel_broker_consumer_lag_messages"])
    assert lags["a", "t0"] == 20 * 6
    assert lags["b", "t299"] == 18 * 6
    assert dict(page.rows["semel_broker_held_locks"])[("a",)] in (300 * 19, 300 * 19 - 1)


async def test_a_port_in_use_is_named() -> None:
    first = MetricsServer("127.0.0.1", 0, _page, ready)
    await first.start()
    try:
        second = MetricsServer("127.0.0.1", int(first.address.rpartition(":")[2]), _page, ready)
        with pytest.raises(Unavailable, match="in use; choose another one with --metrics-port"):
            await second.start()
    finally:
        await first.close()
