"""Changes of a manifest: files added, files merged, old rows given up. No I/O.

How it works. Each function returns the next manifest and the pages that it needs, none of which is
written yet. The caller writes pages, then the manifest, then has the pointer decided. Whatever a
crash leaves of that is garbage that nothing names.

Invariants
1. A change keeps the manifest's invariants, and its number is one more.
2. Files that stay keep their entries; offsets that stay are in exactly one file.
3. What a change writes has a random number in it, so no other attempt writes under its names. Else
   the collector, which has listed what an attempt left a day ago, could delete what the present one
   has written meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from semel.protos.ids import QueueKey
from semel.tier.documents import sha256_of
from semel.tier.manifest import (
    NO_DIGEST,
    PAGE_FILES,
    FileEntry,
    Manifest,
    PageEntry,
    encode_page,
)


@dataclass(frozen=True, slots=True)
class Change:
    """The next manifest, and its new pages with their bytes."""

    manifest: Manifest
    pages: tuple[tuple[PageEntry, bytes], ...] = ()


def no_manifest(cluster_id: str, topic: str, queue: QueueKey, start: int) -> Manifest:
    """What the first change of a queue begins with, whose first file starts at `start`."""
    return Manifest(
        cluster_id=cluster_id,
        topic=topic,
        topic_id=queue.topic_id,
        queue_id=queue.queue_id,
        number=0,
        previous_sha256=NO_DIGEST,
        start=start,
        end=start,
    )


def add_files(manifest: Manifest, added: Sequence[FileEntry]) -> Change:
    """Adds files behind the last one. The first must begin where the manifest ends."""
    assert added and added[0].start == manifest.end, "files of the tier follow each other"
    files, pages, new = [*manifest.files, *added], list(manifest.pages), []
    while len(files) > PAGE_FILES:
        page = encode_page(files[:PAGE_FILES], _nonce())
        new.append(page)
        pages.append(page[0])
        del files[:PAGE_FILES]
    return _next(
        manifest,
        new,
        end=added[-1].end,
        pages=tuple(pages),
        files=tuple(files),
    )


def merge_files(
    manifest: Manifest, page: PageEntry | None, files: Sequence[FileEntry], merged: FileEntry
) -> Change:
    """Puts one file in the place of several, which are all in `page`, whose files are `files`, or
    in the tail (None, and the tail's files)."""
    at = next(n for n, file in enumerate(files) if file.start == merged.start)
    to = next(n for n, file in enumerate(files) if file.end == merged.end)
    assert at < to, "a merge takes two files or more"
    kept = [*files[:at], merged, *files[to + 1 :]]
    if page is None:
        assert tuple(files) == manifest.files, "files of the tail"
        return _next(manifest, [], files=tuple(kept))
    entry, data = encode_page(kept, _nonce())
    place = manifest.pages.index(page)
    pages = (*manifest.pages[:place], entry, *manifest.pages[place + 1 :])
    return _next(manifest, [(entry, data)], pages=pages)


def trim(manifest: Manifest, start: int) -> Change:
    """Gives up the rows below `start`. Pages and files of the tail that lie wholly below are no
    longer named; a page that lies partly below stays. Beyond the end, nothing is left, and the next
    file begins at `start`: retention took rows that never got here."""
    assert manifest.start <= start, "a trim goes forward"
    return _next(
        manifest,
        [],
        start=start,
        end=max(manifest.end, start),
        pages=tuple(page for page in manifest.pages if page.end > start),
        files=tuple(file for file in manifest.files if file.end > start),
    )


def _next(manifest: Manifest, new: Sequence[tuple[PageEntry, bytes]], **changed: object) -> Change:
    previous = sha256_of(manifest.encode()) if manifest.number else NO_DIGEST
    made = replace(
        manifest,
        number=manifest.number + 1,
        previous_sha256=previous,
        nonce=_nonce(),
        **changed,  # type: ignore[arg-type]
    )
    made.check("a new manifest")
    return Change(made, tuple(new))


def _nonce() -> str:
    return secrets.token_hex(8)
