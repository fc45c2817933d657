"""The table of topics: their records as they are stored, in memory, and the routes made from them.

How it works. Every change is one transaction that checks the version of the record which the change
was made from; `_absorb` then takes the stored record into the table and into the routes. A topic
that is being deleted is stored under its id, and has no name any more.

Invariants
1. A record is written only with a check of the version that the decision was based on.
2. The table holds exactly what is stored, except while a change is under way.
3. A topic is in the routes only while it is active.

Not here: which changes are made, and when (`topics.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from semel.controller import records
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import VersionConflict
from semel.controller.topics import rules
from semel.protos.errors import UnknownTopic
from semel.protos.v1.metadata_pb2 import (
    TOPIC_STATE_ACTIVE,
    TOPIC_STATE_DELETING,
    TopicRecord,
)

log = logging.getLogger(__name__)

_GONE: Final = TopicRecord(state=TOPIC_STATE_DELETING)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A record as it is in the store."""

    key: str
    version: int
    record: TopicRecord

    @property
    def unfinished(self) -> bool:
        """Whether a driver has steps left to do."""
        record = self.record
        return record.state != TOPIC_STATE_ACTIVE or record.settings_pending or bool(record.splits)


class TopicTable:
    """All topics of the cluster. `on_change` is called for each one that came, went or has other
    queues."""

    def __init__(
        self, epoch: ControllerEpoch, routes: RouteTable, on_change: Callable[[str], None]
    ) -> None:
        self._epoch = epoch
        self._routes = routes
        self._on_change = on_change
        self._known: dict[int, StoredTopic] = {}
        self._ids: dict[str, int] = {}
        self._placed: Counter[int] = Counter()
        self._promised: Counter[int] = Counter()
        self._owned: Counter[str] = Counter()

    async def load(self) -> None:
        """Reads all topics; to be called once."""
        for prefix in (records.TOPICS, records.DELETING):
            for key, entry in (await self._epoch.store.scan(prefix)).items():
                record = records.load(TopicRecord, key, entry)
                self._absorb(StoredTopic(key=key, version=entry.version, record=record))

    def ids(self) -> list[int]:
        """The ids of all topics, also of those that are being deleted."""
        return list(self._known)

    def unfinished(self) -> list[TopicRecord]:
        """Records with steps left to do."""
        return [known.record for known in self._known.values() if known.unfinished]

    def placed(self) -> dict[int, int]:
        """The number of queues of active topics that each group owns."""
        return {group_id: count for group_id, count in self._placed.items() if count}

    def promised(self, group_id: int) -> int:
        """The number of queues that the group owns or will own, topics being created included."""
        return self._promised[group_id]

    def names(self) -> list[str]:
        """All active topics."""
        return [name for name in sorted(self._ids) if self._routes.topic(name) is not None]

    def owned(self, owner: str) -> int:
        """The number of topics that somebody made and that are not being deleted."""
        return self._owned[owner]

    @property
    def count(self) -> int:
        """The number of topics, those being created or deleted included."""
        return len(self._known)

    def has(self, name: str) -> bool:
        """Whether a topic of that name exists or is being created."""
        return name in self._ids

    def get(self, topic_id: int) -> StoredTopic | None:
        """A topic as it is stored, also one that is being deleted."""
        return self._known.get(topic_id)

    def known(self, name: str) -> StoredTopic:
        """A topic as it is stored. Raises UnknownTopic."""
        if name not in self._ids:
            raise UnknownTopic(f"there is no topic {name!r}. Create it, or check the spelling")
        return self._known[self._ids[name]]

    def find(self, name: str) -> TopicRecord:
        """The record of a topic that exists or is being created. Raises UnknownTopic."""
        return copied(self.known(name).record)

    def by_id(self, topic_id: int) -> TopicRecord | None:
        """The record of a topic, also of one that is being deleted."""
        known = self._known.get(topic_id)
        return None if known is None else known.record

    async def add(
        self,
        record: TopicRecord,
        *,
        checks: Mapping[str, int | None] = MappingProxyType({}),
        puts: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """Stores a new topic under its name, in one transaction with other keys. Raises
        VersionConflict when there is one, or one of `checks` fails."""
        key = records.topic_key(record.name)
        version = await self._epoch.transact(
            checks={key: None, **checks}, puts={key: records.dump(record), **puts}
        )
        self._absorb(StoredTopic(key=key, version=version, record=record))

    async def change_with(
        self,
        topic_id: int,
        change: Callable[[TopicRecord], None],
        *,
        checks: dict[str, int | None],
        puts: dict[str, bytes],
    ) -> int:
        """Changes a topic's record in one transaction with other keys; returns its version.

        Raises UnknownTopic, VersionConflict when one of `checks` may have failed, and the errors of
        `change`; in these cases nothing was written.
        """
        while True:
            known = self._known.get(topic_id)
            if known is None:
                raise UnknownTopic(f"there is no topic {topic_id:#x} any more")
            record = copied(known.record)
            change(record)
            try:
                version = await self._epoch.transact(
                    checks={known.key: known.version, **checks},
                    puts={known.key: records.dump(record), **puts},
                )
            except VersionConflict:
                if self._known.get(topic_id) is known:
                    raise
                continue
            self._absorb(StoredTopic(key=known.key, version=version, record=record))
            return version

    async def replace(self, known: StoredTopic, record: TopicRecord, key: str = "") -> bool:
        """Writes a new state, under another key if one is given; false when the record had
        changed."""
        key = key or known.key
        try:
            version = await self._epoch.transact(
                checks={known.key: known.version},
                puts={key: records.dump(record)},
                deletes=frozenset({known.key} - {key}),
            )
        except VersionConflict:
            return False
        self._absorb(StoredTopic(key=key, version=version, record=record))
        return True

    async def remove(self, known: StoredTopic) -> None:
        """Removes the record of a topic whose queues are gone."""
        await self._epoch.transact(
            checks={known.key: known.version}, deletes=frozenset({known.key})
        )
        self._known.pop(known.record.topic_id, None)
        log.info("topic's queues are gone topic=%s", known.record.name)

    def _absorb(self, known: StoredTopic) -> None:
        """Updates the index and the routes from a stored record."""
        record = known.record
        known_before = self._known.get(record.topic_id)
        before = _GONE if known_before is None else known_before.record
        self._known[record.topic_id] = known
        if record.state == TOPIC_STATE_DELETING:
            if self._ids.get(record.name) == record.topic_id:
                del self._ids[record.name]
                self._routes.remove_topic(record.name)
        else:
            self._ids[record.name] = record.topic_id
        if record.state == TOPIC_STATE_ACTIVE:
            self._routes.set_topic(rules.topic_route(record))
        for each, sign in ((before, -1), (record, 1)):
            if each.state != TOPIC_STATE_DELETING:
                _count(self._promised, each, sign)
                self._owned[each.owner] += sign
            if each.state == TOPIC_STATE_ACTIVE:
                _count(self._placed, each, sign)
        actives = [each.state == TOPIC_STATE_ACTIVE for each in (before, record)]
        if actives[0] != actives[1] or before.queues != record.queues:
            self._on_change(record.name)


def _count(counter: Counter[int], record: TopicRecord, sign: int) -> None:
    """Adds (1) or removes (-1) the topic's queues."""
    for group_id in record.placement:
        counter[group_id] += sign


def copied(record: TopicRecord) -> TopicRecord:
    """A copy of the record, to be changed."""
    copy = TopicRecord()
    copy.CopyFrom(record)
    return copy
