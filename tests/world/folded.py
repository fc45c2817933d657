"""What the log says that each node must know: rows of producers, locks, progress, places of queues,
progress that is staged.

How it works. Each committed entry is folded once, when the first node has applied it. What it
changed is kept by its index, so that a node that applies entries is compared with what these
entries touched, and not with everything. The decisions of the product's state machine are not
used: the fold reads the records alone.

Not here: locks and progress themselves (`consumption.py`, `staged_progress.py`), moves
(`tests/checking/moves.py`), when a node is looked at (`invariants.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from semel.broker.replica.replica import Replica
from semel.broker.state import RESTORE_JOB, MoveState, ProducerState
from semel.broker.state.apply.rows import WINDOW_BATCHES
from semel.controller.moves.move_table import JOB_SHIFT
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    decode_broker_header,
    decode_header,
)
from semel.protos.delays import is_delayed
from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.ids import GroupId, ProducerId, QueueId, QueueKey
from semel.protos.v1 import control_pb2
from tests.checking.moves import At, Did, Journeys, Places
from tests.world import staged_progress
from tests.world.consumption import Consumption, ConsumptionError, Seen, Told, key_of
from tests.world.resting import resting_problem
from tests.world.staged_progress import Place, StagedCommit

if TYPE_CHECKING:
    from tests.world.nodes import BrokerHost
    from tests.world.world import World

_AT = {
    MoveState.HERE: At.HERE,
    MoveState.AWAY: At.AWAY,
    MoveState.FROZEN: At.FROZEN,
    MoveState.HELD: At.HELD,
    MoveState.INCOMING: At.INCOMING,
    MoveState.READY: At.INCOMING,
    MoveState.MIRRORED: At.INCOMING,
}
_RowKey = tuple[QueueKey, int]
_Window = tuple[tuple[int, int, int], ...]
"""(base sequence, last sequence, base offset) of the newest batches."""
_Row = tuple[int, int, int, _Window]
"""Epoch, session, last sequence, window."""


_NO_ROW: _Row = (0, 0, -1, ())


def _inherited(row: _Row) -> _Row:
    """The row that a child inherits: everything was stored, and the offsets are unknown."""
    epoch, session, last, _ = row
    return epoch, session, last, ((0, last, -1),) if last >= 0 else ()


def row_of(found: ProducerState) -> _Row:
    window = tuple((one.base_sequence, one.last_sequence, one.base_offset) for one in found.window)
    return found.epoch, found.session, found.last_sequence, window


class InvariantError(AssertionError):
    """The group as a whole is wrong, though no single node noticed."""


def require(truth: bool, message: str) -> None:
    if not truth:
        raise InvariantError(message)


class Folded:
    """What the log of one broker group says, entry by entry."""

    def __init__(self, world: World, group_id: GroupId, told: Told, journeys: Journeys) -> None:
        """`told` and `journeys` are shared by all groups."""
        self.world = world
        self.group_id = group_id
        self.newest = 0
        """Index of the newest entry that was folded."""
        self.controller_epoch = 0
        """The newest controller epoch that a node has obeyed."""
        self.on_step: Callable[[str, Did | str], None] = lambda *_: None
        """Hears what a step of a "move" has changed in this group, and of each step of a
        "transaction", by its record's name."""
        self.on_tier: Callable[[control_pb2.ControlRecord], None] = lambda _: None
        """Looks at what is decided about tiers, and at deletions."""
        self.on_restore: Callable[[control_pb2.MoveQueue], None] = lambda _: None
        """Hears each step by which a queue of a lost cluster comes here, before it is folded; it
        sees to what the queue brings."""
        self.places = Places(group_id, journeys)
        self.consumption = Consumption(told)
        self._table: dict[_RowKey, _Row] = {}
        self._sealed: set[QueueKey] = set()
        """Queues that were split."""
        self._dids: deque[Did] = deque()
        """Changes made by the steps of moves in the entry that is looked at."""
        self._touched: dict[int, dict[_RowKey, _Row | None]] = {}
        self._touched_places: dict[int, dict[QueueKey, tuple[At, int] | None]] = {}
        self._touched_locks: dict[int, dict[Place, Seen]] = {}
        self._touched_stagers: dict[int, dict[int, staged_progress.Seen]] = {}

    def fold(self, index: int, frame: bytes) -> None:
        """Folds the next committed entry. Raises InvariantError when nobody may store it."""
        self.newest = index
        self._touched[index] = self._fold_rows(frame)
        self._touched_places[index] = self._fold_places(frame)
        try:
            self._touched_locks[index] = self._fold_locks(frame)
            self._touched_stagers[index] = self.consumption.take_stagers()
        except ConsumptionError as error:
            raise InvariantError(str(error)) from None

    def _fold_rows(self, frame: bytes) -> dict[_RowKey, _Row | None]:
        touched: dict[_RowKey, _Row | None] = {}
        for _, kind, payload in iter_records(frame):
            if kind in (RecordKind.COPY, RecordKind.MEMORY_COPY):
                header = decode_header(payload, BROKER_HEADER_BYTES)
                head = decode_broker_header(payload)
                count = head.span or header.count
                self.places.on_copy(header.queue_key, head.base_offset, count)
            elif kind in (RecordKind.BATCH, RecordKind.MEMORY):
                header = decode_header(payload, BROKER_HEADER_BYTES)
                self._require_home(header.queue_key, "a batch")
                stored = header.queue_key, int(header.producer_id)
                window = (touched.get(stored) or self._table.get(stored) or _NO_ROW)[3]
                newest = (
                    header.base_sequence,
                    header.last_sequence,
                    decode_broker_header(payload).base_offset,
                )
                touched[stored] = (
                    header.epoch,
                    header.session,
                    header.last_sequence,
                    (*window, newest)[-WINDOW_BATCHES:],
                )
            elif kind is RecordKind.CONTROL:
                record = control_pb2.ControlRecord.FromString(bytes(payload))
                which = record.WhichOneof("record")
                if which == "fence":
                    for ref in record.fence.queues:
                        fenced = (key_of(ref), record.fence.producer_id)
                        self._require_home(fenced[0], "a fence")
                        _, _, last, window = self._table.get(fenced) or _NO_ROW
                        touched[fenced] = (record.fence.epoch, record.fence.session, last, window)
                        self.world.count("fence")
                elif which == "create_queue":
                    self.places.on_created(key_of(record.create_queue.queue))
                elif which == "delete_queue":
                    self.on_tier(record)
                    gone = key_of(record.delete_queue.queue)
                    self.places.on_deleted(gone)
                    rows = [row for row in (*self._table, *touched) if row[0] == gone]
                    touched |= dict.fromkeys(rows)
                elif which == "move_queue":
                    touched |= self._move(record.move_queue)
                elif which == "expire_producers":
                    self._require_home(key_of(record.expire_producers.queue), "an expiry")
                    for producer_id in record.expire_producers.producer_ids:
                        touched[key_of(record.expire_producers.queue), producer_id] = None
                        self.world.count("producer expired")
                elif which == "split_queue":
                    touched |= self._split(record.split_queue)
                elif which == "transaction":
                    step = str(record.transaction.WhichOneof("step"))
                    self.world.count(f"transaction: {step}")
                    self.on_step("transaction", step)
                    for part in record.transaction.publish.parts:
                        self._require_home(key_of(part.queue), "a publication")
                elif which == "release_delayed":
                    self._require_home(key_of(record.release_delayed.queue), "a release")
                    self.world.count("delayed messages released")
                    require(
                        record.release_delayed.until_us <= decode_frame_header(frame).time_us,
                        f"group {self.group_id} releases early: {record}",
                    )
                elif which == "part_delayed":
                    self._require_home(key_of(record.part_delayed.queue), "a part")
                    self.world.count("delayed batches parted")
                    if any(batch.parts > 1 for batch in record.part_delayed.batches):
                        self.world.count("delayed batch of several children parted")
                elif which == "cancel_delayed":
                    self._require_home(key_of(record.cancel_delayed.queue), "a cancellation")
                    self.world.count("delayed message cancelled")
                    require(
                        record.cancel_delayed.due_us > decode_frame_header(frame).time_us,
                        f"group {self.group_id} cancels what is due: {record}",
                    )
                elif which == "tiered":
                    self._require_home(key_of(record.tiered.queue), "a manifest")
                    self.on_tier(record)
                elif which == "forget":
                    self._require_home(key_of(record.forget.queue), "what it forgets")
                    self.on_tier(record)
                elif which == "trim":
                    self.world.count("trim")
                elif which == "release_lock":
                    self.world.count("lock released")
            for key, row in touched.items():
                if row is None:
                    self._table.pop(key, None)
                else:
                    self._table[key] = row
        return touched

    def _fold_places(self, frame: bytes) -> dict[QueueKey, tuple[At, int] | None]:
        """The group's part in the queues that the entry moves or deletes."""
        found: dict[QueueKey, tuple[At, int] | None] = {}
        for _, kind, payload in iter_records(frame):
            if kind is RecordKind.CONTROL:
                record = control_pb2.ControlRecord.FromString(bytes(payload))
                which = record.WhichOneof("record")
                if which in ("move_queue", "delete_queue"):
                    key = key_of(getattr(record, which).queue)
                    found[key] = self.places.places.get(key)
        return found

    def _fold_locks(self, frame: bytes) -> dict[Place, Seen]:
        touched: dict[Place, Seen] = {}
        consumption, time_us = self.consumption, decode_frame_header(frame).time_us
        checked = False
        for _, kind, payload in iter_records(frame):
            kept, checked = checked, False
            if kind in (RecordKind.BATCH, RecordKind.MEMORY):
                header = decode_header(payload, BROKER_HEADER_BYTES)
                if not header.flags & BatchFlags.POSITION_MARK and not is_delayed(header):
                    consumption.on_batch(header.queue_key, header.count)
            elif kind is RecordKind.STAGED and not kept:
                header = decode_header(payload, BROKER_HEADER_BYTES)
                consumption.staged.on_batch(header, time_us)
            elif kind is RecordKind.CONTROL:
                record = control_pb2.ControlRecord.FromString(bytes(payload))
                which = record.WhichOneof("record")
                checked = which == "check_ids"
                if which == "create_queue":
                    consumption.on_queue(key_of(record.create_queue.queue))
                elif which == "split_queue":
                    consumption.on_split(record.split_queue)
                elif which == "delete_queue":
                    consumption.on_queue_gone(key_of(record.delete_queue.queue))
                elif which == "move_queue":
                    touched |= self._move_locks(record.move_queue, self._dids.popleft())
                elif which == "transaction":
                    touched |= consumption.on_step(record.transaction, time_us)
                elif which == "release_delayed":
                    released = record.release_delayed
                    consumption.on_batch(key_of(released.queue), released.messages)
                elif which == "trim":
                    consumption.on_trim(key_of(record.trim.queue), record.trim.log_start_offset)
                elif which == "tiered":
                    consumption.on_trim(key_of(record.tiered.queue), record.tiered.tier_start)
                touched |= consumption.on_record(record)
        if consumption.refused_commits:
            self.world.seen["commit of a lost lock"] += consumption.refused_commits
            consumption.refused_commits = 0
        if consumption.published:
            self.world.seen["staged commit published"] += consumption.published
            consumption.published = 0
        return touched

    def _require_home(self, key: QueueKey, what: str) -> None:
        places = self.places
        require(
            key in places.here and not places.frozen(key),
            f"group {self.group_id} stores {what} in queue {key}, which is "
            f"{'sealed' if places.frozen(key) else 'not'} here",
        )

    def _move(self, step: control_pb2.MoveQueue) -> dict[_RowKey, _Row | None]:
        """The rows that the step takes away or brings."""
        if step.job == RESTORE_JOB:
            self.on_restore(step)
        key = key_of(step.queue)
        was_frozen, journeys = self.places.frozen(key), self.places.journeys
        did = self.places.on_step(step)
        self._dids.append(did)
        require(not journeys.problem(), journeys.problem())
        if did is Did.NOTHING:
            return {}
        self.world.count(f"move: {did}")
        self.on_step("move", did)
        if did is Did.GOES_ON and was_frozen:
            self.world.count("move given up after the seal")
        if did is not Did.BEGUN and step.job >> JOB_SHIFT < self.controller_epoch:
            self.world.count("move resumed by another controller")
        rows = {row: self._table[row] for row in self._table if row[0] == key}
        if did is Did.SEALED:
            journeys.luggage[key, step.job] = rows
        elif did is Did.ACTIVATED:
            return dict(cast(dict[_RowKey, _Row | None], journeys.luggage[key, step.job]))
        elif did is Did.FORWARDED:
            return dict.fromkeys(rows)
        return {}

    def _move_locks(self, step: control_pb2.MoveQueue, did: Did) -> dict[Place, Seen]:
        key, consumption = key_of(step.queue), self.consumption
        if did is Did.SEALED:
            return consumption.on_sealed(key, step.job)
        if did is Did.ACTIVATED:
            return consumption.on_activated(key, step.job, self.places.ends[key])
        if did is Did.FORWARDED:
            return consumption.on_forwarded(key)
        if did is Did.GOES_ON:
            consumption.on_goes_on(key)
        return {}

    def _split(self, record: control_pb2.SplitQueue) -> dict[_RowKey, _Row | None]:
        """Children begin with the rows of their parent; a split that comes again does nothing."""
        parent = key_of(record.queue)
        if parent in self._sealed:
            return {}
        self._sealed.add(parent)
        self.world.count("queue split")
        for child in record.children:
            self.places.on_created((parent.topic_id, child.queue_id))
        return {
            (QueueKey(parent.topic_id, QueueId(child.queue_id)), producer): _inherited(row)
            for (key, producer), row in self._table.items()
            if key == parent
            for child in record.children
        }

    def check(
        self, host: BrokerHost, replica: Replica, *, since: int = 0, full: bool = False
    ) -> None:
        """Compares the node's rows that were touched since with those that follow from the log."""
        applied = replica.state.applied_index
        expected: dict[_RowKey, _Row | None] = {}
        for index in range(since + 1, min(applied, self.newest) + 1):
            expected.update(self._touched[index])
        producers = replica.state.producers
        for (key, producer_id), row in expected.items():
            found = producers.lookup(key, ProducerId(producer_id))
            told = None if found is None else row_of(found)
            require(
                told == row,
                f"{host.name} has {told} for producer {producer_id} in queue {key} at index "
                f"{applied}, the log says {row}",
            )
        locks: dict[Place, Seen] = {}
        for index in range(since + 1, min(applied, self.newest) + 1):
            locks |= self._touched_locks[index]
        for (group, key), seen in locks.items():
            state = replica.state.groups.lookup(group, key)
            held = state and (state.token, state.owner, state.committed_offset)
            require(
                held == seen or key not in replica.state.queues,
                f"{host.name} has lock and progress {held} for group {group} in queue {key} at "
                f"index {applied}, the log says {seen}",
            )
        self._check_stagers(host, replica, since, full=full)
        self._check_places(host, replica, since)
        if full and applied <= self.newest:
            extra = {(row.queue_key, int(row.producer_id)) for row in producers.rows()} - {
                key for key, row in expected.items() if row is not None
            }
            require(not extra, f"{host.name} has rows that the log does not know: {extra}")

    def _check_stagers(self, host: BrokerHost, replica: Replica, since: int, *, full: bool) -> None:
        applied, stagers = replica.state.applied_index, replica.state.transactions.staging.stagers
        expected: dict[int, staged_progress.Seen] = {}
        for index in range(since + 1, min(applied, self.newest) + 1):
            expected |= self._touched_stagers[index]
        looked_at = {*expected, *(stagers if full and applied <= self.newest else ())}
        for number in sorted(looked_at):
            stager = stagers.get(number)
            commits = {} if stager is None else stager.commits
            told = None
            if stager is not None and commits:
                found = [(place, StagedCommit.of(one)) for place, one in sorted(commits.items())]
                told = stager.pinned, tuple(found)
            require(
                told == expected.get(number),
                f"{host.name} has staged progress {told} of stager {number} at index {applied}, the"
                f" log says {expected.get(number)}",
            )

    def _check_places(self, host: BrokerHost, replica: Replica, since: int) -> None:
        applied = replica.state.applied_index
        expected: dict[QueueKey, tuple[At, int] | None] = {}
        for index in range(since + 1, min(applied, self.newest) + 1):
            expected |= self._touched_places[index]
        for key, place in expected.items():
            found = replica.state.moves.places.get(key)
            told = None if found is None else (_AT[found.state], found.job)
            require(
                told == place,
                f"{host.name} takes queue {key} for {told} at index {applied}, the log says"
                f" {place}",
            )
        problem = resting_problem(self.world, replica.state, self.places.journeys.resting)
        require(not problem, f"{host.name}, index {applied}: {problem}")
