"""The master's work for the object store: files, manifests, decisions, and every way to fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.broker.background.tiering import WORK_S, tier_lag_us
from semel.broker.tiers.place import RETRY_MAX_S
from semel.protos.batch import Codec
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import common_pb2, control_pb2
from semel.tier import QueueReader, TierUnavailable, layout, newest_pointer, topics_of
from tests.kit.faulty_store import fails, loses_the_reply
from tests.kit.state_log import KEY, control
from tests.kit.tiered_node import CLUSTER, TieredNode

SLOW_DOWN = "AWS Error SLOW_DOWN during PutObject operation"


@pytest.fixture
async def node(tmp_path: Path) -> TieredNode:
    node = TieredNode(tmp_path / "tier")
    await node.place.open()
    return node


async def test_what_is_old_and_fills_files_goes_file_by_file(node: TieredNode) -> None:
    for _ in range(62):
        node.send(2)
    assert await node.tier() == 0
    node.passes(1.1)
    node.send(2)
    steps = await node.tier()
    tier = node.queue.tier
    assert steps == tier.number > 3
    assert 100 < tier.end < 124, "what does not fill a file waits"
    assert node.values() == list(range(tier.end))
    assert newest_pointer(node.store, CLUSTER, KEY) is not None
    assert [topic.name for topic in topics_of(node.store, CLUSTER)] == ["orders"]
    assert tier_lag_us(node.queue, node.log_time_us()) == 100_000
    node.passes(0.95)
    assert await node.tier() == 1
    assert node.queue.tier.end == 124, "the youngest message is not a second old"
    assert tier_lag_us(node.queue, node.log_time_us()) == 0
    assert node.place.counters.written_messages == 124
    assert node.place.counters.errors == 0


async def test_a_look_that_finds_nothing_to_do_asks_nobody(node: TieredNode) -> None:
    for _ in range(62):
        node.send(2)
    node.passes(1.1)
    assert await node.tier() > 0
    confirmed, calls = node.confirmed, len(node.system.calls)
    node.send(2)
    for _ in range(5):
        assert await node.tier() == 0, "the rest waits for a file to fill"
    assert (node.confirmed, len(node.system.calls)) == (confirmed, calls)


async def test_a_range_ends_where_memory_does(node: TieredNode) -> None:
    node.config.tier_file_bytes = 1 << 20
    node.config.tier_bytes_max = 60_000
    for _ in range(10):
        node.send(1, value_bytes=10_000, codec=Codec.ZSTD)
    node.passes(2.1)
    assert await node.tier() == 4, "three messages a file, which take next to nothing when stored"
    assert [file.rows for file in node.manifest.files] == [3, 3, 3, 1]
    assert node.values() == list(range(10))


async def test_a_queue_of_tiny_batches_fills_a_file_by_their_number(
    node: TieredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.broker.background.tiering.EXTENTS_MAX", 5)
    node.config.tier_file_bytes = 1 << 30
    for _ in range(12):
        node.send(1)
    node.passes(1.1)
    assert await node.tier() == 2
    assert node.queue.tier.end == 10, "the other two wait"


async def test_small_files_become_one(node: TieredNode) -> None:
    node.config.tier_file_bytes = 1 << 20
    node.config.tier_wait_ms = 1
    for number in range(8):
        node.send(3)
        node.passes(1.1)
        assert await node.tier() == (2 if number == 7 else 1)
    (file,) = node.manifest.files
    assert (file.start, file.end) == (0, 24)
    assert node.values() == list(range(24))


async def test_the_log_forgets_and_the_tier_goes_on(node: TieredNode) -> None:
    for _ in range(5):
        for _ in range(20):
            node.send(2)
        node.passes(1.1)
        await node.tier()
        node.forget()
    assert node.queue.local_start == 160
    assert node.queue.log_start_offset == 0
    assert node.values() == list(range(200))
    assert all(record.HasField("tiered") for record in node.proposed)


@pytest.mark.parametrize("by_size", [False, True])
async def test_retention_counts_both_halves_and_takes_whole_files(
    tmp_path: Path, by_size: bool
) -> None:
    limits = {"retention_bytes": 6_000} if by_size else {}
    node = TieredNode(tmp_path / "tier", retention_ms=-1 if by_size else 8_000, **limits)
    await node.place.open()
    for _ in range(10):
        for _ in range(10):
            node.send(2)
        node.passes(2.1)
        await node.tier()
        node.forget()
    await node.tier()
    manifest, queue = node.manifest, node.queue
    assert queue.log_start_offset == manifest.start == manifest.files[0].start > 0
    assert queue.is_cold(queue.log_start_offset)
    assert manifest.end == 200
    if by_size:
        cold = [file for file in manifest.files if file.end <= queue.local_start]
        stored = queue.bytes + sum(file.length for file in cold)
        assert 6_000 <= stored < 6_000 + cold[0].length
    else:
        newest = manifest.files[0].last_append_us
        assert node.log_time_us() - newest <= 8_000_000 + 2_100_000
    before = node.system.calls.copy()
    await node.tier()
    reads = [call for call in node.system.calls[len(before) :] if "manifests" in call[1]]
    assert reads == [], "a manifest is not read again to find that nothing is to go"


async def test_rows_that_retention_took_before_are_left_out(node: TieredNode) -> None:
    for _ in range(30):
        node.send(2)
    node.passes(2.1)
    await node.tier()
    end = node.queue.tier.end
    for _ in range(40):
        node.send(2)
    node.trim(end + 21)  # in the middle of a batch
    node.passes(2.1)
    await node.tier()
    manifest = node.manifest
    assert (manifest.start, manifest.end) == (end + 20, 140)
    assert manifest.files[0].start == end + 20
    node.trim(140)
    node.passes(1)
    await node.tier()
    assert (node.manifest.start, node.manifest.end, node.manifest.files) == (140, 140, ())
    node.send(30)
    node.passes(2.1)
    await node.tier()
    assert node.values() == list(range(140, 170))


async def test_a_new_master_publishes_what_the_state_says(node: TieredNode) -> None:
    for _ in range(30):
        node.send(2)
    node.passes(2.1)
    steps = await node.tier()
    pointer = newest_pointer(node.store, CLUSTER, KEY)
    assert pointer is not None
    assert pointer.number == steps
    node.store.delete([pointer.name])  # the old master was killed before it came to this
    node.term += 1
    assert await node.tier() == 0
    assert newest_pointer(node.store, CLUSTER, KEY) == pointer
    writes = len(node.system.calls)
    assert await node.tier() == 0
    assert len(node.system.calls) == writes, "once a term"


async def test_a_new_master_publishes_many_pointers_at_the_same_time(node: TieredNode) -> None:
    keys = [QueueKey(TopicId(20), QueueId(number)) for number in range(6)]
    for key in keys:
        node.group.create(key, tier_after_ms=1_000)
        record = control_pb2.Tiered(
            queue=queue_ref(key), number=1, length=5, sha256=bytes([key.queue_id]) * 32
        )
        node.group.apply(control(tiered=record))
    tiering = node.new_tiering()
    under_way = most = 0
    published: list[Any] = []

    async def call(work: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        if under_way == refused_at:
            raise TierUnavailable("it is away")
        published.append(work)
        under_way -= 1

    node.place.call = call  # type: ignore[assignment, method-assign]
    refused_at = 4
    assert not await tiering._publish_all(node.term)
    under_way, refused_at = 0, 99
    published.clear()
    assert await tiering._publish_all(node.term)
    assert most >= len(keys)
    done = len(published)
    assert await tiering._publish_all(node.term)
    assert len(published) == done, "once a term"


async def test_a_master_that_was_replaced_proposes_nothing(node: TieredNode) -> None:
    node.send(30)
    node.passes(2.1)

    def replaced(work: Callable[[], object]) -> object:
        node.term += 1
        return work()

    node.system.plant("open_output_stream", replaced)
    assert await node.tier() == 0
    assert node.proposed == []
    assert await node.tier() == 1, "the next look, in the new term, begins anew"
    assert len(node.proposed) == 1
    node.is_master = False
    node.send(30)
    node.passes(2.1)
    assert await node.tier() == 0
    assert len(node.proposed) == 1


async def test_what_took_half_a_day_is_dropped(node: TieredNode) -> None:
    node.send(30)
    node.passes(2.1)

    def frozen(work: Callable[[], object]) -> object:
        node.boot_s += WORK_S + 1
        return work()

    node.system.plant("open_output_stream", frozen)
    assert not await node.tiering.look()
    assert node.proposed == []
    assert await node.tier() == 1


async def test_who_lost_the_race_begins_anew(node: TieredNode, tmp_path: Path) -> None:
    """Another master's manifest is decided while this one writes its own."""
    for _ in range(20):
        node.send(2)
    node.passes(2.1)
    rival = TieredNode.new_tiering(node)

    def decided() -> None:
        node.before_proposal = lambda: None
        record = control_pb2.Tiered(queue=node.proposed[-1].tiered.queue if node.proposed else None)
        record.queue.topic_id, record.queue.queue_id = KEY
        record.number, record.length, record.sha256 = 1, 10, bytes(32)
        node.group.apply(control(tiered=record))

    node.before_proposal = decided
    assert not await node.tiering.look()
    assert "does not follow" in str(node.queue.tier) or node.queue.tier.number == 1
    assert rival.steps == 0


