"""The part of `Admin` about single messages, delayed messages and dead letters.

Not here: what the calls do (`admin/`, `dead_letters/`).

Generated from `api/aio_message_admin.py` by `tools/unasync.py`: change that module.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Literal

from semel.client.admin.delay_history import DelayRelease, delay_history
from semel.client.admin.delays import (
    LIMIT_DEFAULT,
    DelayedMessage,
    DelayStats,
    delay_stats,
    list_delayed,
)
from semel.client.admin.found_message import (
    CancelResult,
    FoundMessage,
    cancel_message,
    find_message,
)
from semel.client.admin.given_up import UnreadableBatch, give_up_delayed
from semel.client.admin.stored_message import StoredMessage, show_message
from semel.client.api.telling import run_telling
from semel.client.dead_letters.listing import (
    EVERYTHING,
    DeadLetter,
    DeadLetters,
    LetterFilter,
)
from semel.client.dead_letters.redrive import (
    RedriveProgress,
    RedriveResult,
    redrive_letters,
)
from semel.client.session import Session


class MessageAdmin:
    """Administrative calls about single messages, delayed ones and dead letters."""

    _session: Session

    def show_message(self, topic: str, queue: int, offset: int) -> StoredMessage:
        """Returns one stored message with all that is known of it: when it was appended, and who
        sent it.

        Raises UnknownTopic, UnknownQueue, and OffsetOutOfRange for an offset that the queue does
        not hold (any more, or yet).
        """
        session = self._session
        return session.run(show_message(session.cluster, session.runtime, topic, queue, offset))

    def find_message(self, topic: str, message_id: bytes | str) -> FoundMessage | None:
        """Returns the newest message with an id, and where it is: stored at an offset, delayed,
        removed by retention or cancelled. None if the topic's window of ids has left it behind, or
        never had it.

        Raises UnknownTopic; InvalidRequest for an id of 0 bytes or more than 128, and for a topic
        that compares no ids; UnsupportedVersion for a broker that is too old to tell.
        """
        session = self._session
        return session.run(find_message(session.cluster, topic, message_id))

    def cancel(self, topic: str, message_id: bytes | str) -> CancelResult:
        """Takes a delayed message out before it is due: it is never delivered, and its id can be
        used again.

        The result is "cancelled", also if it was cancelled before; "delivered", with queue, offset
        and time, if it was due; or "unknown". Raises UnknownTopic; InvalidRequest for an id of 0
        bytes or more than 128, for a topic that compares no ids, and for a message that was never
        delayed; UnsupportedVersion for a broker that is too old.
        """
        session = self._session
        return session.run(cancel_message(session.cluster, topic, message_id))

    def give_up_delayed(
        self, topic: str, queue: int, batch: UnreadableBatch | None = None
    ) -> UnreadableBatch:
        """Gives up the next delayed batch of a split queue, if no node can read it: its messages
        are lost, and those behind it reach the queue's children. Returns it; without `batch`, which
        an earlier call returned, nothing is given up.

        Raises UnknownTopic, InvalidRequest, Unavailable if not every node answers, and Throttled.
        """
        session = self._session
        return session.run(give_up_delayed(session.cluster, topic, queue, batch))

    def list_delayed(
        self, topic: str, *, before: datetime | int | None = None, limit: int = LIMIT_DEFAULT
    ) -> list[DelayedMessage]:
        """Returns the first `limit` messages, at most 10,000, that are stored and not delivered
        yet, by due time: with `before` only those that are due before that time, a datetime with a
        time zone or microseconds since 1970.

        A message that is due and about to be delivered may be among them. Raises UnknownTopic,
        InvalidRequest, and UnsupportedVersion for a broker that is too old to tell.
        """
        session = self._session
        return session.run(list_delayed(session.cluster, topic, before, limit))

    def delay_stats(self, topic: str) -> DelayStats:
        """Returns how many messages of a topic are delayed, by when they are due, from the clock of
        the brokers' log on.

        Raises UnknownTopic, and UnsupportedVersion for a broker that is too old to tell.
        """
        session = self._session
        return session.run(delay_stats(session.cluster, topic))

    def delay_history(
        self, topic: str, *, since: datetime | int | None = None, limit: int = LIMIT_DEFAULT
    ) -> list[DelayRelease]:
        """Returns what was released of a topic's delayed messages, when, and how late: the newest
        `limit` rows, at most 10,000, the newest first; with `since` only those that were released
        at that time or later, a datetime with a time zone or microseconds since 1970.

        A row has what one queue released of one second; older rows are of a minute, an hour or a
        day. A day is kept at least. Raises UnknownTopic, InvalidRequest; UnsupportedVersion when it
        needs `semel cluster upgrade` first.
        """
        session = self._session
        return session.run(delay_history(session.cluster, topic, since, limit))

    def dead_letters(
        self, topic: str, which: LetterFilter = EVERYTHING, *, limit: int = 1_000
    ) -> list[DeadLetter]:
        """Returns the first `limit` matching dead letters of a dead-letter topic or of a group, by
        queue and offset. Nothing behind them is read.

        Raises UnknownTopic.
        """
        found = DeadLetters(self._session.cluster, self._session.runtime, topic)
        return self._session.run(found.list(which, limit))

    def redrive(
        self,
        topic: str,
        which: LetterFilter = EVERYTHING,
        *,
        to: Literal["origin", "group"] = "origin",
        dry_run: bool = False,
        timeout: float = 3600.0,
        on_progress: Callable[[RedriveProgress], object] | None = None,
    ) -> RedriveResult:
        """Brings dead letters back, each at most once, to the topic they came from, or to the first
        retry topic of their group, which nobody else reads.

        A run that was interrupted may be repeated. `on_progress` is called in this thread. Raises
        UnknownTopic; ProducerFenced when another run of the topic has begun; TimedOut, and LockLost
        when the lock of the run was lost and no broker can tell why: repeat it.
        """
        session = self._session

        def start(note: Callable[[RedriveProgress], object]) -> Coroutine[Any, Any, RedriveResult]:
            cluster, runtime = session.cluster, session.runtime
            return redrive_letters(
                cluster, runtime, topic, which, to=to, dry_run=dry_run, note=note
            )

        return run_telling(
            self._session,
            start,
            on_progress,
            timeout,
            f"not all brought back within {timeout:g} s: what came back stays, repeat it",
        )
