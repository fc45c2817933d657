"""What a tier holds, for planning: the same questions as to a cluster, asked of the store.

How it works. Option `manifest` names a tier, that is the URL that the brokers were given, or one
manifest or pointer in it. Of a tier, the newest decided manifest of each queue counts that the
store lists; its pointer goes into the plan, so every task reads the same rows, whatever is tiered,
merged or deleted meanwhile. No broker and no controller takes part: they may all be stopped.

Not here: the choice of ranges (`offsets.py`), the rows (`tier_tasks.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from semel.protos.errors import InvalidRequest, UnknownTopic
from semel.protos.ids import QueueKey
from semel.spark_connector.offsets import QueueState, Times
from semel.spark_connector.options import ReadOptions, Topics
from semel.tier import (
    CorruptTier,
    Manifest,
    Pointer,
    QueueReader,
    Store,
    StoreLimits,
    TieredTopic,
    find_topic,
    identity_of,
    newest_pointer,
    open_store,
    queues_of,
    read_manifest,
    topics_of,
)
from semel.tier.manifest import decode, decode_pointer, pointer_of

_lock = threading.Lock()
_stores: dict[tuple[int, str], Store] = {}


class TieredQueue(NamedTuple):
    """One queue as the tier has it."""

    pointer: Pointer
    manifest: Manifest

    @property
    def state(self) -> QueueState:
        """The queue in the form in which a cluster describes it."""
        manifest = self.manifest
        return QueueState(
            topic=manifest.topic,
            topic_id=manifest.topic_id,
            queue=manifest.queue_id,
            log_start_offset=manifest.start,
            log_end_offset=manifest.end,
            bytes=sum(page.file_bytes for page in manifest.pages)
            + sum(file.length for file in manifest.files),
        )


def split_url(url: str) -> tuple[str, str]:
    """The URL of the tier, and the name of a manifest or pointer in it; empty for the whole tier.

    Raises InvalidRequest for an object of another kind.
    """
    whole, mark, query = url.partition("?")
    if not whole.endswith((".json", ".parquet")):
        return url, ""
    before, found, after = whole.rpartition("/topics/")
    root, slash, cluster_id = before.rpartition("/")
    if not (found and slash) or after.split("/")[-2:-1] not in (["manifests"], ["pointers"]):
        raise InvalidRequest(
            "option 'manifest' is the URL of a tier, or of a manifest or pointer in it, not"
            f" {url!r}"
        )
    return f"{root}{mark}{query}", f"{cluster_id}{found}{after}"


def tier_store(options: ReadOptions) -> Store:
    """The store of the tier, opened once in each process."""
    url, _ = split_url(options.manifest)
    place = (os.getpid(), url)
    with _lock:
        store = _stores.get(place)
        if store is None:
            limit = options.timeout_ms / 1_000
            store = open_store(url, StoreLimits(call_s=limit, request_s=limit))
            _stores[place] = store
        return store


def describe_tier(options: ReadOptions) -> list[TieredQueue]:
    """The queues that the options choose, by topic and number.

    Raises UnknownTopic, InvalidRequest for an assigned queue that the tier does not have, and the
    errors of the tier.
    """
    store = tier_store(options)
    _, name = split_url(options.manifest)
    if name:
        return [_named(store, name, options.topics)]
    cluster_id = identity_of(store).folder
    found: list[TieredQueue] = []
    for topic in _topics(topics_of(store, cluster_id), options.topics):
        queues = queues_of(store, cluster_id, topic.topic_id)
        if options.topics.queues is not None:
            queues = _assigned(topic, queues, options.topics.queues)
        for key in queues:
            pointer = newest_pointer(store, cluster_id, key)
            if pointer is not None:
                found.append(TieredQueue(pointer, read_manifest(store, pointer)))
    return found


def _named(store: Store, name: str, topics: Topics) -> TieredQueue:
    """The queue of a manifest, or of a pointer, that the option names."""
    data = store.read(name)
    if "/pointers/" in name:
        pointer = decode_pointer(f"{store.url}/{name}", data)
        manifest = read_manifest(store, pointer)
    else:
        manifest = decode(f"{store.url}/{name}", data)
        pointer = pointer_of(manifest, data)
    if name not in (pointer.name, pointer.manifest_name):
        raise CorruptTier(f"{store.url}/{name} is not what its name says")
    if topics.any_given and topics.chosen([manifest.topic]) != [manifest.topic]:
        raise UnknownTopic(f"option 'manifest' names a queue of topic {manifest.topic!r}")
    return TieredQueue(pointer, manifest)


def _topics(existing: list[TieredTopic], topics: Topics) -> list[TieredTopic]:
    names = [topic.name for topic in existing]
    chosen = topics.chosen(names) if topics.any_given else names
    return [find_topic(existing, name) for name in dict.fromkeys(chosen)]


def _assigned(
    topic: TieredTopic, queues: list[QueueKey], assigned: Mapping[str, frozenset[int]]
) -> list[QueueKey]:
    wanted = assigned[topic.name]
    if missing := sorted(wanted - {key.queue_id for key in queues}):
        raise InvalidRequest(
            f"option 'assign': the tier has no queue {missing[0]} of topic {topic.name!r}"
        )
    return [key for key in queues if key.queue_id in wanted]


def look_up_tier(
    store: Store, queues: Iterable[TieredQueue], times: Iterable[tuple[str, int]]
) -> Times:
    """First offsets appended at or after times in milliseconds, by topic and time."""
    readers = [QueueReader(store, queue.manifest) for queue in queues]
    return {
        (topic, at_ms): {
            reader.manifest.queue_id: reader.offset_at(at_ms * 1_000)
            for reader in readers
            if reader.manifest.topic == topic
        }
        for topic, at_ms in sorted(set(times))
    }
