"""The asyncio `AsyncAdmin`.

The synchronous half, `api/sync_admin.py`, is generated from this module by `tools/unasync.py`,
which explains the marks in the comments. It is one file because it is one class.

Not here: what the calls do (`admin/calls.py`, `admin/verify.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from semel.client.admin import quotas, rights
from semel.client.admin.delay_history import DelayRelease, delay_history
from semel.client.admin.delays import (
    LIMIT_DEFAULT,
    DelayedMessage,
    DelayStats,
    delay_stats,
    list_delayed,
)
from semel.client.admin.descriptions import (
    ClusterStatus,
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
from semel.client.admin.found_message import (
    CancelResult,
    FoundMessage,
    cancel_message,
    find_message,
)
from semel.client.admin.given_up import UnreadableBatch, give_up_delayed
from semel.client.admin.group_pages import GroupPage, find_groups
from semel.client.admin.inspection import Inspection
from semel.client.admin.nodes import DrainResult, MemberProgress, MembershipResult, MembershipWork
from semel.client.admin.quotas import QuotaInfo
from semel.client.admin.resets import OffsetReset, Shift, Target
from semel.client.admin.restore import RestorePlan, RestoreResult, RestoreWork
from semel.client.admin.rights import AccessDecision, AccessRules, PasswordUser, WhoAmI
from semel.client.admin.rolling import (
    RestartProgress,
    RestartTarget,
    RollingRestart,
    RollingResult,
)
from semel.client.admin.settings import (
    SettingChange,
    SettingInfo,
    change_setting,
    chosen_nodes,
    show_settings,
)
from semel.client.admin.stored_message import StoredMessage, show_message
from semel.client.admin.tier_restore import (
    TierRestorePlan,
    TierRestoreProgress,
    TierRestoreWork,
)
from semel.client.admin.topic_index import TopicPage
from semel.client.admin.topic_settings import Compaction, IdDedup, Storage, storage_number
from semel.client.admin.upgrade import Upgrade, upgrade
from semel.client.admin.upgrade_check import UpgradeCheck, check_upgrade
from semel.client.admin.verify import Verification, VerifyProgress
from semel.client.api.telling import await_telling
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
from semel.client.reading.offsets import Place, Places
from semel.client.session import Session


class AsyncAdmin:
    """Administrative calls; each returns once it is done."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create_topic(
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
        return await self._session.await_run(
            self._session.admin.create_topic(
                name, queues, settings, if_not_exists, groups, dedup, compaction
            )
        )

    async def alter_topic(
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
        return await self._session.await_run(
            self._session.admin.alter_topic(name, settings, queues, dedup, compaction)
        )

    async def split_queue(self, topic: str, queue: int, *, children: int = 2) -> list[int]:
        """Splits one queue and returns the numbers of its children. It is read to its end before
        its children are. Repeating the same call succeeds.

        Raises UnknownTopic, UnknownQueue, InvalidRequest.
        """
        return await self._session.await_run(
            self._session.admin.split_queue(topic, queue, children)
        )

    async def move_queue(self, topic: str, queue: int, group: int) -> QueueMove:
        """Begins to move a queue to another broker group, with its messages, sequence table and
        offsets, and returns at once. `list_moves` shows its progress. Producers and consumers
        continue. Repeating the same call succeeds.

        Raises UnknownTopic, UnknownQueue, UnknownGroup, InvalidRequest, and Unavailable while the
        group has no master.
        """
        return await self._session.await_run(self._session.admin.move_queue(topic, queue, group))

    async def cancel_move(self, topic: str, queue: int) -> QueueMove:
        """Cancels a move that is not decided: the queue stays where it is.

        Raises UnknownTopic, and InvalidRequest when there is no move, or it is decided.
        """
        return await self._session.await_run(self._session.admin.cancel_move(topic, queue))

    async def list_moves(self, topic: str = "") -> list[QueueMove]:
        """Returns moves under way, and those that were given up, of one topic or of all."""
        return await self._session.await_run(self._session.admin.list_moves(topic))

    async def delete_topic(self, name: str, *, if_exists: bool = False) -> bool:
        """Deletes a topic and its data, for good. Returns False if there was none."""
        return await self._session.await_run(self._session.admin.delete_topic(name, if_exists))

    async def list_topics(self) -> list[TopicSummary]:
        """Returns all topics, by name."""
        return await self._session.await_run(self._session.admin.list_topics())

    async def find_topics(self, search: str = "", *, start: int = 0, limit: int = 50) -> TopicPage:
        """Returns the topics whose names have `search` in them, in capitals or not, by name: at
        most `limit` of them, 1,000 at most, from number `start` on. Only what changed since the
        client's last call is fetched. Raises InvalidRequest."""
        session = self._session
        return await session.await_run(session.admin.topic_index.page(search, start, limit))

    async def describe_topic(self, name: str) -> TopicDescription:
        """Returns a topic with its queues and their offsets. Raises UnknownTopic."""
        return await self._session.await_run(self._session.admin.describe_topic(name))

    async def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        """Returns topics in the order of `names`, fetched concurrently. Raises UnknownTopic."""
        return await self._session.await_run(self._session.admin.describe_topics(names))

    async def offsets_at(self, name: str, time_us: int) -> dict[int, int]:
        """Returns by queue of a topic the first offset that was appended at or after a time, in
        microseconds since the epoch; a queue without one gives its end. Raises UnknownTopic."""
        return await self._session.await_run(self._session.admin.offsets_at(name, time_us))

    async def list_groups(self) -> list[str]:
        """Returns the names of all consumer groups."""
        return await self._session.await_run(self._session.admin.list_groups())

    async def find_groups(self, search: str = "", *, start: int = 0, limit: int = 50) -> GroupPage:
        """Returns the consumer groups whose names have `search` in them, in capitals or not, by
        name: at most `limit` of them, 200 at most, from number `start` on. Only their own figures
        are asked for. Raises InvalidRequest; UnsupportedVersion for a broker that is too old."""
        session = self._session
        topics = session.admin.topic_index
        return await session.await_run(find_groups(session.cluster, topics, search, start, limit))

    async def describe_group(self, group: str) -> GroupDescription:
        """Returns members, progress and lag of a consumer group. Raises UnknownGroup."""
        return await self._session.await_run(self._session.admin.describe_group(group))

    async def group_summaries(self) -> list[GroupSummary]:
        """Returns consumer groups with their members, topics, lag and locks, by name."""
        return await self._session.await_run(self._session.admin.group_summaries())

    async def plan_offset_resets(
        self, group: str, topics: Sequence[str | Target] = (), *, to: Place | Shift
    ) -> tuple[list[OffsetReset], list[str]]:
        """Returns the changes that moving a group would make, one row per queue, and the names of
        its present consumers. Changes nothing.

        `topics` are names, or (name, queue) pairs; without any, all on which the group has
        progress.
        Raises UnknownTopic, UnknownQueue, UnknownGroup, OffsetOutOfRange.
        """
        targets = [(topic, None) if isinstance(topic, str) else topic for topic in topics]
        return await self._session.await_run(self._session.admin.plan_resets(group, targets, to))

    async def carry_out_resets(self, group: str, plan: Sequence[OffsetReset]) -> None:
        """Moves a group as planned. Raises InvalidRequest while it has members or locks."""
        await self._session.await_run(self._session.admin.carry_out_resets(group, plan))

    async def reset_offsets(self, group: str, topic: str, to: Places) -> dict[int, int]:
        """Moves a group's progress and fences its running consumers. Returns the new offsets by
        queue."""
        return await self._session.await_run(self._session.admin.reset_offsets(group, topic, to))

    async def publish_progress(
        self, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> list[tuple[str, int]]:
        """Stores next offsets by (topic, queue) of a reader without a group, under a group's name
        that shows its lag. Returns the queues that a member holds, which are left alone.

        Raises InvalidRequest when consumers have ever joined the group, UnknownTopic.
        """
        return await self._session.await_run(self._session.admin.publish_progress(group, offsets))

    async def delete_group(self, group: str) -> None:
        """Deletes a group without members. Raises UnknownGroup, and InvalidRequest while it has
        members, or if redrives keep their records there."""
        await self._session.await_run(self._session.admin.delete_group(group))

    async def cluster_status(self) -> ClusterStatus:
        """Returns broker groups, nodes and controllers."""
        return await self._session.await_run(self._session.admin.cluster_status())

    async def inspect_cluster(self, *, deep: bool = False) -> Inspection:
        """Returns the controllers' view, and every controller's and node's own report.

        `deep` includes consumer groups and named producers. Raises Unavailable when no controller
        answers, and nothing else.
        """
        return await self._session.await_run(self._session.admin.inspect_cluster(deep))

    async def change_access_rules(
        self,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        add_members: Mapping[str, Sequence[str]] | None = None,
        remove_members: Mapping[str, Sequence[str]] | None = None,
    ) -> bool:
        """Changes rules, `allow|deny PRINCIPAL ACTION RESOURCE`, and members (`user:NAME`) of
        groups; False if all is so already. Raises InvalidRequest, PermissionDenied."""
        return await self._session.await_run(
            rights.change_rules(
                self._session.cluster, add, remove, add_members or {}, remove_members or {}
            )
        )

    async def access_rules(self) -> AccessRules:
        """Returns all rules and groups of principals. Raises PermissionDenied."""
        return await self._session.await_run(rights.list_rules(self._session.cluster))

    async def check_access(self, principal: str, action: str, resource: str) -> AccessDecision:
        """Returns whether a principal may do something, and the rule that decides."""
        return await self._session.await_run(
            rights.check_right(self._session.cluster, principal, action, resource)
        )

    async def set_quotas(self, subject: str, limits: Mapping[str, int]) -> bool:
        """Sets limits by kind, such as `{"write-bytes": 10 << 20}`, for `user:NAME`, `group:NAME`,
        `*` (every other user) or `topic:NAME`; False if they are so already. See docs/quotas.md.
        Raises InvalidRequest, PermissionDenied."""
        return await self._session.await_run(
            quotas.set_quotas(self._session.cluster, subject, limits)
        )

    async def remove_quotas(self, subject: str, kinds: Sequence[str] = ()) -> bool:
        """Removes quotas of a subject, by default all of them; False if there were none. Raises
        InvalidRequest, PermissionDenied."""
        return await self._session.await_run(
            quotas.remove_quotas(self._session.cluster, subject, kinds)
        )

    async def quotas(self, of: str = "") -> list[QuotaInfo]:
        """Returns all quotas, or those that apply to `user:NAME` or `topic:NAME`. Raises
        InvalidRequest, PermissionDenied."""
        return await self._session.await_run(quotas.list_quotas(self._session.cluster, of))

    async def who_am_i(self) -> WhoAmI:
        """Returns the caller as the cluster knows it."""
        return await self._session.await_run(rights.who_am_i(self._session.cluster))

    async def add_user(self, user: str, password: str) -> None:
        """Adds a user who logs in with a password. Raises InvalidRequest for one that exists, and
        for a password of less than 8 characters."""
        await self._session.await_run(rights.add_user(self._session.cluster, user, password))

    async def change_password(self, user: str, password: str) -> None:
        """Gives a user a new password. Raises InvalidRequest for one that does not exist."""
        await self._session.await_run(rights.change_password(self._session.cluster, user, password))

    async def remove_user(self, user: str) -> bool:
        """Ends the logins of a user; False if there is none. Certificates that it has got go on
        until they expire."""
        return await self._session.await_run(rights.remove_user(self._session.cluster, user))

    async def list_users(self) -> list[PasswordUser]:
        """Returns the users that have a password, by name."""
        return await self._session.await_run(rights.list_users(self._session.cluster))

    async def list_producers(self) -> list[ProducerSummary]:
        """Returns the named producers, by name."""
        return await self._session.await_run(self._session.admin.list_producers())

    async def describe_producer(self, name: str) -> ProducerDescription:
        """Returns a named producer and its rows in the sequence tables. Raises UnknownProducer."""
        return await self._session.await_run(self._session.admin.describe_producer(name))

    async def produce_outcome(
        self, name: str, topic: str, queue: int, sequence: int
    ) -> ProduceOutcome:
        """Returns the fate of one sequence of a named producer."""
        return await self._session.await_run(
            self._session.admin.produce_outcome(name, topic, queue, sequence)
        )

    async def verify(
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

        `on_progress` is called on this loop. Raises UnknownTopic, and Unavailable when a group has
        no master.
        """

        def start(note: Callable[[VerifyProgress], object]) -> Coroutine[Any, Any, VerifyResult]:
            return Verification(self._session.cluster, note, tier=tier).run(topic, timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, f"not verified within {timeout:g} s"
        # sync: )

    # --- messages

    async def show_message(self, topic: str, queue: int, offset: int) -> StoredMessage:
        """Returns one stored message with all that is known of it: when it was appended, and who
        sent it.

        Raises UnknownTopic, UnknownQueue, and OffsetOutOfRange for an offset that the queue does
        not hold (any more, or yet).
        """
        session = self._session
        return await session.await_run(
            show_message(session.cluster, session.runtime, topic, queue, offset)
        )

    async def find_message(self, topic: str, message_id: bytes | str) -> FoundMessage | None:
        """Returns the newest message with an id, and where it is: stored at an offset, delayed,
        removed by retention or cancelled. None if the topic's window of ids has left it behind, or
        never had it.

        Raises UnknownTopic; InvalidRequest for an id of 0 bytes or more than 128, and for a topic
        that compares no ids; UnsupportedVersion for a broker that is too old to tell.
        """
        session = self._session
        return await session.await_run(find_message(session.cluster, topic, message_id))

    async def cancel(self, topic: str, message_id: bytes | str) -> CancelResult:
        """Takes a delayed message out before it is due: it is never delivered, and its id can be
        used again.

        The result is "cancelled", also if it was cancelled before; "delivered", with queue, offset
        and time, if it was due; or "unknown". Raises UnknownTopic; InvalidRequest for an id of 0
        bytes or more than 128, for a topic that compares no ids, and for a message that was never
        delayed; UnsupportedVersion for a broker that is too old.
        """
        session = self._session
        return await session.await_run(cancel_message(session.cluster, topic, message_id))

    async def give_up_delayed(
        self, topic: str, queue: int, batch: UnreadableBatch | None = None
    ) -> UnreadableBatch:
        """Gives up the next delayed batch of a split queue, if no node can read it: its messages
        are lost, and those behind it reach the queue's children. Returns it; without `batch`, which
        an earlier call returned, nothing is given up.

        Raises UnknownTopic, InvalidRequest, Unavailable if not every node answers, and Throttled.
        """
        session = self._session
        return await session.await_run(give_up_delayed(session.cluster, topic, queue, batch))

    async def list_delayed(
        self, topic: str, *, before: datetime | int | None = None, limit: int = LIMIT_DEFAULT
    ) -> list[DelayedMessage]:
        """Returns the first `limit` messages, at most 10,000, that are stored and not delivered
        yet, by due time: with `before` only those that are due before that time, a datetime with a
        time zone or microseconds since 1970.

        A message that is due and about to be delivered may be among them. Raises UnknownTopic,
        InvalidRequest, and UnsupportedVersion for a broker that is too old to tell.
        """
        session = self._session
        return await session.await_run(list_delayed(session.cluster, topic, before, limit))

    async def delay_stats(self, topic: str) -> DelayStats:
        """Returns how many messages of a topic are delayed, by when they are due, from the clock of
        the brokers' log on.

        Raises UnknownTopic, and UnsupportedVersion for a broker that is too old to tell.
        """
        session = self._session
        return await session.await_run(delay_stats(session.cluster, topic))

    async def delay_history(
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
        return await session.await_run(delay_history(session.cluster, topic, since, limit))

    # --- dead letters

    async def dead_letters(
        self, topic: str, which: LetterFilter = EVERYTHING, *, limit: int = 1_000
    ) -> list[DeadLetter]:
        """Returns the first `limit` matching dead letters of a dead-letter topic or of a group, by
        queue and offset. Nothing behind them is read.

        Raises UnknownTopic.
        """
        found = DeadLetters(self._session.cluster, self._session.runtime, topic)
        return await self._session.await_run(found.list(which, limit))

    async def redrive(
        self,
        topic: str,
        which: LetterFilter = EVERYTHING,
        *,
        to: Literal["origin", "group"] = "origin",
        dry_run: bool = False,
        # sync: timeout: float = 3600.0,
        on_progress: Callable[[RedriveProgress], object] | None = None,
    ) -> RedriveResult:
        """Brings dead letters back, each at most once, to the topic they came from, or to the first
        retry topic of their group, which nobody else reads.

        A run that was interrupted may be repeated. `on_progress` is called on this loop. Raises
        UnknownTopic; ProducerFenced when another run of the topic has begun; LockLost when the lock
        of the run was lost and no broker can tell why: repeat it.
        """
        session = self._session

        def start(note: Callable[[RedriveProgress], object]) -> Coroutine[Any, Any, RedriveResult]:
            cluster, runtime = session.cluster, session.runtime
            return redrive_letters(
                cluster, runtime, topic, which, to=to, dry_run=dry_run, note=note
            )

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session,
        # sync:     start,
        # sync:     on_progress,
        # sync:     timeout,
        # sync:     f"not all brought back within {timeout:g} s: what came back stays, repeat it",
        # sync: )

    # --- broker nodes

    async def replace_node(
        self,
        old: int,
        new: int,
        *,
        address: str = "",
        allow_same_machine: bool = False,
        ignore_memory: bool = False,
        timeout: float = 3600.0,
        on_progress: Callable[[MemberProgress], object] | None = None,
    ) -> MembershipResult:
        """Replaces node `old`, dead or alive, by node `new`, which was started with --join.

        A call that was interrupted goes on where it stopped. Give an `address` if the node does not
        report to the controllers. A machine that already has a voter of the group is refused
        without `allow_same_machine`. `old` stays until all others have its messages of topics in
        memory, unless `ignore_memory`. Raises InvalidRequest, Unavailable, Throttled, TimedOut.
        """

        def start(
            note: Callable[[MemberProgress], object],
        ) -> Coroutine[Any, Any, MembershipResult]:
            return MembershipWork(
                self._session.cluster,
                note,
                allow_same_machine=allow_same_machine,
                ignore_memory=ignore_memory,
            ).replace(old, new, address, timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "not replaced in time"
        # sync: )

    async def grow_group(
        self,
        group: int,
        to: int,
        *,
        nodes: Mapping[int, str] | None = None,
        allow_same_machine: bool = False,
        timeout: float = 3600.0,
        on_progress: Callable[[MemberProgress], object] | None = None,
    ) -> MembershipResult:
        """Grows a broker group to 3 or 5 voters by `nodes` (addresses by number), or by nodes that
        wait to join.

        Raises InvalidRequest, Unavailable, TimedOut.
        """

        def start(
            note: Callable[[MemberProgress], object],
        ) -> Coroutine[Any, Any, MembershipResult]:
            return MembershipWork(
                self._session.cluster, note, allow_same_machine=allow_same_machine
            ).grow(group, to, nodes or {}, timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "not grown in time"
        # sync: )

    async def look_at_restore(self, group: int, *, lost: Collection[int] = ()) -> RestorePlan:
        """Returns what `restore_group` would do. Raises InvalidRequest, Unavailable."""
        work = RestoreWork(self._session.cluster, group, lost)
        return await self._session.await_run(work.look())

    async def restore_group(
        self, group: int, *, lost: Collection[int] = (), timeout: float = 60.0
    ) -> RestoreResult:
        """Restores a broker group from its remaining disks after a majority of them was lost.

        Acknowledged messages that only `lost` nodes had are gone, and their directories are refused
        for ever. Raises InvalidRequest, Unavailable, TimedOut. A repeated call continues.
        """
        work = RestoreWork(self._session.cluster, group, lost)
        return await self._session.await_run(work.restore(timeout))

    async def look_at_tier(
        self,
        url: str,
        *,
        without: Collection[str] = (),
        timeout: float = 600.0,
        on_progress: Callable[[TierRestoreProgress], object] | None = None,
    ) -> TierRestorePlan:
        """Returns what `restore_cluster` would do, and what of the lost cluster is gone.

        Raises InvalidRequest if it is impossible, and Unavailable. With `timeout` seconds over,
        TimedOut is raised.
        """

        def start(
            note: Callable[[TierRestoreProgress], object],
        ) -> Coroutine[Any, Any, TierRestorePlan]:
            return TierRestoreWork(self._session.cluster, url, without, note).look(timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "the tier was not read in time"
        # sync: )

    async def restore_cluster(
        self,
        url: str,
        *,
        without: Collection[str] = (),
        timeout: float = 3600.0,
        on_progress: Callable[[TierRestoreProgress], object] | None = None,
    ) -> TierRestorePlan:
        """Gives this cluster, which must be empty, the topics of a cluster that is lost, from the
        tier at `url`: messages, sequence table and group offsets. Returns what is restored, and
        what is gone. The brokers must have been started with that URL and `tier_restore`.

        `without` are names or ids of topics that are not restored. Raises InvalidRequest,
        Unavailable, TimedOut. A repeated call continues.
        """

        def start(
            note: Callable[[TierRestoreProgress], object],
        ) -> Coroutine[Any, Any, TierRestorePlan]:
            return TierRestoreWork(self._session.cluster, url, without, note).restore(timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "not restored in time"
        # sync: )

    async def remove_node(
        self,
        node: int,
        *,
        shrink: bool = False,
        ignore_memory: bool = False,
        timeout: float = 60.0,
    ) -> MembershipResult:
        """Removes a node from its group: a learner left over, or a voter too many. With `shrink`
        the group goes on to fewer voters, one by one.

        It stays until all others have its messages of topics in memory, unless `ignore_memory`.
        Raises InvalidRequest, Unavailable, Throttled, TimedOut.
        """
        work = MembershipWork(self._session.cluster, ignore_memory=ignore_memory)
        return await self._session.await_run(work.remove(node, shrink, timeout))

    async def transfer_mastership(
        self, group: int, node: int = 0, *, timeout: float = 300.0, ignore_memory: bool = False
    ) -> int:
        """Moves mastership to a voter, 0 for the most advanced one; returns the master's number.

        No write is refused meanwhile. Waits `timeout` seconds for a node that still pulls messages
        of topics in memory, unless `ignore_memory`. Raises InvalidRequest, Unavailable, Throttled.
        """
        work = MembershipWork(self._session.cluster, ignore_memory=ignore_memory)
        return await self._session.await_run(work.transfer(group, node, timeout))

    async def check_upgrade(self, level: int | None = None) -> UpgradeCheck:
        """Returns what an upgrade to `level` would meet, by default to the highest level that all
        who answer know: who runs what, what is in its way, and what the raise would allow.

        Changes nothing. A node or controller that does not answer raises nothing.
        """
        return check_upgrade(await self.inspect_cluster(), level=level)

    async def upgrade(self, level: int | None = None, *, dry_run: bool = False) -> Upgrade:
        """Raises the feature level of every broker group and of the metadata, for good.

        The default is the highest level that every node and controller knows. `dry_run` only
        returns what would be done. Raises Unavailable when one of them does not answer, and
        UnsupportedVersion when one does not know `level`; nothing is changed then.
        """
        found = await self.inspect_cluster()
        work = upgrade(self._session.cluster, found, level=level, dry_run=dry_run)
        return await self._session.await_run(work)

    async def show_settings(
        self,
        names: Collection[str] = (),
        *,
        brokers: Collection[int] | None = None,
        controllers: Collection[int] | None = None,
    ) -> list[SettingInfo]:
        """Returns the settings `names`, all without any, of the broker nodes and controllers of
        these numbers, of all if none are given.

        Raises InvalidRequest for a setting or a node that does not exist, and Unavailable for a
        node that does not answer.
        """
        session = self._session
        nodes = chosen_nodes(await self.cluster_status(), brokers, controllers)
        return await session.await_run(show_settings(session.cluster, nodes, names))

    async def change_setting(
        self,
        name: str,
        value: int | None,
        *,
        brokers: Collection[int] | None = None,
        controllers: Collection[int] | None = None,
    ) -> list[SettingChange]:
        """Changes a setting, on all nodes that have it or on those of these numbers, until they are
        started again; None gives it the value that each was started with.

        Raises InvalidRequest for a setting that counts from the start of a node on, and for a value
        that makes no sense; Unavailable for a node that does not answer. Nothing is changed then.
        """
        session = self._session
        nodes = chosen_nodes(await self.cluster_status(), brokers, controllers)
        return await session.await_run(change_setting(session.cluster, nodes, name, value))

    async def restart_cluster(
        self,
        *,
        kinds: Collection[Literal["controller", "broker"]] = ("controller", "broker"),
        nodes: Collection[int] = (),
        ran_for: float = 0.0,
        restart: Callable[[RestartTarget], object] | None = None,
        allow_gap: bool = False,
        ignore_memory: bool = False,
        node_timeout: float = 300.0,
        # sync: timeout: float = 86_400.0,
        on_progress: Callable[[RestartProgress], object] | None = None,
    ) -> RollingResult:
        """Restarts the controllers and broker nodes one after the other, under load: only `kinds`,
        only the broker nodes `nodes`, and only those that run for `ran_for` seconds or longer.

        Each node ends in order and starts its program anew, in the same process; `restart`, if it
        is given, restarts it another way, and is called in a thread. The next one follows once that
        one is back and its group is whole, for each of which there are `node_timeout` seconds. A
        group of one node, whose queues nobody serves meanwhile, needs `allow_gap`. Raises
        InvalidRequest, Unavailable, TimedOut, and UnsupportedVersion for nodes that are too old to
        restart themselves.
        """
        session = self._session

        def start(note: Callable[[RestartProgress], object]) -> Coroutine[Any, Any, RollingResult]:
            return RollingRestart(
                session.cluster,
                lambda: session.admin.inspect_cluster(False),
                note,
                restart=restart,
                node_timeout_s=node_timeout,
                ignore_memory=ignore_memory,
            ).run(kinds=kinds, nodes=nodes, ran_s=ran_for, allow_gap=allow_gap)

        return await await_telling(session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     session, start, on_progress, timeout, "not all nodes were restarted in time"
        # sync: )

    async def drain_node(
        self,
        node: int,
        *,
        seconds: float = 60.0,
        timeout: float = 300.0,
        ignore_memory: bool = False,
        on_progress: Callable[[MemberProgress], object] | None = None,
    ) -> DrainResult:
        """Keeps a node from being master for some time, for a restart; 0 seconds end that.

        Waits `timeout` seconds for other nodes that lack messages of topics in memory, which could
        be lost if this one stopped, unless `ignore_memory`. Raises InvalidRequest, Unavailable when
        no other node can be master, and Throttled when others still lack messages.
        """

        def start(note: Callable[[MemberProgress], object]) -> Coroutine[Any, Any, DrainResult]:
            return MembershipWork(self._session.cluster, note, ignore_memory=ignore_memory).drain(
                node, round(seconds * 1000), timeout
            )

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "not drained in time"
        # sync: )
