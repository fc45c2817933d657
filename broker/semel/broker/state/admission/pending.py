"""What will be once everything accepted is applied: the judge's overlay over the replicated state.

How it works. Queues and rows that some accepted, unapplied record concerns stand here as they will
be; all others are read from the state. Each accepted record is noted in log order with what it
uses; when the fold reaches it, the uses end, and what nothing uses any more leaves the overlay.

Invariants
1. A row leaves the overlay only in agreement with the applied state (asserted): judge and fold are
   two ways to the same table.
2. Records are applied in the order in which they were accepted (asserted).
3. What an accepted, unapplied record will make can be asked for here by its name: a queue that is
   created, split off or begins to arrive by a move, and the pin of a transaction. The judge refuses
   everything else about that name until the record is applied, so no two records in flight make the
   same thing, and none uses what another one may end.

Not here: the rules (`admission.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Many
from enum import Enum
from typing import Final, NamedTuple

from semel.broker.state.apply.expired import Expired
from semel.broker.state.apply.machine import State
from semel.broker.state.apply.results import (
    ApplyResult,
    BatchApplied,
    DelayedReleased,
    Done,
    FenceApplied,
    MoveApplied,
    Published,
    TransactionApplied,
)
from semel.broker.state.apply.rows import Row
from semel.protos.ids import NO_SEQUENCE, ProducerId, QueueKey
from semel.protos.v1.control_pb2 import MOVE_STEP_BEGIN, MOVE_STEP_SEAL


class TransactionRow(NamedTuple):
    """Names what a coordinator knows of a transaction; its pin is named by the id alone."""

    transaction_id: str


Name = QueueKey | TransactionRow | str


class InFlight(NamedTuple):
    """An accepted batch that is not applied."""

    base: int
    last: int
    messages: int
    content_crc: int
    base_offset: int
    """-1: it is delayed."""


class PendingRow:
    """A row as it will be when everything accepted is applied."""

    __slots__ = (
        "applied",
        "epoch",
        "exists",
        "in_flight",
        "last",
        "producer_id",
        "session",
        "uses",
    )

    def __init__(self, producer_id: ProducerId, applied: Row | None) -> None:
        self.producer_id = producer_id
        self.applied = applied
        """Where retries are looked up; None until a new row's fence is applied."""
        self.exists = applied is not None
        self.epoch = applied.epoch if applied else 0
        self.session = applied.session if applied else 0
        self.last: int = applied.last_sequence if applied else NO_SEQUENCE
        self.in_flight: deque[InFlight] = deque()
        self.uses = 0
        """Accepted, unapplied records that concern the row."""


class PendingQueue:
    """A queue as it will be when everything accepted is applied."""

    __slots__ = (
        "batch_bytes_max",
        "delaying",
        "deleted",
        "expired",
        "key",
        "log_end_offset",
        "releasing",
        "rows",
        "sealing",
        "splitting",
        "uses",
    )

    def __init__(
        self, key: QueueKey, log_end_offset: int, batch_bytes_max: int, expired: Expired
    ) -> None:
        self.key = key
        self.log_end_offset = log_end_offset
        self.batch_bytes_max = batch_bytes_max
        self.expired = expired
        """The state's own, or a copy that knows more: replaced, never changed."""
        self.deleted = False
        self.splitting = False
        """A split of it was accepted; whether it is applied, the state says."""
        self.sealing = False
        """A move's seal was accepted, and is not applied."""
        self.delaying = 0
        """Delayed batches that are accepted and not applied."""
        self.releasing = False
        """A release of delayed batches was accepted, and is not applied."""
        self.rows: dict[int, PendingRow] = {}
        self.uses = 0
        """Accepted, unapplied records that concern the queue or one of its rows."""


class RecordUse(Enum):
    """Kinds of records that change what the judge goes by; control.proto's names."""

    BATCH = "batch"
    FENCE = "fence"
    CREATE = "create_queue"
    DELETE = "delete_queue"
    SPLIT = "split_queue"
    EXPIRE = "expire_producers"
    PIN = "pin"
    DROP_PIN = "drop_pin"
    PUBLISH = "publish"
    RELEASE = "release_delayed"
    BEGIN = "move_queue, begin"
    SEAL = "move_queue, seal"
    """The other steps of a move are about what these two have made."""
    OPEN = "open_stager"
    BEGIN_EPOCH = "begin"
    DECIDE = "decide"
    ABORT = "abort"
    FINISH = "finish"
    FORGET = "forget"


