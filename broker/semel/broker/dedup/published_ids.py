"""The message ids that arrive with a publication, for an index that follows the log.

How it works. The PUBLISH record says where each batch lies that it takes: in an earlier entry,
where it was staged or rewritten, or in front of the record. A thread reads the batches again,
before the entry is applied: until then they are pinned, so no cleaning has removed them.

Not here: the index of the master, which has the ids since it accepted them (`pinned_ids.py`), when
an entry waits for this (`replica/applier.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from semel.broker.dedup.fingerprints import U64, Fingerprints
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.pinned_ids import ReadRecord, prints_of_stored
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch, decode_header
from semel.protos.delays import due_of
from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1.control_pb2 import ControlRecord
from semel.protos.v1.transaction_records_pb2 import PublishedIds, PublishTransaction


class ArrivedIds(NamedTuple):
    """The ids of one topic that arrive with a publication."""

    topic_id: int
    first_arrival: int
    keys: U64
    digests: U64
    places: Places


def publications_in(frame: bytes) -> Iterator[PublishTransaction]:
    """Yields the records of a frame that publish to topics which compare ids."""
    for _, kind, payload in iter_records(frame):
        if kind is RecordKind.CONTROL:
            publish = ControlRecord.FromString(bytes(payload)).transaction.publish
            if publish.ids:
                yield publish


def read_arrived(
    frame: bytes, fingerprints: Mapping[int, Fingerprints], read: ReadRecord
) -> dict[int, ArrivedIds]:
    """BLOCKING. Returns the ids that arrive with the publications of a frame, in each topic of
    `fingerprints`.

    Raises CorruptIndex if the batches have other ids than the record says, CorruptBatch, and what
    `read` raises.
    """
    here: list[bytes] = []
    found = {}
    entry = decode_frame_header(frame).index
    for _, kind, payload in iter_records(frame):
        if kind is RecordKind.STAGED:
            here.append(bytes(payload))
        elif kind is RecordKind.CONTROL:
            publish = ControlRecord.FromString(bytes(payload)).transaction.publish
            ends = {queue_key_of(part.queue): part.base_offset for part in publish.parts}
            for topic in publish.ids:
                prints = fingerprints.get(topic.topic_id)
                if prints is not None:
                    batches = _batches(topic, entry, here, read)
                    found[topic.topic_id] = _arrived(topic, batches, prints, ends)
    return found


def _batches(
    topic: PublishedIds, entry: int, here: Iterable[bytes], read: ReadRecord
) -> Iterator[tuple[int, int, bytes]]:
    """Yields of each batch the number of its ids, the entry that holds it, and the batch."""
    own = (
        payload
        for payload in here
        if decode_header(payload, BROKER_HEADER_BYTES).topic_id == topic.topic_id
    )
    columns = topic.ids, topic.entries, topic.positions, topic.lengths
    for ids, holder, position, length in zip(*columns, strict=True):
        payload = read(holder, position, length) if holder else next(own)
        yield ids, holder or entry, payload[BROKER_HEADER_BYTES:]


def _arrived(
    topic: PublishedIds,
    batches: Iterable[tuple[int, int, bytes]],
    fingerprints: Fingerprints,
    ends: dict[QueueKey, int],
) -> ArrivedIds:
    nothing = np.zeros(0, np.uint64)
    keys, digests, places = [nothing.reshape(0, 2)], [nothing], [Places.none()]
    arrival = topic.first_arrival
    for ids, entry, data in batches:
        header = check_batch(data)
        due_us, offset = due_of(header), ends[header.queue_key]
        if not due_us:
            ends[header.queue_key] += header.count
        if not ids:
            continue
        prints = prints_of_stored(fingerprints, header, data)
        if len(prints.rows) != ids:
            raise CorruptIndex(
                f"a published batch of topic {topic.topic_id} in entry {entry} has"
                f" {len(prints.rows)} ids, not {ids}"
            )
        keys.append(prints.keys)
        digests.append(prints.digests)
        places.append(Places.of(arrival, header.queue_id, offset, prints.rows, due_us, entry))
        arrival += ids
    return ArrivedIds(
        topic.topic_id,
        topic.first_arrival,
        np.concatenate(keys),
        np.concatenate(digests),
        Places.joined(places),
    )
