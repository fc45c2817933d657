"""The metrics pages of real nodes: the figures follow what happened to them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from pathlib import Path

from semel.broker.log.checkpoint import HEADER_BYTES
from semel.broker.metric_table import METRICS
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from tests.kit import id_senders
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, make_batch
from tests.kit.metrics_page import scrape
from tests.kit.waiting import until_async


async def test_the_figures_of_a_node_follow_what_happened(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, 1, metrics_port=0) as group:
        node = await group.master()
        async with RawClient(node.address) as client:
            await client.create_queue()
            await client.fence(1)
            first = make_batch(-1, [b"x"] * 3)
            await client.produce(first, first, make_batch(2, [b"y"] * 4))
            await client.produce(make_batch(5, [b"y", b"z"]))  # refused: a part is stored
            await client.produce(make_batch(6, [b"old"], session=0))  # fenced
            _, parts = await client.fetch(max_wait_ms=0)
            request = broker_pb2.AcquireLocksRequest(
                group="readers",
                member_id="m",
                queues=[queue_ref(QUEUE)],
                lock_ms=60_000,
                session_ms=60_000,
            )
            token = (await client.call("AcquireLocks", request)).grants[0].token
            commit = broker_pb2.CommitRequest(group="readers")
            commit.commits.add(queue=queue_ref(QUEUE), token=token, offset=2)
            await client.call("Commit", commit)
        page = await scrape(node.metrics_address)
        assert page["semel_broker_role{master}"] == 1
        assert page["semel_broker_role{slave}"] == 0
        assert page["semel_broker_serving_master"] == 1
        assert page["semel_broker_raft_term"] == node.replica.term >= 1
        assert page["semel_broker_elections_total"] == 1
        assert page["semel_broker_raft_applied_index"] == node.replica.state.applied_index
        assert page["semel_broker_group_voters"] == 1
        assert page["semel_broker_under_replicated_voters"] == 0
        assert page["semel_broker_produced_batches_total"] == 2
        assert page["semel_broker_produced_messages_total"] == 7
        assert page["semel_broker_produced_bytes_total"] > 2 * 100
        assert page["semel_broker_dedup_hits_total"] == 1
        assert page["semel_broker_dedup_messages_total"] == 3
        assert page["semel_broker_refused_batches_total"] == 2
        assert page["semel_broker_produce_seconds_count"] == 3
        assert page["semel_broker_fetched_messages_total"] == 7
        assert page["semel_broker_fetched_bytes_total"] == sum(map(len, parts))
        assert page["semel_broker_fetch_seconds_count"] == 1
        assert page["semel_broker_log_sync_seconds_count"] == node.replica.log.stats().syncs > 0
        assert page["semel_broker_topic_messages{t}"] == 7
        assert page["semel_broker_topic_bytes{t}"] == page["semel_broker_largest_queue_bytes{t}"]
        assert page["semel_broker_consumer_lag_messages{readers,t}"] == 5
        assert page["semel_broker_consumer_largest_queue_lag_messages{readers,t}"] == 5
        assert page["semel_broker_held_locks{readers}"] == 1
        assert page["semel_broker_producer_rows"] == 1
        assert page["semel_broker_parked_batches"] == 0
        assert 0 < page["semel_broker_disk_free_bytes"] <= page["semel_broker_disk_size_bytes"]


async def test_message_ids_are_counted_by_topic(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, 1, metrics_port=0) as group:
        node = await group.master()
        assert "semel_broker_id_lookups_total{t}" not in await scrape(node.metrics_address)
        one, two = await id_senders.begin(group)
        await one.send(id_senders.ids(0, 30))
        await two.send(id_senders.ids(10, 32))
        await two.send([b"id 1"], b"other")
        await group.stop(1)
        node = await group.start(1)
        await group.master()
        page = await scrape(node.metrics_address)
        assert page["semel_broker_id_window_ids{t}"] == 32
        assert page["semel_broker_id_window_bytes{t}"] == 32 * 40
        assert page["semel_broker_id_hits_total{t}"] == 20
        assert page["semel_broker_id_conflicts_total{t}"] == 1
        assert page["semel_broker_id_lookups_total{t}"] == 30 + 22 + 1
        assert page["semel_broker_id_evictions_total{t}"] == 0
        assert 0 <= page["semel_broker_id_window_oldest_seconds{t}"] < 60


async def test_a_checkpoint_is_counted_with_its_size_and_its_times(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, 1, metrics_port=0) as group:
        node = await group.master()
        page = await scrape(node.metrics_address)
        assert page["semel_broker_checkpoint_bytes"] == 0
        assert page["semel_broker_checkpoint_seconds_count"] == 0
        async with RawClient(node.address) as client:
            await client.create_queue()
            await client.fence(1)
        index = await node.checkpoints.write()
        await node.checkpoints.write()  # nothing is new: none is written
        page = await scrape(node.metrics_address)
        (file,) = (tmp_path / "1" / "log").glob("*/checkpoint-*")
        assert page["semel_broker_checkpoint_index"] == index
        assert page["semel_broker_checkpoint_bytes"] == file.stat().st_size - HEADER_BYTES
        assert page["semel_broker_checkpoint_seconds_count"] == 1
        assert page["semel_broker_checkpoint_pause_seconds_count"] == 1
        paused = page["semel_broker_checkpoint_pause_seconds_sum"]
        assert 0 < paused < page["semel_broker_checkpoint_seconds_sum"]
        await group.stop(node.config.node_id)
        again = await group.start(node.config.node_id)
        page = await scrape(again.metrics_address)
        assert page["semel_broker_checkpoint_bytes"] == file.stat().st_size - HEADER_BYTES
        assert page["semel_broker_checkpoint_seconds_count"] == 0


async def test_a_master_shows_who_does_not_follow_and_slaves_count_nothing_twice(
    tmp_path: Path,
) -> None:
    async with BrokerGroup(tmp_path, 3, metrics_port=0) as group:
        master = await group.master()
        async with RawClient(master.address) as client:
            await client.create_queue()
            await client.fence(1)
            parked = asyncio.create_task(client.produce(make_batch(0, [b"second"])))
            page = await scrape(master.metrics_address)
            while not page["semel_broker_parked_batches"]:
                page = await scrape(master.metrics_address)
            assert page["semel_broker_parked_bytes"] > 0
            parked.cancel()
        await group.settled()
        slaves = [node for node in group.running.values() if node is not master]
        pages = [await scrape(node.metrics_address) for node in (master, *slaves)]
        shown = {metric.name for metric in METRICS if "Master only" in metric.text}
        for slave in pages[1:]:
            assert slave["semel_broker_role{slave}"] == 1
            assert not {name for name in shown if any(key.startswith(name) for key in slave)}
        assert {
            name for name in shown if any(key.startswith(name) for key in pages[0])
        } == shown - {
            *(name for name in shown if name.startswith("semel_broker_id_")),  # nothing compares
            *("semel_broker_tier_lag_seconds", "semel_broker_tier_cold_messages"),  # or is tiered
            "semel_broker_compaction_dirty_ratio",  # nothing is compacted
            "semel_broker_memory_dropped_messages_total",  # nothing is in memory
            "semel_broker_memory_lost_messages_total",
            "semel_broker_consumer_lag_messages",  # nobody consumes
            "semel_broker_consumer_largest_queue_lag_messages",
            "semel_broker_held_locks",
        }
        assert pages[0]["semel_broker_under_replicated_voters"] == 0
        gone = slaves[0].config.node_id
        await group.stop(gone)
        page = await scrape(master.metrics_address)
        while not page["semel_broker_under_replicated_voters"]:
            page = await scrape(master.metrics_address)
        assert page["semel_broker_under_replicated_voters"] == 1
        assert f"semel_broker_peer_behind_entries{{{gone}}}" in page


async def probe(address: str, path: str) -> tuple[int, str]:
    """Status and body of what an orchestrator asks for."""

    def ask() -> tuple[int, str]:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    return await asyncio.to_thread(ask)


async def test_a_node_is_ready_as_long_as_its_group_has_a_master(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, 3, metrics_port=0) as group:
        master = await group.master()
        await group.settled()
        last, *others = [node for node in group.running.values() if node is not master]
        for node in (master, last, *others):
            assert await probe(node.metrics_address, "/readyz") == (200, "ready\n")
        for node in (master, *others):
            await group.stop(node.config.node_id)

        async def unready() -> bool:
            status, reason = await probe(last.metrics_address, "/readyz")
            return status == 503 and ("candidate" in reason or "no master" in reason)

        await until_async(unready, what="the last node to miss its master")
        assert await probe(last.metrics_address, "/livez") == (200, "alive\n")
