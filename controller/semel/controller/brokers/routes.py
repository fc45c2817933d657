"""The routes: which broker group owns which queue, and which node is the master of each group.

How it works. `RouteTable` holds ready-made messages and a version. The upper half of the version is
the number of the controller epoch (durable), the lower half counts the changes within it. So the
version rises with every change and never falls at a restart, without a write per change. The table
remembers which topics the newest changes concern. So who has all routes of a version gets only what
changed since, and a watch is woken in vain by what it does not ask for.

Invariants
1. The version rises whenever `snapshot` would return something else, and never falls.
2. The table holds only topics whose queues all exist.
3. `_changes` names the topic of every change of a topic above version `_changes_since`, by rising
   version.

Not here: where the facts come from (`topics/topics.py`, `registry.py`), pushing (`server.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable
from operator import itemgetter
from typing import Final

from semel.protos.errors import UnknownTopic
from semel.protos.v1.controller_pb2 import GroupRoute, Routes, TopicRoute

EPOCH_SHIFT: Final = 32
CHANGES_MAX: Final = 10_000
"""Changes of topics that are remembered, at least half of them."""
_VERSION: Final = itemgetter(0)


class RouteTable:
    """The newest routes. `on_change` is called after every change, without arguments."""

    def __init__(self, cluster_id: str, epoch: int, on_change: Callable[[], None]) -> None:
        assert epoch >= 1
        self.cluster_id = cluster_id
        self.version = epoch << EPOCH_SHIFT
        self._on_change = on_change
        self._groups: dict[int, GroupRoute] = {}
        self._topics: dict[str, TopicRoute] = {}
        self.controllers: list[str] = []
        """HOST:PORT of every controller."""
        self._groups_version = self.version
        """Version of the newest change of a group or of the controllers."""
        self._changes: list[tuple[int, str]] = []
        self._changes_since = self.version

    def set_controllers(self, addresses: Iterable[str]) -> None:
        """Replaces the controllers' addresses."""
        if self.controllers != (found := list(addresses)):
            self.controllers = found
            self._changed(None)

    def set_group(self, group: GroupRoute) -> None:
        """Adds or replaces a broker group."""
        if self._groups.get(group.group_id) != group:
            self._groups[group.group_id] = group
            self._changed(None)

    def set_topic(self, topic: TopicRoute) -> None:
        """Adds or replaces a topic."""
        if self._topics.get(topic.name) != topic:
            self._topics[topic.name] = topic
            self._changed(topic.name)

    def remove_topic(self, name: str) -> None:
        """Removes a topic; for an unknown one it does nothing."""
        if self._topics.pop(name, None) is not None:
            self._changed(name)

    def topic(self, name: str) -> TopicRoute | None:
        """The topic of that name."""
        return self._topics.get(name)

    def snapshot(
        self, topics: Iterable[str] = (), *, groups_only: bool = False, strict: bool = True
    ) -> Routes:
        """All groups, and the topics that are named (all when none is named).

        Raises UnknownTopic for a name that does not exist, unless `strict` is false.
        """
        return Routes(
            version=self.version,
            cluster_id=self.cluster_id,
            groups=[self._groups[group_id] for group_id in sorted(self._groups)],
            topics=() if groups_only else self._choose(list(topics), strict),
            controllers=self.controllers,
        )

    def _choose(self, names: list[str], strict: bool) -> list[TopicRoute]:
        if not names:
            return [self._topics[name] for name in sorted(self._topics)]
        missing = [name for name in names if name not in self._topics]
        if missing and strict:
            raise UnknownTopic(
                f"there is no topic {missing[0]!r}. Create it, or check the spelling"
            )
        return [self._topics[name] for name in dict.fromkeys(names) if name in self._topics]

    def changes(self, known_version: int) -> Routes:
        """All groups, and what changed of topics since a version; all topics if that is not
        known."""
        names = self._changed_topics(known_version)
        if names is None:
            return self.snapshot()
        found = self.snapshot(groups_only=True)
        found.changes_since = known_version
        found.topics.extend(self._topics[name] for name in sorted(names & self._topics.keys()))
        found.removed_topics.extend(sorted(names - self._topics.keys()))
        return found

    def concerns(self, known_version: int, topics: Container[str], *, groups_only: bool) -> bool:
        """Whether a snapshot may differ from the one of `known_version`; `topics` are the names
        that were asked for, empty for all."""
        if self._groups_version > known_version:
            return True
        names = self._changed_topics(known_version)
        if names is None:
            return True
        return not groups_only and any(not topics or name in topics for name in names)

    def _changed_topics(self, version: int) -> set[str] | None:
        """The topics that changed above a version; None if that is not known."""
        if not self._changes_since <= version <= self.version:
            return None
        start = bisect_right(self._changes, version, key=_VERSION)
        return {name for _, name in self._changes[start:]}

    def _changed(self, topic: str | None) -> None:
        """A topic changed, or, with None, the groups or controllers."""
        self.version += 1
        if topic is None:
            self._groups_version = self.version
        else:
            self._changes.append((self.version, topic))
            if len(self._changes) > CHANGES_MAX:
                gone = len(self._changes) - CHANGES_MAX // 2
                self._changes_since, _ = self._changes[gone - 1]
                del self._changes[:gone]
        self._on_change()
