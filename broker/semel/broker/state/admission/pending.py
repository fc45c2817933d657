"""The pending state: the replicated state as it will be once everything accepted is applied.

How it works. This is an overlay over the replicated state. It holds the queues and rows that some
accepted, unapplied record concerns, as they will be; all others are read from the state. Each
accepted record is noted in log order with the queues, rows and names that it uses. When it is
applied its uses end, and whatever nothing uses any more leaves the overlay.

Invariants
1. A row that leaves the overlay equals the row of the applied state (asserted): admission and apply
   are two ways to the same table.
2. Records are applied in the order in which they were accepted (asserted).
3. Whatever an accepted, unapplied record will make is known here by its name: a queue that is
   created, split off or begins to arrive by a move (or will not, by its ABORT), the pin of a
   transaction, and the pointer to a manifest. The admission refuses everything else about that
   name until the record is applied. So no two records in flight make the same thing, and none uses
   a thing that another one may end.

Not here: the rules (`admission.py`, `queue_admission.py`, `transaction_admission.py`,
`delay_admission.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Many
from enum import Enum
from typing import Final, NamedTuple

from semel.broker.state.admission.due_loads import DueLoads
from semel.broker.state.apply.expired import Expired
from semel.broker.state.apply.results import (
    ApplyResult,
    BatchApplied,
    CommitsStaged,
    DelayedCancelled,
    DelayedGivenUp,
    DelayedParted,
    DelayedReleased,
    Done,
    FenceApplied,
    MoveApplied,
    Published,
    TieredApplied,
    TransactionApplied,
)
from semel.broker.state.apply.rows import Row
from semel.broker.state.apply.state_machine import State
from semel.protos.ids import NO_SEQUENCE, ProducerId, QueueKey
from semel.protos.v1.control_pb2 import (
    MOVE_STEP_ABORT,
    MOVE_STEP_ACTIVATE,
    MOVE_STEP_BEGIN,
    MOVE_STEP_FORWARD,
    MOVE_STEP_MIRROR,
    MOVE_STEP_PROMOTE,
    MOVE_STEP_SEAL,
    MOVE_STEP_UNMIRROR,
)


class TransactionRow(NamedTuple):
    """Names the coordinator's row of a transaction; the id alone names its pin."""

    transaction_id: str


class TopicIds(NamedTuple):
    """Names the comparing of message ids in a topic, which a record begins or ends."""

    topic_id: int


class TierPointer(NamedTuple):
    """Names the pointer to the manifest of a queue."""

    queue_key: QueueKey


Name = QueueKey | TransactionRow | TopicIds | TierPointer | str


class InFlight(NamedTuple):
    """An accepted batch that is not applied yet."""

    base: int
    last: int
    messages: int
    content_crc: int
    base_offset: int
    """-1 if the batch is delayed."""
    due_us: int = 0
    """When the batch is due; 0 if it is not delayed."""
    delayed: int = 0
    """Messages that are delayed, without those that are dropped because of their ids."""
    length: int = 0
    """Length of the stored record, if it is delayed."""


class PendingRow:
    """A row as it will be once everything accepted is applied."""

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
        """The applied row, which answers retries; None until the fence of a new row is applied."""
        self.exists = applied is not None
        self.epoch = applied.epoch if applied else 0
        self.session = applied.session if applied else 0
        self.last: int = applied.last_sequence if applied else NO_SEQUENCE
        self.in_flight: deque[InFlight] = deque()
        self.uses = 0
        """How many accepted, unapplied records concern the row."""