async def test_errors_of_the_store_put_off_everything_and_are_said_once(
    node: TieredNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node.send(30)
    node.passes(2.1)
    node.system.plant("open_output_stream", *[fails(SLOW_DOWN)] * 12)
    pauses = []
    for _ in range(12):
        assert not await node.tiering.look()
        calls = len(node.system.calls)
        assert not await node.tiering.look()
        assert len(node.system.calls) == calls, "it rests"
        pauses.append(node.tiering._store_backoff.pause_s)
        node.passes(node.tiering._store_backoff.pause_s)
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-1] == RETRY_MAX_S
    assert node.place.counters.errors == 12
    said = [record.message for record in caplog.records if "cannot be used" in record.message]
    assert len(said) == 1
    assert await node.tier() == 1
    assert "takes messages again" in caplog.text
    assert node.values() == list(range(30))


@pytest.mark.parametrize("operation", ["open_output_stream", "write", "close", "open_input_file"])
async def test_whatever_call_fails_the_next_attempt_succeeds(
    node: TieredNode, operation: str
) -> None:
    for _ in range(3):
        for _ in range(10):
            node.send(2)
        node.passes(2.1)
        for fault in (fails(SLOW_DOWN), loses_the_reply):
            node.system.plant(operation, fault)
            await node.tier()
            node.passes(10)
        await node.tier()
        assert node.values() == list(range(node.sent))
        pointer = newest_pointer(node.store, CLUSTER, KEY)
        assert pointer is not None
        assert pointer.number == node.queue.tier.number


