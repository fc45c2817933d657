"""The queues of a broker group by number, and each topic's numbers.

How it works. It is a dictionary that also keeps the keys of each topic, so that what concerns one
topic of very many costs what that topic has: a group may have 50,000 queues of 10,000 topics.

Invariants
1. `of_topic` has exactly the queues whose keys name the topic, in the order in which they came.

Not here: what a queue is (`queues.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

from semel.broker.state.apply.queues import QueueState
from semel.protos.ids import QueueKey

_MISSING: Final = object()


class QueueTable(dict[QueueKey, QueueState]):
    """The queues; changed by item and by `pop` only."""

    def __init__(self) -> None:
        super().__init__()
        self._topics: dict[int, dict[QueueKey, None]] = {}

    def of_topic(self, topic_id: int) -> Iterator[QueueState]:
        """The queues of a topic; none may be added or removed meanwhile."""
        return (self[key] for key in self._topics.get(topic_id, ()))

    def has_topic(self, topic_id: int) -> bool:
        """Whether a queue of the topic is here."""
        return topic_id in self._topics

    def newest_of(self, topic_id: int) -> QueueKey | None:
        """The queue of a topic that has come last; None if none is here."""
        return next(reversed(self._topics.get(topic_id, {})), None)

    def topics(self) -> Iterator[int]:
        """The topics that have a queue here; none may be added or removed meanwhile."""
        return iter(self._topics)

    def slots_of(self, topic_id: int) -> int:
        """How many slots of a topic belong to queues that take messages."""
        taking = (queue for queue in self.of_topic(topic_id) if not queue.sealed)
        return sum(queue.slot_end - queue.slot_start for queue in taking)

    def __setitem__(self, key: QueueKey, queue: QueueState) -> None:
        super().__setitem__(key, queue)
        self._topics.setdefault(key.topic_id, {})[key] = None

    def __delitem__(self, key: QueueKey) -> None:
        super().__delitem__(key)
        self._forget(key)

    def pop(self, key: QueueKey, default: Any = _MISSING) -> Any:
        """Removes a queue and returns it."""
        found = super().pop(key, _MISSING)
        if found is not _MISSING:
            self._forget(key)
        elif default is _MISSING:
            raise KeyError(key)
        else:
            found = default
        return found

    def _forget(self, key: QueueKey) -> None:
        keys = self._topics[key.topic_id]
        del keys[key]
        if not keys:
            del self._topics[key.topic_id]

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("queues are added and removed one by one")

    clear = popitem = setdefault = update = __ior__ = _refused
