"""Which ranges are tiered, which files are merged, and what is garbage."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from semel.protos.ids import QueueId, QueueKey
from semel.tier import (
    FileEntry,
    GarbagePolicy,
    OffsetRange,
    PageEntry,
    TierPolicy,
    layout,
    plan_merge,
    plan_retention,
    plan_tiering,
)
from semel.tier.planning import HOUR_US, StoredObject, garbage, reachable, split_pointers
from tests.kit.tier_rows import QUEUE
from tests.unit.tier.entries import entry, manifest_of

POLICY = TierPolicy(tier_after_us=100, wait_us=50, file_bytes=1_000, merge_files=3)


def plan(
    extents: list[tuple[int, int, int]], end: int, *, tier_end: int, now: int
) -> list[OffsetRange]:
    """Extents as (base, bytes, append time)."""
    bases, lengths, times = (np.array(each, np.int64) for each in zip(*extents, strict=True))
    return plan_tiering(
        bases,
        lengths,
        times,
        log_end_offset=end,
        tier_end=tier_end,
        now_us=now,
        policy=POLICY,
    )


def test_what_is_young_stays() -> None:
    extents = [(0, 600, 10), (5, 600, 20), (9, 600, 30)]
    assert plan(extents, 12, tier_end=0, now=109) == []
    assert plan(extents, 12, tier_end=0, now=120) == [OffsetRange(0, 9)]
    assert plan(extents, 12, tier_end=0, now=130) == [OffsetRange(0, 9)]


def test_what_does_not_fill_a_file_waits_and_then_goes() -> None:
    extents = [(0, 600, 10), (5, 300, 20), (9, 600, 1_000)]
    assert plan(extents, 12, tier_end=0, now=159) == []
    assert plan(extents, 12, tier_end=0, now=160) == [OffsetRange(0, 9)]


def test_planning_goes_on_where_the_tier_ends() -> None:
    extents = [(0, 600, 10), (5, 600, 10), (9, 600, 10), (12, 600, 10)]
    assert plan(extents, 20, tier_end=9, now=200) == [OffsetRange(9, 20)]
    assert plan(extents, 20, tier_end=20, now=200) == []
    with pytest.raises(AssertionError, match="between extents"):
        plan(extents, 20, tier_end=7, now=200)


@pytest.mark.parametrize("seed", range(50))
def test_plans_are_whole_extents_without_a_gap(seed: int) -> None:
    rng = random.Random(seed)
    base = now = 0
    extents = []
    for _ in range(200):
        extents.append((base, rng.randrange(1, 900), now))
        base += rng.randrange(1, 50)
        now += rng.randrange(4)
    edges = [extent[0] for extent in extents] + [base]
    tier_end = rng.choice(edges)
    found = plan(extents, base, tier_end=tier_end, now=now + rng.randrange(200))
    for each in found:
        assert each.start == tier_end
        assert each.start in edges
        assert each.end in edges
        tier_end = each.end
    sizes = {edge: extent[1] for edge, extent in zip(edges, extents, strict=False)}
    for each in found[:-1]:
        filled = [sizes[at] for at in edges if each.start <= at < each.end]
        assert sum(filled) >= POLICY.file_bytes > sum(filled[:-1])


def sized(*sizes: int) -> list[FileEntry]:
    return [
        dataclasses.replace(entry(10 * n, 10 * n + 10), row_bytes=size)
        for n, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), None),
        ((10, 10), None),
        ((10, 10, 10), OffsetRange(0, 30)),
        ((10, 10, 10, 10), OffsetRange(0, 30)),
        ((900, 10, 10, 10), OffsetRange(10, 40)),
        ((10, 300, 10, 10), None),  # three of one size that are no neighbours
        ((900, 900, 900), None),  # large enough
        ((300, 300, 300), OffsetRange(0, 30)),
        ((334, 334, 334), None),
        ((10, 100, 10), None),
    ],
)
def test_neighbours_of_one_size_are_merged(
    sizes: tuple[int, ...], expected: OffsetRange | None
) -> None:
    assert plan_merge(sized(*sizes), POLICY) == expected


def test_a_row_is_written_a_few_times_however_small_the_files_are() -> None:
    policy = TierPolicy(file_bytes=1 << 20)
    files: list[FileEntry] = []
    written = 0
    for number in range(5_000):
        files.append(dataclasses.replace(entry(number, number + 1), row_bytes=1_000))
        while (found := plan_merge(files, policy)) is not None:
            at = next(n for n, file in enumerate(files) if file.start == found.start)
            to = next(n for n, file in enumerate(files) if file.end == found.end)
            size = sum(file.row_bytes for file in files[at : to + 1])
            written += size
            merged = dataclasses.replace(entry(found.start, found.end), row_bytes=size)
            files[at : to + 1] = [merged]
    assert sum(file.row_bytes for file in files) == 5_000_000
    assert written <= 4 * 5_000_000
    assert len(files) < 50


def objects(names: list[str], *, modified_us: int = 0) -> list[StoredObject]:
    return [StoredObject(name=name, length=1, modified_us=modified_us) for name in names]


def test_only_what_no_pointer_leads_to_and_is_old_is_garbage() -> None:
    manifest, _ = manifest_of(3)
    kept = reachable(manifest, manifest.files)
    assert len(kept) == 3
    dead = layout.data_name("c", QUEUE, 0, 30, "a" * 64)
    cut = layout.temporary_name(next(iter(kept)), "0" * 16)
    strangers = ["c/topics/readme.txt", "elsewhere/x.parquet", layout.IDENTITY]
    listed = objects([*kept, dead, cut, *strangers, layout.pointer_name("c", QUEUE, 1)])
    policy = GarbagePolicy(reader_us=HOUR_US // 2, work_us=HOUR_US // 2)
    assert garbage("c", listed, kept, now_us=HOUR_US, policy=policy) == []
    found = garbage("c", listed, kept, now_us=HOUR_US + 1, policy=policy)
    assert sorted(found) == sorted([dead, cut])
    assert garbage("other", listed, kept, now_us=9 * HOUR_US, policy=policy) == []


def test_pointers_are_kept_while_a_reader_may_work_with_them() -> None:
    policy = GarbagePolicy(reader_us=100)
    names = [layout.pointer_name("c", QUEUE, number) for number in (9, 10, 11, 12)]
    listed = [
        StoredObject(name=name, length=1, modified_us=at)
        for name, at in zip(names, (0, 50, 60, 120), strict=True)
    ]

    def split(now_us: int) -> tuple[list[str], list[int]]:
        return split_pointers("c", listed, now_us=now_us, policy=policy)

    assert split(150) == ([], [9, 10, 11, 12])
    assert split(151) == (names[:1], [10, 11, 12])
    assert split(161) == (names[:2], [11, 12])
    assert split(10_000) == (names[:3], [12])  # the newest stays for ever
    other = layout.pointer_name("c", QueueKey(QUEUE.topic_id, QueueId(4)), 1)
    assert split_pointers("other", objects([other]), now_us=10_000, policy=policy) == ([], [])


def test_retention_gives_up_whole_files_from_the_oldest_on() -> None:
    files = [entry(at, at + 10, length=100) for at in range(0, 50, 10)]

    def plan(before_us: int | None = None, bytes_max: int | None = None, start: int = 0) -> int:
        return plan_retention(files, start=start, before_us=before_us, bytes_max=bytes_max)

    assert [plan(before) for before in (0, 9, 10, 29, 30, 1_000)] == [0, 0, 10, 20, 30, 50]
    assert [plan(None, most) for most in (1_000, 500, 401, 400, 399, 1, 0)] == [
        *(0, 0, 0, 10, 10, 40, 50)
    ]
    assert plan(30, 100) == 40, "the stricter one"
    assert plan() == 0
    assert plan(10, start=7) == 10
    assert plan(9, start=7) == 7, "never lower than it is"
    assert plan_retention([], start=7, before_us=1_000, bytes_max=0) == 7
    manifest, _ = manifest_of(300)
    parts: list[PageEntry | FileEntry] = [*manifest.pages, *manifest.files]
    assert plan_retention(parts, start=0, before_us=2_559, bytes_max=None) == 0
    assert plan_retention(parts, start=0, before_us=2_560, bytes_max=None) == 2_560
