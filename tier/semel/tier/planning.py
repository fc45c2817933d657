"""Plans what is tiered, merged, given up and deleted. Pure: no clock, no store.

How it works. A range of offsets is tiered once it is old enough and large enough for a file; what
stays small is tiered when it has waited. Small files are merged later with neighbours of their own
size, so that a row is written only a few times however slowly its queue fills. Garbage is what no
pointer leads to and what is older than any work that could still make a pointer lead to it.

Invariants
1. Ranges to tier are consecutive, begin where the tier ends, and consist of whole extents.
2. A merge never crosses the edge of a page, and never touches a file beyond its target size.
3. Nothing is garbage that a pointer leads to which a reader may still work with, or that work may
   still make a pointer lead to.

Not here: doing any of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from semel.tier import layout
from semel.tier.layout import Kind
from semel.tier.manifest import FileEntry, Manifest, PageEntry

HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPolicy:
    """When rows of a topic go to the tier, and how large its files are."""

    tier_after_us: int = HOUR_US
    """Default 1 h. Messages go to the tier when they are this old."""
    wait_us: int = HOUR_US
    """Default 1 h. What does not fill a file yet waits this much longer."""
    file_bytes: int = 64 << 20
    """Default 64 MiB. Stored bytes of the batches that make one file."""
    merge_files: int = 8
    """Default 8. So many neighbours of about the same size become one file."""


class OffsetRange(NamedTuple):
    """Offsets `[start, end)`."""

    start: int
    end: int


def plan_tiering(
    bases: Any,
    lengths: Any,
    append_us: Any,
    *,
    log_end_offset: int,
    tier_end: int,
    now_us: int,
    policy: TierPolicy,
) -> list[OffsetRange]:
    """Returns the ranges that are to become files now, each of them whole extents.

    `bases`, `lengths` and `append_us` are columns of the queue's extents by rising offset: base
    offset, bytes of the stored batch, append time. `tier_end` is where the tier ends: the base of
    one of the extents, or `log_end_offset`.
    """
    bases, lengths = np.asarray(bases, np.int64), np.asarray(lengths, np.int64)
    append_us = np.asarray(append_us, np.int64)
    first = int(np.searchsorted(bases, tier_end))
    assert tier_end == log_end_offset or bases[first] == tier_end, "the tier ends between extents"
    # Append times never fall.
    old = int(np.searchsorted(append_us, now_us - policy.tier_after_us, side="right"))
    sums = np.cumsum(lengths)
    edges = [*bases.tolist(), log_end_offset]
    found = []
    while first < old:
        before = int(sums[first - 1]) if first else 0
        last = int(np.searchsorted(sums, before + policy.file_bytes))
        if last >= old:  # it does not fill a file
            if append_us[first] > now_us - policy.tier_after_us - policy.wait_us:
                break
            last = old - 1
        found.append(OffsetRange(edges[first], edges[last + 1]))
        first = last + 1
    return found


def plan_merge(files: Sequence[FileEntry], policy: TierPolicy) -> OffsetRange | None:
    """Returns the range of neighbours that should be one file: of a page, or of the tail.

    Files are of one size if their rows take the same power of `merge_files` below the target.
    """
    classes = [_size_class(file.row_bytes, policy) for file in files]
    start = 0
    while start < len(files):
        end = start + 1
        while (
            end < len(files)
            and classes[end] == classes[start]
            and end - start < (policy.merge_files)
        ):
            end += 1
        if end - start >= policy.merge_files and classes[start] > 0:
            return OffsetRange(files[start].start, files[end - 1].end)
        start += 1
    return None


def _size_class(row_bytes: int, policy: TierPolicy) -> int:
    """0 for a file that is large enough; higher for smaller ones."""
    number, limit = 0, policy.file_bytes
    while row_bytes * policy.merge_files <= limit and number < 63:
        number += 1
        limit //= policy.merge_files
    return number


def plan_retention(
    parts: Sequence[PageEntry | FileEntry],
    *,
    start: int,
    before_us: int | None,
    bytes_max: int | None,
) -> int:
    """Returns where the tier is to start: whole parts go from the oldest on, all of whose rows were
    appended before `before_us`, or without which the others still have `bytes_max` bytes.

    `parts` are consecutive. None is no limit. `start` is where the tier starts.
    """
    left = sum(stored_bytes(part) for part in parts)
    for part in parts:
        left -= stored_bytes(part)
        old = before_us is not None and part.last_append_us < before_us
        if not old and (bytes_max is None or left < bytes_max):
            break
        start = max(start, part.end)
    return start


def stored_bytes(part: PageEntry | FileEntry) -> int:
    """Bytes of a file, or of the files of a page."""
    return part.file_bytes if isinstance(part, PageEntry) else part.length


def find_append_time(parts: Sequence[PageEntry | FileEntry], time_us: int) -> int | None:
    """Returns the place of the first part that may have a row appended at `time_us` or later;
    None if there is none."""
    for at, part in enumerate(parts):
        if part.last_append_us >= time_us:
            return at
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as the store lists it."""

    name: str
    length: int
    modified_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbagePolicy:
    """How long what nothing names is kept."""

    reader_us: int = 24 * HOUR_US
    """Default 24 h. A reader may work so long with a pointer after the next one is decided."""
    work_us: int = 12 * HOUR_US
    """Default 12 h. Work that takes longer from its first object to its decision is given up."""

    @property
    def age_us(self) -> int:
        """Objects that are younger than this are never garbage."""
        return self.reader_us + self.work_us


