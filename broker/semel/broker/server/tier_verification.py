"""Reads all that the object store has of queues, and compares it with the log.

How it works. The manifest that the log's pointer names must say what the state says. Every file is
read as a whole and checked against its digests. Its rows must not have a producer's sequence twice,
nor one of the file before. Of a file that the log has as well, the rows are made again from the
stored batches: their digest must be the one in the manifest.

The master does it, once for the group: what is at the store is the same for all nodes.

Not here: the check of the logs (`verification.py`), the digest (`semel.tier.digest`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from semel.broker.background.tier_reading import read_range
from semel.broker.replica.replica import Replica
from semel.broker.tiers.place import TierPlace
from semel.broker.tiers.pointers import pointer_of
from semel.protos.errors import SemelError, StorageError
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from semel.tier import (
    FileEntry,
    OffsetRange,
    Pointer,
    QueueReader,
    Store,
    StoredRows,
    digest_of,
    read_manifest,
    rows_of,
)


async def verify_tier(
    replica: Replica, place: TierPlace | None, key: QueueKey
) -> broker_pb2.VerifiedTier | None:
    """What the store has of a queue; None if nothing."""
    queue = replica.state.queues.get(key)
    if queue is None or not queue.tier.number:
        return None
    tier = queue.tier
    found = broker_pb2.VerifiedTier(
        queue=queue_ref(key), start_offset=tier.start, end_offset=tier.end
    )
    if place is None:
        found.unread = "this broker was started without --tier"
        return found
    pointer = pointer_of(place.folder, queue)
    assert pointer is not None, "the queue has a manifest"
    try:
        reader = await place.call(partial(_opened, pointer))
        manifest = reader.manifest
        if (manifest.start, manifest.end) != (tier.start, tier.end):
            found.problems.append(
                f"the manifest has offsets {manifest.start} to {manifest.end}, the log says"
                f" {tier.start} to {tier.end}"
            )
        files = await place.call(lambda _: list(reader.all_files()))
        before = np.empty((0, 2), np.int64)
        for file in files:
            try:
                rows = await place.call(lambda _, file=file: reader.whole_file(file))  # type: ignore[misc]
            except StorageError as error:
                found.problems.append(str(error))
                continue
            found.messages += rows.num_rows
            names = _names(rows)
            found.duplicates += _twice(np.concatenate((before, names))) - _twice(before)
            before = names
            if await _compared(replica, place, key, file, found):
                found.compared += rows.num_rows
    except StorageError as error:
        found.problems.append(str(error))
    except (SemelError, OSError) as error:
        found.unread = str(error)
    return found


async def _compared(
    replica: Replica,
    place: TierPlace,
    key: QueueKey,
    file: FileEntry,
    found: broker_pb2.VerifiedTier,
) -> bool:
    """Whether the log has the file's rows; then they were compared."""
    queue = replica.state.queues.get(key)
    if queue is None or file.start < queue.local_start:
        return False
    wanted = OffsetRange(file.start, file.end)
    pieces = await read_range(replica, key, replica.term, wanted, 1 << 62)
    if not pieces or pieces[-1].base_offset + pieces[-1].row_end - pieces[-1].row_start != file.end:
        return False
    if await place.call(lambda _: _digest(pieces)) != file.rows_sha256:
        found.problems.append(
            f"offsets {file.start} to {file.end} are not in the object store as they are in the log"
        )
    return True


def _opened(pointer: Pointer, store: Store) -> QueueReader:
    """BLOCKING."""
    return QueueReader(store, read_manifest(store, pointer))


def _digest(pieces: list[StoredRows]) -> str:
    return digest_of(rows_of(pieces))


def _names(rows: pa.Table) -> Any:
    """Producer with epoch, and sequence, of each row. A producer whose row in the sequence table
    has ended begins anew, with a higher epoch."""
    producer = rows.column("producer").to_numpy().astype(np.int64)
    epoch = rows.column("producer_epoch").to_numpy().astype(np.int64)
    sequence = rows.column("sequence").to_numpy().astype(np.int64)
    return np.stack((producer ^ (epoch << 40), sequence), axis=1)


def _twice(names: Any) -> int:
    """How many rows have the name of another one."""
    order = np.lexsort((names[:, 1], names[:, 0]))
    ordered = names[order]
    return int((ordered[1:] == ordered[:-1]).all(axis=1).sum())
