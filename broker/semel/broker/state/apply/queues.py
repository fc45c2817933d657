"""One queue as the log defines it: its bounds, its settings and its extents.

Invariants
1. Offsets are dense until compaction leaves gaps in them: the next batch begins at
   `log_end_offset`, even after a trim, and extents leave no offset out.
2. `log_start_offset` and `log_end_offset` never fall; the start is never above the end.
3. A trim never touches the sequence table: a retry of a trimmed batch is still a duplicate.
4. A queue with children is sealed: its `log_end_offset` no longer changes.
5. `log_start_offset <= local_start <= log_end_offset`, and the log has extents from `local_start`
   on. Offsets below it are *cold*: if there are any, `tier.start <= log_start_offset` and
   `local_start <= tier.end`, so the object store has them.
6. A queue that has a manifest is not compacted, whatever its topic says.

7. A queue is in memory, or in the log, for its whole life.

Not here: the columns of extents (`extents.py`), compaction (`compacted.py`), the pointer into the
object store (`tiered.py`), lost offsets of a queue in memory (`lost_offsets.py`), expired rows
(`expired.py`), the rows of the sequence table (`producers.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader, pack_text
from semel.broker.state.apply.compacted import (
    Compaction,
    CompactionSettings,
    Rewritten,
    apply_compact,
)
from semel.broker.state.apply.expired import Expired
from semel.broker.state.apply.extents import I64, Extent, Extents
from semel.broker.state.apply.lost_offsets import RECORD_BYTES, Lost, memory_bytes_of
from semel.broker.state.apply.results import StateDiverged
from semel.broker.state.apply.tiered import ColdRetention, TierState, pack_tier, read_tier
from semel.protos.batch import BATCH_BYTES_DEFAULT, MESSAGE_BYTES_MAX
from semel.protos.errors import OffsetOutOfRange, Unavailable
from semel.protos.ids import Offset, QueueId, QueueKey, TopicId
from semel.protos.levels import (
    COMPACTION_LEVEL,
    DELAY_LIMIT_LEVEL,
    MEMORY_LEVEL,
    SPLIT_LEVEL,
    TIER_LEVEL,
)
from semel.protos.v1 import common_pb2, control_pb2

SLOTS: Final = 65_536
_FIXED: Final = struct.Struct("<QIIIqqIIqqqqQQQ")
_LINEAGE: Final = struct.Struct("<qI")
_LIMITS: Final = struct.Struct("<q")
_CHILD: Final = struct.Struct("<III")


class Child(NamedTuple):
    """A queue that a split creates."""

    queue_id: int
    slot_start: int
    slot_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings of a topic, with the defaults filled in."""

    retention_ms: int = -1
    """-1 keeps everything: without a request nothing is deleted."""
    retention_bytes: int = -1
    message_bytes_max: int = MESSAGE_BYTES_MAX
    batch_bytes_max: int = BATCH_BYTES_DEFAULT
    delay_per_second_max: int = 0
    """0: no limit."""
    compaction: CompactionSettings | None = None
    tier_after_ms: int = 0
    """Messages of this age go to the object store; 0: none does."""
    local_retention_ms: int = 0
    """The log gives up what is in the object store at this age; 0 or -1: it never does."""
    memory_bytes: int = 0
    """The bodies of a topic in memory, at most so many bytes of them; 0: the topic is in the
    log."""

    @classmethod
    def from_message(cls, message: common_pb2.TopicSettings, level: int = 0) -> QueueSettings:
        """Reads the message; zero, which protobuf uses for "absent", means the default.

        There is neither compaction nor tiering nor a topic in memory below the feature level that
        knows it.
        """
        compacted, tiered = level >= COMPACTION_LEVEL, level >= TIER_LEVEL
        return cls(
            compaction=CompactionSettings.from_message(message) if compacted else None,
            retention_ms=message.retention_ms or -1,
            retention_bytes=message.retention_bytes or -1,
            message_bytes_max=message.message_bytes_max or MESSAGE_BYTES_MAX,
            batch_bytes_max=message.batch_bytes_max or BATCH_BYTES_DEFAULT,
            delay_per_second_max=max(0, message.delay_per_second_max),
            tier_after_ms=message.tier_after_ms if tiered else 0,
            local_retention_ms=message.local_retention_ms if tiered else 0,
            memory_bytes=memory_bytes_of(message, level),
        )


