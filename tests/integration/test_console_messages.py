"""The console looks at single messages, stored and delayed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from semel.client import Client
from semel.protos.errors import OffsetOutOfRange, UnknownQueue
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path) -> Iterator[Cluster]:
    """A cluster that looks for what retention may take ten times a second."""
    flags = ("--retention-check-ms", "100")
    with Cluster(module_path / "cluster", broker_flags=flags) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def semel(shared_cluster: Cluster) -> Console:
    return Console(shared_cluster.bootstrap)


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=2)
    return name


def now_us() -> int:
    return time.time_ns() // 1_000


def microseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


def test_a_message_is_shown_with_all_that_is_known_of_it(
    semel: Console, topic: str, client: Client
) -> None:
    before_us = now_us()
    with client.producer(name="kitchen") as producer:
        producer.send(topic, b"tea", queue=1).result(10)
        sent = producer.send(
            topic,
            b"\xff",
            key="ä".encode(),
            headers={"waiter": b"Ann"},
            queue=1,
            message_id="id-2",
        ).result(10)
    assert sent.offset == 1
    found = semel.json("message", "show", topic, "1", "1")
    described = client.admin.describe_producer("kitchen")
    row = next(row for row in described.queues if row.queue == 1)
    for name in ("timestamp", "appended"):
        assert before_us <= microseconds(found.pop(name)) <= now_us()
    assert found == {
        "topic": topic,
        "queue": 1,
        "offset": 1,
        "key": "ä",
        "value_base64": "/w==",
        "headers": {"waiter": "Ann"},
        "message_id": "id-2",
        "deliver_at": None,
        "producer_id": described.producer_id,
        "producer": "kitchen",
        "epoch": row.epoch,
        "session": row.session,
        "sequence": sent.sequence,
    }
    text = semel("message", "show", topic, "1", "1").stdout.decode()
    assert "waiter=Ann" in text
    assert "kitchen" in text


def test_a_delayed_message_was_appended_when_it_was_due(
    semel: Console, topic: str, client: Client
) -> None:
    with client.producer() as producer, producer.transaction("stays") as transaction:
        transaction.send(topic, b"later", queue=0, deliver_after=1.5)
        transaction.send(topic, b"now", queue=0)
    until(
        lambda: client.admin.describe_topic(topic).queues[0].log_end_offset == 2,
        20,
        "the delayed message",
    )
    now, later = (semel.json("message", "show", topic, "0", str(at)) for at in range(2))
    assert (now["value"], later["value"]) == ("now", "later")
    assert (now["deliver_at"], now["producer"], later["producer"]) == (None, None, None)
    due_us = microseconds(later["deliver_at"])
    assert due_us <= microseconds(later["appended"]) <= now_us()
    assert microseconds(now["appended"]) < due_us


def test_what_is_not_stored_is_refused_with_what_is(
    semel: Console, topic: str, client: Client
) -> None:
    error = semel.fails("message", "show", topic, "0", "0", "--json")
    assert error == (
        f"queue 0 of topic {topic!r} has no message at offset 0: it is empty, and its next message"
        " gets offset 0"
    )
    with client.producer() as producer:
        for value in (b"a", b"b"):
            producer.send(topic, value, queue=0).result(10)
        client.admin.alter_topic(topic, retention_bytes=1)
        until(
            lambda: client.admin.describe_topic(topic).queues[0].log_start_offset == 1,
            20,
            "the first message to be trimmed",
        )
    error = semel.fails("message", "show", topic, "0", "0")
    assert error.endswith("no message at offset 0: it has 1 to 1; what is below was trimmed")
    assert "it has 1 to 1" in semel.fails("message", "show", topic, "0", "2")
    assert semel.json("message", "show", topic, "0", "1")["value"] == "b"
    assert "has no queue 7" in semel.fails("message", "show", topic, "7", "0")
    assert "no topic" in semel.fails("message", "show", "nowhere", "0", "0")
    semel.fails("message", "show", topic, "0", "x", status=2)
    with pytest.raises(OffsetOutOfRange) as caught:
        client.admin.show_message(topic, 0, 0)
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (1, 2)
    with pytest.raises(UnknownQueue):
        client.admin.show_message(topic, 7, 0)


# --- what is delayed


def due_text(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="microseconds")


def test_delayed_messages_are_listed_until_they_are_released(
    semel: Console, topic: str, client: Client
) -> None:
    """Those of a transaction are, too, from the commit on."""
    assert semel.json("delay", "list", topic) == {"topic": topic, "messages": []}
    assert semel("delay", "list", topic).stdout == b"no delayed messages\n"
    hour_us = (now_us() // 1_000_000 + 3_600) * 1_000_000
    with client.producer(name="reminder") as producer:
        sent = [
            producer.send(topic, b"in an hour", queue=0, deliver_at=hour_us),
            producer.send(topic, b"soon", key=b"k", queue=1, deliver_after=8, message_id=b"\xff"),
            producer.send(topic, b"a minute later", queue=1, deliver_at=hour_us + 60_000_000),
            producer.send(topic, b"now", queue=1),
        ]
        sequences = [each.result(10).sequence for each in sent]
        with producer.transaction("waits") as transaction:
            transaction.send(topic, b"with others", queue=0, deliver_at=hour_us - 60_000_000)
            assert len(semel.json("delay", "list", topic)["messages"]) == 3, "not committed"
    found = semel.json("delay", "list", topic)["messages"]
    producer_id = client.admin.describe_producer("reminder").producer_id
    assert hour_us - 3_600_000_000 < microseconds(found[0].pop("due")) < hour_us - 60_000_000
    stager_id = found[1].pop("producer_id")
    assert stager_id != producer_id
    late = {"queue": 0, "message_id": None, "key": None, "producer_id": producer_id}
    assert found == [
        {
            "queue": 1,
            "message_id_base64": "/w==",
            "key": "k",
            "size": 5,
            "producer_id": producer_id,
            "sequence": sequences[1],
        },
        {
            "due": due_text(hour_us - 60_000_000),
            "queue": 0,
            "message_id": None,
            "key": None,
            "size": 11,
            "sequence": 0,
        },
        late | {"due": due_text(hour_us), "size": 10, "sequence": sequences[0]},
        late
        | {
            "due": due_text(hour_us + 60_000_000),
            "queue": 1,
            "size": 14,
            "sequence": sequences[2],
        },
    ]
    until(
        lambda: client.admin.describe_topic(topic).queues[1].log_end_offset == 2,
        20,
        "the first one to be released",
    )
    left = semel.json("delay", "list", topic)["messages"]
    assert [each["size"] for each in left] == [11, 10, 14]
    before = due_text(hour_us)
    assert len(semel.json("delay", "list", topic, "--before", before)["messages"]) == 1
    assert len(semel.json("delay", "list", topic, "--limit", "2")["messages"]) == 2
    text = semel("delay", "list", topic).stdout.decode()
    assert datetime.fromtimestamp(hour_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S") in text


def test_delayed_messages_are_counted_by_the_time_that_is_left(
    semel: Console, topic: str, client: Client
) -> None:
    empty = semel.json("delay", "stats", topic)
    assert (empty["messages"], empty["earliest"], empty["latest"]) == (0, None, None)
    assert semel("delay", "stats", topic).stdout == b"no delayed messages\n"
    day_us = 86_400_000_000
    base_us = now_us() // 1_000_000 * 1_000_000
    first_us, last_us = base_us + 1_800_000_000, base_us + 40 * day_us
    with client.producer() as producer:
        producer.send_many(topic, [b"x" * 100] * 300, queue=0, deliver_at=first_us)
        producer.send_many(topic, [b"x" * 100] * 30, queue=1, deliver_at=base_us + 3 * day_us)
        producer.send(topic, b"far", queue=1, deliver_at=last_us)
        producer.send(topic, b"soon", queue=1, deliver_after=2)
        producer.flush()
    with client.producer() as producer, producer.transaction("counted") as transaction:
        transaction.send(topic, b"with others", queue=0, deliver_at=first_us)
    until(
        lambda: client.admin.describe_topic(topic).queues[1].log_end_offset == 1,
        20,
        "the first one to be released",
    )
    found = semel.json("delay", "stats", topic)
    assert (found["topic"], found["messages"]) == (topic, 332)
    assert (found["earliest"], found["latest"]) == (due_text(first_us), due_text(last_us))
    counts = {each["due"]: each["messages"] for each in found["buckets"]}
    assert list(counts) == ["overdue", "1 s", "1 min", "1 h", "1 d", "7 d", "30 d", "later"]
    assert {due: each for due, each in counts.items() if each} == {
        "1 h": 301,
        "7 d": 30,
        "later": 1,
    }
    assert found["bytes"] == sum(each["bytes"] for each in found["buckets"]) > 33_000
    assert found["batches"] >= 4
    lines = semel("delay", "stats", topic).stdout.decode().splitlines()
    bars = {line.split("  ")[0]: line.count("█") for line in lines}
    assert (bars["within 1 h"], bars["within 7 d"], bars["within 1 d"]) == (30, 2, 0)
    assert "later" in bars
    assert "332 messages delayed" in lines[0]
    assert lines[0].endswith("UTC")


def test_many_delayed_messages_are_listed_in_pages(topic: str, client: Client) -> None:
    """More batches than a page has, of two queues, in one order."""
    first_us = (now_us() // 1_000_000 + 3_600) * 1_000_000
    dues = [first_us + (number * 7_919 % 300) * 1_000_000 for number in range(300)]
    with client.producer() as producer:
        for queue in range(2):
            producer.send_many(topic, [b"x" * 20_000] * 300, queue=queue, deliver_at=dues)
        producer.flush()
    found = client.admin.list_delayed(topic, limit=10_000)
    assert [(each.due_us, each.queue) for each in found] == sorted(
        (due_us, queue) for due_us in dues for queue in range(2)
    )
    assert client.admin.list_delayed(topic, limit=350) == found[:350]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("list", "nowhere"), 1, "no topic"),
        (("stats", "nowhere", "--json"), 1, "no topic"),
        (("list", "t", "--limit", "0"), 2, "0 is not in the range"),
        (("list", "t", "--limit", "-1"), 2, "-1 is not in the range"),
        (("list", "t", "--limit", "10001"), 2, "10001 is not in the range"),
        (("list", "t", "--before", "tomorrow"), 2, "is no time such as"),
        (("list", "t", "--before", "5"), 2, "is no time such as"),
    ],
)
def test_what_cannot_be_asked_of_delays_is_one_line_of_error(
    semel: Console, arguments: tuple[str, ...], status: int, text: str
) -> None:
    assert text in semel.fails("delay", *arguments, status=status)
