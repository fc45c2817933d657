"""The master's decisions about transactions: staged batches, steps, and offsets of publications.

How it works. Most steps are granted or refused at apply. The master admits them unless a limit is
reached, and notes them in the pending state. A publication gives out offsets, so it is decided
here.

Not here: how the steps are applied (`state/apply/transactions.py`), the calls between broker groups
(`semel.broker.background.transaction_work`).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from semel.broker.state.admission.decisions import (
    NO_OFFSET,
    Accepted,
    ControlDecision,
    Duplicate,
    LookUpIds,
    Refused,
)
from semel.broker.state.admission.id_admission import IdAdmission, Window
from semel.broker.state.admission.pending import PendingState
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.splits import sealed_error
from semel.broker.state.apply.staged_commits import COMMITS_BYTES_MAX, cost_of_record
from semel.broker.state.apply.transactions import Step, Transactions, messages_at_once
from semel.protos.batch import BatchHeader
from semel.protos.errors import (
    Throttled,
    TransactionAborted,
    UnsupportedVersion,
)
from semel.protos.ids import Offset, QueueKey
from semel.protos.levels import STAGED_COMMITS_LEVEL, TRANSACTION_LEVEL, lacking
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2, transaction_records_pb2

RETRY_MS: Final = 20
FULL_RETRY_MS: Final = 500
FORGET_MAX: Final = 1_000
"""One record forgets at most this many transaction ids."""


Record = tuple[int, int, int]
"""Entry, position and length of a pinned batch."""


class KeptRecord(Protocol):
    """The rest of a pinned batch that takes its place."""

    @property
    def replaced(self) -> Record: ...

    @property
    def queue_key(self) -> QueueKey: ...

    @property
    def record(self) -> control_pb2.CheckIds:
        """The decision about its messages."""
        ...

    @property
    def batch(self) -> bytes: ...

    def holds(self, window: Window) -> bool:
        """Whether all ids for which messages are dropped are known."""
        ...


class PlacedRecord(Protocol):
    """The same, with an offset."""

    @property
    def rewrite(self) -> KeptRecord: ...

    @property
    def base_offset(self) -> int:
        """-1 if it is delayed."""
        ...


class PublishedTopic(Protocol):
    """What a publication takes of one topic; the lists have one number for each batch."""

    @property
    def ids(self) -> Many[int]: ...

    @property
    def records(self) -> Many[Record | None]:
        """None for a batch that is published by value."""
        ...

    @property
    def placed(self) -> Many[PlacedRecord]:
        """Those in the order of the batches."""
        ...

    @property
    def ends(self) -> Mapping[QueueKey, int]:
        """Where the queues end afterwards."""
        ...


class PinnedTopic(Protocol):
    """The pinned batches of a topic, in the order of publication, whose ids were looked up."""

    @property
    def names(self) -> Many[Record]: ...

    def catch_up(self, window: Window) -> bool:
        """Completes the look-up, so that `decide` may be called in this turn of the event loop;
        False if the batches must be looked up again."""
        ...

    def decide(
        self, window: Window, next_arrival: int, ends: Mapping[QueueKey, int], entry: int
    ) -> PublishedTopic:
        """Has the ids that are kept arrive from `next_arrival` on, with messages that get offsets
        from `ends` on, as part of the log's entry `entry`."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionIds:
    """What the master has found out about the message ids of a pinned transaction."""

    topics: Mapping[int, PinnedTopic] = field(default_factory=dict)
    """For a publication: each topic that compares ids."""
    rewrites: Many[KeptRecord] = ()
    """For a rewrite."""
    term: int = 0
    """The mastership in which it was found out: in another one, ids that it takes for known may be
    lost."""

    def __bool__(self) -> bool:
        return bool(self.topics or self.rewrites)


class KeptBatch(NamedTuple):
    """The rest of a pinned batch, to be appended in front of the step."""

    record: control_pb2.CheckIds
    batch: bytes
    queue_key: QueueKey
    base_offset: Offset
    """-1 if it is delayed, or rewritten only."""


def find_staged(
    transactions: Transactions, batch: BatchHeader, queue: QueueState
) -> Duplicate | Refused | None:
    """The decision about a staged batch if the applied state makes it certain; else None.

    Duplicate if it is stored, whatever has changed since. Refused if its stager is gone, or if it
    is not stored and the queue is split.
    """
    found = transactions.staging.check(batch, queue)
    if found is True:
        return Duplicate(Offset(-1))
    if isinstance(found, TransactionAborted):
        return Refused(found)
    if queue.sealed and found is not False:
        return Refused(sealed_error(queue))
    return None


def no_room_to_stage(batch: BatchHeader, room_bytes: int) -> Refused | None:
    """Refuses a batch, for now, that is larger than the room for staged bytes; None if it fits."""
    return _full("staged bytes") if batch.batch_length > room_bytes else None