class _Unapplied(NamedTuple):
    """One accepted record, in log order, and what of the overlay it uses."""

    kind: RecordUse
    queues: tuple[PendingQueue, ...]
    rows: tuple[PendingRow, ...]
    """One a queue, for a fence or a batch; any number of the only queue, for an expiry."""
    names: tuple[Name, ...]
    """Of queues that nobody can use before it is applied, of the transaction whose pin it makes or
    ends, and of the coordinator's rows that it changes."""


_DONE: Final = {
    use.value: use
    for use in (RecordUse.CREATE, RecordUse.DELETE, RecordUse.SPLIT, RecordUse.EXPIRE)
}
_MOVED: Final[dict[int, RecordUse]] = {
    MOVE_STEP_BEGIN: RecordUse.BEGIN,
    MOVE_STEP_SEAL: RecordUse.SEAL,
}
_PINNED: Final = {use.value: use for use in (RecordUse.PIN, RecordUse.DROP_PIN, RecordUse.PUBLISH)}
_COORDINATED: Final = {
    use.value: use
    for use in (
        RecordUse.BEGIN_EPOCH,
        RecordUse.DECIDE,
        RecordUse.ABORT,
        RecordUse.FINISH,
        RecordUse.FORGET,
    )
}
_STEPS: Final = _PINNED | _COORDINATED | {RecordUse.OPEN.value: RecordUse.OPEN}


