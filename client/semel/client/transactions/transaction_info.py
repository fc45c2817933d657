"""Descriptions of transactions, for `semel transaction` and the SDK."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class TransactionPart(NamedTuple):
    """The messages of one epoch that one broker group has staged or pinned."""

    group: int
    state: str
    """staged (given up when its time is over) or pinned (waits for the coordinator's decision)."""
    epoch: int
    messages: int
    bytes: int
    writers: int
    """Number of writers that staged them; 1 if they are pinned."""


class TransactionProgress(NamedTuple):
    """Progress of a consumer group that becomes the group's with the commit of a transaction."""

    group: int
    """Broker group."""
    state: str
    """staged or pinned."""
    consumer_group: str
    topic_id: int
    queue: int
    offset: int
    """Next offset to read."""


@dataclass(slots=True, kw_only=True)
class TransactionInfo:
    """One transaction id, over all broker groups."""

    transaction_id: str
    query_id: str | None = None
    """Id of the query that it belongs to; None while nobody has begun to commit."""
    coordinator: int | None = None
    """Broker group that decides."""
    last_epoch: int = -1
    """Newest committed epoch; -1 for none."""
    published: bool = True
    """The last epoch is published everywhere."""
    unpublished_on: list[int] = field(default_factory=list)
    """Participants of a last epoch that is not published everywhere."""
    open_epoch: int | None = None
    """The epoch whose commit was begun and is not decided; None if there is none."""
    age_ms: int = 0
    """Milliseconds of log time since the oldest open step; 0 when nothing is open."""
    parts: list[TransactionPart] = field(default_factory=list)
    progress: list[TransactionProgress] = field(default_factory=list)
    """The staged progress of consumer groups; only if the transaction was asked for by its id."""

    @property
    def state(self) -> str:
        """publishing, committing, open, staging or idle."""
        if not self.published:
            return "publishing"
        if any(part.state == "pinned" for part in self.parts):
            return "committing"
        if self.open_epoch is not None:
            return "open"
        return "staging" if self.parts else "idle"

    @property
    def participants(self) -> list[int]:
        """Broker groups that have staged or pinned messages, or messages to publish."""
        return sorted({*self.unpublished_on, *(part.group for part in self.parts)})

    @property
    def bytes(self) -> int:
        """Bytes that are staged or pinned."""
        return sum(part.bytes for part in self.parts)

    @property
    def messages(self) -> int:
        """Messages that are staged or pinned."""
        return sum(part.messages for part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """Returns all attributes, for printing."""
        value = asdict(self)
        value["parts"] = [part._asdict() for part in self.parts]
        value["progress"] = [one._asdict() for one in self.progress]
        value |= {
            "state": self.state,
            "participants": self.participants,
            "bytes": self.bytes,
            "messages": self.messages,
        }
        return value
