"""A world around the admission and the state, with a simple model that checks each answer.

Producers make batches, a network repeats and reorders them for ever, masters step down and lose the
end of their log, rows expire, clients come back with new sessions and epochs. The model is dicts
and lists: what is applied, batch by batch, with a content number that no two batches share.

What is checked
- a content is stored at most once, at dense offsets, each producer's sequences rising;
- Accepted and applied, or Duplicate: it is stored, at the offset that was told;
- a stored batch that comes again is a Duplicate with its offset while the window remembers it;
- a batch that follows the last one under the current incarnation is accepted;
- fenced, expired and conflicting requests get exactly their error, and nothing of a fenced
  incarnation lands later;
- what is delayed comes once, not before its time, by its time, in the order in which it was stored;
- a replica that restarts from canonical bytes at any time has the same bytes;
- `semel verify` finds the queues whole, read from the log alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from semel.broker.state import (
    Accepted,
    Admission,
    BatchApplied,
    BatchVerifier,
    DelayedReleased,
    Done,
    Duplicate,
    DuplicateInFlight,
    FenceApplied,
    Parked,
    ParkKey,
    ProducerState,
    Refused,
    State,
    TableVerifier,
)
from semel.protos import errors
from semel.protos.batch import BatchHeader
from semel.protos.frames import RecordKind, build_frame, iter_records
from semel.protos.ids import ProducerId, QueueId, QueueKey, TopicId
from semel.protos.levels import DELAY_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import START_US, Record, batch_record, control, header, ref

KEYS = (QueueKey(TopicId(7), QueueId(0)), QueueKey(TopicId(7), QueueId(1)))
PRODUCERS = (1, 2)
WINDOW = 64
Slot = tuple[QueueKey, int]


@dataclass
class Row:
    """The model of a row: everything it ever stored."""

    epoch: int
    session: int
    last: int = -1
    stored: list[tuple[BatchHeader, int]] = field(default_factory=list)


@dataclass
class Client:
    """One producer's present incarnation, and what it made."""

    epoch: int = 1
    session: int = 0
    made_last: dict[QueueKey, int] = field(default_factory=dict)
    open: dict[QueueKey, list[BatchHeader]] = field(default_factory=dict)
    """Batches of which it does not know that they are stored, in order."""


@dataclass
class Entry:
    """One proposed, not yet applied entry."""

    frame: bytes
    heads: list[BatchHeader]


@dataclass(frozen=True)
class Late:
    """A batch that is stored and has no offsets yet."""

    due_us: int
    arrival: int
    """Number among all that were stored."""
    head: BatchHeader
    place: tuple[int, int]
    """Entry and position."""