async def test_a_damaged_manifest_puts_off_its_queue_alone(
    node: TieredNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node.send(30)
    node.passes(2.1)
    await node.tier()
    (manifest,) = (tmp_path / "tier").rglob("manifests/*.json")
    good = manifest.read_bytes()
    manifest.write_bytes(good.replace(b'"start":0', b'"start":1', 1))
    node.tiering = node.new_tiering()  # the old one knows the manifest
    node.send(30)
    node.passes(2.1)
    assert await node.tier() == 0
    assert node.tiering._store_backoff.pause_s == 0
    assert "cannot be tiered" in caplog.text
    assert "SHA-256 differs" in caplog.text
    manifest.write_bytes(good)
    node.passes(1.1)
    assert await node.tier() == 1
    assert node.values() == list(range(60))


async def test_nothing_is_written_where_the_identity_is_gone(
    node: TieredNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount that is gone leaves an empty folder, on the machine's own disk."""
    node.send(30)
    node.passes(2.1)
    await node.tier()
    node.send(30)
    node.passes(2.1)
    identity = node.store.read(layout.IDENTITY)
    node.store.delete([each.name for each in node.store.objects("")])
    assert await node.tier() == 0
    assert "is no tier of a cluster" in caplog.text
    assert node.store.objects("") == []
    node.store.put(layout.IDENTITY, identity.replace(b'"c"', b'"d"'))
    node.passes(10)
    assert await node.tier() == 0
    assert "belongs to cluster 'd' now" in caplog.text


async def test_a_topic_that_is_tiered_no_more_keeps_what_it_has(node: TieredNode) -> None:
    node.send(30)
    node.passes(2.1)
    await node.tier()
    alter = control_pb2.AlterTopic(
        topic_id=KEY.topic_id, settings=common_pb2.TopicSettings(retention_ms=60_000)
    )
    node.group.apply(control(alter_topic=alter))
    node.send(30)
    node.passes(10)
    assert await node.tier() == 0
    assert node.values() == list(range(30))


async def test_many_files_have_pages_and_go_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.tier.changes.PAGE_FILES", 4)
    node = TieredNode(tmp_path / "tier", retention_ms=20_000)
    await node.place.open()
    node.config.tier_file_bytes = 1
    for _ in range(14):
        node.send(2)
        node.passes(1.1)
        await node.tier()
        node.forget()
    assert len(node.manifest.pages) == 3
    assert node.queue.log_start_offset == 0
    starts = []
    for _ in range(6):
        node.send(2)
        node.passes(2.1)
        await node.tier()
        node.forget()
        starts.append(node.queue.log_start_offset)
    assert starts == sorted(starts)
    assert len(set(starts)) >= 4, "file by file, though a page has four"
    reader = QueueReader(node.store, node.manifest)
    assert next(reader.all_files()).start <= starts[-1]