class PendingQueue:
    """A queue as it will be once everything accepted is applied."""

    __slots__ = (
        "batch_bytes_max",
        "cancelling",
        "delaying",
        "deleted",
        "expired",
        "in_memory",
        "key",
        "log_end_offset",
        "parting",
        "releasing",
        "rows",
        "sealing",
        "splitting",
        "uses",
    )

    def __init__(
        self,
        key: QueueKey,
        log_end_offset: int,
        batch_bytes_max: int,
        expired: Expired,
        *,
        in_memory: bool = False,
    ) -> None:
        self.key = key
        self.in_memory = in_memory
        """The log has only the headers of its batches; this never changes."""
        self.log_end_offset = log_end_offset
        self.batch_bytes_max = batch_bytes_max
        """Counts until the creation of the queue is applied; see `PendingState.batch_bytes_max`."""
        self.expired = expired
        """The object of the state, or a copy with more rows. It is replaced, never changed."""
        self.deleted = False
        self.splitting = False
        """A split of the queue was accepted; only the state says whether it is applied."""
        self.sealing = False
        """The SEAL of a move was accepted and is not applied yet."""
        self.cancelling: dict[int, set[int]] = {}
        """The rows of delayed batches, by ordinal, whose CANCEL is accepted and not applied."""
        self.delaying = 0
        """How many delayed batches are accepted and not applied yet."""
        self.releasing = False
        """A release of delayed batches was accepted and is not applied yet."""
        self.parting: frozenset[int] = frozenset()
        """Ordinals of the delayed batches whose PART_DELAYED or GIVE_UP_DELAYED is accepted and not
        applied."""
        self.rows: dict[int, PendingRow] = {}
        self.uses = 0
        """How many accepted, unapplied records concern the queue or one of its rows."""


class RecordUse(Enum):
    """Kinds of records that change the pending state, by their names in control.proto."""

    BATCH = "batch"
    FENCE = "fence"
    CREATE = "create_queue"
    ALTER = "alter_topic"
    DELETE = "delete_queue"
    SPLIT = "split_queue"
    EXPIRE = "expire_producers"
    PIN = "pin"
    DROP_PIN = "drop_pin"
    PUBLISH = "publish"
    REWRITE = "rewrite"
    RELEASE = "release_delayed"
    TIERED = "tiered"
    CANCEL = "cancel_delayed"
    PART = "part_delayed"
    """Or `give_up_delayed`, which ends a batch without parts."""
    BEGIN = "move_queue, begin"
    SEAL = "move_queue, seal"
    ABORT_MOVE = "move_queue, abort"
    ACTIVATE = "move_queue, activate"
    FORWARD = "move_queue, forward"
    """The other steps of a move concern only the place that one of these has made."""
    OPEN = "open_stager"
    STAGE_COMMITS = "stage_commits"
    BEGIN_EPOCH = "begin"
    DECIDE = "decide"
    ABORT = "abort"
    FINISH = "finish"
    FORGET = "forget"


class _Unapplied(NamedTuple):
    """One accepted record and the parts of the overlay that it uses."""

    kind: RecordUse
    queues: tuple[PendingQueue, ...]
    rows: tuple[PendingRow, ...]
    """A fence or a batch has one row for each queue, an expiry any number for its only queue."""
    names: tuple[Name, ...]
    """Names of queues that nobody can use before the record is applied, of the transaction whose
    pin it makes or ends, and of the coordinator's rows that it changes."""