class World:
    def __init__(self) -> None:
        self.state, self.replica = State(), State()
        self.table = TableVerifier()
        self.term = 1
        self.now_us, self.now_ms = START_US, 0.0
        self.rows: dict[Slot, Row] = {}
        self.expired: dict[Slot, int] = {}
        """The epoch with which a row expired."""
        self.forgotten: set[Slot] = set()
        """Those whose expired row knew of something stored."""
        self.log: dict[QueueKey, list[tuple[BatchHeader, int]]] = {key: [] for key in KEYS}
        self.stored: dict[int, int] = {}
        """Content number to offset, for ever."""
        self.late: dict[QueueKey, list[Late]] = {key: [] for key in KEYS}
        self.payloads: dict[tuple[int, int], bytes] = {}
        """Stored batches by entry and position."""
        self.clients = {producer: Client() for producer in PRODUCERS}
        self.network: list[BatchHeader] = []
        self.fences: list[control_pb2.Fence] = []
        self.contents = 0
        self.twins: set[int] = set()
        """Contents made under sequences that another content has, too."""
        self.parked: dict[ParkKey, BatchHeader] = {}
        self.building: list[Record] = []
        self.building_heads: list[BatchHeader] = []
        self.proposed: list[Entry] = []
        self.checked_index = 0
        self.seen: set[str] = set()
        """Which answers came up, to prove that the world is not too tame."""
        self.become_master(0)
        level = control_pb2.FeatureLevel(level=DELAY_LEVEL)
        self.building.append(control(feature_level=level))
        for key in KEYS:
            record = control_pb2.CreateQueue(queue=ref(key), topic="t", slot_end=65_536)
            assert isinstance(self.admission.queues.admit_create_queue(record), Accepted)
            self.building.append(control(create_queue=record))
        self.commit(99)
        for producer in PRODUCERS:
            self.fence(self.new_fence(producer))
        self.commit(99)

    # --- the master's log -------------------------------------------------------------------

    def become_master(self, survive: int) -> None:
        """The master steps down: the first `survive` entries were replicated, the rest is lost."""
        self.cut_entry()
        for entry in self.proposed[:survive]:
            self.apply(entry, admitted=False)
        self.proposed.clear()
        self.parked.clear()
        if self.state.applied_index:
            self.term += 1
        frame, _ = build_frame(
            self.state.applied_index + 1, self.term, self.now_us, [(RecordKind.NOOP, [])]
        )
        self.apply(Entry(frame, []), admitted=False)
        self.admission = Admission(self.state, term=self.term)  # type: ignore[arg-type]

    def cut_entry(self) -> None:
        """What was accepted becomes one entry."""
        if self.building:
            index = self.state.applied_index + len(self.proposed) + 1
            frame, _ = build_frame(index, self.term, self.now_us, self.building)
            self.proposed.append(Entry(frame, self.building_heads))
            self.building, self.building_heads = [], []

    def commit(self, count: int) -> None:
        """The next entries are committed and applied."""
        self.cut_entry()
        for entry in self.proposed[:count]:
            self.apply(entry, admitted=True)
        del self.proposed[:count]

    def apply(self, entry: Entry, *, admitted: bool) -> None:
        results = self.state.apply_frame(entry.frame)
        self.replica.apply_frame(entry.frame)
        self.table.feed(entry.frame)
        heads = iter(entry.heads)
        records = iter_records(entry.frame)
        for result, (position, _, payload) in zip(results, records, strict=True):
            match result:
                case BatchApplied():
                    place = self.state.applied_index, position
                    self.payloads[place] = bytes(payload)
                    self.on_stored(next(heads), result, place)
                case DelayedReleased():
                    self.on_released(result)
                case FenceApplied(rows=rows):
                    fence = control_pb2.ControlRecord.FromString(bytes(payload)).fence
                    self.on_fenced(rows, after_expiry=fence.after_expiry)
                case Done(what="expire_producers", queue_key=key):
                    assert key is not None
                    record = control_pb2.ControlRecord.FromString(bytes(payload))
                    self.on_expired(key, record.expire_producers)
        if admitted:
            self.admission.on_applied(results)

    def on_fenced(self, rows: Iterable[ProducerState], *, after_expiry: bool) -> None:
        for row in rows:
            slot = row.queue_key, row.producer_id
            known = self.rows.get(slot)
            if slot in self.forgotten and (
                known is None or (not known.stored and row.epoch > known.epoch)
            ):
                assert after_expiry, "a producer was told that it had stored nothing"
            model = self.rows.setdefault((row.queue_key, row.producer_id), Row(0, 0))
            assert (model.epoch, model.session) <= (row.epoch, row.session)
            model.epoch, model.session = row.epoch, row.session
            remembered = [(entry.content_crc, entry.base_offset) for entry in row.window]
            assert remembered == [(h.content_crc, at) for h, at in model.stored[-WINDOW:]]
            model_last = -1 if not model.stored else model.stored[-1][0].last_sequence
            assert row.last_sequence == model.last == model_last

    def on_expired(self, key: QueueKey, record: control_pb2.ExpireProducers) -> None:
        for producer in record.producer_ids:
            gone = self.rows.pop((key, producer))
            self.expired[key, producer] = gone.epoch
            if gone.stored:
                self.forgotten.add((key, producer))

    def on_stored(self, head: BatchHeader, result: BatchApplied, place: tuple[int, int]) -> None:
        key = head.queue_key
        row = self.rows[key, head.producer_id]
        assert head.content_crc not in self.stored, "stored twice"
        assert (head.epoch, head.session) == (row.epoch, row.session), "landed after a fence"
        assert head.previous_sequence == row.last < head.base_sequence, "out of order"
        row.last = head.last_sequence
        row.stored.append((head, result.base_offset))
        self.stored[head.content_crc] = result.base_offset
        if head.deliver_at_us:
            assert result.base_offset == -1, "delayed, and it has an offset"
            self.late[key].append(Late(head.deliver_at_us, len(self.stored), head, place))
            return
        assert result.base_offset == sum(h.count for h, _ in self.log[key]), "offsets not dense"
        self.log[key].append((head, result.base_offset))

    def on_released(self, result: DelayedReleased) -> None:
        """What got offsets is read from the queue's own extents."""
        key = result.queue_key
        waiting = {late.place: late for late in self.late[key]}
        end = sum(h.count for h, _ in self.log[key])
        queue = self.state.queues[key]
        came = []
        for extent in queue.extents_from(result.base_offset, 1 << 40):
            if extent.base_offset >= result.base_offset + result.messages:
                break  # of a later record of the entry
            late = waiting.pop((extent.index, extent.position), None)
            assert late is not None, "it was not delayed, or it came before"
            assert late.due_us <= self.state.log_time_us, "early"
            assert (extent.base_offset, extent.count) == (end, late.head.count)
            assert extent.length == len(self.payloads[late.place])
            end += extent.count
            came.append((late.due_us, late.arrival))
            self.log[key].append((late.head, extent.base_offset))
        assert came == sorted(came), "not in order"
        assert came, "nothing came"
        self.late[key] = [late for late in self.late[key] if late.place in waiting]
        self.seen.add("released")

    # --- clients ----------------------------------------------------------------------------

    def make(self, producer: int, key: QueueKey, size: int, kind: str) -> None:
        """A client's next batch; from then on the network may deliver it at any time."""
        client = self.clients[producer]
        self.contents += 1
        last = client.made_last.get(key, -1)
        due_us = 0
        if kind.startswith("late"):
            kind = "contiguous" if kind == "late" else "positions"
            due_us = self.now_us + self.contents * 7_919 % 5_000_000 - 500_000
        base, end, count = last + 1, last + size, size
        if kind == "positions":
            base, end = last + 1 + size, last + 4 * size
        elif kind == "mark" and key != KEYS[0]:
            base, end, count = last + 1, last + 3 * size, 0
        head = header(
            last,
            base=base,
            last=end,
            count=None if (base, count) == (last + 1, size) else count,
            producer=producer,
            epoch=client.epoch,
            session=client.session,
            crc=self.contents,
            key=key,
            due_us=due_us,
        )
        client.made_last[key] = end
        client.open.setdefault(key, []).append(head)
        self.network.append(head)

    def forge(self, original: BatchHeader, kind: str) -> None:
        """Somebody makes other content under the same sequences, or under some of them."""
        self.contents += 1
        self.twins |= {self.contents, original.content_crc}
        base, last = int(original.base_sequence), int(original.last_sequence)
        count = original.count
        if kind == "wider":
            last, count = last + 3, count + 3
        elif kind == "before" and base - 1 > original.previous_sequence:
            base = last = base - 1
            count = 1
        self.network.append(
            header(
                original.previous_sequence,
                base=base,
                last=last,
                count=count,
                producer=original.producer_id,
                epoch=original.epoch,
                session=original.session,
                crc=self.contents,
                key=original.queue_key,
                due_us=original.deliver_at_us if count else 0,
            )
        )

    def resend(self, producer: int, key: QueueKey) -> None:
        """A client that heard nothing sends all it has open again; without a row it reopens."""
        if (key, producer) not in self.rows:
            self.reopen(producer, epoch=True)
        client = self.clients[producer]
        client.open[key] = [
            head for head in client.open.get(key, []) if head.content_crc not in self.stored
        ]
        for head in client.open[key]:
            self.send(head)

    def wake_old_connections(self) -> None:
        """What was sent first of all arrives once more: the first fences, then first batches."""
        self.commit(99)
        for producer in PRODUCERS:
            self.fence(next(fence for fence in self.fences if fence.producer_id == producer))
            for key in KEYS:
                sent = [h for h in self.network if (h.producer_id, h.queue_key) == (producer, key)]
                for head in sent[:2]:
                    self.send(head)

    def new_fence(self, producer: int) -> control_pb2.Fence:
        client = self.clients[producer]
        record = control_pb2.Fence(
            queues=[ref(key) for key in KEYS],
            producer_id=producer,
            epoch=client.epoch,
            session=client.session,
            name=f"p{producer}",
            after_expiry=client.epoch % 2 == 0,
        )
        self.fences.append(record)
        return record

    def reopen(self, producer: int, *, epoch: bool) -> None:
        """The client comes back, learns from the fence what is stored, and sends the rest again."""
        client = self.clients[producer]
        if epoch:
            client.epoch += 1
            client.session = 0
        else:
            client.session += 1
        if not self.fence(self.new_fence(producer)):
            return
        self.commit(99)
        for key in KEYS:
            last = self.rows[key, producer].last
            again = [head for head in client.open.get(key, []) if head.previous_sequence >= last]
            if last < 0 or (again and again[0].previous_sequence != last):
                again = []  # it cannot go on with them: unknown, and told so
            again = [replace(h, epoch=client.epoch, session=client.session) for h in again]
            client.open[key] = again
            client.made_last[key] = again[-1].last_sequence if again else last
            self.network += again

    def fence(self, record: control_pb2.Fence) -> bool:
        """A fence reaches the master, perhaps late and again."""
        decision = self.admission.admit_fence(record)
        if isinstance(decision, Accepted):
            self.building.append(control(fence=record))
            return True
        assert isinstance(decision.error, errors.ProducerFenced | errors.DedupStateExpired)
        self.seen.add(type(decision.error).__name__)
        if not self.busy:
            self.check_fence(record, decision.error)
        return False

    def check_fence(self, record: control_pb2.Fence, error: errors.SemelError) -> None:
        incarnation = record.epoch, record.session
        rows = [self.rows.get((key, record.producer_id)) for key in KEYS]
        if isinstance(error, errors.ProducerFenced):
            assert any(row and incarnation < (row.epoch, row.session) for row in rows)
        else:
            slots = [(key, ProducerId(record.producer_id)) for key in KEYS]
            assert any(
                slot in self.expired
                and (
                    (row is None and record.epoch <= self.expired[slot])
                    or (
                        (row is None or not row.stored)
                        and slot in self.forgotten
                        and not record.after_expiry
                    )
                )
                for row, slot in zip(rows, slots, strict=True)
            )

    @property
    def busy(self) -> bool:
        """Something is accepted and not applied."""
        return bool(self.building or self.proposed)

    # --- requests ---------------------------------------------------------------------------

    def send(self, head: BatchHeader) -> None:
        """The network delivers a batch: for the first time, again, or very late."""
        row = self.rows.get((head.queue_key, head.producer_id))
        decision = self.admission.admit_batch(head, self.now_ms, time_us=self.now_us)
        self.seen.add(type(getattr(decision, "error", decision)).__name__)
        match decision:
            case Accepted(base_offset=offset):
                assert head.content_crc not in self.stored
                record = batch_record(head, offset, self.now_us, self.term)
                self.building.append(record)
                self.building_heads.append(head)
                self.unpark(head)
            case Duplicate(base_offset=offset):
                self.check_duplicate(head, offset)
            case DuplicateInFlight(base_offset=offset):
                assert head.content_crc not in self.stored
                waiting = [h.content_crc for e in self.proposed for h in e.heads]
                waiting += [h.content_crc for h in self.building_heads]
                assert head.content_crc in waiting
            case Parked(park_key=key):
                assert key not in self.parked
                self.parked[key] = head
            case Refused(error=error) if not self.busy:
                self.check_refusal(head, row, error)
        if not self.busy or isinstance(decision, Duplicate):
            self.check_due(head, row, decision)

    def unpark(self, head: BatchHeader) -> None:
        while (key := self.admission.unpark(head.queue_key, head.producer_id)) is not None:
            self.send(self.parked.pop(key))

    def pass_time(self, ms: float) -> None:
        self.now_ms += ms
        self.now_us += int(ms * 1000)
        for key, error in self.admission.expire_parked(self.now_ms):
            assert isinstance(error, errors.OutOfOrderSequence)
            del self.parked[key]

    def check_duplicate(self, head: BatchHeader, offset: int) -> None:
        row = self.rows[head.queue_key, head.producer_id]
        remembered = {h.content_crc: at for h, at in row.stored[-WINDOW:]}
        if head.content_crc in remembered:
            assert remembered[head.content_crc] == offset
        elif head.content_crc in self.stored:
            assert offset == -1 or self.touches_a_forgery(head, row)
        else:
            assert self.touches_a_forgery(head, row), "acknowledged and not stored"

    def touches_a_forgery(self, head: BatchHeader, row: Row) -> bool:
        """Two writers used the same sequences: then one content stands for the other. Before the
        oldest batch of a full window nothing is known, not even which sequences a batch skipped.
        """
        overlapping = [
            stored.content_crc
            for stored, _ in row.stored
            if stored.base_sequence <= head.last_sequence
            and head.base_sequence <= stored.last_sequence
        ]
        overlapping += [
            stored.content_crc
            for stored, _ in row.stored[: max(0, len(row.stored) - WINDOW + 1)]
            if stored.previous_sequence == head.previous_sequence
            and head.last_sequence < stored.base_sequence
        ]
        return bool(overlapping) and not self.twins.isdisjoint([head.content_crc, *overlapping])

    def check_due(self, head: BatchHeader, row: Row | None, decision: object) -> None:
        """What must not be refused: the next batch, and the retry of a stored one."""
        if row is None or (head.epoch, head.session) != (row.epoch, row.session):
            assert isinstance(decision, Refused)
        elif head.content_crc in {h.content_crc for h, _ in row.stored}:
            assert isinstance(decision, Duplicate), decision
        elif head.previous_sequence == row.last:
            assert isinstance(decision, Accepted), decision

    def check_refusal(self, head: BatchHeader, row: Row | None, error: errors.SemelError) -> None:
        incarnation = head.epoch, head.session
        match error:
            case errors.DedupStateExpired():
                assert row is None or incarnation > (row.epoch, row.session)
            case errors.ProducerFenced():
                assert row is not None
                assert incarnation < (row.epoch, row.session)
            case errors.SequenceConflict():
                assert head.content_crc in self.twins
            case errors.PartialOverlap():
                assert row is not None
                assert head.base_sequence <= row.last == error.last_sequence < head.last_sequence
            case errors.OutOfOrderSequence():
                assert row is not None
                assert error.last_sequence == row.last
            case errors.Throttled():
                assert len(self.parked) >= WINDOW
            case _:
                raise AssertionError(error)

    # --- operations -------------------------------------------------------------------------

    def expire(self, key: QueueKey, idle_ms: int, rows_max: int) -> None:
        record = self.admission.propose_expiry(
            key, now_us=self.now_us, idle_ms=idle_ms, rows_max=rows_max
        )
        if record is not None:
            self.seen.add("expired")
            self.building.append(control(expire_producers=record))

    def release(self, key: QueueKey, batches_max: int) -> None:
        """The master looks for what is due."""
        record = self.admission.propose_release(key, now_us=self.now_us, batches_max=batches_max)
        if record is not None:
            self.building.append(control(release_delayed=record))

    def settle(self) -> None:
        """Everything accepted is applied, and all that is delayed becomes due."""
        self.commit(99)
        self.pass_time(60_000)
        for key in KEYS:
            for _ in range(1 + len(self.late[key])):
                self.release(key, 100)
                self.commit(99)
            assert not self.late[key], "delayed for ever"

    def restart_replica(self) -> None:
        """The other node continues from a checkpoint; its bytes stay the same."""
        data = b"".join(self.replica.to_parts())
        self.replica = State.from_bytes(data)
        assert b"".join(self.replica.to_parts()) == data

    def check(self) -> None:
        """All nodes and the model agree, as of each entry."""
        if self.checked_index == self.state.applied_index:
            return
        self.checked_index = self.state.applied_index
        assert self.state.digest() == self.replica.digest()
        assert not self.table.problems, self.table.problems
        delays = self.state.delays
        late = [each for key in KEYS for each in self.late[key]]
        assert delays.messages == sum(each.head.count for each in late)
        assert delays.bytes == sum(len(self.payloads[each.place]) for each in late)
        due = {key for key in KEYS for each in self.late[key] if each.due_us <= self.now_us}
        assert set(delays.due(self.now_us, 9)) == due
        for key in KEYS:
            digest = self.state.producers.queue_digest(key)
            assert digest == self.table.queue_digest(key)
        for (key, producer), row in self.rows.items():
            real = self.state.producers.lookup(key, ProducerId(producer))
            assert real is not None
            assert (real.epoch, real.session, real.last_sequence) == (
                row.epoch,
                row.session,
                row.last,
            )

    def verify(self) -> None:
        """The queue without marks is read as `semel verify` reads it: what lies before a mark it
        cannot see, and contiguous batches behind one look as if some were lost."""
        for key in KEYS[:1]:
            queue = self.state.queues[key]
            verifier = BatchVerifier(key, 0, queue.log_end_offset, expired=queue.expired)
            for extent in queue.extents_from(0, 1 << 40):
                stored = self.payloads[extent.index, extent.position]
                verifier.feed(extent.base_offset, extent.count, stored, 0, extent.append_time_us)
            for one in self.state.delays.queues.get(key, ()):
                stored = self.payloads[one.entry, one.position]
                verifier.feed_delayed(one.entry, one.messages, stored)
            verifier.hold_against(self.table.windows(key))
            report = verifier.finish()
            assert report.ok, report.problems
            assert report.messages == queue.log_end_offset
            assert report.delayed == sum(late.head.count for late in self.late[key])
