"""What the coordinator of a transactional id needs of Semel's transactions. No I/O.

A ledger is of one transaction id and one caller, whose rights count. Every call raises SemelError;
after Unavailable and TimedOut it may have been carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from semel.client.core.routing import QueueRoute
from semel.gateway.transactions.standing import Row
from semel.protos.ids import GroupId, QueueKey


class Attempt(NamedTuple):
    """An attempt at an epoch."""

    epoch: int
    number: int
    """0 if the epoch, or a higher one, is committed."""
    last_epoch: int
    """The newest committed one; -1 for none."""


class Part(NamedTuple):
    """What a stager has staged for one queue."""

    group: GroupId
    topic_id: int
    queue_id: int
    batches: int
    messages: int
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one stager has on one broker group, and nobody has pinned."""

    group: GroupId
    epoch: int
    stager_id: int
    timeout_ms: int
    """The transaction's, as the one who opened it said."""
    queues: frozenset[QueueKey]
    """All that are open, also those without batches."""
    parts: tuple[Part, ...] = ()
    """The queues that have batches."""
    commits: int = 0
    """Number of offsets that are staged."""

    @property
    def lost(self) -> bool:
        """Whether what it had has gone. A stager is of one queue: it has nothing any more if the
        queue was deleted, or moved to another broker group."""
        return not self.queues and not self.commits


class Pinned(NamedTuple):
    """What waits for a decision on one broker group."""

    group: GroupId
    epoch: int
    attempt: int
    stages: Sequence[Stage]
    """All that is pinned."""


class Found(NamedTuple):
    """What all broker groups know."""

    row: Row
    stages: Sequence[Stage]
    pinned: Sequence[Pinned]


class Ledger(Protocol):
    """See the module's text."""

    async def check_level(self) -> None:
        """Raises UnsupportedVersion unless all broker groups are at the feature level that
        transactions of Kafka's clients need."""

    async def row(self) -> Row:
        """Returns what the coordinating broker group knows now."""

    async def find(self) -> Found:
        """Returns what all broker groups know, each as of some moment during the call."""

    async def begin(self, epoch: int) -> Attempt:
        """Begins an attempt: no older one can be decided from here on. The attempt is 0 if the
        epoch, or a higher one, is committed."""

    async def open(self, epoch: int, timeout_ms: int, stagers: Mapping[int, QueueRoute]) -> None:
        """Lets each stager stage for its queue."""

    async def drop(self, stages: Iterable[Stage]) -> None:
        """Gives up what is not pinned, as far as broker groups answer."""

    async def commit(self, begun: Attempt, stages: Sequence[Stage]) -> None:
        """Commits stages, or an empty transaction, and returns when all see it.
        Raises TransactionAborted, TransactionFenced."""

    async def published(self, epoch: int) -> None:
        """Returns when all see a committed epoch."""
