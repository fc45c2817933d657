"""The transfer of metadata: `take_out` reads a whole store, `fill` fills another one.

How it works. A store may not take everything in one transaction, so an import consists of several.
The first one puts `/import`, which identifies the imported file; the last one removes it and puts
`/cluster`. Until then no controller can become active (`ControllerEpoch.begin`), and the same
import may be started again and goes on; the version of `/import` then stops the process that
started it before.

Invariants
1. Only an empty store is filled, or one in which an import of the same file was interrupted.
2. The first transaction raises the store's revision above all that the old store gave out:
   versions, and generations that begin with a revision, never come again.

Not here: the file (`archive.py`), opening stores (`opening.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from semel.controller import records
from semel.controller.archive.archive import Archive, dump
from semel.controller.store import MetadataStore, Transaction, VersionConflict
from semel.protos.errors import DataDirectoryError, InvalidRequest
from semel.protos.v1.metadata_pb2 import ClusterRecord

BATCH_BYTES: Final = 256 * 1024
BATCH_KEYS: Final = 500


async def take_out(store: MetadataStore) -> Archive:
    """All entries of the store; raises DataDirectoryError when it holds no whole cluster."""
    found = await store.scan("")
    if records.IMPORT in found:
        raise DataDirectoryError(
            "the store holds an import that was not finished: import the same file again first"
        )
    cluster = found.get(records.CLUSTER)
    if cluster is None:
        raise DataDirectoryError("the store is empty, there is nothing to export")
    return Archive(
        cluster_id=records.load(ClusterRecord, records.CLUSTER, cluster).cluster_id,
        revision=await store.revision(),
        entries={key: entry.value for key, entry in found.items()},
    )


async def fill(
    store: MetadataStore,
    archive: Archive,
    *,
    locked: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Fills an empty store and returns its revision; `progress` gets the entries of each step.

    `locked` says that no other process can use the store: the controllers in it are this process.

    Raises DataDirectoryError when the store is not empty, InvalidRequest when a controller uses it,
    MessageTooLarge for a value that it cannot hold, Unavailable when another import took over.
    """
    if records.CLUSTER not in archive.entries:
        raise DataDirectoryError("the export holds no cluster")
    for controller, alive in (await store.controllers()).items():
        if alive and not locked:
            raise InvalidRequest(
                f"controller {controller.controller_id} at {controller.address} uses the store: "
                "stop all controllers first"
            )
    mark = hashlib.sha256(dump(archive)).hexdigest().encode()
    found = await store.scan("")
    begun = found.get(records.IMPORT)
    if found and (begun is None or begun.value != mark):
        raise DataDirectoryError(
            "the store is not empty: it holds "
            + (f"a cluster ({min(found)})" if begun is None else "a part of another import")
            + ". Choose an empty one"
        )
    version = await store.transact(
        Transaction(
            checks={
                records.IMPORT: None if begun is None else begun.version,
                records.CLUSTER: None,
            },
            puts={records.IMPORT: mark},
            revision_min=archive.revision + 1,
        )
    )
    try:
        for batch in _batches(archive.entries):
            await store.transact(Transaction(checks={records.IMPORT: version}, puts=batch))
            progress(len(batch))
        revision = await store.transact(
            Transaction(
                checks={records.IMPORT: version, records.CLUSTER: None},
                puts={records.CLUSTER: archive.entries[records.CLUSTER]},
                deletes=frozenset({records.IMPORT}),
            )
        )
    except VersionConflict as error:
        raise VersionConflict("another import has taken over; nothing is lost") from error
    progress(1)
    return revision


def _batches(entries: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """All entries but /cluster, in batches that every store takes as one transaction."""
    batch: dict[str, bytes] = {}
    size = 0
    for key, value in sorted(entries.items()):
        if key == records.CLUSTER:
            continue
        if batch and (size + len(value) > BATCH_BYTES or len(batch) == BATCH_KEYS):
            yield batch
            batch, size = {}, 0
        batch[key] = value
        size += len(value)
    if batch:
        yield batch
