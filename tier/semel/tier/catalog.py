"""What a tier holds: whose it is, its topics, their queues.

How it works. One small object at the root names the cluster. Every path below has the cluster's id
as well, so two clusters that claim one empty place at the same moment never mix files, though no
store that `pyarrow.fs` reaches can say "only if it is not there yet". A topic tells its name in an
object of its own.

Not here: manifests (`manifest.py`, `queue_reader.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from semel.protos.errors import UnknownTopic
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import documents, layout
from semel.tier.errors import CorruptTier, ForeignTier, ObjectMissing, TierMisconfigured
from semel.tier.store import Store


def claim(store: Store, cluster_id: str) -> str:
    """Makes the place this cluster's, unless it is already, and returns the folder of its objects.
    Brokers call it at their start.

    Raises ForeignTier for a place of another cluster, and for one that has other files and no
    identity.
    """
    layout.check_cluster_id(cluster_id)
    try:
        identity = identity_of(store)
    except TierMisconfigured:
        # Another node of this cluster may claim it at the same moment.
        own = f"{cluster_id}/", layout.IDENTITY
        others = [each for each in store.objects("") if not each.name.startswith(own)]
        if others:
            raise ForeignTier(
                f"{store.url} has {len(others)} objects, such as {others[0].name!r}, and no"
                f" {layout.IDENTITY}: give a prefix of its own to the cluster"
            ) from None
        store.put(layout.IDENTITY, documents.write("identity", {"cluster": cluster_id}))
        identity = identity_of(store)
    if identity.cluster_id != cluster_id:
        raise ForeignTier(
            f"{store.url} belongs to cluster {identity.cluster_id!r}, this is {cluster_id!r}: give"
            " another prefix"
        )
    return identity.folder


class Identity(NamedTuple):
    """The two clusters of a tier."""

    cluster_id: str
    """The cluster that may write."""
    folder: str
    """The cluster that began it, whose id is in all names. It is another one if the tier's messages
    were restored in a new cluster."""


def identity_of(store: Store) -> Identity:
    """Returns whose tier it is.

    Raises TierMisconfigured if it is no tier, CorruptTier, ForeignTier for a newer format.
    """
    try:
        data = store.read(layout.IDENTITY)
    except ObjectMissing:
        raise TierMisconfigured(
            f"{store.url} is no tier of a cluster: it has no {layout.IDENTITY}"
        ) from None
    found = documents.read(f"{store.url}/{layout.IDENTITY}", "identity", data)
    cluster_id = layout.check_cluster_id(found.take("cluster", str))
    folder = cluster_id
    if found.has("folder"):
        folder = layout.check_cluster_id(found.take("folder", str))
    found.done()
    return Identity(cluster_id, folder)


def owner_of(store: Store) -> str:
    """Returns the id of the cluster whose tier it is. Raises as `identity_of`."""
    return identity_of(store).cluster_id


def take_over(store: Store, cluster_id: str, owner: str) -> Identity:
    """Makes the tier of cluster `owner`, which is lost, that of another one. If `owner` is alive,
    its brokers find out before they write the next time.

    Raises ForeignTier for a tier of a third cluster, and what `identity_of` and writing raise.
    """
    layout.check_cluster_id(cluster_id)
    found = identity_of(store)
    if found.cluster_id == cluster_id:
        return found
    if found.cluster_id != owner:
        raise ForeignTier(f"{store.url} belongs to cluster {found.cluster_id!r}, not {owner!r}")
    made = Identity(cluster_id, found.folder)
    fields = {"cluster": made.cluster_id, "folder": made.folder}
    store.put(layout.IDENTITY, documents.write("identity", fields))
    return made


def put_topic(store: Store, cluster_id: str, topic: str, topic_id: TopicId) -> None:
    """Stores the topic's name. Every broker writes the same bytes."""
    fields = {"cluster": cluster_id, "topic": topic, "topic_id": f"{topic_id:016x}"}
    store.put(layout.topic_name(cluster_id, topic_id), documents.write("topic", fields))


class TieredTopic(NamedTuple):
    """A topic of which the tier has something."""

    name: str
    topic_id: TopicId


def topic_ids_of(store: Store, cluster_id: str) -> list[TopicId]:
    """Returns the topics of which anything is there, also those whose name is gone already. The
    list may lag behind what brokers write."""
    found = []
    for folder in store.folders(layout.topics_folder(cluster_id)):
        topic_id = layout.parse_topic(cluster_id, f"{folder}/topic.json")
        if topic_id is not None:
            found.append(topic_id)
    return sorted(found)


def topics_of(store: Store, cluster_id: str) -> list[TieredTopic]:
    """Returns the topics, by name and id: one request to the store for each. The list may lag
    behind what brokers write."""
    topics = []
    for topic_id in topic_ids_of(store, cluster_id):
        name = layout.topic_name(cluster_id, topic_id)
        try:
            fields = documents.read(f"{store.url}/{name}", "topic", store.read(name))
        except ObjectMissing:
            continue  # its name is written before its first manifest, or it is being deleted
        topic = fields.take("topic", str)
        owner = fields.take("cluster", str), fields.take("topic_id", str)
        fields.done()
        if owner != (cluster_id, f"{topic_id:016x}"):
            raise CorruptTier(f"{store.url}/{name} tells of another topic")
        topics.append(TieredTopic(topic, topic_id))
    return sorted(topics)


def find_topic(topics: Sequence[TieredTopic], name: str) -> TieredTopic:
    """Returns the topic with a name. Raises UnknownTopic if there is none, or more than one:
    a topic that was deleted and created again is another topic."""
    found = [topic for topic in topics if topic.name == name]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownTopic(f"the tier has nothing of topic {name!r}")
    ids = ", ".join(f"{topic.topic_id:016x}" for topic in found)
    raise UnknownTopic(
        f"the tier has {len(found)} topics with the name {name!r}, with the ids {ids}: it was"
        " deleted and created again; give the URL of a manifest of the one you mean"
    )


def mark_deleted(store: Store, cluster_id: str, queue: QueueKey) -> None:
    """Notes that the queue's topic was deleted, unless that is noted. `collector.delete_queue`
    deletes what it has, a day later."""
    name = layout.deleted_name(cluster_id, queue)
    try:
        store.read(name)
    except ObjectMissing:
        fields = {
            "cluster": cluster_id,
            "topic_id": f"{queue.topic_id:016x}",
            "queue": queue.queue_id,
        }
        store.put(name, documents.write("deleted", fields))


def is_deleted(store: Store, cluster_id: str, queue: QueueKey) -> bool:
    """Whether it was noted that the queue's topic was deleted."""
    name = layout.deleted_name(cluster_id, queue)
    folder = layout.queue_folder(cluster_id, queue)
    return any(each.name == name for each in store.objects(folder, deep=False))


def queues_of(store: Store, cluster_id: str, topic_id: TopicId) -> list[QueueKey]:
    """Returns the queues of a topic of which the tier may have something, by number."""
    found = []
    for folder in store.folders(layout.topic_folder(cluster_id, topic_id)):
        number = folder.rpartition("/")[2]
        if number.isdigit():
            key = QueueKey(topic_id, QueueId(int(number)))
            if folder == layout.queue_folder(cluster_id, key):
                found.append(key)
    return sorted(found)
