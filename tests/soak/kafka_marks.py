"""Which strikes of a soak left a mark on what they struck, or on the programs that depend on it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tests.soak.kafka_run import Served

SLOW: Final = 0.75
"""The part of what is written that copies get at least, while nothing is wrong."""


class _State(NamedTuple):
    """What a strike changes."""

    term: int
    """The masters' term."""
    started_us: int
    """When the controller was started."""
    queues: int
    disturbances: int
    """How often programs said that something went wrong."""


class Marks:
    """Counts strikes by their names, and those that left a mark: another master, another
    controller, more queues, a program that said that something went wrong or was started again, or
    that less was copied meanwhile than was written."""

    def __init__(self, served: Served, rate: float) -> None:
        """`rate` is how many messages a second all copies get together when nothing is wrong."""
        self.struck: Counter[str] = Counter()
        self.bitten: Counter[str] = Counter()
        self._served = served
        self._rate = rate

    def __str__(self) -> str:
        return f"{self.struck.total()} strikes, {self.bitten.total()} left a mark"

    @contextlib.contextmanager
    def of(
        self, name: str, copied: Callable[[], int], disturbances: Callable[[], int]
    ) -> Iterator[None]:
        """A strike, and what follows until copies go on."""
        self.struck[name] += 1
        before, had, began = self._state(disturbances), copied(), time.monotonic()
        yield
        due = self._rate * (time.monotonic() - began)
        slow = copied() - had < SLOW * due
        self.bitten[name] += slow or self._state(disturbances) != before

    def _state(self, disturbances: Callable[[], int]) -> _State:
        cluster, client = self._served.cluster, self._served.client
        status = cluster.controller_status(cluster.active_controller())
        topics = client.admin.list_topics()
        return _State(
            term=cluster.status(cluster.master(), confirmed=True).term,
            started_us=0 if status is None else status.started_us,
            queues=sum(len(client.admin.describe_topic(each.name).queues) for each in topics),
            disturbances=disturbances(),
        )
