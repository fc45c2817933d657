"""Deletes a queue's garbage: what crashes and rivals left, and what merges and trims replaced; and
all of a queue whose topic was deleted.

How it works. The order is what makes it safe. The objects are listed first, and the log's pointer
is asked for afterwards, by a read that a quorum confirms: whatever was decided by then is kept, and
what is decided later names only objects that are young or that this pointer names as well. Then old
copies of pointers go, and after them what nothing leads to. All ages are those of the store's own
clock.

Not here: what is garbage (`planning.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from semel.protos.ids import QueueKey
from semel.tier import layout
from semel.tier.catalog import owner_of
from semel.tier.errors import ForeignTier, TierUnavailable
from semel.tier.layout import Kind
from semel.tier.manifest import Pointer
from semel.tier.planning import (
    GarbagePolicy,
    garbage,
    reachable,
    split_facts,
    split_pointers,
)
from semel.tier.queue_reader import QueueReader, read_manifest, read_pointer
from semel.tier.store import Store


def clock_us(store: Store, cluster_id: str) -> int:
    """Returns the time of the store's clock, as an object that is written now has it; an earlier
    time if the list lags. Raises TierUnavailable if the list does not have the object yet."""
    name = layout.clock_name(cluster_id)
    store.put(name, b"")
    found = [each for each in store.objects(cluster_id, deep=False) if each.name == name]
    if not found:
        raise TierUnavailable(f"{store.url}/{name} was written and is not in the list; ask again")
    return found[0].modified_us


def collect(
    store: Store,
    cluster_id: str,
    queue: QueueKey,
    decided: Callable[[], Pointer | None],
    *,
    now_us: int,
    policy: GarbagePolicy,
    owner: str = "",
) -> list[str]:
    """Deletes the garbage of a queue, and returns the names of what was found to be garbage.

    `decided` returns the log's pointer as it is at the moment of the call, or None if there is
    none. `now_us` is the store's clock (`clock_us`). `owner` is the cluster that collects, if it is
    another one than began the tier. Raises ForeignTier if the place has come to
    belong to another cluster, and what reading raises: nothing is deleted then.
    """
    _check_owner(store, owner or cluster_id)
    objects = store.objects(layout.queue_folder(cluster_id, queue))
    dropped, numbers = split_pointers(cluster_id, objects, now_us=now_us, policy=policy)
    log_pointer = decided()
    written_us = {
        name.first: each.modified_us
        for each in objects
        if (name := layout.parse(cluster_id, each.name)) is not None and name.kind is Kind.MANIFEST
    }
    # Copies that came late, as the store was down: readers may have just begun with them.
    late = [at for at in numbers if written_us.get(at, now_us) < now_us - policy.reader_us]
    wanted = sorted({*numbers[:1], *late, *numbers[-1:]})  # in an order that repeats
    pointers = dict.fromkeys(read_pointer(store, cluster_id, queue, at) for at in wanted)
    if log_pointer is not None:
        pointers[log_pointer] = None
    kept: set[str] = set()
    for pointer in pointers:
        reader = QueueReader(store, read_manifest(store, pointer))
        kept.add(pointer.manifest_name)
        kept |= reachable(reader.manifest, reader.all_files())
    dropped += split_facts(cluster_id, objects)
    found = [*dropped, *garbage(cluster_id, objects, kept, now_us=now_us, policy=policy)]
    store.delete(found)
    return found


def delete_queue(
    store: Store,
    cluster_id: str,
    queue: QueueKey,
    *,
    now_us: int,
    policy: GarbagePolicy,
    owner: str = "",
) -> list[str]:
    """Deletes all that the tier has of a queue that was noted as deleted (`mark_deleted`) for long
    enough, and the topic's name with its last queue. Returns the names; none if it is too early, or
    nothing was noted.

    `now_us` and `owner` are as for `collect`. Raises ForeignTier, and what reading raises.
    """
    _check_owner(store, owner or cluster_id)
    mark = layout.deleted_name(cluster_id, queue)
    objects = store.objects(layout.queue_folder(cluster_id, queue))
    since = [each.modified_us for each in objects if each.name == mark]
    if not since or since[0] >= now_us - policy.reader_us:
        return []
    found = [each.name for each in objects if each.name != mark]
    store.delete(found)
    topic = layout.topic_folder(cluster_id, queue.topic_id)
    rest = [each.name for each in store.objects(topic)]
    last = [mark]
    if all(name in (mark, layout.topic_name(cluster_id, queue.topic_id)) for name in rest):
        last.insert(0, layout.topic_name(cluster_id, queue.topic_id))
    store.delete(last)  # the note goes last: what a crash leaves is deleted the next time
    return [*found, *last]


def _check_owner(store: Store, owner: str) -> None:
    if owner_of(store) != owner:
        raise ForeignTier(f"{store.url} does not belong to cluster {owner!r} any more")