class QueueState:
    """One queue of the replicated state."""

    __slots__ = (
        "bytes",
        "children",
        "compaction",
        "expired",
        "extents",
        "frozen",
        "held",
        "key",
        "last_append_us",
        "local_start",
        "log_end_offset",
        "log_start_offset",
        "lost",
        "parent",
        "settings",
        "slot_end",
        "slot_start",
        "tier",
        "token_floor",
        "topic",
    )

    def __init__(
        self,
        key: QueueKey,
        topic: str,
        slot_start: int,
        slot_end: int,
        settings: QueueSettings,
    ) -> None:
        self.key = key
        self.topic = topic
        self.slot_start = slot_start
        self.slot_end = slot_end
        self.settings = settings
        self.log_start_offset = 0
        self.local_start = 0
        """First offset of which the log has extents: the start, unless something was forgotten."""
        self.log_end_offset = 0
        self.tier = TierState()
        self.bytes = 0
        """Total length of the live extents; a batch with cancelled messages may have several."""
        self.last_append_us = 0
        self.expired = Expired()
        self.token_floor = 0
        """The fencing tokens of a consumer group that starts anew here are above this."""
        self.extents = Extents()
        self.parent: int | None = None
        """Number of the queue whose split created this one."""
        self.children: tuple[Child, ...] = ()
        """The queues that a split created from this one, by rising slot."""
        self.frozen = False
        """A move has sealed the queue (`moves.py`): nothing changes until the move ends."""
        self.held = False
        """A move copies the queue: it is not compacted until the move has sealed it, or ends."""
        self.compaction = Compaction()
        self.lost = Lost()

    def bare(self) -> QueueState:
        """A copy without the extents."""
        made = QueueState(self.key, self.topic, self.slot_start, self.slot_end, self.settings)
        made.log_start_offset, made.log_end_offset = self.log_start_offset, self.log_end_offset
        made.bytes, made.last_append_us = self.bytes, self.last_append_us
        made.token_floor, made.expired = self.token_floor, self.expired.copy()
        made.parent, made.children = self.parent, self.children
        made.compaction = self.compaction.copy()
        made.local_start, made.tier = self.local_start, self.tier
        made.lost = self.lost.copy()
        return made

    def begin_at(self, offset: int) -> None:
        """Makes an empty queue of it that begins at an offset."""
        self.extents = Extents()
        self.bytes = 0
        self.log_start_offset = self.local_start = self.log_end_offset = offset

    @property
    def in_memory(self) -> bool:
        """The log has only the headers of its batches."""
        return self.settings.memory_bytes > 0

    @property
    def log_bytes(self) -> int:
        """Total length of the records of the live extents in the log."""
        return len(self.extents) * RECORD_BYTES if self.in_memory else self.bytes

    @property
    def sealed(self) -> bool:
        """The queue was split, so nothing is appended to it any more."""
        return bool(self.children)

    def append_time_us(self, now_us: int) -> int:
        """The append time of a batch that is appended at log time `now_us`.

        It is never before that of the newest batch: a queue that was moved here may have batches
        whose times come from another group's clock.
        """
        return max(now_us, self.last_append_us)

    def append(
        self,
        count: int,
        index: int,
        position: int,
        length: int,
        append_time_us: int,
        *,
        first_row: int = 0,
    ) -> None:
        """Appends `count` messages of a stored batch, from `first_row` on, to the queue."""
        base = self.log_end_offset
        self.extents.append(base, first_row, index, position, length, append_time_us)
        self.log_end_offset += count
        self.bytes += length
        self.last_append_us = append_time_us

    def trim(self, log_start_offset: int) -> None:
        """Raises the start, never lowers it. A partly trimmed extent stays whole."""
        if log_start_offset <= self.log_start_offset:
            return
        assert log_start_offset <= self.log_end_offset
        self.log_start_offset = log_start_offset
        self._give_up(log_start_offset)
        if self.lost.ranges:
            self.lost.trim(log_start_offset)

    def forget(self, local_start: int) -> None:
        """Gives up the extents below an offset, up to the tier's end; readers notice nothing. A
        partly forgotten extent stays whole. Raises StateDiverged."""
        if local_start > self.tier.end:
            raise StateDiverged(
                f"queue {self.key} cannot forget up to {local_start}: the object store has"
                f" {self.tier}"
            )
        self._give_up(local_start)

    def _give_up(self, local_start: int) -> None:
        """Raises the offset from which on the log has extents, never lowers it."""
        if local_start <= self.local_start:
            return
        self.local_start = local_start
        extents = self.extents
        if local_start == self.log_end_offset:
            ordinal = extents.total
        else:
            ordinal = extents.find_offset(local_start)
        self.bytes -= extents.bytes_before(ordinal)
        extents.trim(ordinal)

    def lose(self, from_offset: int, to_offset: int) -> None:
        """Applies a LOSE_MEMORY record: these offsets, as far as they are not trimmed, are lost."""
        from_offset = max(from_offset, self.log_start_offset)
        if from_offset < to_offset:
            self.lost.add(from_offset, to_offset)

    def move_tier(self, record: control_pb2.Tiered) -> None:
        """Applies a TIERED record. What the new manifest gave up, retention has taken: the queue
        begins behind it. Raises StateDiverged."""
        reason = self.tier.misfit(record, self.log_start_offset, self.log_end_offset)
        if reason is not None:
            raise StateDiverged(
                f"queue {self.key} has {self.tier} and is given one that does not follow: {reason}"
            )
        self.tier = self.tier.next(record)
        self.trim(record.tier_start)
        self.alter(self.settings)

    def alter(self, settings: QueueSettings) -> None:
        """Takes new settings, but stays where it is, in memory or in the log. When compaction ends,
        what it knows of tombstones does, too."""
        if (settings.memory_bytes > 0) is not self.in_memory:
            settings = replace(settings, memory_bytes=self.settings.memory_bytes)
        if self.tier.number:
            settings = replace(settings, compaction=None)
        self.settings = settings
        if settings.compaction is None:
            self.compaction.marks.clear()
            self.compaction.tombstones = self.compaction.purged_to = 0

    def compact(
        self, record: control_pb2.Compact, batches: Sequence[Rewritten], now_us: int
    ) -> bool:
        """Applies a COMPACT record with the COMPACTED ones in front of it; False, and nothing has
        changed, if it does not fit the queue as it is now. Raises StateDiverged."""
        settings, compaction = self.settings.compaction, self.compaction
        if (
            settings is None
            or self.frozen
            or self.held
            or record.compacted_to > self.log_end_offset
            or record.tombstones_below > compaction.horizon(now_us, settings.tombstone_ms)
        ):
            return False
        if record.fates:
            change = apply_compact(record, self.key, self.extents, batches, self.log_end_offset)
            if change is None:
                return False
            self.bytes += change
            compaction.records += 1
            compaction.gaps_to = max(compaction.gaps_to, record.to_offset)
        if record.compacted_to:
            compaction.end_pass(record, settings.tombstone_ms, now_us)
        return True

    def extents_from(self, offset: int, max_bytes: int) -> list[Extent]:
        """The extent that covers `offset` and those after it, as many as fit into `max_bytes`.

        There is at least one unless `offset` is the end. The first one may begin below `offset`,
        and even below the queue's start. Raises OffsetOutOfRange outside
        `[log_start_offset, log_end_offset]`, and Unavailable for a cold offset (`is_cold`).
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} lies outside [{self.log_start_offset}, {self.log_end_offset}]"
                f" of queue {self.key.queue_id} of {self.topic!r}",
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )
        if self.is_cold(offset):
            raise Unavailable(
                f"offset {offset} of queue {self.key.queue_id} of {self.topic!r} is in the object"
                f" store alone; the log begins at {self.local_start}"
            )
        found: list[Extent] = []
        if offset == self.log_end_offset:
            return found
        for extent in self.extents.read(self.extents.find_offset(offset), self.log_end_offset):
            max_bytes -= extent.length
            if max_bytes < 0 and found:
                break
            found.append(extent)
        return found

    def extents_of_entry(self, entry: int, mask: int, since_us: int) -> list[Extent]:
        """The extents that were appended at `since_us` or later, and whose entry agrees with
        `entry` in the bits of `mask`."""
        extents = self.extents
        found = extents.find_entry(extents.find_time(since_us), entry, mask)
        return [next(extents.read(ordinal, self.log_end_offset)) for ordinal in found]

    def compaction_target(self, now_us: int) -> int:
        """Up to where a pass that begins at log time `now_us` may go: at an extent's end."""
        assert self.settings.compaction is not None, "the topic is compacted"
        lag_us = self.settings.compaction.lag_ms * 1000
        return self.offset_for_time(now_us - lag_us + 1)

    def dirty_share(self, now_us: int) -> float:
        """The part of the bytes up to `compaction_target` that was not compacted yet, 0 to 1; 0
        without compaction."""
        if self.settings.compaction is None:
            return 0.0
        extents, target = self.extents, self.compaction_target(now_us)
        if target <= max(self.compaction.compacted_to, self.log_start_offset):
            return 0.0
        end = extents.total if target >= self.log_end_offset else extents.find_offset(target)
        upto = extents.bytes_before(end)
        clean = extents.bytes_before(extents.find_offset(self.compaction.compacted_to))
        return (upto - clean) / upto if upto else 0.0

    def is_cold(self, offset: int) -> bool:
        """Whether only the object store has the offset."""
        return self.log_start_offset <= offset < self.local_start

    def is_time_cold(self, time_us: int) -> bool:
        """Whether the first offset appended at `time_us` or later may be a cold one, so that
        `offset_for_time` may be too high."""
        return self.log_start_offset < self.local_start and not self._is_log_older(time_us)

    def _is_log_older(self, time_us: int) -> bool:
        """Whether anything that the log has, or had, was appended before `time_us` for sure, and so
        everything cold was."""
        extents = self.extents
        if len(extents):
            return extents.find_time(time_us) > extents.first
        return self.last_append_us < time_us

    @property
    def tier_from(self) -> int:
        """Where the next range to tier begins: where the tier ends, or, if the log has that no
        more, where the log's first extent does."""
        extents = self.extents
        if not len(extents):
            return self.log_end_offset
        return max(self.tier.end, extents.base_offset(extents.first))

    def tier_candidates(self, now_us: int) -> Offset | None:
        """Up to where messages are to go to the tier at log time `now_us`, at an extent's end;
        None if the topic is not tiered, or nothing new is old enough."""
        if not self.settings.tier_after_ms:
            return None
        target = self.offset_for_time(now_us - self.settings.tier_after_ms * 1000 + 1)
        return target if target > self.tier_from else None

    def tier_columns(self, count: int) -> tuple[I64, I64, I64]:
        """Columns of at most `count` extents from `tier_from` on: base offsets, lengths of their
        records, append times. Of batches with cancelled messages several extents may follow."""
        extents, at = self.extents, self.tier_from
        first = extents.total if at >= self.log_end_offset else extents.find_offset(at)
        return extents.columns(first, min(first + count, extents.total))

    def is_extent_edge(self, offset: int) -> bool:
        """Whether no extent of the log has offsets below and above."""
        extents = self.extents
        if not len(extents) or offset >= self.log_end_offset:
            return True
        return extents.base_offset(extents.find_offset(offset)) >= offset

    def forget_target(self, now_us: int) -> Offset | None:
        """The local_start that the settings demand at log time `now_us`, never above the tier's
        end; None to leave it as it is."""
        if self.settings.local_retention_ms <= 0 or self.local_start >= self.tier.end:
            return None
        old = self.offset_for_time(now_us - self.settings.local_retention_ms * 1000)
        target = min(old, self.tier.end)
        return Offset(target) if target > self.local_start else None

    def first_append_us(self, offset: int) -> int:
        """Append time of the first message at `offset` or above, or of the newest one below."""
        extents = self.extents
        if not len(extents):
            return self.last_append_us
        ordinal = min(extents.find_offset(offset), extents.total - 1)
        return next(extents.read(ordinal, self.log_end_offset)).append_time_us

    def offset_for_time(self, time_us: int) -> Offset:
        """The first offset of the log appended at `time_us` or later; the end offset if there is
        none. A cold one may be lower, see `is_time_cold`."""
        return Offset(self._offset_of(self.extents.find_time(time_us)))

    def _offset_of(self, ordinal: int) -> int:
        if ordinal >= self.extents.total:
            return self.log_end_offset
        return max(self.extents.base_offset(ordinal), self.local_start)

    def retention_target(self, now_us: int) -> Offset | None:
        """The new start that the settings demand at log time `now_us`; None to leave it as it is.

        Retention by age may remove everything; retention by size keeps the newest batch. Both
        remove whole batches only. Of a queue with cold offsets this is what the log alone can tell:
        a target in the log takes all that is cold along; see `cold_retention` for the rest.
        """
        if self.log_start_offset == self.log_end_offset:
            return None  # most of very many queues
        target = self.log_start_offset
        settings = self.settings
        if settings.retention_ms >= 0:
            before_us = now_us - settings.retention_ms * 1000
            if not self.is_time_cold(before_us):
                target = max(target, self.offset_for_time(before_us))
        if 0 <= settings.retention_bytes < self.bytes:
            ordinal = self.extents.find_excess(self.bytes - settings.retention_bytes)
            target = max(target, self._offset_of(ordinal))
        return Offset(target) if target > self.log_start_offset else None

    def cold_retention(self, now_us: int) -> ColdRetention | None:
        """What the settings demand of the cold offsets at log time `now_us`, which only the
        manifest can answer; None if nothing is cold or nothing is demanded.

        Bytes of the log and of the files that the log has no more count together.
        """
        settings = self.settings
        timed, sized = settings.retention_ms >= 0, settings.retention_bytes >= 0
        if self.log_start_offset == self.local_start or not (timed or sized):
            return None
        return ColdRetention(
            now_us - settings.retention_ms * 1000 if timed else None,
            max(0, settings.retention_bytes - self.bytes) if sized else None,
        )

    def live_records(self, lo_index: int, hi_index: int) -> Iterator[tuple[int, int, int]]:
        """(index, position, length) of the live records in entries `[lo_index, hi_index)`."""
        records = self.extents.records(lo_index, hi_index)
        if self.in_memory:
            return ((index, position, RECORD_BYTES) for index, position, _ in records)
        return records

    def parts(self, version: int, *, limits: bool = True) -> list[bytes]:
        """Canonical bytes in a state of this version: from SPLIT_LEVEL on with parent and children,
        from DELAY_LIMIT_LEVEL on with what a second takes (unless `limits` is false), from
        COMPACTION_LEVEL on with how it is compacted and how far, from TIER_LEVEL on with what of it
        is in the object store, from MEMORY_LEVEL on with what is lost."""
        settings = self.settings
        fixed = _FIXED.pack(
            self.key.topic_id,
            self.key.queue_id,
            self.slot_start,
            self.slot_end,
            settings.retention_ms,
            settings.retention_bytes,
            settings.message_bytes_max,
            settings.batch_bytes_max,
            self.log_start_offset,
            self.log_end_offset,
            self.bytes,
            self.last_append_us,
            self.token_floor,
            self.extents.first,
            self.extents.total,
        )
        head = fixed + pack_text(self.topic) + self.expired.pack()
        if version >= SPLIT_LEVEL:
            parent = -1 if self.parent is None else self.parent
            head += _LINEAGE.pack(parent, len(self.children))
            head += b"".join(_CHILD.pack(*child) for child in self.children)
        if version >= DELAY_LIMIT_LEVEL and limits:
            head += _LIMITS.pack(settings.delay_per_second_max)
        if version >= COMPACTION_LEVEL:
            head += self.compaction.parts(settings.compaction)
        if version >= TIER_LEVEL:
            local = settings.tier_after_ms, settings.local_retention_ms, self.local_start
            head += pack_tier(self.tier, *local)
        if version >= MEMORY_LEVEL:
            head += self.lost.parts(settings.memory_bytes)
        return [head, *self.extents.parts()]

    @classmethod
    def read_parts(cls, reader: Reader, version: int, *, limits: bool = True) -> QueueState:
        """The inverse of `parts`. Raises CorruptSegment."""
        (
            topic_id,
            queue_id,
            slot_start,
            slot_end,
            retention_ms,
            retention_bytes,
            message_bytes_max,
            batch_bytes_max,
            log_start_offset,
            log_end_offset,
            stored_bytes,
            last_append_us,
            token_floor,
            first,
            total,
        ) = reader.unpack(_FIXED)
        settings = QueueSettings(
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            message_bytes_max=message_bytes_max,
            batch_bytes_max=batch_bytes_max,
        )
        key = QueueKey(TopicId(topic_id), QueueId(queue_id))
        queue = cls(key, reader.text(), slot_start, slot_end, settings)
        queue.log_start_offset = queue.local_start = log_start_offset
        queue.log_end_offset = log_end_offset
        queue.bytes = stored_bytes
        queue.last_append_us = last_append_us
        queue.token_floor = token_floor
        queue.expired = Expired.read(reader)
        if version >= SPLIT_LEVEL:
            parent, count = reader.unpack(_LINEAGE)
            queue.parent = None if parent < 0 else parent
            queue.children = tuple(Child(*reader.unpack(_CHILD)) for _ in range(count))
        if version >= DELAY_LIMIT_LEVEL and limits:
            (delay_per_second_max,) = reader.unpack(_LIMITS)
            queue.settings = replace(settings, delay_per_second_max=delay_per_second_max)
        if version >= COMPACTION_LEVEL:
            queue.compaction, compacted = Compaction.read(reader)
            queue.settings = replace(queue.settings, compaction=compacted)
        if version >= TIER_LEVEL:
            queue.tier, after_ms, local_ms, queue.local_start = read_tier(reader)
            queue.settings = replace(
                queue.settings, tier_after_ms=after_ms, local_retention_ms=local_ms
            )
        if version >= MEMORY_LEVEL:
            queue.lost, memory_bytes = Lost.read(reader)
            queue.settings = replace(queue.settings, memory_bytes=memory_bytes)
        queue.extents = Extents.read_parts(reader, first, total)
        return queue
