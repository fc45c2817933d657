"""What was released stays to be seen: queue by queue, after a change of master and a restart."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import groupby

import pytest

from semel.client import Client, DelayRelease, connect, connect_async
from semel.protos.errors import InvalidRequest, UnknownTopic
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.waiting import until

LATE_US = 30_000_000
"""A second is promised as a rule; this machine may be busy."""
WAIT_S = 40
TOPIC = "reminders"


def in_seconds(seconds: float) -> int:
    """Microseconds since 1970 of a whole second about so long from now."""
    return (int(time.time() + seconds) + 1) * 1_000_000


def nothing_delayed(client: Client) -> bool:
    return not client.admin.delay_stats(TOPIC).messages


def send(client: Client, due_us: int) -> None:
    """Ten messages to each of two queues, half of them a second after the others."""
    with client.producer() as producer:
        for queue in (0, 1):
            for number in range(10):
                producer.send(
                    TOPIC,
                    b"%d" % (number % 2),
                    queue=queue,
                    deliver_at=due_us + number % 2 * 1_000_000,
                )


def check(client: Client, rows: list[DelayRelease], due_us: int) -> None:
    """The rows against the queues themselves."""
    assert [row.released_us for row in rows] == sorted((r.released_us for r in rows), reverse=True)
    with client.reader(TOPIC, end="latest") as reader:
        messages = sorted(reader, key=lambda message: (message.queue, message.offset))
    found = {(row.queue, row.due_us): row for row in rows}
    assert len(found) == len(rows) == 4
    for (queue, late), group in groupby(messages, lambda m: (m.queue, int(m.value))):
        row, mine = found[queue, due_us + late * 1_000_000], list(group)
        assert (row.offset, row.messages, row.span_s) == (mine[0].offset, len(mine), 1)
        assert row.due_us == row.due_last_us <= row.released_us <= row.released_last_us
        assert row.late_us == row.released_last_us - row.due_us < LATE_US
        assert row.late_min_us == row.released_us - row.due_us >= 0


def test_history_outlives_masters_restarts_and_the_messages_themselves(cluster: Cluster) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic(TOPIC, queues=2)
        assert client.admin.delay_history(TOPIC) == []
        due_us = in_seconds(2)
        send(client, due_us)
        until(lambda: nothing_delayed(client), WAIT_S, "everything to be released")
        before = client.admin.delay_history(TOPIC)
        check(client, before, due_us)
        cluster.kill(cluster.master())
        until(lambda: client.admin.delay_history(TOPIC) == before, WAIT_S, "the next master")
        for node in cluster.nodes:
            if node.running:
                cluster.kill(node)
        cluster.start(WAIT_S)
        assert client.admin.delay_history(TOPIC) == before
        client.admin.alter_topic(TOPIC, retention_ms=1)
        until(
            lambda: all(not each.messages for each in client.admin.describe_topic(TOPIC).queues),
            WAIT_S,
            "retention to remove the messages",
        )
        assert client.admin.delay_history(TOPIC) == before


def test_it_is_told_from_a_time_on_so_many_rows_and_by_every_face(
    shared_cluster: Cluster, client: Client
) -> None:
    client.admin.create_topic(TOPIC, queues=2)
    first_us = in_seconds(1)
    send(client, first_us)
    until(lambda: nothing_delayed(client), WAIT_S, "everything to be released")
    whole = client.admin.delay_history(TOPIC)
    assert client.admin.delay_history(TOPIC, limit=1) == whole[:1]
    middle = datetime.fromtimestamp(whole[1].released_us / 1e6, UTC)
    since = [row for row in whole if row.released_last_us >= whole[1].released_us]
    assert client.admin.delay_history(TOPIC, since=whole[1].released_us) == since
    semel = Console(shared_cluster.bootstrap)
    shown = semel.json("delay", "history", TOPIC)
    assert shown["topic"] == TOPIC
    for row, told in zip(whole, shown["releases"], strict=True):
        assert (told["queue"], told["offset"], told["messages"], told["span_s"]) == (
            row.queue,
            row.offset,
            row.messages,
            1,
        )
        assert datetime.fromisoformat(told["due"]).timestamp() == row.due_us / 1e6
        assert told["late_s"] == row.late_us / 1e6
    far = semel.json("delay", "history", TOPIC, "--since", "2999-01-01T00:00:00Z")
    assert far["releases"] == []
    some = semel.json("delay", "history", TOPIC, "--since", middle.isoformat(), "--limit", "2")
    assert len(some["releases"]) == 2
    text = semel("delay", "history", TOPIC).stdout.decode()
    assert "released (UTC)" in text
    for wrong in (0, 10_001, True):
        with pytest.raises(InvalidRequest):
            client.admin.delay_history(TOPIC, limit=wrong)
    with pytest.raises(InvalidRequest):
        client.admin.delay_history(TOPIC, since=datetime(2026, 1, 1))
    with pytest.raises(UnknownTopic):
        client.admin.delay_history("nowhere")


async def test_asyncio_tells_it_too(shared_cluster: Cluster, client: Client) -> None:
    client.admin.create_topic("quiet", queues=1)
    async with await connect_async(shared_cluster.bootstrap) as other:
        assert await other.admin.delay_history("quiet") == []
