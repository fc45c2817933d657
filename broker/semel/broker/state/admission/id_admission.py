"""The master's decisions about message ids: what a batch of a topic that compares them becomes.

How it works. The ids of a batch were looked up before it comes here, which may take a while
(`CheckedIds`). In the same uninterrupted step in which the batch is accepted, the look-up is
completed with what was accepted since, each message is decided, and the ids of those that are kept
arrive. A record that says so stands in front of the batch.

Invariants
1. The arrivals of accepted records follow one another without a gap, in the order of the log.
2. An id counts as known from the moment its batch is accepted. A batch that drops a message because
   of an unapplied one is behind it in the log, so both are applied, or neither. So it is with an
   id that is used again and the record in front that cancels its first message.
3. No batch is decided while a record in flight begins or ends the comparing of ids in its topic.

Not here: looking ids up and the decision about each message (`semel.broker.dedup`), the window as
applied (`state/apply/id_windows.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from semel.broker.state.admission.decisions import (
    CheckedBatch,
    IdDecision,
    Refused,
    retry_later,
)
from semel.broker.state.admission.pending import PendingState, TopicIds
from semel.broker.state.apply.id_windows import (
    MOVED_ID_BYTES,
    IdSettings,
    IdWindow,
)
from semel.broker.state.apply.results import (
    ApplyResult,
    DelayedCancelled,
    IdsChecked,
    IdsEvicted,
    MoveApplied,
    Published,
)
from semel.broker.state.apply.state_machine import State
from semel.protos.batch import BatchHeader
from semel.protos.delays import due_of
from semel.protos.errors import InvalidRequest
from semel.protos.id_dedup import SEED_BYTES, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN
from semel.protos.levels import DELAYED_MOVE_LEVEL, ID_LEVEL, lacking
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import common_pb2, control_pb2


class CheckedIds(Protocol):
    """A batch whose ids were looked up."""

    def decide(
        self,
        *,
        first_arrival: int,
        next_arrival: int,
        base_offset: int,
        due_us: int,
        entry: int,
        keep_first: bool,
        cancelled: Many[Many[int]],
        admit: Callable[[int], None] | None,
    ) -> IdDecision | None:
        """Decides each message, and lets the ids that are kept arrive from `next_arrival` on.

        The window begins at `first_arrival`; what arrived as one of `cancelled`, each of which
        rises, is not known any more. The batch will be in the log's entry `entry`. `admit` is
        called with the number of messages that are kept, and raises if they are not to be stored.
        None if the ids must be looked up again, because too much has happened since.
        """
        ...


class Window(Protocol):
    """What counts as known in a topic, as it will be once everything accepted is applied."""

    @property
    def first_arrival(self) -> int: ...

    @property
    def cancelled(self) -> Many[Many[int]]:
        """Arrivals that do not count; each sequence rises."""
        ...

    @property
    def keep_first(self) -> bool: ...


class KnownIds(NamedTuple):
    """A `Window`."""

    first_arrival: int
    cancelled: Many[Many[int]]
    keep_first: bool


@dataclass(slots=True)
class _PendingWindow:
    """A window as it will be once everything accepted is applied."""

    first_arrival: int
    next_arrival: int
    uses: int = 0
    cancelled: set[int] = field(default_factory=set)
    """Arrivals that records in flight cancel."""


class IdAdmission:
    """Decides about ids in one term."""

    def __init__(self, state: State, pending: PendingState) -> None:
        self._state = state
        self._records = pending
        self._windows: dict[int, _PendingWindow] = {}
        self._held: Counter[int] = Counter()
        """How many publications hold the ids of others back, by topic."""

    def window(self, topic_id: int) -> IdWindow | None:
        """The applied window; None if the topic compares no ids."""
        return self._state.id_windows.topics.get(topic_id)

    def decide(
        self,
        header: BatchHeader,
        window: IdWindow,
        ids: CheckedIds,
        offset: int,
        entry: int,
        admit: Callable[[int], None] | None,
    ) -> CheckedBatch | None:
        """The decision about the messages of a batch that is being accepted; None if its ids must
        be looked up again.

        Its messages get offsets from `offset` on, unless it is delayed. `entry` is that of the log.
        Raises what `admit` raises about the number of messages that are kept.
        """
        topic_id = header.topic_id
        pending = self._pending(topic_id, window)
        found = ids.decide(
            first_arrival=pending.first_arrival,
            next_arrival=pending.next_arrival,
            base_offset=offset,
            due_us=due_of(header),
            entry=entry,
            keep_first=window.settings.keep_first,
            cancelled=(*window.gone, sorted(pending.cancelled)),
            admit=admit,
        )
        if found is None:
            return None
        record = control_pb2.CheckIds(
            queue=queue_ref(header.queue_key),
            producer_id=header.producer_id,
            base_sequence=header.base_sequence,
            count=header.count,
            content_crc=header.content_crc,
            first_arrival=pending.next_arrival,
            ids=found.arrived,
            duplicates=found.duplicates,
            conflicts=found.conflicts,
            dropped=found.logged,
        )
        pending.next_arrival += found.arrived
        self._use(topic_id, pending)
        return CheckedBatch(found, record)

    def known(self, topic_id: int) -> KnownIds:
        """What counts as known in a topic that compares ids."""
        window = self.window(topic_id)
        assert window is not None, "the topic compares ids"
        pending = self._pending(topic_id, window)
        cancelled = *window.gone, sorted(pending.cancelled)
        return KnownIds(pending.first_arrival, cancelled, window.settings.keep_first)

    def next_arrival(self, topic_id: int) -> int:
        """The arrival of the next id of a topic that compares ids."""
        window = self.window(topic_id)
        assert window is not None, "the topic compares ids"
        return self._pending(topic_id, window).next_arrival

    def use_kept(self, topic_id: int) -> None:
        """Notes a decision about a batch of a transaction."""
        window = self.window(topic_id)
        assert window is not None, "the topic compares ids"
        self._use(topic_id, self._pending(topic_id, window))

    def use_published(self, topic_id: int, ids: int) -> None:
        """Notes the ids of an accepted publication, which arrive next."""
        window = self.window(topic_id)
        assert window is not None, "the topic compares ids"
        pending = self._pending(topic_id, window)
        pending.next_arrival += ids
        self._use(topic_id, pending)

    def hold(self, topics: Iterable[int]) -> None:
        """Admits no ids in these topics but those of publications, and forgets none, until
        `release`."""
        self._held.update(topics)

    def release(self, topics: Iterable[int]) -> None:
        """Ends one `hold` of these topics, which may have been that of an earlier term."""
        for topic_id in topics:
            self._held[topic_id] = max(0, self._held[topic_id] - 1)

    def propose_eviction(
        self, topic_id: int, now_us: int, arrival: int = 0
    ) -> control_pb2.EvictIds | None:
        """The record that moves the beginning of a window to `arrival` at least, already pending:
        append it.

        None if the window is well as it is, or is held.
        """
        window = self.window(topic_id)
        if window is None or self._held[topic_id]:
            return None
        pending = self._pending(topic_id, window)
        slots = self._state.live_slots(topic_id)
        first = window.eviction(pending.first_arrival, pending.next_arrival, slots, now_us)
        first = max(first, min(arrival, pending.next_arrival))
        if first == pending.first_arrival:
            return None
        pending.first_arrival = first
        self._use(topic_id, pending)
        return control_pb2.EvictIds(topic_id=topic_id, first_arrival=first)

    def ends_with(self, topic_id: int) -> tuple[TopicIds, ...]:
        """What a record may end that takes a queue away, to be named while it is in flight: a
        window ends with the last queue of its topic."""
        return () if self.window(topic_id) is None else (TopicIds(topic_id),)

    def admit_moved(self, record: control_pb2.MoveQueue) -> Refused | None:
        """Has the ids of a queue that is on its way here arrive: append the record. Refused if they
        belong to another window, and from level 8 on to a move that is over."""
        topic_id = record.queue.topic_id
        key = queue_key_of(record.queue)
        place = self._state.moves.places.get(key)
        if self._state.feature_level >= DELAYED_MOVE_LEVEL and (
            place is None or place.job != record.job or key not in self._state.moves.incoming
        ):
            return Refused(
                InvalidRequest(f"queue {key.queue_id} does not come here by move {record.job}")
            )
        if (refused := self.unsettled(topic_id)) is not None:
            return refused
        window = self.window(topic_id)
        count, rest = divmod(len(record.ids), MOVED_ID_BYTES)
        if window is None or window.settings.seed != record.seed or rest:
            return Refused(
                InvalidRequest(
                    f"{len(record.ids)} bytes of message ids do not belong to the window of topic"
                    f" {topic_id} on this broker group"
                )
            )
        pending = self._pending(topic_id, window)
        record.first_arrival = pending.next_arrival
        if count:
            pending.next_arrival += count
            self._use(topic_id, pending)
        return None

    def may_cancel(self, topic_id: int, arrival: int) -> bool:
        """Whether the message that arrived so is applied, in the window, and not cancelled, also
        once everything accepted is applied."""
        window = self.window(topic_id)
        if window is None:
            return False
        pending = self._pending(topic_id, window)
        return (
            pending.first_arrival <= arrival < window.next_arrival
            and arrival not in pending.cancelled
            and not window.is_cancelled(arrival)
            and not window.is_superseded(arrival)
        )

    def use_cancel(self, topic_id: int, arrival: int) -> None:
        """Notes an accepted cancellation, for which `may_cancel` was asked."""
        window = self.window(topic_id)
        assert window is not None, "only a topic that compares ids cancels"
        pending = self._pending(topic_id, window)
        pending.cancelled.add(arrival)
        self._use(topic_id, pending)

    def unsettled(self, topic_id: int) -> Refused | None:
        """Refuses ids while a record in flight begins or ends the comparing of ids, or while they
        are held back for a publication."""
        if self._held[topic_id]:
            return retry_later("a transaction with many message ids is being published")
        return self.changing(topic_id)

    def changing(self, topic_id: int) -> Refused | None:
        """Refuses ids while a record in flight begins or ends the comparing of ids."""
        if self._records.changes_ids(topic_id):
            return retry_later("the topic begins or ceases to compare message ids")
        return None

    def admit_settings(
        self, topic_id: int, settings: common_pb2.TopicSettings, *, replace: bool = False
    ) -> Refused | tuple[TopicIds, ...]:
        """What a record with these settings begins or ends, to be named while it is in flight; with
        `replace` a new window may take the place of another one.

        Refused if the settings cannot be, or while another record in flight does the contrary.
        """
        wanted, window = IdSettings.from_message(settings), self.window(topic_id)
        if wanted is not None:
            if replace and window is not None and window.settings.seed != wanted.seed:
                window = None
            if (refused := self._refusal(wanted, window)) is not None:
                return refused
            if window is None and (
                self._records.may_pin or self._state.transactions.staging.has_staged(topic_id)
            ):
                return retry_later(
                    "a transaction that is not committed yet has messages of the topic"
                )
        if (wanted is None) != (window is None):
            return (TopicIds(topic_id),)
        return self.changing(topic_id) or ()

    def _refusal(self, wanted: IdSettings, window: IdWindow | None) -> Refused | None:
        if self._state.feature_level < ID_LEVEL:
            return Refused(lacking(ID_LEVEL, self._state.feature_level, "the broker group"))
        reason = None
        if not WINDOW_BYTES_MIN <= wanted.window_bytes <= WINDOW_BYTES_MAX:
            reason = f"a window of {wanted.window_bytes} bytes; it has at least {WINDOW_BYTES_MIN}"
        elif wanted.keep_ms < -1:
            reason = f"ids are kept for {wanted.keep_ms} ms"
        elif len(wanted.seed) != SEED_BYTES:
            reason = f"a seed of {len(wanted.seed)} bytes; it has {SEED_BYTES}"
        elif window is not None and window.settings.seed != wanted.seed:
            reason = "another seed; it never changes while the topic compares ids"
        return None if reason is None else Refused(InvalidRequest(f"dedup by id: {reason}"))

    def _pending(self, topic_id: int, window: IdWindow) -> _PendingWindow:
        found = self._windows.get(topic_id)
        return found or _PendingWindow(window.first_arrival, window.next_arrival)

    def _use(self, topic_id: int, pending: _PendingWindow) -> None:
        pending.uses += 1
        self._windows[topic_id] = pending

    def on_applied(self, results: Many[ApplyResult]) -> None:
        """Ends the uses of the records of a frame."""
        for result in results:
            if isinstance(result, DelayedCancelled):
                topic_id: int = result.queue_key.topic_id
                self._windows[topic_id].cancelled.remove(result.arrival)
                self._end_use(topic_id)
            elif isinstance(result, MoveApplied) and result.ids:
                self._end_use(result.queue_key.topic_id)
            elif isinstance(result, IdsChecked | IdsEvicted):
                self._end_use(result.topic_id)
            elif isinstance(result, Published):
                for topic in result.arrived:
                    self._end_use(topic.topic_id)

    def _end_use(self, topic_id: int) -> None:
        pending = self._windows[topic_id]
        pending.uses -= 1
        if not pending.uses:
            del self._windows[topic_id]
            window = self.window(topic_id)
            assert window is None or (window.first_arrival, window.next_arrival) == (
                pending.first_arrival,
                pending.next_arrival,
            ), "windows of ids are applied as they were accepted"
