"""The routes: which broker group owns which queue, and which node is the master of each group.

How it works. `RouteTable` holds ready-made messages and a version. The upper half of the version is
the number of the controller epoch (durable), the lower half counts the changes within it. So the
version rises with every change and never falls at a restart, without a write per change.

Invariants
1. The version rises whenever `snapshot` would return something else, and never falls.
2. The table holds only topics whose queues all exist.

Not here: where the facts come from (`topics/topics.py`, `registry.py`), pushing (`server.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from semel.protos.errors import UnknownTopic
from semel.protos.v1.controller_pb2 import GroupRoute, Routes, TopicRoute

EPOCH_SHIFT: Final = 32


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

    def set_controllers(self, addresses: Iterable[str]) -> None:
        """Replaces the controllers' addresses."""
        if self.controllers != (found := list(addresses)):
            self.controllers = found
            self._changed()

    def set_group(self, group: GroupRoute) -> None:
        """Adds or replaces a broker group."""
        if self._groups.get(group.group_id) != group:
            self._groups[group.group_id] = group
            self._changed()

    def set_topic(self, topic: TopicRoute) -> None:
        """Adds or replaces a topic."""
        if self._topics.get(topic.name) != topic:
            self._topics[topic.name] = topic
            self._changed()

    def remove_topic(self, name: str) -> None:
        """Removes a topic; for an unknown one it does nothing."""
        if self._topics.pop(name, None) is not None:
            self._changed()

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

    def _changed(self) -> None:
        self.version += 1
        self._on_change()
