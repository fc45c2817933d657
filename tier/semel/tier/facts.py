"""The facts of a queue: what a new cluster needs besides rows, if all brokers are lost.

How it works. Rows do not say which slots a queue had, how far consumer groups were, which producers
may go on, or which messages existed that never came to the tier. The group's master stores that,
beside the files: when a manifest was decided, before its pointer is published, and again from time
to time when something of it has changed. Facts name the manifest that the queue had at that moment,
so they fit each other. Whoever restores takes the newest facts, and the manifest that they name.

What brokers know of a queue is one piece of bytes, the *slice* by which queues move between broker
groups (`broker/semel/broker/state/apply/slices.py`). The tier does not look into it.

Format. `docs/formats/tier.md`, "facts".

Invariants
1. Facts describe one moment of the queue: every message below the end of the manifest that they
   name was stored by then.
2. When the copy of a pointer is published, facts with its number are there.

Not here: when they are stored (the broker's `background/tier_facts.py`).
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import documents, layout
from semel.tier.errors import CorruptTier, ObjectMissing
from semel.tier.layout import Kind
from semel.tier.manifest import topic_id_of
from semel.tier.store import Store

_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """All that is known of a queue at one moment."""

    cluster_id: str
    topic: str
    topic_id: TopicId
    queue_id: QueueId
    number: int
    """Number of the manifest that the queue had; 0: it had none."""
    length: int
    """Bytes of that manifest."""
    sha256: str
    """Its digest; empty if there is none."""
    time_us: int
    """Log time of the moment."""
    log_start_offset: int
    log_end_offset: int
    released: bool
    """Messages of the queue may have been delayed, and got their offsets by now."""
    settings: bytes
    """The topic's settings, a serialized `TopicSettings`."""
    slice: bytes
    """The queue without its messages, a serialized `QueueSlice`."""
    nonce: str

    @property
    def queue(self) -> QueueKey:
        return QueueKey(self.topic_id, self.queue_id)

    def encode(self) -> bytes:
        """The bytes of the object."""
        return documents.write(
            "facts",
            {
                "cluster": self.cluster_id,
                "topic": self.topic,
                "topic_id": f"{self.topic_id:016x}",
                "queue": self.queue_id,
                "number": self.number,
                "length": self.length,
                "sha256": self.sha256,
                "time_us": self.time_us,
                "log_start_offset": self.log_start_offset,
                "log_end_offset": self.log_end_offset,
                "released": self.released,
                "settings": _packed(self.settings),
                "slice": _packed(self.slice),
                "nonce": self.nonce,
            },
        )


def put_facts(store: Store, facts: QueueFacts) -> str:
    """Stores facts, and returns the name of the object."""
    data = facts.encode()
    name = layout.facts_name(
        facts.cluster_id, facts.queue, facts.number, facts.time_us, documents.sha256_of(data)
    )
    store.put(name, data)
    return name


def newest_facts(store: Store, cluster_id: str, queue: QueueKey) -> tuple[str, QueueFacts] | None:
    """Returns the name of the newest facts that the store lists, and the facts; None without any.

    Raises CorruptTier, and ForeignTier for a newer format.
    """
    folder = f"{layout.queue_folder(cluster_id, queue)}/{Kind.FACTS}"
    for attempt in range(_ATTEMPTS):
        names = facts_names(cluster_id, (each.name for each in store.objects(folder)))
        if not names:
            return None
        try:
            return names[-1], read_facts(store, cluster_id, queue, names[-1])
        except ObjectMissing:  # the list lagged, and newer ones have made it superfluous
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def facts_names(cluster_id: str, names: Iterable[str]) -> list[str]:
    """Returns those of `names` that are a queue's facts, the newest last."""
    found = ((layout.parse(cluster_id, name), name) for name in names)
    return sorted(
        name
        for parsed, name in found
        if parsed is not None and parsed.kind is Kind.FACTS and not parsed.temporary
    )


def read_facts(store: Store, cluster_id: str, queue: QueueKey, name: str) -> QueueFacts:
    """Returns the facts in an object. Raises ObjectMissing, CorruptTier."""
    data = store.read(name)
    digest = documents.sha256_of(data)[: layout.DIGITS_IN_NAMES]
    if f"-{digest}.json" not in name:
        raise CorruptTier(f"{store.url}/{name} is damaged: its SHA-256 differs")
    facts = decode_facts(f"{store.url}/{name}", data)
    if (facts.cluster_id, facts.queue) != (cluster_id, queue):
        raise CorruptTier(f"{store.url}/{name} tells of another queue")
    return facts


def decode_facts(name: str, data: bytes) -> QueueFacts:
    """Returns the facts. Raises CorruptTier, and ForeignTier for a newer format."""
    found = documents.read(name, "facts", data)
    facts = QueueFacts(
        cluster_id=found.take("cluster", str),
        topic=found.take("topic", str),
        topic_id=topic_id_of(name, found),
        queue_id=QueueId(found.take("queue", int)),
        number=found.take("number", int),
        length=found.take("length", int),
        sha256=found.take("sha256", str),
        time_us=found.take("time_us", int),
        log_start_offset=found.take("log_start_offset", int),
        log_end_offset=found.take("log_end_offset", int),
        released=found.take("released", bool),
        settings=_unpacked(name, found.take("settings", str)),
        slice=_unpacked(name, found.take("slice", str)),
        nonce=found.take("nonce", str),
    )
    found.done()
    if facts.number < 0 or (facts.number > 0) != bool(facts.sha256):
        raise CorruptTier(f"{name} names manifest {facts.number} with the digest {facts.sha256!r}")
    return facts


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode("ascii")


def _unpacked(name: str, text: str) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except (binascii.Error, zlib.error) as error:
        raise CorruptTier(f"{name} is damaged: {error}") from None
