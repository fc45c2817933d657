"""Reads of what only the object store has: shared, bounded, in time, and right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.broker.replica.clock import monotonic_ms
from semel.broker.tiers import cold_reads as module
from semel.broker.tiers.cold_reads import CALLS_MAX, ColdReads
from semel.broker.tiers.place import TierPlace
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.columns import decode_columns
from semel.protos.errors import CorruptBatch, Unavailable
from semel.tier import (
    Pointer,
    Store,
    add_rows,
    claim,
    no_manifest,
    publish,
    put_change,
    rows_of,
)
from tests.kit.faulty_store import FaultySystem, fails
from tests.kit.tier_rows import QUEUE, TIME_US, plain_rows

ROWS = 1_000


class Cold:
    """A queue of a thousand messages in ten files."""

    def __init__(self, folder: Path, *, cache_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.system = FaultySystem()
        self.store = Store(self.system, str(folder), "s3://bucket")
        claim(self.store, "c")
        manifest = no_manifest("c", "orders", QUEUE, 0)
        rows = rows_of([plain_rows(ROWS)])
        for at in range(0, ROWS, 100):
            change = add_rows(self.store, manifest, rows.slice(at, 100))
            manifest = change.manifest
            self.pointer: Pointer = put_change(self.store, change)
            publish(self.store, self.pointer)
        self.manifest = manifest
        self.place = TierPlace("s3://bucket", "c", lambda _: self.store)
        self.place.store = self.store
        self.cache_bytes = cache_bytes

    def reads(self, timeout_s: float = 10) -> ColdReads:
        return ColdReads(self.place, cache_bytes=self.cache_bytes, timeout_s=timeout_s)

    def opened(self) -> int:
        """Objects that were opened so far."""
        return sum(operation == "open_input_file" for operation, _ in self.system.calls)


@pytest.fixture
def cold(tmp_path: Path) -> Cold:
    return Cold(tmp_path)


def values(batches: Any) -> list[int]:
    found = []
    for batch in batches:
        data = batch.stored[BROKER_HEADER_BYTES:]
        columns = decode_columns(data, check_batch(data))
        found += [int(value.split()[0]) for value in columns.values.to_pylist()]
    return found


async def test_an_offset_is_read_with_its_row_group(cold: Cold) -> None:
    reads = cold.reads()
    assert reads.find(QUEUE, 250) is None
    group = await reads.read(cold.pointer, 250)
    assert (group.start, group.end) == (200, 300)
    assert values(group.batches) == list(range(200, 300))
    assert reads.find(QUEUE, 299) is group
    assert reads.find(QUEUE, 300) is None
    opened = cold.opened()
    assert await reads.read(cold.pointer, 250) is group
    assert cold.opened() == opened
    assert cold.place.counters.cold_reads == 1
    await reads.close()


async def test_all_who_want_a_row_group_share_one_read(cold: Cold) -> None:
    reads = cold.reads()
    wanted = [200, 200, 200, 250, 299]
    groups = await asyncio.gather(*(reads.read(cold.pointer, at) for at in wanted))
    assert len(set(map(id, groups))) == 1
    assert cold.place.counters.cold_reads == 1
    await reads.close()


async def test_manifests_and_ends_of_files_are_read_once(cold: Cold) -> None:
    cold.cache_bytes = 1
    reads, before = cold.reads(), cold.opened()
    for at in (0, 500, 0, 500):
        assert (await reads.read(cold.pointer, at)).start == at
    # One manifest, two ends of files, four row groups: the cache has room for one.
    assert cold.opened() - before == 1 + 2 + 4
    await reads.close()


async def test_a_slow_store_is_told_in_time_and_what_it_brings_serves_the_next(
    cold: Cold,
) -> None:
    cold.system.hangs = threading.Event()
    reads = cold.reads(timeout_s=0.2)
    with pytest.raises(Unavailable, match=r"did not answer within 0.2 s; newer messages"):
        await reads.read(cold.pointer, 0)
    cold.system.hangs.set()
    reads._failures.clear()
    assert (await reads.read(cold.pointer, 0)).start == 0
    assert cold.place.counters.cold_reads == 1, "the first read went on"
    await reads.close()


async def test_a_failure_is_the_answer_for_a_moment(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = cold.reads()
    cold.system.plant("open_input_file", fails("AWS Error SLOW_DOWN"))
    for _ in range(3):
        with pytest.raises(Unavailable, match=r"SLOW_DOWN.*newer ones are served"):
            await reads.read(cold.pointer, 0)
    assert cold.place.counters.errors == 1
    assert (await reads.read(cold.pointer, 500)).start == 500, "another offset is read"
    later_ms = monotonic_ms() + module.FAILED_MS + 1
    monkeypatch.setattr(module, "monotonic_ms", lambda: later_ms)
    assert (await reads.read(cold.pointer, 0)).start == 0
    await reads.close()


@pytest.mark.parametrize("kind", ["flipped", "missing"])
async def test_damage_is_no_matter_of_waiting(cold: Cold, kind: str) -> None:
    name = cold.manifest.files[0].name("c", QUEUE)
    if kind == "missing":
        cold.store.delete([name])
    else:
        path = cold.folder / name
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(bytes(data))
    reads = cold.reads()
    with pytest.raises(CorruptBatch, match="cannot be read from the object store"):
        await reads.read(cold.pointer, 0)
    assert (await reads.read(cold.pointer, 100)).start == 100
    await reads.close()


async def test_a_place_that_is_gone_is_no_damage(cold: Cold) -> None:
    """A folder that is not mounted any more has neither the file nor the identity."""
    cold.store.delete([each.name for each in cold.store.objects("")])
    reads = cold.reads()
    with pytest.raises(Unavailable, match="is no tier of a cluster"):
        await reads.read(cold.pointer, 0)
    await reads.close()


async def test_a_bounded_number_of_calls_goes_on_at_once(cold: Cold) -> None:
    reads = cold.reads()
    lock, now, most = threading.Lock(), 0, 0

    def counted(work: Callable[[], Any]) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        try:
            threading.Event().wait(0.005)
            return work()
        finally:
            with lock:
                now -= 1

    cold.system.plant("open_input_file", *[counted] * 100)
    await asyncio.gather(*(reads.read(cold.pointer, at) for at in range(0, ROWS, 100)))
    assert 1 < most <= CALLS_MAX
    await reads.close()


async def test_what_comes_next_is_read_ahead(cold: Cold) -> None:
    reads = cold.reads()
    reads.fetch_ahead(cold.pointer, 300)
    while reads.find(QUEUE, 300) is None:
        await asyncio.sleep(0.001)
    opened = cold.opened()
    reads.fetch_ahead(cold.pointer, 300)
    cold.system.plant("open_input_file", fails("AWS Error SLOW_DOWN"))
    with pytest.raises(Unavailable):
        await reads.read(cold.pointer, 500)
    reads.fetch_ahead(cold.pointer, 500)
    await asyncio.sleep(0.01)
    assert cold.opened() == opened + 1, "not what is here, nor what could not be read"
    await reads.close()


async def test_times_are_looked_up(cold: Cold) -> None:
    reads = cold.reads()
    append_us = TIME_US + 10
    assert await reads.append_time_us(cold.pointer, 500) == append_us
    assert await reads.offset_at(cold.pointer, append_us) == 0
    assert await reads.offset_at(cold.pointer, append_us + 1) == ROWS
    cold.system.plant("open_input_file", fails("AWS Error SLOW_DOWN"))
    with pytest.raises(Unavailable):
        await reads.offset_at(cold.pointer, append_us)
    await reads.close()


async def test_a_read_that_is_given_up_harms_nobody_else(cold: Cold) -> None:
    cold.system.hangs = threading.Event()
    reads = cold.reads()
    first = asyncio.create_task(reads.read(cold.pointer, 0))
    second = asyncio.create_task(reads.read(cold.pointer, 0))
    await asyncio.sleep(0.01)
    first.cancel()
    cold.system.hangs.set()
    assert (await second).start == 0
    assert first.cancelled()
    await reads.close()
