"""Options of consumers, a frozen dataclass like those of `semel.client.config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semel.client.config import RetryPolicy, check_fetch, require, whole
from semel.client.consumer.sql_offsets import SqlOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Options of `client.consumer`."""

    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """Where to begin a queue on which the group never committed, or whose offset was trimmed
    away."""
    lock_ms: int = 30_000
    """Milliseconds after which a delivered and uncommitted message is delivered again, to any
    member."""
    session_ms: int = 10_000
    """Milliseconds of silence after which a consumer loses its queues."""
    fetch_bytes: int = 4 << 20
    """Most bytes in one reply of a broker. Only whole batches fit: with 2 MiB most replies hold one
    of the 1 MiB that producers make, and reading is 15 to 20 % slower."""
    prefetch_bytes: int = 16 << 20
    """Most bytes that are held ready, over all queues."""
    member_id: str = ""
    """Identity within the group; empty lets the controller choose. Of two processes with the same
    one, the later ends the earlier."""
    grace_ms: int = 0
    """Milliseconds for which a member with a `member_id` keeps its queues while it is away: a
    shorter restart moves no queue. No member reads them meanwhile. 0: closing gives them to the
    others."""
    hand_over_ms: int = 5_000
    """Milliseconds for which a queue that goes to another member is kept when something of it was
    given out and is not committed. Longer for programs that work long on a message: whoever gets
    the queue before begins at the committed offset, so both work on what is not."""
    client_name: str = ""
    """A name for people who list the group; empty gives host and process."""
    retry: RetryPolicy | None = None
    """The policy of `consumer.retry` and `consumer.reject`; without one they raise
    InvalidRequest."""
    offset_store: SqlOffsets | None = None
    """The database that holds the offsets, for `consumer.transaction`; None: brokers hold them."""

    def __post_init__(self) -> None:
        require(
            self.offset_store is None or isinstance(self.offset_store, SqlOffsets),
            f"offset_store must be SqlOffsets, not {self.offset_store!r}",
        )
        require(
            self.retry is None or isinstance(self.retry, RetryPolicy),
            f"retry must be a RetryPolicy, not {self.retry!r}",
        )
        require(
            self.auto_offset_reset in ("earliest", "latest", "error"),
            f"auto_offset_reset must be 'earliest', 'latest' or 'error',"
            f" not {self.auto_offset_reset!r}",
        )
        whole("lock_ms", self.lock_ms, 100, 86_400_000)
        whole("session_ms", self.session_ms, 500, 3_600_000)
        whole("hand_over_ms", self.hand_over_ms, 0, 86_400_000)
        whole("grace_ms", self.grace_ms, 0, 86_400_000)
        require(
            bool(self.member_id) or not self.grace_ms,
            "grace_ms needs a member_id, by which a member that comes back is recognised",
        )
        check_fetch(self.fetch_bytes, self.prefetch_bytes)
