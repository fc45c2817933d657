"""Tables on a real cluster: a mapping that follows its topic, also over splits."""

from __future__ import annotations

import pytest

from semel.client import Client, Compaction, connect_async
from semel.protos.errors import Closed, TimedOut
from tests.kit.cluster import Cluster


def test_a_table_follows_its_topic(client: Client) -> None:
    client.admin.create_topic("stock", queues=3, compaction=Compaction())
    with client.producer() as producer:
        keys = [b"k%d" % number for number in range(50)]
        producer.send_many("stock", [b"1"] * 50, keys=keys).result(10)
        producer.send_many("stock", [b"2", None], keys=[b"k1", b"k2"]).result(10)
        with client.table("stock") as table:
            assert len(table) == 49
            assert (table[b"k0"], table[b"k1"], table.get(b"k2")) == (b"1", b"2", None)
            assert set(table) == set(keys) - {b"k2"}
            sent = producer.send("stock", b"3", key=b"k2").result(10)
            table.wait_for({sent.queue: sent.offset + 1}, timeout=10)
            assert b"k2" in table
            producer.send_many("stock", [None] * 50, keys=keys).result(10)
            table.catch_up(timeout=10)
            assert dict(table) == {}
            with pytest.raises(TimedOut, match="is behind"):
                table.wait_for({0: 1_000}, timeout=0.1)
        with pytest.raises(Closed):
            len(table)


def test_a_table_goes_on_with_the_children_of_a_queue(client: Client) -> None:
    client.admin.create_topic("parted", queues=1, compaction=Compaction())
    keys = [b"k%d" % number for number in range(20)]
    with client.producer() as producer, client.table("parted") as table:
        producer.send_many("parted", [b"old"] * 20, keys=keys).result(10)
        client.admin.split_queue("parted", 0)
        producer.send_many("parted", [b"new"] * 20, keys=keys).result(30)
        producer.send("parted", None, key=keys[0]).result(10)
        table.catch_up(timeout=30)
        wanted = dict.fromkeys(keys[1:], b"new")
        assert dict(table) == wanted
        with client.table("parted") as later:
            assert dict(later) == wanted


async def test_a_table_with_asyncio(shared_cluster: Cluster) -> None:
    async with connect_async(shared_cluster.bootstrap) as client, client.producer() as producer:
        await client.admin.create_topic("async", queues=1, compaction=Compaction())
        await producer.send("async", b"1", key=b"k")
        async with client.table("async") as table:
            assert dict(table) == {b"k": b"1"}
            sent = await producer.send("async", None, key=b"k")
            await table.wait_for({sent.queue: sent.offset + 1}, timeout=10)
            assert b"k" not in table
