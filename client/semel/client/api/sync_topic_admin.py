"""The part of `Admin` about topics, their queues, consumer groups and producers.

Not here: what the calls do (`admin/calls.py`, `admin/verify.py`).

Generated from `api/aio_topic_admin.py` by `tools/unasync.py`: change that module.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal

from semel.client.admin.descriptions import (
    GroupDescription,
    GroupSummary,
    ProduceOutcome,
    ProducerDescription,
    ProducerSummary,
    QueueMove,
    TopicDescription,
    TopicSettings,
    TopicSummary,
    VerifyResult,
)
from semel.client.admin.group_pages import GroupPage, find_groups
from semel.client.admin.resets import OffsetReset, Shift, Target
from semel.client.admin.topic_index import TopicPage
from semel.client.admin.topic_settings import Compaction, IdDedup, Storage, storage_number
from semel.client.admin.verify import Verification, VerifyProgress
from semel.client.api.telling import run_telling
from semel.client.reading.offsets import Place, Places
from semel.client.session import Session


class TopicAdmin:
    """Administrative calls about topics, queues, consumer groups and producers."""

    _session: Session

    def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        message_bytes_max: int | None = None,
        batch_bytes_max: int | None = None,
        delay_per_second_max: int | None = None,
        tier_after_ms: int | None = None,
        local_retention_ms: int | None = None,
        dedup: IdDedup | None = None,
        compaction: Compaction | None = None,
        storage: Storage | None = None,
        memory_bytes: int | None = None,
        if_not_exists: bool = False,
        groups: list[int] | None = None,
    ) -> bool:
        """Creates a topic and returns once it can be written. Returns False if it existed already.

        None takes the default. With `dedup` the topic compares message ids. With `compaction` the
        newest message of each key stays, for ever unless a retention is given. With
        `delay_per_second_max` at most so many messages may be due in one second: one more fails
        with DelayThrottled. With `tier_after_ms` messages of that age go to the cluster's object
        store, and with `local_retention_ms` brokers keep them only so long; they stay readable as
        long as `retention_ms` says. With `storage="memory"` the bodies of messages are only in the
        memory of a majority, for the life of the topic; beyond `memory_bytes` of them (1 GiB if not
        given) the oldest messages go. Raises TopicExists, InvalidRequest; UnsupportedVersion when a
        setting needs `semel cluster upgrade` first.
        """
        settings = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "message_bytes_max": message_bytes_max,
            "batch_bytes_max": batch_bytes_max,
            "delay_per_second_max": delay_per_second_max,
            "tier_after_ms": tier_after_ms,
            "local_retention_ms": local_retention_ms,
            "storage": storage_number(storage),
            "memory_bytes": memory_bytes,
        }
        return self._session.run(
            self._session.admin.create_topic(
                name, queues, settings, if_not_exists, groups, dedup, compaction
            )
        )

    def alter_topic(
        self,
        name: str,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        message_bytes_max: int | None = None,
        batch_bytes_max: int | None = None,
        delay_per_second_max: int | None = None,
        tier_after_ms: int | None = None,
        local_retention_ms: int | None = None,
        dedup: IdDedup | Literal["off"] | None = None,
        compaction: Compaction | Literal["off"] | None = None,
        memory_bytes: int | None = None,
        queues: int | None = None,
    ) -> TopicSettings:
        """Changes the settings that are given; -1 lifts a limit. `tier_after_ms=-1` ends tiering:
        what is in the object store stays readable, nothing is added. `dedup="off"` ends the
        comparing of message ids and forgets them; `compaction="off"` ends compaction, and what is
        gone stays gone. More `queues` are made by splitting the present ones; their number never
        falls. Returns once they can be written. Raises UnknownTopic, InvalidRequest;
        UnsupportedVersion when a setting needs `semel cluster upgrade` first."""
        settings = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "message_bytes_max": message_bytes_max,
            "batch_bytes_max": batch_bytes_max,
            "delay_per_second_max": delay_per_second_max,
            "tier_after_ms": tier_after_ms,
            "local_retention_ms": local_retention_ms,
            "memory_bytes": memory_bytes,
        }
        return self._session.run(
            self._session.admin.alter_topic(name, settings, queues, dedup, compaction)
        )

    def split_queue(self, topic: str, queue: int, *, children: int = 2) -> list[int]:
        """Splits one queue and returns the numbers of its children. It is read to its end before
        its children are. Repeating the same call succeeds.

        Raises UnknownTopic, UnknownQueue, InvalidRequest.
        """
        return self._session.run(self._session.admin.split_queue(topic, queue, children))

    def move_queue(self, topic: str, queue: int, group: int) -> QueueMove:
        """Begins to move a queue to another broker group, with its messages, sequence table and
        offsets, and returns at once. `list_moves` shows its progress. Producers and consumers
        continue. Repeating the same call succeeds.

        Raises UnknownTopic, UnknownQueue, UnknownGroup, InvalidRequest, and Unavailable while the
        group has no master.
        """
        return self._session.run(self._session.admin.move_queue(topic, queue, group))

    def cancel_move(self, topic: str, queue: int) -> QueueMove:
        """Cancels a move that is not decided: the queue stays where it is.

        Raises UnknownTopic, and InvalidRequest when there is no move, or it is decided.
        """
        return self._session.run(self._session.admin.cancel_move(topic, queue))

    def list_moves(self, topic: str = "") -> list[QueueMove]:
        """Returns moves under way, and those that were given up, of one topic or of all."""
        return self._session.run(self._session.admin.list_moves(topic))

    def delete_topic(self, name: str, *, if_exists: bool = False) -> bool:
        """Deletes a topic and its data, for good. Returns False if there was none."""
        return self._session.run(self._session.admin.delete_topic(name, if_exists))

    def list_topics(self) -> list[TopicSummary]:
        """Returns all topics, by name."""
        return self._session.run(self._session.admin.list_topics())

    def find_topics(self, search: str = "", *, start: int = 0, limit: int = 50) -> TopicPage:
        """Returns the topics whose names have `search` in them, in capitals or not, by name: at
        most `limit` of them, 1,000 at most, from number `start` on. Only what changed since the
        client's last call is fetched. Raises InvalidRequest."""
        session = self._session
        return session.run(session.admin.topic_index.page(search, start, limit))

    def describe_topic(self, name: str) -> TopicDescription:
        """Returns a topic with its queues and their offsets. Raises UnknownTopic."""
        return self._session.run(self._session.admin.describe_topic(name))

    def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        """Returns topics in the order of `names`, fetched concurrently. Raises UnknownTopic."""
        return self._session.run(self._session.admin.describe_topics(names))

    def offsets_at(self, name: str, time_us: int) -> dict[int, int]:
        """Returns by queue of a topic the first offset that was appended at or after a time, in
        microseconds since the epoch; a queue without one gives its end. Raises UnknownTopic."""
        return self._session.run(self._session.admin.offsets_at(name, time_us))

    def list_groups(self) -> list[str]:
        """Returns the names of all consumer groups."""
        return self._session.run(self._session.admin.list_groups())

    def find_groups(self, search: str = "", *, start: int = 0, limit: int = 50) -> GroupPage:
        """Returns the consumer groups whose names have `search` in them, in capitals or not, by
        name: at most `limit` of them, 200 at most, from number `start` on. Only their own figures
        are asked for. Raises InvalidRequest; UnsupportedVersion for a broker that is too old."""
        session = self._session
        topics = session.admin.topic_index
        return session.run(find_groups(session.cluster, topics, search, start, limit))

    def describe_group(self, group: str) -> GroupDescription:
        """Returns members, progress and lag of a consumer group. Raises UnknownGroup."""
        return self._session.run(self._session.admin.describe_group(group))

    def group_summaries(self) -> list[GroupSummary]:
        """Returns consumer groups with their members, topics, lag and locks, by name."""
        return self._session.run(self._session.admin.group_summaries())

    def plan_offset_resets(
        self, group: str, topics: Sequence[str | Target] = (), *, to: Place | Shift
    ) -> tuple[list[OffsetReset], list[str]]:
        """Returns the changes that moving a group would make, one row per queue, and the names of
        its present consumers. Changes nothing.

        `topics` are names, or (name, queue) pairs; without any, all on which the group has
        progress.
        Raises UnknownTopic, UnknownQueue, UnknownGroup, OffsetOutOfRange.
        """
        targets = [(topic, None) if isinstance(topic, str) else topic for topic in topics]
        return self._session.run(self._session.admin.plan_resets(group, targets, to))

    def carry_out_resets(self, group: str, plan: Sequence[OffsetReset]) -> None:
        """Moves a group as planned. Raises InvalidRequest while it has members or locks."""
        self._session.run(self._session.admin.carry_out_resets(group, plan))

    def reset_offsets(self, group: str, topic: str, to: Places) -> dict[int, int]:
        """Moves a group's progress and fences its running consumers. Returns the new offsets by
        queue."""
        return self._session.run(self._session.admin.reset_offsets(group, topic, to))

    def publish_progress(
        self, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> list[tuple[str, int]]:
        """Stores next offsets by (topic, queue) of a reader without a group, under a group's name
        that shows its lag. Returns the queues that a member holds, which are left alone.

        Raises InvalidRequest when consumers have ever joined the group, UnknownTopic.
        """
        return self._session.run(self._session.admin.publish_progress(group, offsets))

    def delete_group(self, group: str, topic: str | None = None) -> None:
        """Deletes a group without members, or its progress in one topic. Raises UnknownGroup, also
        if it has none there, and InvalidRequest while it has members, or if redrives keep their
        records there."""
        self._session.run(self._session.admin.delete_group(group, topic))

    def list_producers(self) -> list[ProducerSummary]:
        """Returns the named producers, by name."""
        return self._session.run(self._session.admin.list_producers())

    def describe_producer(self, name: str) -> ProducerDescription:
        """Returns a named producer and its rows in the sequence tables. Raises UnknownProducer."""
        return self._session.run(self._session.admin.describe_producer(name))

    def produce_outcome(self, name: str, topic: str, queue: int, sequence: int) -> ProduceOutcome:
        """Returns the fate of one sequence of a named producer."""
        return self._session.run(self._session.admin.produce_outcome(name, topic, queue, sequence))

    def verify(
        self,
        topic: str,
        *,
        timeout: float = 600.0,
        tier: bool = False,
        on_progress: Callable[[VerifyProgress], object] | None = None,
    ) -> VerifyResult:
        """Has every node recompute the topic from its own log, and compares the results. A node
        that has not finished after `timeout` seconds is `unread` in the result. With `tier` the
        masters also read all that is in the object store, and compare it with the log where that
        has the same messages.

        `on_progress` is called in this thread. Raises UnknownTopic, and Unavailable when a group
        has no master.
        """

        def start(note: Callable[[VerifyProgress], object]) -> Coroutine[Any, Any, VerifyResult]:
            return Verification(self._session.cluster, note, tier=tier).run(topic, timeout)

        return run_telling(
            self._session, start, on_progress, timeout, f"not verified within {timeout:g} s"
        )