_DONE: Final = {
    use.value: use
    for use in (
        RecordUse.CREATE,
        RecordUse.ALTER,
        RecordUse.DELETE,
        RecordUse.SPLIT,
        RecordUse.EXPIRE,
    )
}
_MOVED: Final[dict[int, RecordUse]] = {
    MOVE_STEP_BEGIN: RecordUse.BEGIN,
    MOVE_STEP_SEAL: RecordUse.SEAL,
    MOVE_STEP_ABORT: RecordUse.ABORT_MOVE,
    MOVE_STEP_ACTIVATE: RecordUse.ACTIVATE,
    MOVE_STEP_FORWARD: RecordUse.FORWARD,
    MOVE_STEP_MIRROR: RecordUse.BEGIN,
    MOVE_STEP_PROMOTE: RecordUse.ACTIVATE,
    MOVE_STEP_UNMIRROR: RecordUse.ABORT_MOVE,
}
_PINNED: Final = {
    use.value: use
    for use in (RecordUse.PIN, RecordUse.DROP_PIN, RecordUse.PUBLISH, RecordUse.REWRITE)
}
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
    """Everything that is accepted and not applied, over the state; part of one Admission."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._queues: dict[QueueKey, PendingQueue] = {}
        self.dues = DueLoads(state)
        self.commits_coming = 0
        """What the staged commits that are accepted and not applied cost in memory."""
        self._unapplied: deque[_Unapplied] = deque()
        self._names: Counter[Name] = Counter()
        """How many accepted, unapplied records have each name."""

    @property
    def sealing(self) -> list[QueueKey]:
        """The queues whose SEAL is accepted and not applied."""
        return [key for key, queue in self._queues.items() if queue.sealing]

    def queue(self, key: QueueKey) -> PendingQueue | None:
        """The queue as it will be; None if it is unknown. `use` makes it part of the overlay."""
        pending = self._queues.get(key)
        if pending is not None:
            return None if pending.deleted else pending
        queue = self._state.queues.get(key)
        if queue is None:
            return None
        batch_bytes_max = queue.settings.batch_bytes_max
        return PendingQueue(
            key, queue.log_end_offset, batch_bytes_max, queue.expired, in_memory=queue.in_memory
        )

    def batch_bytes_max(self, queue: PendingQueue) -> int:
        """The largest batch that the queue takes, in bytes, by its settings as they are applied.

        A queue that is always busy never leaves the overlay, so no copy of the settings is used.
        """
        applied = self._state.queues.get(queue.key)
        return queue.batch_bytes_max if applied is None else applied.settings.batch_bytes_max

    def is_deleting(self, key: QueueKey) -> bool:
        """Whether the deletion of the queue is accepted and not applied."""
        pending = self._queues.get(key)
        return pending is not None and pending.deleted

    def queue_or_deleting(self, key: QueueKey) -> PendingQueue | None:
        """The queue, also if its deletion is accepted already."""
        return self._queues.get(key) or self.queue(key)

    def is_coming(self, key: QueueKey) -> bool:
        """Whether the queue is about to exist here, although `queue` does not know it yet.

        A move is bringing it, or an accepted, unapplied record will make it (a split, or the BEGIN
        of a move), or give it up (the ABORT of a move whose BEGIN has not come).
        """
        return key in self._names or key in self._state.moves.incoming

    def changes_ids(self, topic_id: int) -> bool:
        """Whether an accepted, unapplied record begins or ends the comparing of message ids."""
        return TopicIds(topic_id) in self._names

    def changes_tier(self, key: QueueKey) -> bool:
        """Whether an accepted, unapplied record changes the queue's pointer to its manifest."""
        return TierPointer(key) in self._names

    def row(self, queue: PendingQueue, producer_id: ProducerId) -> PendingRow:
        """The row as it will be, which may not exist. `use` makes it part of the overlay."""
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
        """Notes an accepted record and what it uses, until it is applied."""
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
        """Notes an accepted "pin", "drop_pin", "rewrite" or "publish"; a publication moves queues'
        ends."""
        self.use(_PINNED[step], queues, (), (transaction_id,))

    @property
    def may_pin(self) -> bool:
        """Whether a PIN is accepted and not applied: apply may still grant it."""
        return any(one.kind is RecordUse.PIN for one in self._unapplied)

    def changes_pin(self, transaction_id: str) -> bool:
        """Whether an accepted, unapplied record makes, changes or ends a pin of the transaction."""
        return transaction_id in self._names

    def use_coordinator(self, step: str, transaction_ids: Iterable[str]) -> None:
        """Notes an accepted step that changes these rows of the coordinator."""
        self.use(_COORDINATED[step], (), (), tuple(map(TransactionRow, transaction_ids)))

    def use_stager(self) -> None:
        """Notes an accepted OPEN of a stager."""
        self.use(RecordUse.OPEN, (), ())

    @property
    def opening(self) -> int:
        """How many OPENs of stagers are accepted and not applied."""
        return sum(one.kind is RecordUse.OPEN for one in self._unapplied)

    def use_commits(self, cost: int) -> None:
        """Notes accepted commits that are staged with a transaction."""
        self.use(RecordUse.STAGE_COMMITS, (), ())
        self.commits_coming += cost

    def coordinates(self, transaction_id: str) -> bool:
        """Whether an accepted, unapplied step changes the coordinator's row."""
        return TransactionRow(transaction_id) in self._names

    def rows_coming(self) -> int:
        """How many rows the coordinator gains, or loses, once everything accepted is applied.

        A FORGET may remove fewer rows than it names.
        """
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
        """Notes an accepted release of delayed batches, which moves the queue's end."""
        self.use(RecordUse.RELEASE, (queue,), ())

    def on_applied(self, results: Many[ApplyResult]) -> None:
        """Ends the uses of the records of a frame; called right after `State.apply_frame`."""
        for result in results:
            if isinstance(result, BatchApplied):
                done = self._next(RecordUse.BATCH)
                batch = done.rows[0].in_flight.popleft()
                assert (done.queues[0].key, batch.base, batch.base_offset) == (
                    result.queue_key,
                    result.base_sequence,
                    result.base_offset,
                ), "batches are applied in the order in which they were accepted"
                if batch.base_offset < 0:
                    done.queues[0].delaying -= 1
                    key = result.queue_key
                    self.dues.end_use(key, batch.due_us, batch.delayed, batch.length)
            elif isinstance(result, FenceApplied):
                done = self._next(RecordUse.FENCE)
                for queue, row in zip(done.queues, done.rows, strict=True):
                    row.applied = self._state.producers.find(queue.key, row.producer_id)
            elif isinstance(result, DelayedReleased):
                done = self._next(RecordUse.RELEASE)
                done.queues[0].releasing = False
            elif isinstance(result, DelayedCancelled):
                done = self._next(RecordUse.CANCEL)
                rows = done.queues[0].cancelling[result.ordinal]
                rows.remove(result.row)
                if not rows:
                    del done.queues[0].cancelling[result.ordinal]
            elif isinstance(result, DelayedParted | DelayedGivenUp):
                done = self._next(RecordUse.PART)
                done.queues[0].parting = frozenset()
            elif isinstance(result, MoveApplied) and result.step in _MOVED:
                done = self._next(_MOVED[result.step])
                for queue in done.queues:
                    queue.sealing = False
            elif isinstance(result, Done) and result.what in _DONE:
                done = self._next(_DONE[result.what])
            elif isinstance(result, TransactionApplied) and result.step in _STEPS:
                done = self._next(_STEPS[result.step])
            elif isinstance(result, CommitsStaged):
                done = self._next(RecordUse.STAGE_COMMITS)
                self.commits_coming -= result.cost
            elif isinstance(result, TieredApplied):
                done = self._next(RecordUse.TIERED)
            elif isinstance(result, Published):
                done = self._next(RecordUse.PUBLISH)
                assert done.names == (result.transaction_id,)
            else:
                continue
            self._release(done)
        self.dues.on_applied(results)

    def _next(self, kind: RecordUse) -> _Unapplied:
        assert self._unapplied, f"a {kind.value} was applied that this master never accepted"
        done = self._unapplied.popleft()
        assert done.kind is kind, f"{kind.value} applied, {done.kind.value} was accepted before it"
        return done

    def _release(self, done: _Unapplied) -> None:
        """Drops from the overlay whatever no record in flight uses any more."""
        several = len(done.queues) > 1
        for at, row in enumerate(done.rows):
            row.uses -= 1
            if not row.uses:
                queue = done.queues[at if several else 0]
                del queue.rows[row.producer_id]
                assert queue.deleted or self._agrees(queue, row), "overlay and applied state differ"
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
