"""Entries and manifests of files that do not exist, for tests of what is decided from them."""

from __future__ import annotations

from semel.tier import FileEntry, Manifest, add_files, no_manifest
from semel.tier.manifest import PageEntry
from tests.kit.tier_rows import QUEUE


def entry(start: int, end: int, *, length: int = 1_000) -> FileEntry:
    return FileEntry(
        start=start,
        end=end,
        rows=end - start,
        length=length,
        sha256=f"{start:064x}",
        rows_sha256=f"{end:064x}",
        row_bytes=3 * length,
        footer_length=100,
        footer_crc=7,
        chunk_crcs="0000000a",
        min_timestamp_us=start,
        max_timestamp_us=end,
        first_append_us=start,
        last_append_us=end - 1,
    )


def manifest_of(files: int, start: int = 0) -> tuple[Manifest, dict[PageEntry, bytes]]:
    """Ten offsets a file, added one by one, and all pages that were made."""
    manifest = no_manifest("c", "orders", QUEUE, start)
    pages: dict[PageEntry, bytes] = {}
    for number in range(files):
        at = start + 10 * number
        change = add_files(manifest, [entry(at, at + 10)])
        manifest = change.manifest
        pages |= dict(change.pages)
    return manifest, pages
