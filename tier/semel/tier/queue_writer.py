"""Writing one queue to the tier: everything but the decision.

How it works. The order is the whole of it: files, then pages, then the manifest, each read back
whole; then the group's log decides the pointer by compare-and-set; then the pointer's copy. A crash
or a second master at any step leaves objects that nothing names, or a copy that is one number
behind, and both are harmless. Whatever is repeated writes objects with names of their own beside
them: under an old name an object might be young, and be deleted as the old one that was listed.

Not here: the decision (`docs/decisions/tiers.md` has the plan), what to write (`planning.py`).
"""

from __future__ import annotations

import secrets

import pyarrow as pa

from semel.protos.ids import QueueKey
from semel.tier.changes import Change, add_files, merge_files
from semel.tier.errors import CorruptTier
from semel.tier.files import encode
from semel.tier.manifest import FileEntry, Manifest, Pointer, pointer_to
from semel.tier.planning import OffsetRange
from semel.tier.queue_reader import QueueReader
from semel.tier.store import Store


def put_rows(
    store: Store,
    cluster_id: str,
    queue: QueueKey,
    rows: pa.Table,
    covers: OffsetRange | None = None,
) -> FileEntry:
    """Stores rows as one file, and returns its entry. `covers` is the range of offsets of which
    they are all; None is from the first to the last. Raises what `Store.put` raises."""
    entry, data = encode(queue, rows, covers, nonce=secrets.token_hex(8))
    store.put(entry.name(cluster_id, queue), data)
    return entry


def put_change(store: Store, change: Change) -> Pointer:
    """Stores the pages and the manifest of a change, and returns the pointer to be decided."""
    manifest = change.manifest
    for page, data in change.pages:
        store.put(page.name(manifest.cluster_id, manifest.queue), data)
    pointer, data = pointer_to(manifest)
    store.put(pointer.manifest_name, data)
    return pointer


def publish(store: Store, pointer: Pointer) -> None:
    """Stores the copy of a pointer that the log has decided."""
    store.put(pointer.name, pointer.encode())


def add_rows(store: Store, manifest: Manifest, rows: pa.Table) -> Change:
    """Stores rows behind a manifest's end, and returns the change that names them."""
    entry = put_rows(store, manifest.cluster_id, manifest.queue, rows)
    return add_files(manifest, [entry])


def merge(reader: QueueReader, store: Store, wanted: OffsetRange) -> Change:
    """Stores one file with the rows of several, which are all of one page or of the tail, and
    returns the change that names it.

    Raises CorruptTier for a file that is damaged: it is never written anew as if it were right.
    """
    manifest = reader.manifest
    page = next((page for page in manifest.pages if page.start <= wanted.start < page.end), None)
    files = manifest.files if page is None else reader.files_of(page)
    old = [file for file in files if wanted.start <= file.start and file.end <= wanted.end]
    if not old or (old[0].start, old[-1].end) != wanted:
        raise CorruptTier(f"offsets {wanted.start} to {wanted.end} are no whole files of one page")
    rows = pa.concat_tables([reader.whole_file(file) for file in old])
    merged = put_rows(store, manifest.cluster_id, manifest.queue, rows, wanted)
    return merge_files(manifest, page, files, merged)
