"""Transactions in the replicated state: how their records are applied.

How it works. Nearly every step is granted or refused at apply, like locks. So retries and races
need no overlay: the order of the log decides. Only PUBLISH is decided by the admission, because it
gives out offsets; apply checks it and halts on a mismatch. The admission splits no queue while a
PIN is in flight or something is pinned, so pinned batches can always be published.

Invariants
1. A publication takes all of a pin or nothing, in one record. Batches that are due later become
   delayed batches by it. In topics that compare message ids it says how many ids arrive with each
   batch. What is kept of a batch, if messages of it are dropped, stands in front of it in the same
   entry, or in front of a rewrite in an earlier one.
2. A queue is never split while something is pinned for it.
3. A publication stores the progress that its winners have staged, in the same record.

Not here: the admission of steps (`state/admission/transaction_admission.py`), the rules of stagers
and pins (`staging.py`) and of the coordinator (`coordination.py`), the calls between broker groups
(`semel.broker.background.transaction_work`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from operator import gt
from types import MappingProxyType
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.coordination import Begun, Coordination
from semel.broker.state.apply.delay_limits import pin_refusal
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.id_windows import IdWindow
from semel.broker.state.apply.locks import ConsumerGroups
from semel.broker.state.apply.queue_table import QueueTable
from semel.broker.state.apply.results import (
    ApplyResult,
    CommitOutcome,
    CommitsStaged,
    Progress,
    Published,
    PublishedPart,
    Staged,
    StagedChecked,
    StateDiverged,
    TopicArrivals,
    TransactionApplied,
)
from semel.broker.state.apply.staged_commits import (
    StagedCommit,
    cost_of_record,
    unstageable,
)
from semel.broker.state.apply.stagers import Pin, StagedExtent, Stager
from semel.broker.state.apply.staging import Staging
from semel.protos.batch import BROKER_HEADER_BYTES, decode_broker_header, decode_header
from semel.protos.delays import is_delayed
from semel.protos.errors import SemelError, Throttled
from semel.protos.ids import QueueKey
from semel.protos.levels import DELAY_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2, transaction_records_pb2

Step = transaction_records_pb2.TransactionRecord
Queues = QueueTable
PINNED_RETRY_MS: Final = 20
"""Pins end after some round trips, unless somebody died."""
NO_WINDOWS: Final[Mapping[int, IdWindow]] = MappingProxyType({})


class _Checked(NamedTuple):
    """A staged batch whose message ids were decided, and the record that takes its place."""

    queue_key: QueueKey
    producer_id: int
    replaced: tuple[int, int, int]
    """First sequence, messages and content CRC of the batch whose place it takes."""
    base_offset: int
    extent: StagedExtent
    """The record of the kept messages."""
    decision: control_pb2.CheckIds


class Transactions:
    """The part of the replicated state that belongs to transactions."""

    __slots__ = ("_checked", "coordination", "staging")

    def __init__(self) -> None:
        self.staging = Staging()
        self.coordination = Coordination()
        self._checked: list[_Checked] = []
        """Batches that a record of the entry has yet to take; none between entries, so it is no
        part of the state."""

    # --- changes ----------------------------------------------------------------------------

    def stage(
        self,
        payload: memoryview,
        queues: Queues,
        index: int,
        position: int,
        now_us: int,
        level: int,
    ) -> Staged:
        """Applies a STAGED record. Raises CorruptBatch."""
        batch = decode_header(payload, BROKER_HEADER_BYTES)
        length = len(payload)
        found = self.staging.check(batch, queues.get(batch.queue_key))
        if found is False:
            due_us = batch.deliver_at_us if level >= DELAY_LEVEL and is_delayed(batch) else 0
            self.staging.add(batch, index, position, length, now_us, due_us)
        return Staged(
            queue_key=batch.queue_key,
            length=length,
            duplicate=found is True,
            error=found if isinstance(found, SemelError) else None,
        )

    def stage_checked(
        self, payload: memoryview, decision: control_pb2.CheckIds, index: int, position: int
    ) -> StagedChecked:
        """Applies a STAGED record behind a decision about message ids: what is kept of a batch.

        Raises CorruptBatch.
        """
        base_offset = decode_broker_header(payload).base_offset
        batch = decode_header(payload, BROKER_HEADER_BYTES)
        due_us = batch.deliver_at_us if batch.count and is_delayed(batch) else 0
        extent = StagedExtent(
            index,
            position,
            len(payload),
            batch.count,
            batch.base_sequence,
            batch.content_crc,
            due_us,
        )
        self._checked.append(
            _Checked(
                batch.queue_key,
                batch.producer_id,
                (batch.base_sequence, decision.count, decision.content_crc),
                base_offset,
                extent,
                decision,
            )
        )
        return StagedChecked(queue_key=batch.queue_key)

    @property
    def unpublished(self) -> bool:
        """Whether the entry has checked batches that it neither publishes nor keeps pinned."""
        return bool(self._checked)

    def apply(
        self,
        step: Step,
        queues: Queues,
        delays: Delays,
        index: int,
        now_us: int,
        level: int,
        windows: Mapping[int, IdWindow] = NO_WINDOWS,
        *,
        groups: ConsumerGroups,
        moved: Container[QueueKey],
    ) -> ApplyResult:
        """Applies a step of a control record. `windows` are those of message ids, by topic; `moved`
        has the queues that moves know.

        Raises StateDiverged.
        """
        name = step.WhichOneof("step")
        staging, coordination = self.staging, self.coordination
        error: SemelError | None = None
        value: tuple[int, ...] = ()
        match name:
            case "open_stager":
                keys = map(queue_key_of, step.open_stager.queues)
                opened = staging.open(step.open_stager, keys, queues, now_us, level)
                error, value = _split(opened)
            case "stage_commits":
                return self._stage_commits(step.stage_commits, queues, groups, moved, now_us)
            case "pin":
                error = pin_refusal(step.pin, staging, delays, queues) or staging.pin(
                    step.pin, queues, now_us, level, windows
                )
            case "publish":
                return self._publish(step.publish, queues, delays, groups, index, now_us, windows)
            case "rewrite":
                return self._rewrite(step.rewrite, index)
            case "drop_pin":
                staging.drop_pin(step.drop_pin.transaction_id, step.drop_pin.attempt)
            case "drop_stagers":
                limit_us = now_us if step.drop_stagers.expired_only else None
                numbers = step.drop_stagers.stager_ids
                value = (staging.drop_stagers(numbers, expired_before_us=limit_us),)
            case "begin":
                error, value = _split(coordination.begin(step.begin, now_us))
            case "decide":
                error = coordination.decide(step.decide, now_us)
            case "abort":
                value = (int(coordination.abort(step.abort, now_us)),)
            case "finish":
                coordination.finish(step.finish)
            case "forget":
                coordination.forget(step.forget.transaction_ids, level)
            case _:
                raise StateDiverged(
                    f"entry {index} has a step of a transaction that this version does not know;"
                    " upgrade this node"
                )
        return TransactionApplied(step=name, error=error, value=value)

    def pinned_progress(self, group: str, key: QueueKey) -> Throttled | None:
        """Why a lock cannot be granted to somebody who relies on the committed offset: progress of
        the group is about to be stored. None if it is not."""
        if not any(
            self.staging.stagers[each].pinned for each in self.staging.places.at((group, key))
        ):
            return None
        return Throttled(
            f"progress of group {group!r} on queue {key.queue_id} is being committed with a"
            " transaction; ask again",
            retry_after_ms=PINNED_RETRY_MS,
        )

    def drop_progress(self, group: str, key: QueueKey) -> None:
        """Gives up the progress of a group on a queue that is staged and not pinned: what it is
        staged with cannot be committed any more."""
        for number in self.staging.places.at((group, key)):
            stager = self.staging.stagers[number]
            if not stager.pinned:
                self.staging.drop_commit(stager, (group, key))

    def _stage_commits(
        self,
        record: transaction_records_pb2.StageCommits,
        queues: Queues,
        groups: ConsumerGroups,
        moved: Container[QueueKey],
        now_us: int,
    ) -> CommitsStaged:
        cost = cost_of_record(record)
        stager = self.staging.open_for_commits(record)
        if not isinstance(stager, Stager):
            return CommitsStaged(group=record.group, cost=cost, error=stager)
        outcomes = []
        for commit in record.commits:
            key = queue_key_of(commit.queue)
            error = unstageable(commit)
            if error is None:
                found = groups.judge(record.group, key, queues.get(key), commit, moved=key in moved)
                error = found if isinstance(found, SemelError) else None
            if error is None:
                self.staging.add_commit(stager, record.group, key, StagedCommit.of(commit))
            outcomes.append(CommitOutcome(key, commit.offset, commit.token, error))
        stager.expires_us = now_us + stager.ttl_us
        return CommitsStaged(group=record.group, cost=cost, outcomes=tuple(outcomes))

    def _rewrite(self, record: transaction_records_pb2.RewriteBatches, index: int) -> ApplyResult:
        """Puts what is kept of pinned batches in their places. Raises StateDiverged."""
        pin = self.staging.pin_of(record.transaction_id, record.attempt)
        checked, self._checked = self._checked, []
        if not checked:
            raise StateDiverged(f"entry {index} rewrites nothing of {record}")
        for each in checked:
            if (
                pin is None
                or each.base_offset != -1
                or not self.staging.replace(
                    pin, each.producer_id, each.queue_key, each.replaced, each.extent
                )
            ):
                raise StateDiverged(f"entry {index} rewrites {each} of {record}; pinned is {pin}")
            pin.duplicates += each.decision.duplicates
            pin.conflicts += each.decision.conflicts
        return TransactionApplied(step="rewrite", value=(len(checked),))

    def _publish(
        self,
        record: transaction_records_pb2.PublishTransaction,
        queues: Queues,
        delays: Delays,
        groups: ConsumerGroups,
        index: int,
        now_us: int,
        windows: Mapping[int, IdWindow],
    ) -> Published:
        pin = self.staging.pin_of(record.transaction_id, record.attempt)
        decisions = [each.decision for each in self._checked]
        found = {} if pin is None else self._kept(self.staging.pinned_extents(pin), queues)
        parts = tuple(
            PublishedPart(queue_key_of(part.queue), part.base_offset, part.messages)
            for part in record.parts
        )
        expected = tuple(
            PublishedPart(key, queues[key].log_end_offset, messages_at_once(extents))
            for key, extents in found.items()
        )
        if (
            pin is None
            or pin.epoch != record.epoch
            or parts != expected
            or any(queues[key].sealed for key in found)
        ):
            raise StateDiverged(
                f"entry {index} publishes {parts} of transaction {record.transaction_id!r}; pinned"
                f" is {pin} with {expected}"
            )
        arrived = _arrive(record, found, windows, index, now_us)
        for key, extents in found.items():
            queue = queues[key]
            append_time_us = queue.append_time_us(now_us)
            for entry, position, length, messages, _, _, due_us in extents:
                if not messages:
                    continue
                if due_us:
                    delays.add(key, due_us, entry, position, length, messages)
                else:
                    queue.append(messages, entry, position, length, append_time_us)
        progress = self._store_progress(pin, groups)
        self.staging.drop_pin(record.transaction_id, record.attempt)
        return Published(
            transaction_id=record.transaction_id,
            attempt=record.attempt,
            parts=parts,
            duplicates=pin.duplicates + sum(each.duplicates for each in decisions),
            conflicts=pin.conflicts + sum(each.conflicts for each in decisions),
            progress=progress,
            arrived=arrived,
        )

    def _store_progress(self, pin: Pin, groups: ConsumerGroups) -> tuple[Progress, ...]:
        """Stores what the winners have staged of consumer groups, in their order."""
        return tuple(
            Progress(group, key, commit.token, commit.offset)
            for number in pin.winners
            for (group, key), commit in sorted(self.staging.stagers[number].commits.items())
            if groups.commit_staged(group, key, commit)
        )

    def _kept(
        self, found: dict[QueueKey, list[StagedExtent]], queues: Queues
    ) -> dict[QueueKey, list[StagedExtent]]:
        """The batches to publish: checked ones take the places of those that were staged.

        Raises StateDiverged unless each of them has a place, in their order, with its offset.
        """
        checked, self._checked = self._checked, []
        at = 0
        kept = {}
        for key, extents in found.items():
            end = queues[key].log_end_offset
            chosen = []
            for extent in extents:
                if at < len(checked) and (checked[at].queue_key, checked[at].replaced) == (
                    key,
                    (extent.base_sequence, extent.messages, extent.content_crc),
                ):
                    extent, base_offset = checked[at].extent, checked[at].base_offset
                    if base_offset != (-1 if extent.due_us else end):
                        break
                    at += 1
                chosen.append(extent)
                end += 0 if extent.due_us else extent.messages
            kept[key] = chosen
        if at < len(checked):
            raise StateDiverged(f"a checked batch has no place in the publication: {checked[at]}")
        return kept

    # --- canonical bytes --------------------------------------------------------------------

    def parts(self, version: int) -> list[bytes]:
        """Canonical bytes of a version of the state: staging, then coordination."""
        return [*self.staging.parts(version), *self.coordination.parts(version)]

    @classmethod
    def read_parts(cls, reader: Reader, version: int) -> Transactions:
        """The inverse of `parts`. Raises CorruptSegment."""
        made = cls()
        made.staging = Staging.read_parts(reader, version)
        made.coordination = Coordination.read_parts(reader, version)
        return made


def messages_at_once(extents: Iterable[StagedExtent]) -> int:
    """How many messages get offsets with the publication; the others are due later."""
    return sum(extent.messages for extent in extents if not extent.due_us)


def _arrive(
    record: transaction_records_pb2.PublishTransaction,
    found: Mapping[QueueKey, list[StagedExtent]],
    windows: Mapping[int, IdWindow],
    index: int,
    now_us: int,
) -> tuple[TopicArrivals, ...]:
    """Takes the ids of the batches to publish in. Raises StateDiverged unless the record names
    exactly those of topics that compare ids."""
    expected: dict[int, list[StagedExtent]] = {}
    for key, extents in found.items():
        if key.topic_id in windows:
            expected.setdefault(key.topic_id, []).extend(extents)
    if [each.topic_id for each in record.ids] != list(expected):
        raise StateDiverged(
            f"entry {index} publishes ids of topics {[each.topic_id for each in record.ids]}, not"
            f" {list(expected)}"
        )
    arrived = []
    for topic in record.ids:
        extents = expected[topic.topic_id]
        here = [extent.entry == index for extent in extents]
        records = [
            (0, 0, 0) if own else extent[:3] for own, extent in zip(here, extents, strict=True)
        ]
        told = list(zip(topic.entries, topic.positions, topic.lengths, strict=False))
        if (
            told != records
            or len({len(topic.entries), len(topic.positions), len(topic.lengths)}) != 1
            or len(topic.ids) != len(extents)
            or any(map(gt, topic.ids, (extent.messages for extent in extents)))
        ):
            raise StateDiverged(
                f"entry {index} publishes other batches of topic {topic.topic_id} than are pinned"
            )
        ids = sum(topic.ids)
        windows[topic.topic_id].take(topic.first_arrival, ids, 0, 0, now_us)
        arrived.append(TopicArrivals(topic.topic_id, topic.first_arrival, ids))
    return tuple(arrived)


def _split(
    found: Begun | tuple[int, ...] | SemelError,
) -> tuple[SemelError | None, tuple[int, ...]]:
    return (found, ()) if isinstance(found, SemelError) else (None, tuple(found))
