"""The web console as a process before a real cluster: each screen's task, without a browser.

What needs a browser (keys, charts, accessibility, a master killed under an open page) is
`./run soak web`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from semel.client import Client, IdDedup, RetryPolicy
from tests.kit.cluster import Cluster
from tests.kit.waiting import until
from tests.kit.web_console import Visitor, tags, web_console

HOSTILE = {
    "script": b"<script>alert(1)</script><img src=x onerror=alert(1)>",
    "ansi": b"\x1b[31mred\x1b[0m\x07",
    "no text": b"\xff\xfe\x00<b>",
    "json": b'{"a": "</pre><script>alert(1)</script>", "n": 1.10}',
    "turned": "abc\u202edef".encode(),
}
"""Values that would do something if they were not only shown."""


@pytest.fixture(scope="module")
def url(shared_cluster: Cluster) -> Iterator[str]:
    with web_console("--bootstrap", shared_cluster.bootstrap) as url:
        yield url


@pytest.fixture
def visitor(url: str) -> Visitor:
    visitor = Visitor(url)
    assert visitor.get("/").status == 200
    return visitor


def test_the_frame_is_shut_to_others(visitor: Visitor) -> None:
    page = visitor.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\son\w+=", page.html)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page.html)
    assert not re.search(r"(?:src|href|action)=\"(?!/|#)", page.html), (
        "nothing comes from elsewhere"
    )
    fresh = Visitor(visitor.origin)
    cookie = fresh.ask("GET", "/", None, {}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert visitor.ask("GET", "/", None, {"Host": "evil.example"}).status == 421
    for asset in re.findall(r"(?:src|href)=\"(/static/[^\"]+)\"", page.html):
        assert visitor.ask("GET", asset, None, {}).status == 200


def test_a_form_of_another_site_changes_nothing(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("kept", queues=1)
    body = "name=kept&typed=kept"
    csrf = re.search(r'name="csrf" value="([^"]+)"', visitor.get("/topic/new").html)
    assert csrf is not None
    good = f"{body}&csrf={csrf[1]}"
    for refused, headers in (
        (body, {}),
        (f"{body}&csrf=x", {}),
        (good, {"Origin": "http://evil.example"}),
        (good, {"Origin": "null"}),
        (good, {"Sec-Fetch-Site": "cross-site"}),
    ):
        assert visitor.ask("POST", "/topic/delete", refused, headers).status == 403
    other = Visitor(visitor.origin)
    assert other.ask("POST", "/topic/delete", good, {}).status == 400
    assert visitor.ask("POST", "/topic/delete", good + "&x=" + "y" * 70_000, {}).status == 400
    assert [topic.name for topic in client.admin.find_topics("kept").topics] == ["kept"]


def test_health(visitor: Visitor) -> None:
    assert visitor.get("/livez").body == b"alive\n"
    assert visitor.get("/readyz").body == b"ready\n"
    assert visitor.get("/nothing").status == 404


def test_the_cluster_at_a_glance(visitor: Visitor) -> None:
    state = visitor.part("/cluster/state")
    assert "group" in state.text
    assert "whole" in state.text
    assert "master" in state.text
    assert "→" not in state.text
    assert "is the only one" in visitor.part("/cluster/findings", deep=1).text
    with visitor.events("/cluster/rates") as events:
        names = [next(events)[0], next(events)[0]]
    assert names == ["history", "point"]


def test_a_topic_is_created_searched_altered_and_deleted(visitor: Visitor, client: Client) -> None:
    visitor.get("/topic/new")
    page = visitor.post("/topic/new", name="web-orders", queues=3, retention_ms="sometime")
    assert page.status == 400
    assert "sometime" in page.text
    assert 'value="web-orders"' in page.html
    page = visitor.post(
        "/topic/new", name="web-orders", queues=3, retention_ms="12h", dedup_bytes="1MiB"
    )
    assert "topic web-orders is created" in page.text
    found = client.admin.describe_topic("web-orders")
    assert len(found.queues) == 3
    assert found.settings.retention_ms == 12 * 3_600_000
    assert found.settings.dedup == IdDedup(window_bytes=1 << 20)

    page = visitor.get("/topics", search="WEB-ORD")
    assert "1 found, scanned" in page.text
    assert "web-orders" in visitor.part("/topics", search="web-ord").text
    assert "0 found" in visitor.part("/topics", search="nobody").text
    back = {"HX-Request": "true", "HX-History-Restore-Request": "true"}
    assert b"<!doctype html>" in visitor.ask("GET", "/topics?search=web", None, back).body

    html = visitor.get("/topic/alter", name="web-orders").html
    fields = dict(re.findall(r'<input id="\w+" name="(\w+)"[^>]*value="([^"]*)"', html))
    assert fields["retention_ms"] == "12h"
    same = fields | {"name": "web-orders", "cleanup": "delete", "on_conflict": "refuse"}
    assert "nothing was changed" in visitor.post("/topic/alter", **same).text
    visitor.get("/topic/alter", name="web-orders")
    page = visitor.post("/topic/alter", **same | {"retention_ms": "2d", "queues": "4"})
    assert "is altered" in page.text
    found = client.admin.describe_topic("web-orders")
    assert found.settings.retention_ms == 2 * 86_400_000
    assert sum(not queue.sealed for queue in found.queues) == 4

    page = visitor.post("/topic/delete", name="web-orders", typed="web")
    assert "nothing was deleted" in page.text
    page = visitor.post("/topic/delete", name="web-orders", typed="web-orders")
    assert "is deleted" in page.text
    assert visitor.get("/topic", name="web-orders").status == 404


def test_messages_are_browsed(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("browsed", queues=2)
    with client.producer("web-loader") as producer:
        for number in range(120):
            value = json.dumps({"amount": number})
            producer.send("browsed", value, key=f"k{number % 5}", queue=number % 2)
    middle_us = time.time_ns() // 1_000

    def offsets(html: str) -> list[tuple[int, int]]:
        found = re.findall(r"queue=(\d+)&amp;offset=(\d+)\">", html)
        return [(int(queue), int(offset)) for queue, offset in found]

    seen: list[tuple[int, int]] = []
    page = visitor.get("/messages", topic="browsed", **{"from": "earliest", "limit": 25})
    while True:
        seen += offsets(page.html)
        onwards = re.search(r'rel="next" href="([^"]+)"', page.html)
        if onwards is None:
            break
        page = visitor.get(onwards[1].replace("&amp;", "&"))
    assert sorted(seen) == [(queue, offset) for queue in (0, 1) for offset in range(60)]

    page = visitor.get("/messages", topic="browsed")
    assert "50 found, scanned 50 of 120; 70 are left" in page.text
    older = re.search(r'rel="next" href="([^"]+)"', page.html)
    assert older is not None
    again = visitor.get(older[1].replace("&amp;", "&"))
    assert not set(offsets(page.html)) & set(offsets(again.html))

    page = visitor.get("/messages", topic="browsed", filter="json.amount >= 118 or offset == 0")
    assert "4 found, scanned 120 of 120" in page.text
    page = visitor.get("/messages", topic="browsed", filter="amount > 3")
    assert page.status == 400
    assert "is no field" in page.text
    page = visitor.get("/messages", topic="browsed", key="k3", **{"from": "earliest"})
    assert re.search(r"\d+ found, scanned \d+ of", page.text)
    page = visitor.get("/messages", topic="browsed", queue=1, offset=57, **{"from": "offset"})
    assert offsets(page.html) == [(1, 57), (1, 58), (1, 59)]
    late = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(middle_us / 1_000_000 + 3_600))
    page = visitor.get("/messages", topic="browsed", time=late, **{"from": "time"})
    assert "no messages" in page.text
    for shown in (page := visitor.get("/messages", topic="browsed", queue=0), again):
        address = re.search(r'href="(/messages/download[^"]+)"', shown.html)
        assert address is not None
        lines = visitor.get(address[1].replace("&amp;", "&")).body.splitlines()
        read = [json.loads(line) for line in lines]
        assert [(each["queue"], each["offset"]) for each in read] == offsets(shown.html)
    assert offsets(page.html)[0] == (0, 59)

    message = client.admin.show_message("browsed", 0, 7)
    page = visitor.get("/message", topic="browsed", queue=0, offset=7)
    assert "web-loader" in page.text
    assert f"Sequence {message.sequence}" in page.text
    page = visitor.get(
        "/producer", name="web-loader", topic="browsed", queue=0, sequence=message.sequence
    )
    assert "It is committed" in page.text
    assert 'offset=7"' in page.html
    page = visitor.get("/producer", name="web-loader", topic="browsed", queue=9, sequence=0)
    assert page.status == 404
    assert "web-loader" in visitor.get("/producers", search="WEB").text


def test_a_message_is_found_by_its_id(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("with-ids", queues=2, dedup=IdDedup(window_bytes=1 << 20))
    with client.producer() as producer:
        stored = producer.send("with-ids", b"here", message_id="m-1").result()
    page = visitor.get("/messages", topic="with-ids", id="m-1")
    assert f"Offset {stored.offset}" in page.text
    assert "here" in page.text
    assert "no message with this id" in visitor.get("/messages", topic="with-ids", id="x").text


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_a_hostile_value_is_only_shown(visitor: Visitor, client: Client, kind: str) -> None:
    value, topic = HOSTILE[kind], f"hostile-{kind.replace(' ', '-')}"
    client.admin.create_topic(topic, queues=1)
    with client.producer() as producer:
        headers = [("<script>", value), ("h", value)]
        producer.send(topic, value, key=value, headers=headers).result()
    pages = [
        visitor.get("/messages", topic=topic),
        visitor.get("/message", topic=topic, queue=0, offset=0),
        *(
            visitor.get("/message", topic=topic, queue=0, offset=0, **{"as": form})
            for form in ("text", "json", "hex")
        ),
        visitor.get("/messages", topic=topic, key=HOSTILE["script"].decode()),
        visitor.get("/letters", topic=topic),
    ]
    for page in pages:
        assert page.status == 200
        assert not re.search(r"<script(?![^>]*\ssrc=\"/static/)", page.html)
        assert not {"img", "b"} & tags(page.html)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.html)
    if kind == "json":
        assert '"n": 1.10' in pages[1].text
    whole = visitor.get("/message/value", topic=topic, queue=0, offset=0)
    assert whole.body == value
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment")
    assert whole.headers["x-content-type-options"] == "nosniff"


def test_a_large_value_is_shown_in_part(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("large", queues=1)
    value = b"<p>" * (300 << 10)
    with client.producer() as producer:
        for _ in range(12):
            producer.send("large", value).result()
    assert len(visitor.get("/messages", topic="large").body) < 50_000
    page = visitor.get("/message", topic="large", queue=0, offset=0)
    assert len(page.body) < 1_000_000
    assert "more are not shown" in page.text
    assert visitor.get("/message/value", topic="large", queue=0, offset=0).body == value


def test_the_live_tail_shows_what_comes(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("tailed", queues=2)
    assert visitor.get("/tail", topic="tailed", filter='value contains "yes"').status == 200
    with (
        visitor.events("/tail/feed", topic="tailed", filter='value contains "yes"') as events,
        client.producer() as producer,
    ):
        assert next(events) == ("begun", 2)
        producer.send("tailed", b"no").result()
        producer.send("tailed", b"<yes>\n\x1b", key=b"k").result()
        rows: list[object] = []
        while not rows:
            name, data = next(events)
            assert name == "messages"
            assert isinstance(data, dict)
            rows = data["rows"]
    assert isinstance(rows[0], dict)
    assert (rows[0]["key"], rows[0]["value"]) == ("k", "<yes> ␛")


def test_a_group_is_looked_at_and_reset_as_planned(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("grouped", queues=1)
    with client.producer() as producer:
        for number in range(10):
            producer.send("grouped", str(number)).result()
    name = "web <group>/1"
    with client.consumer(name, ["grouped"]) as consumer:
        message = consumer.poll(4, 10.0)[-1]
        consumer.commit(message)
        page = visitor.get("/group", name=name)
        assert "1 member · 1 lock" in page.text
        for order in ("lag", "held", "uncommitted"):
            page = visitor.get("/group", name=name, order=order)
            assert page.status == 200
            assert "Held for" in page.text
            assert re.search(r"<td>\d+ (?:s|min)</td>", page.html), "the age of the lock"
        assert "while it was watched, at most" in page.html
        [queue] = client.admin.describe_group(name).queues
        assert queue.lock is not None
        assert (queue.lock.older, queue.lock.lock_ms > 0) == (False, True)
        visitor.get("/group/reset", name=name)
        plan = visitor.post("/group/reset", name=name, to="earliest")
        assert "It is active" in plan.text
        shown = re.search(r'name="plan" value="(\w+)"', plan.html)
        assert shown is not None
        refused = visitor.post("/group/reset/carry-out", plan=shown[1])
        assert refused.status == 400
        assert "is active" in refused.text
    lag = 10 - message.offset - 1
    page = visitor.get("/groups", search="WEB <GROUP>")
    assert "1 found, scanned" in page.text
    assert "grouped" in page.text
    assert f"lag {lag} " in until(
        lambda: p.text if "0 members" in (p := visitor.get("/group", name=name)).text else None,
        20,
        "the member to leave",
    )
    visitor.get("/group/reset", name=name)
    plan = visitor.post("/group/reset", name=name, topic="grouped", to="shift", shift="-2")
    assert "1 of 1 queue would move: 2 messages would be read again, 0 skipped" in plan.text
    shown = re.search(r'name="plan" value="(\w+)"', plan.html)
    assert shown is not None
    assert client.admin.describe_group(name).lag == lag
    assert "reads on as planned" in visitor.post("/group/reset/carry-out", plan=shown[1]).text
    assert client.admin.describe_group(name).lag == lag + 2
    again = visitor.post("/group/reset/carry-out", plan=shown[1])
    assert again.status == 400
    assert "lag" in visitor.part("/group/figures", name=name).text
    visitor.get("/group", name=name)
    assert "is deleted" in visitor.post("/group/delete", name=name, typed=name).text
    assert visitor.get("/group", name=name).status == 404


def test_dead_letters_come_back(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("failing", queues=1)
    with client.producer() as producer:
        for number in range(3):
            producer.send("failing", f"bad-{number}", key=f"k{number}").result()
    retry = RetryPolicy(steps_ms=(), queues=1)
    with client.consumer("web-failers", ["failing"], retry=retry) as consumer:
        rejected = 0
        while rejected < 3:
            for message in consumer.poll(10, 10.0):
                consumer.reject(message, f"no <b>{message.offset}</b>")
                rejected += 1
            consumer.commit()
    topic = "web-failers.dead-letters"
    assert topic in visitor.get("/letters").text
    page = visitor.get("/letters", topic=topic)
    assert "3 letters, 0 of them came back" in page.text
    assert "rejected: no <b>1</b>" in page.text
    assert "b" not in tags(page.html)
    assert "1 letter," in visitor.get("/letters", topic=topic, key="k2").text
    page = visitor.get("/letters", topic=topic)
    assert "nothing was chosen" in visitor.post("/letters/redrive", topic=topic).text
    page = visitor.post("/letters/redrive", topic=topic, place=["0:1"], which="chosen")
    assert "1 of 1 letters came back" in page.text
    assert "3 letters, 1 of them came back" in page.text
    page = visitor.post("/letters/redrive", topic=topic, which="all")
    assert "2 of 3 letters came back, 1 had come back before" in page.text


def test_a_delayed_message_is_cancelled(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("delayed", queues=1, dedup=IdDedup(window_bytes=1 << 20))
    with client.producer() as producer:
        for number in range(2):
            producer.send("delayed", b"v", message_id=f"d-{number}", deliver_after=3600).result()
    page = visitor.get("/delays", topic="delayed")
    assert "2 messages" in page.text
    assert "within 1 h" in page.text
    assert "d-1" in page.text
    page = visitor.post("/delays/cancel", topic="delayed", id="d-1")
    assert "the message is cancelled" in page.text
    assert "1 messages" in page.text
    assert (
        "no message with this id"
        in visitor.post("/delays/cancel", topic="delayed", id="nobody").text
    )


def test_an_open_transaction_is_given_up(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("staged", queues=1)
    stage = client.transactions.stage("web <booking>", 1)
    stage.send("staged", b"v")
    receipt = stage.receipt()
    assert receipt is not None
    page = visitor.get("/transactions", search="BOOKING", open=1)
    assert "1 found, scanned" in page.text
    assert "web <booking>" in page.text
    page = visitor.get("/transaction", id="web <booking>")
    assert "staging" in page.text
    assert "is given up" in visitor.post("/transaction/abort", id="web <booking>").text
    assert client.admin.describe_topic("staged").queues[0].messages == 0
    assert visitor.get("/transaction", id="nobody").status == 400


def test_a_topic_is_verified_and_its_proof_shown(visitor: Visitor, client: Client) -> None:
    client.admin.create_topic("proven", queues=2)
    with client.producer() as producer:
        for number in range(20):
            producer.send("proven", str(number), queue=number % 2).result()
    visitor.get("/verify", topic="proven")
    assert visitor.post("/verify", topic="proven").status == 200

    def verdict() -> str | None:
        text = visitor.part("/verify/progress", topic="proven").text
        return text if "Digest" in text else None

    text = until(verdict, 30, "the verdict")
    assert "Proven: each message is stored exactly once. 20 messages, 0 duplicates" in text
    assert len(re.findall(r"\b[0-9a-f]{64}\b", text)) == 2


def test_nodes_without_an_audit_log_are_named(visitor: Visitor) -> None:
    page = visitor.get("/audit")
    assert page.status == 200
    assert "No audit log is kept by controller 1, broker 1" in page.text
    assert "nothing older is left" in page.text
    assert visitor.get("/audit", place="x").status == 400


def test_the_console_has_metrics_of_its_own(visitor: Visitor) -> None:
    def figures() -> dict[str, float]:
        answer = visitor.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.html)
            for sample in family.samples
        }

    before = figures()
    visitor.get("/topics")
    visitor.get("/topic", name="there-is-no-such-topic")
    after = figures()
    name = "semel_web_requests_total"
    assert after[f"{name}topics200"] == before.get(f"{name}topics200", 0) + 1
    assert after[f"{name}topics404"] == before.get(f"{name}topics404", 0) + 1
    assert after["semel_web_sessions"] >= 1
    assert after["semel_web_response_seconds_count"] > before["semel_web_response_seconds_count"]
    assert not any("there-is-no-such-topic" in each for each in after)


def test_a_cluster_that_is_away_is_said_so() -> None:
    with web_console("--bootstrap", "127.0.0.1:1") as url:
        visitor = Visitor(url)
        page = visitor.get("/topics")
        assert page.status == 503
        assert "The cluster does not answer" in page.text
        assert page.headers["refresh"] == "3"
        assert visitor.part("/cluster/state").status == 503
        assert visitor.get("/livez").status == 200
        assert visitor.get("/readyz").status == 503
