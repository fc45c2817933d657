"""Delayed messages at the ends of what is allowed: the largest, the furthest, and the past."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from semel.client import Client, IdDedup, connect
from semel.protos import compat
from semel.protos.batch import MESSAGE_BYTES_MAX
from semel.protos.v1 import broker_pb2
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, make_batch
from tests.kit.cluster import Cluster
from tests.kit.waiting import until

WAIT_S = 40
WEEK, YEAR = timedelta(days=7), timedelta(days=365)


def in_seconds(seconds: float) -> int:
    """Microseconds since 1970 of a whole second about so long from now."""
    return (int(time.time() + seconds) + 1) * 1_000_000


def test_messages_of_a_mebibyte_are_delayed_and_come_whole(client: Client) -> None:
    client.admin.create_topic("large", queues=2)
    values = [os.urandom(MESSAGE_BYTES_MAX) for _ in range(8)]
    due_us = in_seconds(3)
    with client.producer() as producer:
        futures = [producer.send("large", value, deliver_at=due_us) for value in values]
        found = [each.result(30) for each in futures]
    assert {each.offset for each in found} == {-1}
    loads = [each.due_in_second for each in found]
    most = max(load for load in loads if load is not None)
    assert most.messages == 8
    assert most.bytes > 8 * MESSAGE_BYTES_MAX
    listed = client.admin.list_delayed("large")
    assert [each.size for each in listed] == [MESSAGE_BYTES_MAX] * 8 or not listed
    until(lambda: not client.admin.delay_stats("large").messages, WAIT_S, "the release")
    with client.reader("large", end="latest") as reader:
        assert sorted(message.value for message in reader) == sorted(values)
    assert client.admin.verify("large").ok
    assert sum(row.messages for row in client.admin.delay_history("large")) == 8


def test_a_week_and_a_year_ahead_are_listed_counted_cancelled_and_survive_a_restart(
    cluster: Cluster,
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("far", queues=2, dedup=IdDedup(window_bytes=1 << 20))
        began = datetime.now(UTC)
        with client.producer() as producer:
            for name, ahead in (("week", WEEK), ("year", YEAR)):
                for number in range(3):
                    producer.send(
                        "far", b"%d" % number, deliver_after=ahead, message_id=f"{name} {number}"
                    ).result(30)

        def look() -> tuple[list[bytes | None], dict[str, int], list[int]]:
            listed = client.admin.list_delayed("far")
            buckets = client.admin.delay_stats("far").buckets
            counts = {each.due: each.messages for each in buckets if each.messages}
            return [each.message_id for each in listed], counts, [each.due_us for each in listed]

        ids, counts, dues = look()
        assert set(ids[:3]) == {b"week 0", b"week 1", b"week 2"}
        # A week from when each was sent, as the log's clock sees it, which may be a little behind.
        weeks = {due: count for due, count in counts.items() if due != "later"}
        assert counts["later"] == sum(weeks.values()) == 3
        assert weeks.keys() <= {"7 d", "30 d"}
        for due_us, ahead in zip(dues, [WEEK] * 3 + [YEAR] * 3, strict=True):
            late = datetime.fromtimestamp(due_us / 1e6, UTC) - began - ahead
            assert timedelta(0) <= late < timedelta(minutes=2)
        assert client.admin.cancel("far", "week 1").result == "cancelled"
        assert client.admin.cancel("far", "year 1").result == "cancelled"
        left = [each for each in ids if each not in (b"week 1", b"year 1")]
        assert look()[0] == left
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.start(WAIT_S)
        assert look()[0] == left
        assert sum(look()[1].values()) == 4
        assert client.admin.cancel("far", "week 1").result == "cancelled", "it is remembered"
        assert client.admin.cancel("far", "year 2").result == "cancelled"
        with client.producer() as producer:
            due = client.admin.list_delayed("far")[-1].due_us
            again = producer.send("far", b"x", deliver_at=due).result(30)
            assert again.due_in_second is not None
            assert again.due_in_second.messages == 2
        assert client.admin.delay_history("far") == []
        assert client.admin.verify("far").ok


def test_a_time_that_has_passed_is_at_once_for_the_sdk(client: Client) -> None:
    client.admin.create_topic("past", queues=1)
    with client.producer() as producer:
        for ahead in (YEAR, timedelta(seconds=1)):
            found = producer.send("past", b"x", deliver_at=datetime.now(UTC) - ahead).result(30)
            assert found.offset >= 0
            assert found.due_in_second is None


async def test_a_batch_that_was_due_a_year_ago_comes_at_once_and_counts_as_late(
    tmp_path: Path,
) -> None:
    """No SDK sends it; a message that is held up on its way may still be late when it arrives."""
    due_us = int((datetime.now(UTC) - YEAR).timestamp()) * 1_000_000
    async with BrokerGroup(tmp_path) as group:
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
            await client.fence(1)
            (ack,) = await client.produce(make_batch(-1, [b"late"], deliver_at_us=due_us))
            assert ack.status == broker_pb2.PRODUCE_STATUS_COMMITTED, ack
            assert ack.base_offset == -1
            assert ack.due_in_second.messages <= 1
        replica = (await group.master()).replica
        async with compat.timeout(WAIT_S):
            while replica.state.delays.queues:
                await asyncio.sleep(0.02)
        assert replica.state.queues[QUEUE].log_end_offset == 1
        (row,) = replica.state.releases.newest(QUEUE.topic_id, 0, 10)
        assert (row.due_first_us, row.messages) == (due_us, 1)
        assert row.late_max_us > YEAR.total_seconds() * 1_000_000
        assert replica.mastership.lateness.count == 1
        assert replica.mastership.lateness.total_s > YEAR.total_seconds()