def admit_step(
    transactions: Transactions,
    pending: PendingState,
    level: int,
    step: Step,
    *,
    ids: IdAdmission,
    looked_up: TransactionIds,
    kept: list[KeptBatch],
    entry: int,
    stagers_max: int,
    rows_max: int,
) -> ControlDecision | LookUpIds:
    """Whether a step may be proposed as part of the entry `entry`. The record of a publication gets
    its offsets here.

    `looked_up` and `kept` are those of a publication to topics that compare message ids, or of a
    rewrite.
    """
    if level < TRANSACTION_LEVEL:
        return Refused(lacking(TRANSACTION_LEVEL, level, "the broker group"))
    match step.WhichOneof("step"):
        case "open_stager" if not step.open_stager.queues and level < STAGED_COMMITS_LEVEL:
            return Refused(lacking(STAGED_COMMITS_LEVEL, level, "the broker group"))
        case "open_stager":
            stagers = transactions.staging.stagers
            if (
                step.open_stager.stager_id not in stagers
                and len(stagers) + pending.opening >= stagers_max
            ):
                return _full(f"{stagers_max:,} stagers")
            pending.use_stager()
        case "stage_commits":
            return _admit_commits(transactions, pending, level, step.stage_commits)
        case "begin" if _is_new(transactions, step) and _rows(transactions, pending) >= rows_max:
            return _full(f"{rows_max:,} ids, and none of them can be forgotten")
        case "finish" if _is_pinned(transactions, step.finish):
            return Refused(
                Throttled(
                    f"epoch {step.finish.epoch} of transaction {step.finish.transaction_id!r} is"
                    " not published here yet",
                    retry_after_ms=RETRY_MS,
                )
            )
        case "begin" | "decide" | "abort" | "finish" as name:
            pending.use_coordinator(name, (getattr(step, name).transaction_id,))
        case "forget":
            pending.use_coordinator("forget", step.forget.transaction_ids)
        case "pin":
            pending.use_pin("pin", step.pin.transaction_id)
        case "drop_pin":
            pending.use_pin("drop_pin", step.drop_pin.transaction_id)
        case "rewrite":
            return _admit_rewrite(transactions, pending, step.rewrite, ids, looked_up, kept)
        case "publish":
            return _admit_publication(
                transactions, pending, step.publish, ids, looked_up, kept, entry
            )
        case None:
            return Refused(
                UnsupportedVersion("this version does not know that step of a transaction")
            )
    return Accepted()


def _admit_commits(
    transactions: Transactions,
    pending: PendingState,
    level: int,
    record: transaction_records_pb2.StageCommits,
) -> ControlDecision:
    """Whether progress of a consumer group may be staged; each commit is judged at apply."""
    if level < STAGED_COMMITS_LEVEL:
        return Refused(lacking(STAGED_COMMITS_LEVEL, level, "the broker group"))
    cost = cost_of_record(record)
    if transactions.staging.places.cost + pending.commits_coming + cost > COMMITS_BYTES_MAX:
        return _full(f"{COMMITS_BYTES_MAX:,} bytes of staged commits")
    pending.use_commits(cost)
    return Accepted()


def _admit_publication(
    transactions: Transactions,
    pending: PendingState,
    record: transaction_records_pb2.PublishTransaction,
    ids: IdAdmission,
    looked_up: TransactionIds,
    kept: list[KeptBatch],
    entry: int,
) -> ControlDecision | LookUpIds:
    """Gives the record the offsets of what is pinned, in each queue that is not being deleted.

    If topics compare message ids, `looked_up` has these, and `kept` gets what is kept of batches of
    which messages are dropped: append it in front. LookUpIds if any has to be looked up (again).
    """
    pin = transactions.staging.pin_of(record.transaction_id, record.attempt)
    if pin is None or pin.epoch != record.epoch:
        return Refused(
            TransactionAborted(
                f"attempt {record.attempt} at epoch {record.epoch} of transaction"
                f" {record.transaction_id!r} is not pinned here (any more)"
            )
        )
    if (refused := _in_flight(pending, record.transaction_id)) is not None:
        return refused
    del record.parts[:]
    del record.ids[:]
    # A queue whose deletion is accepted is left out: that will be applied first.
    present = {
        key: (queue, extents)
        for key, extents in transactions.staging.pinned_extents(pin).items()
        if (queue := pending.queue(key)) is not None
    }
    compared: dict[int, list[QueueKey]] = {}
    for key in present:
        if (refused := ids.changing(key.topic_id)) is not None:
            return refused
        if ids.window(key.topic_id) is not None:
            compared.setdefault(key.topic_id, []).append(key)
    for topic_id, keys in compared.items():
        names = [extent[:3] for key in keys for extent in present[key][1]]
        topic = looked_up.topics.get(topic_id)
        if topic is None or list(topic.names) != names or not topic.catch_up(ids.known(topic_id)):
            return LookUpIds()
    ends: dict[QueueKey, int] = {}
    for topic_id, keys in compared.items():
        begins = {key: present[key][0].log_end_offset for key in keys}
        first_arrival = ids.next_arrival(topic_id)
        topic = looked_up.topics[topic_id]
        decided = topic.decide(ids.known(topic_id), first_arrival, begins, entry)
        for placed in decided.placed:
            kept.append(_kept(placed.rewrite, Offset(placed.base_offset)))
            ids.use_kept(topic_id)
        ids.use_published(topic_id, sum(decided.ids))
        here = [(0, 0, 0) if each is None else each for each in decided.records]
        record.ids.add(
            topic_id=topic_id,
            first_arrival=first_arrival,
            ids=decided.ids,
            entries=[each[0] for each in here],
            positions=[each[1] for each in here],
            lengths=[each[2] for each in here],
        )
        ends.update(decided.ends)
    for key, (queue, extents) in present.items():
        assert not queue.splitting, "a queue is not split while something is pinned for it"
        begin = queue.log_end_offset
        end = ends.get(key, begin + messages_at_once(extents))
        record.parts.add(queue=queue_ref(key), base_offset=begin, messages=end - begin)
        queue.log_end_offset = end
    queues = tuple(queue for queue, _ in present.values())
    pending.use_pin("publish", record.transaction_id, queues)
    return Accepted()