def reachable(manifest: Manifest, files: Iterable[FileEntry]) -> set[str]:
    """Names of the pages and files of a manifest; `files` are all of its files."""
    cluster_id, queue = manifest.cluster_id, manifest.queue
    names = {page.name(cluster_id, queue) for page in manifest.pages}
    return names | {file.name(cluster_id, queue) for file in files}


def split_pointers(
    cluster_id: str, objects: Iterable[StoredObject], *, now_us: int, policy: GarbagePolicy
) -> tuple[list[str], list[int]]:
    """Returns the names of the copies of a queue's pointers that no reader needs, and the numbers
    of the others, rising. The newest copy stays, and so does every one that was the newest within
    `reader_us`."""
    numbered = []
    for each in objects:
        found = layout.parse(cluster_id, each.name)
        if found is not None and found.kind is Kind.POINTER and not found.temporary:
            numbered.append((found.first, each))
    numbered.sort(key=lambda pair: pair[0])
    dropped = [
        each.name
        for (_, each), (_, following) in itertools.pairwise(numbered)
        if following.modified_us < now_us - policy.reader_us
    ]
    return dropped, [number for number, each in numbered if each.name not in dropped]


def split_facts(cluster_id: str, objects: Iterable[StoredObject]) -> list[str]:
    """Returns the names of the facts of a queue that newer ones have replaced."""
    found = [
        each.name
        for each in objects
        if (name := layout.parse(cluster_id, each.name)) is not None
        and name.kind is Kind.FACTS
        and not name.temporary
    ]
    return sorted(found)[:-1]


def garbage(
    cluster_id: str,
    objects: Iterable[StoredObject],
    kept: Collection[str],
    *,
    now_us: int,
    policy: GarbagePolicy,
) -> list[str]:
    """Returns what may be deleted of a queue's objects, pointers and facts apart.

    `kept` are the names of the manifests, and of all that is reachable from them, that these
    pointers name: the log's, the newest copy, the oldest copy that is kept, and kept copies whose
    manifest is older than `reader_us`. What another copy leads to and none of these does was
    written not long before its manifest, so it is younger than `age_us`, and needs no manifest to
    be read for it.
    """
    found = []
    for each in objects:
        name = layout.parse(cluster_id, each.name)
        if (
            name is not None
            and (name.kind not in (Kind.POINTER, Kind.FACTS) or name.temporary)
            and each.name not in kept
            and each.modified_us < now_us - policy.age_us
        ):
            found.append(each.name)
    return found
