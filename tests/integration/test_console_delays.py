"""The console with delayed messages and ids: sent, shown while they wait, and read."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from semel.client import Client, RetryPolicy
from tests.kit.cluster import Cluster
from tests.kit.console import Console, read_json
from tests.kit.consuming import take
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def semel(shared_cluster: Cluster) -> Console:
    return Console(shared_cluster.bootstrap)


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=1)
    return name


def consumed(semel: Console, topic: str) -> list[dict[str, Any]]:
    return read_json(semel("consume", topic, "--until-end", "--json"))


def test_a_delayed_line_is_shown_while_it_waits(semel: Console, topic: str) -> None:
    before_us = time.time_ns() // 1_000
    semel.json("produce", topic, "--deliver-after", "1h", stdin=b"tea\ncakes\n")
    assert semel.json("produce", topic, stdin=b"now\n")["stored"] == 1
    (queue,) = semel.json("topic", "describe", topic)["queues"]
    assert (queue["log_end_offset"], queue["delayed_messages"]) == (1, 2)
    assert 3_600_000_000 <= queue["next_due_us"] - before_us < 3_660_000_000
    assert queue["next_due_us"] % 1_000_000 == 0
    for command in (("topic", "describe"), ("queue", "list")):
        text = semel(*command, topic).stdout.decode()
        assert "next due" in text
        assert datetime.fromtimestamp(queue["next_due_us"] / 1e6, UTC).strftime("%H:%M:%S") in text
    assert [row["value"] for row in consumed(semel, topic)] == ["now"]
    assert b"2 not due yet" in semel("verify", "--exactly-once", topic).stdout


def test_a_delayed_line_is_read_when_it_is_due(semel: Console, topic: str, client: Client) -> None:
    semel.json("produce", topic, "--deliver-after", "1s", "--message-id", "ä 1", stdin=b"tea")
    semel.json("produce", topic, stdin=b"now")
    until(
        lambda: client.admin.describe_topic(topic).queues[0].log_end_offset == 2,
        20,
        "the message to be due",
    )
    rows = consumed(semel, topic)
    assert {row["value"]: row.get("message_id") for row in rows} == {"now": None, "tea": "ä 1"}
    assert "next due" not in semel("topic", "describe", topic).stdout.decode()


def test_json_lines_have_times_and_ids_of_their_own(
    semel: Console, topic: str, client: Client
) -> None:
    due_us = (int(time.time()) + 5) * 1_000_000
    lines = [
        {"value": "a", "message_id": "id-a"},
        {"value": "b", "deliver_at": due_us, "message_id_base64": "/w=="},
        {"value": "c", "deliver_at": datetime.fromtimestamp(due_us / 1e6, UTC).isoformat()},
        {"value": "d", "deliver_at": "2020-01-01T00:00:00"},
    ]
    text = b"\n".join(json.dumps(line).encode() for line in lines)
    far = "2030-01-01T00:00:00Z"
    semel.json("produce", topic, "--format", "jsonl", "--deliver-at", far, stdin=text)
    (queue,) = client.admin.describe_topic(topic).queues
    assert (queue.log_end_offset, queue.delayed_messages, queue.next_due_us) == (1, 3, due_us)
    until(
        lambda: client.admin.describe_topic(topic).queues[0].log_end_offset == 3,
        20,
        "two messages to be due",
    )
    rows = consumed(semel, topic)
    assert [row["value"] for row in rows] == ["d", "b", "c"]
    assert rows[1]["message_id_base64"] == "/w=="
    (queue,) = client.admin.describe_topic(topic).queues
    far_us = int(datetime.fromisoformat(far).timestamp()) * 1_000_000
    assert (queue.delayed_messages, queue.next_due_us) == (1, far_us)


def test_a_dead_letter_is_shown_with_its_id(semel: Console, topic: str, client: Client) -> None:
    with client.producer() as producer:
        for message_id in ("ä 1", b"\xff", None):
            producer.send(topic, b"tea", message_id=message_id).result(10)
    with client.consumer("given-up", topic, retry=RetryPolicy()) as consumer:
        for message in take(consumer, 3):
            consumer.reject(message)
        consumer.commit()
    letters = semel.json("dlq", "list", "given-up")["letters"]
    letters.sort(key=lambda letter: letter["origin"]["offset"])
    ids = [letter.get("message_id", "none") for letter in letters]
    assert ids == ["ä 1", {"base64": "/w=="}, "none"]
    for letter, shown in zip(letters, ("ä 1", "/w==", None), strict=True):
        place = f"{letter['queue']}/{letter['offset']}"
        assert semel.json("dlq", "show", "given-up", place) == letter
        text = semel("dlq", "show", "given-up", place).stdout.decode()
        assert ("message_id" in text) == (shown is not None)
        assert shown is None or shown in text


@pytest.mark.parametrize(
    ("arguments", "stdin", "status", "message"),
    [
        (("--deliver-at", "tomorrow"), b"a", 2, "is no time such as"),
        (("--deliver-after", "5"), b"a", 2, "is no duration such as"),
        (("--deliver-after", "5m", "--deliver-at", "2030-01-01"), b"a", 2, "contradict"),
        (("--deliver-at", "2100-01-01"), b"a", 1, "more than ten years ahead"),
        (("--message-id", "x"), b"a\nb", 1, "is for an input of one message"),
        (("--message-id", ""), b"a", 1, "an id has 1 to 1,024"),
        (("--message-id", "x", "--format", "jsonl"), b"{}", 2, "give the JSON object"),
        (
            ("--format", "jsonl"),
            b'{"value": "a", "message_id": ""}',
            1,
            "line 1 has an unusable message_id",
        ),
        (("--format", "jsonl"), b'{"value": "a", "deliver_at": 1.5}', 1, "line 1 cannot be del"),
        (("--format", "jsonl"), b'{"value": "a", "deliver_at": "x"}', 1, "line 1 has a .*no time"),
    ],
)
def test_what_cannot_be_is_one_line_of_error_and_stores_nothing(
    semel: Console,
    client: Client,
    arguments: tuple[str, ...],
    stdin: bytes,
    status: int,
    message: str,
) -> None:
    client.admin.create_topic("refused", queues=1, if_not_exists=True)
    error = semel.fails("produce", "refused", *arguments, status=status, stdin=stdin)
    assert re.search(message, error), error
    (queue,) = client.admin.describe_topic("refused").queues
    assert (queue.log_end_offset, queue.delayed_messages) == (0, 0)