def _admit_rewrite(
    transactions: Transactions,
    pending: PendingState,
    record: transaction_records_pb2.RewriteBatches,
    ids: IdAdmission,
    looked_up: TransactionIds,
    kept: list[KeptBatch],
) -> ControlDecision | LookUpIds:
    """Has what is kept of pinned batches take their places; `kept` gets it: append it in front.

    The coordinator has decided, and nobody may take that back: so a message may be dropped as soon
    as its id is known, although the others are published later.
    """
    pin = transactions.staging.pin_of(record.transaction_id, record.attempt)
    if pin is None:
        return Refused(
            TransactionAborted(
                f"attempt {record.attempt} of transaction {record.transaction_id!r} is not pinned"
                " here (any more)"
            )
        )
    if (refused := _in_flight(pending, record.transaction_id)) is not None:
        return refused
    pinned = transactions.staging.pinned_extents(pin)
    names = {
        (key, *extent[:3])
        for key in {rewrite.queue_key for rewrite in looked_up.rewrites}
        for extent in pinned.get(key, ())
    }
    for rewrite in looked_up.rewrites:
        key = rewrite.queue_key
        if (refused := ids.changing(key.topic_id)) is not None:
            return refused
        if (
            (key, *rewrite.replaced) not in names
            or pending.queue(key) is None
            or ids.window(key.topic_id) is None
            or not rewrite.holds(ids.known(key.topic_id))
        ):
            return LookUpIds()
    for rewrite in looked_up.rewrites:
        kept.append(_kept(rewrite, NO_OFFSET))
        ids.use_kept(rewrite.queue_key.topic_id)
    pending.use_pin("rewrite", record.transaction_id)
    return Accepted()


def _kept(rewrite: KeptRecord, base_offset: Offset) -> KeptBatch:
    return KeptBatch(rewrite.record, rewrite.batch, rewrite.queue_key, base_offset)


def _in_flight(pending: PendingState, transaction_id: str) -> Refused | None:
    """Refuses a step while another one in flight changes the pin."""
    if not pending.changes_pin(transaction_id):
        return None
    return Refused(
        Throttled(
            f"not admitted: transaction {transaction_id!r} is being pinned, published or dropped"
            " here; ask again",
            retry_after_ms=RETRY_MS,
        )
    )


def forget_before(
    transactions: Transactions, pending: PendingState, step: Step, *, rows_max: int
) -> Step | None:
    """The step that makes room for a BEGIN under a new id, already noted in `pending`.

    The caller appends it before that BEGIN. None if there is room, and for any other step.
    """
    if not _is_new(transactions, step) or _rows(transactions, pending) < rows_max:
        return None
    surplus = _rows(transactions, pending) + 1 - rows_max
    names = transactions.coordination.oldest(min(surplus, FORGET_MAX), _Busy(pending))
    if not names:
        return None
    pending.use_coordinator("forget", names)
    return Step(forget=transaction_records_pb2.ForgetTransactions(transaction_ids=names))


def _is_new(transactions: Transactions, step: Step) -> bool:
    """Whether the step is a BEGIN under an id that the coordinator does not know."""
    rows = transactions.coordination.rows
    return step.HasField("begin") and step.begin.transaction_id not in rows


def _is_pinned(
    transactions: Transactions, finish: transaction_records_pb2.FinishTransaction
) -> bool:
    """Whether this broker group is a participant itself and has not published yet.

    `semel.broker.background.transaction_work` asks the other participants before it sends a FINISH.
    """
    row = transactions.coordination.rows.get(finish.transaction_id)
    if row is None or row.epoch != finish.epoch:
        return False
    return transactions.staging.pin_of(finish.transaction_id, row.decided_attempt) is not None


def _rows(transactions: Transactions, pending: PendingState) -> int:
    """How many rows the coordinator has once everything accepted is applied."""
    return len(transactions.coordination.rows) + pending.rows_coming()


class _Busy:
    """The transactions whose rows an accepted, unapplied record changes."""

    def __init__(self, pending: PendingState) -> None:
        self._pending = pending

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._pending.coordinates(name)


def _full(of: str) -> Refused:
    return Refused(
        Throttled(
            f"the broker group's limit for transactions is reached: {of}; try again when some"
            " transactions have ended",
            retry_after_ms=FULL_RETRY_MS,
        )
    )
