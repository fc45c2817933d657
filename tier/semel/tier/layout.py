"""Names of the objects of a tier, relative to the URL that the operator gave.

How it works. Everything of a cluster stands below its id, everything of a queue below topic and
queue. What is written once and never changed is named by its content, except for pointers, which
are named by their number: two masters that write the pointer of one number write the same bytes.

Format. `docs/formats/tier.md`, "Names"; a test compares that table with these functions.

Invariants
1. `parse` is the inverse of the functions that make names, and returns None for any other name, so
   that nothing is deleted whose name was not made here.
2. Names of one kind and queue sort by offset, or by number.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueId, QueueKey, TopicId

IDENTITY: Final = "semel-tier.json"
"""Says to which cluster the place belongs."""
DIGITS_IN_NAMES: Final = 32
"""A name has the first half of the SHA-256 in hexadecimal; what refers to it has all of it."""

_CLUSTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Kind(StrEnum):
    """Kinds of objects of a queue; each has a folder of its own."""

    DATA = "data"
    PAGE = "pages"
    MANIFEST = "manifests"
    POINTER = "pointers"
    FACTS = "facts"


class ObjectName(NamedTuple):
    """What a name of an object of a queue says."""

    queue: QueueKey
    kind: Kind
    first: int
    """Start of the range of offsets, or the number."""
    temporary: bool
    """A crash left it between its writing and its renaming."""


def check_cluster_id(cluster_id: str) -> str:
    """Returns it. Raises InvalidRequest if it cannot be a folder's name in every store."""
    if not _CLUSTER.fullmatch(cluster_id):
        raise InvalidRequest(
            f"cluster id {cluster_id!r} cannot name a folder of a tier: use letters, digits,"
            " '.', '_' and '-', at most 128"
        )
    return cluster_id


def clock_name(cluster_id: str) -> str:
    """An empty object, written anew to see the store's clock."""
    return f"{cluster_id}/clock"


def topics_folder(cluster_id: str) -> str:
    return f"{cluster_id}/topics"


def topic_folder(cluster_id: str, topic_id: int) -> str:
    return f"{topics_folder(cluster_id)}/{topic_id:016x}"


def topic_name(cluster_id: str, topic_id: int) -> str:
    """The object that tells the topic's name."""
    return f"{topic_folder(cluster_id, topic_id)}/topic.json"


def queue_folder(cluster_id: str, queue: QueueKey) -> str:
    return f"{topic_folder(cluster_id, queue.topic_id)}/{queue.queue_id:010d}"


def deleted_name(cluster_id: str, queue: QueueKey) -> str:
    """The object that says that the queue's topic was deleted."""
    return f"{queue_folder(cluster_id, queue)}/deleted.json"


def data_name(cluster_id: str, queue: QueueKey, start: int, end: int, sha256: str) -> str:
    """A file of rows."""
    folder = queue_folder(cluster_id, queue)
    return f"{folder}/{Kind.DATA}/{start:020d}-{end:020d}-{sha256[:DIGITS_IN_NAMES]}.parquet"


def page_name(cluster_id: str, queue: QueueKey, start: int, end: int, sha256: str) -> str:
    """A page of a manifest."""
    folder = queue_folder(cluster_id, queue)
    return f"{folder}/{Kind.PAGE}/{start:020d}-{end:020d}-{sha256[:DIGITS_IN_NAMES]}.json"


def manifest_name(cluster_id: str, queue: QueueKey, number: int, sha256: str) -> str:
    """A manifest, decided or not."""
    folder = queue_folder(cluster_id, queue)
    return f"{folder}/{Kind.MANIFEST}/{number:020d}-{sha256[:DIGITS_IN_NAMES]}.json"


def pointer_name(cluster_id: str, queue: QueueKey, number: int) -> str:
    """The copy of a decided pointer."""
    return f"{queue_folder(cluster_id, queue)}/{Kind.POINTER}/{number:020d}.json"


def facts_name(cluster_id: str, queue: QueueKey, number: int, time_us: int, sha256: str) -> str:
    """The facts of a queue at one moment; `number` is that of its manifest."""
    folder = queue_folder(cluster_id, queue)
    return f"{folder}/{Kind.FACTS}/{number:020d}-{time_us:020d}-{sha256[:DIGITS_IN_NAMES]}.json"


def temporary_name(name: str, token: str) -> str:
    """The name under which an object is written before it is renamed; `token` is random, 16
    hexadecimal digits."""
    return f"{name}.tmp-{token}"


_TEMPORARY: Final = re.compile(r"\.tmp-[0-9a-f]{16}$")
_OFFSETS: Final = r"(?P<first>\d{20})-\d{20}-[0-9a-f]{32}"
_TAILS: Final = {
    Kind.DATA: re.compile(rf"{_OFFSETS}\.parquet"),
    Kind.PAGE: re.compile(rf"{_OFFSETS}\.json"),
    Kind.MANIFEST: re.compile(r"(?P<first>\d{20})-[0-9a-f]{32}\.json"),
    Kind.POINTER: re.compile(r"(?P<first>\d{20})\.json"),
    Kind.FACTS: re.compile(rf"{_OFFSETS}\.json"),
}
_FOLDER: Final = re.compile(
    r"(?P<topic>[0-9a-f]{16})/(?P<queue>\d{10})/(?P<kind>[a-z]+)/(?P<tail>.*)"
)


def parse(cluster_id: str, name: str) -> ObjectName | None:
    """What the name of an object of a queue of this cluster says; None for any other name."""
    before = f"{topics_folder(cluster_id)}/"
    if not name.startswith(before):
        return None
    whole = _TEMPORARY.sub("", name)
    found = _FOLDER.fullmatch(whole[len(before) :])
    if found is None or found["kind"] not in _TAILS:
        return None
    kind = Kind(found["kind"])
    tail = _TAILS[kind].fullmatch(found["tail"])
    if tail is None:
        return None
    queue = QueueKey(TopicId(int(found["topic"], 16)), QueueId(int(found["queue"])))
    return ObjectName(queue, kind, int(tail["first"]), whole != name)


def parse_topic(cluster_id: str, name: str) -> TopicId | None:
    """The topic whose name the object `name` tells; None for any other name."""
    found = re.fullmatch(
        rf"{re.escape(topics_folder(cluster_id))}/(?P<topic>[0-9a-f]{{16}})/topic\.json", name
    )
    return None if found is None else TopicId(int(found["topic"], 16))