class PendingState:
    """Everything accepted and not applied, over the state. Built and dropped with its judge."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._queues: dict[QueueKey, PendingQueue] = {}
        self._unapplied: deque[_Unapplied] = deque()
        self._names: Counter[Name] = Counter()
        """Names of accepted, unapplied records."""

    @property
    def sealing(self) -> bool:
        """Some queue's seal is accepted and not applied."""
        return any(queue.sealing for queue in self._queues.values())

    @property
    def unapplied_count(self) -> int:
        """Accepted records that are not applied."""
        return len(self._unapplied)

    def queue(self, key: QueueKey) -> PendingQueue | None:
        """The queue in spec, not yet part of the overlay if nothing uses it; None if unknown."""
        pending = self._queues.get(key)
        if pending is not None:
            return None if pending.deleted else pending
        queue = self._state.queues.get(key)
        if queue is None:
            return None
        batch_bytes_max = queue.settings.batch_bytes_max
        return PendingQueue(key, queue.log_end_offset, batch_bytes_max, queue.expired)

    def is_deleting(self, key: QueueKey) -> bool:
        """The end of the queue is accepted and not applied."""
        pending = self._queues.get(key)
        return pending is not None and pending.deleted

    def queue_or_deleting(self, key: QueueKey) -> PendingQueue | None:
        """The queue, also when its end is accepted already."""
        return self._queues.get(key) or self.queue(key)

    def is_coming(self, key: QueueKey) -> bool:
        """The queue is on its way here by a move, or an accepted, unapplied record will make it, by
        a split or by the beginning of a move. `queue` does not know it yet."""
        return key in self._names or key in self._state.moves.incoming

    def row(self, queue: PendingQueue, producer_id: ProducerId) -> PendingRow:
        """The row in spec, which may not exist; not yet part of the overlay if nothing uses it."""
        row = queue.rows.get(producer_id)
        if row is None:
            row = PendingRow(producer_id, self._state.producers.find(queue.key, producer_id))
        return row

    def use(
        self,
        kind: RecordUse,
        queues: tuple[PendingQueue, ...],
        rows: tuple[PendingRow, ...],
        names: tuple[Name, ...] = (),
    ) -> None:
        """Counts on one accepted record until it is applied."""
        for queue in queues:
            queue.uses += 1
            self._queues[queue.key] = queue
        for at, row in enumerate(rows):
            row.uses += 1
            queues[at if len(queues) > 1 else 0].rows[row.producer_id] = row
        if names:
            self._names.update(names)
        self._unapplied.append(_Unapplied(kind, queues, rows, names))

    def use_pin(
        self, step: str, transaction_id: str, queues: tuple[PendingQueue, ...] = ()
    ) -> None:
        """A "pin", "drop_pin" or "publish" is accepted; a publication moves the queues' ends."""
        self.use(_PINNED[step], queues, (), (transaction_id,))

    @property
    def may_pin(self) -> bool:
        """A PIN is accepted and not applied: the fold decides about it."""
        return any(one.kind is RecordUse.PIN for one in self._unapplied)

    def changes_pin(self, transaction_id: str) -> bool:
        """A record that makes or ends a pin of the transaction is accepted and not applied."""
        return transaction_id in self._names

    def use_coordinator(self, step: str, transaction_ids: Iterable[str]) -> None:
        """A step is accepted that changes these rows of the coordinator."""
        self.use(_COORDINATED[step], (), (), tuple(map(TransactionRow, transaction_ids)))

    def use_stager(self) -> None:
        """An OPEN is accepted."""
        self.use(RecordUse.OPEN, (), ())

    @property
    def opening(self) -> int:
        """How many OPENs are accepted and not applied."""
        return sum(one.kind is RecordUse.OPEN for one in self._unapplied)

    def coordinates(self, transaction_id: str) -> bool:
        """A step that changes the coordinator's row is accepted and not applied."""
        return TransactionRow(transaction_id) in self._names

    def rows_coming(self) -> int:
        """By how many the coordinator's rows grow, or shrink, once all that is accepted is applied;
        a FORGET may spare some."""
        rows = self._state.transactions.coordination.rows
        begun: set[Name] = set()
        forgotten = 0
        for kind, _, _, names in self._unapplied:
            if kind is RecordUse.BEGIN_EPOCH:
                begun.update(names)
            elif kind is RecordUse.FORGET:
                forgotten += len(names)
        new = (each for each in begun if isinstance(each, TransactionRow))
        return sum(each.transaction_id not in rows for each in new) - forgotten

    def use_release(self, queue: PendingQueue) -> None:
        """A release is accepted that moves the queue's end."""
        self.use(RecordUse.RELEASE, (queue,), ())

    def on_applied(self, results: Many[ApplyResult]) -> None:
        """Takes what a frame did out of the overlay; right after `State.apply_frame`."""
        for result in results:
            if isinstance(result, BatchApplied):
                done = self._next(RecordUse.BATCH)
                batch = done.rows[0].in_flight.popleft()
                assert (done.queues[0].key, batch.base, batch.base_offset) == (
                    result.queue_key,
                    result.base_sequence,
                    result.base_offset,
                ), "batches are applied in the order in which they were judged"
                if batch.base_offset < 0:
                    done.queues[0].delaying -= 1
            elif isinstance(result, FenceApplied):
                done = self._next(RecordUse.FENCE)
                for queue, row in zip(done.queues, done.rows, strict=True):
                    row.applied = self._state.producers.find(queue.key, row.producer_id)
            elif isinstance(result, DelayedReleased):
                done = self._next(RecordUse.RELEASE)
                done.queues[0].releasing = False
            elif isinstance(result, MoveApplied) and result.step in _MOVED:
                done = self._next(_MOVED[result.step])
                for queue in done.queues:
                    queue.sealing = False
            elif isinstance(result, Done) and result.what in _DONE:
                done = self._next(_DONE[result.what])
            elif isinstance(result, TransactionApplied) and result.step in _STEPS:
                done = self._next(_STEPS[result.step])
            elif isinstance(result, Published):
                done = self._next(RecordUse.PUBLISH)
                assert done.names == (result.transaction_id,)
            else:
                continue
            self._release(done)

    def _next(self, kind: RecordUse) -> _Unapplied:
        assert self._unapplied, f"a {kind.value} was applied that this judge never accepted"
        done = self._unapplied.popleft()
        assert done.kind is kind, f"{kind.value} applied, {done.kind.value} was accepted before it"
        return done

    def _release(self, done: _Unapplied) -> None:
        """What nothing in flight uses any more is read from the applied state again."""
        several = len(done.queues) > 1
        for at, row in enumerate(done.rows):
            row.uses -= 1
            if not row.uses:
                queue = done.queues[at if several else 0]
                del queue.rows[row.producer_id]
                assert queue.deleted or self._agrees(queue, row), "overlay and state have parted"
        for queue in done.queues:
            queue.uses -= 1
            if not queue.uses:
                del self._queues[queue.key]
        for name in done.names:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    def _agrees(self, queue: PendingQueue, row: PendingRow) -> bool:
        applied = self._state.producers.find(queue.key, row.producer_id)
        if applied is None or not row.exists:
            return applied is None and not row.exists
        return (applied.epoch, applied.session, applied.last_sequence) == (
            row.epoch,
            row.session,
            row.last,
        )
