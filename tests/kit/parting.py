"""A CancelGroup whose queues are split while messages are delayed, and a checker that knows only
what was sent."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from semel.broker.background.delayed_parting import next_piece, parts_of
from semel.broker.replica.pools import Courtesy
from semel.broker.replica.stored_batches import read_batch
from semel.broker.server.verification import _capture, _verify, _with_extents
from semel.broker.state import (
    NO_OFFSET,
    Accepted,
    BatchVerifier,
    QueueReport,
    TableVerifier,
    batch_record_parts,
)
from semel.broker.state.apply.delayed_block import each_extent
from semel.protos.frames import RecordKind
from semel.protos.ids import QueueId, QueueKey, Term
from semel.protos.levels import DELAYED_SPLIT_LEVEL
from semel.protos.slots import slots_of_column
from semel.protos.v1 import broker_pb2, control_pb2
from tests.kit.cancelling import CancelGroup
from tests.kit.id_group import Message
from tests.kit.state_log import KEY, control, ref

SLOTS = 65_536


@dataclass
class Sent:
    """A message that was sent."""

    number: int
    """In the order in which they were stored."""
    due_us: int
    cancelled: bool = False


class PartingGroup(CancelGroup):
    """Messages go to the queue that has the slot of their ids."""

    def __init__(self, *, level: int = DELAYED_SPLIT_LEVEL) -> None:
        super().__init__()
        self.raise_level(level)
        self.sent: dict[bytes, Sent] = {}
        self.released_before: dict[bytes, int] = {}
        """How many messages were sent when this one had been delivered."""

    def leaves(self) -> list[QueueKey]:
        """The queues that take messages, without the one that the tests leave alone."""
        family = [
            KEY,
            *(key for key in self.state.queues if self.state.queues[key].parent is not None),
        ]
        return [key for key in family if not self.state.queues[key].sealed]

    def owner(self, message_id: bytes) -> QueueKey:
        slot = int(slots_of_column(pa.array([message_id], pa.binary()))[0])
        (found,) = (
            key
            for key in self.leaves()
            if self.state.queues[key].slot_start <= slot < self.state.queues[key].slot_end
        )
        return found

    def delay(self, *ids: bytes, due_us: int, producer: int = 1) -> None:
        """Sends messages, one batch for each queue that gets some."""
        by_queue: dict[QueueKey, list[bytes]] = {}
        for each in ids:
            by_queue.setdefault(self.owner(each), []).append(each)
        for key, found in by_queue.items():
            for each in found:
                self.sent[each] = Sent(len(self.sent), due_us)
            made: list[Message] = [(each, b"value of " + each) for each in found]
            verdict = self.produce_ids(made, key=key, due_us=due_us, producer=producer)
            assert isinstance(verdict, Accepted), verdict

    def split(self, key: QueueKey = KEY, *, ways: int = 2, commit: bool = True) -> Any:
        """The verdict; children share the slots of the queue evenly."""
        queue = self.state.queues[key]
        first = max(each.queue_id for each in self.state.queues) + 1
        width = (queue.slot_end - queue.slot_start) // ways
        record = control_pb2.SplitQueue(queue=ref(key))
        for number in range(ways):
            end = queue.slot_end if number == ways - 1 else queue.slot_start + (number + 1) * width
            start = queue.slot_start + number * width
            record.children.add(queue_id=first + number, slot_start=start, slot_end=end)
        verdict = self.admission.queues.admit_split(record)
        if isinstance(verdict, Accepted):
            self.entry.append(control(split_queue=record))
            for child in record.children:
                for producer in (1, 2):
                    if (last := self.last.get((key, producer))) is not None:
                        self.last[QueueKey(key.topic_id, QueueId(child.queue_id)), producer] = last
            if commit:
                self.commit()
        return verdict

    def apply_control(self, **record: Any) -> None:
        """Applies a record that is accepted, at once."""
        self.entry.append(control(**record))
        self.commit()

    def next_part(self) -> Any:
        """Record and parts of the next piece, as the master's thread makes them; None if there is
        none."""
        piece = next_piece(self.state)
        log: Any = self
        return None if piece is None else parts_of(log, piece)()

    def put(self, made: Any, *, commit: bool = True) -> Any:
        """Proposes what `next_part` has made; the verdict."""
        record, parts = made
        verdict = self.admission.queues.admit_part(record)
        if isinstance(verdict, Accepted):
            for time_us, part in parts:
                payload = batch_record_parts(
                    part, base_offset=NO_OFFSET, append_time_us=time_us, term=Term(self.term)
                )
                self.entry.append((RecordKind.PARTED, payload))
            self.entry.append(control(part_delayed=record))
            if commit:
                self.commit()
        return verdict

    def part_all(self) -> int:
        """Hands everything to children; how many entries it took."""
        count = 0
        while (made := self.next_part()) is not None:
            assert self.put(made) == Accepted()
            count += 1
        return count

    def release_all(self, *, commit: bool = True) -> None:
        for key in list(self.state.queues):
            while self.release(key, commit=commit) is not None and commit:
                pass

    def note(self) -> None:
        """Notes what is delivered by now."""
        for key in self.state.queues:
            for each in self.delivered(key):
                self.released_before.setdefault(each, len(self.sent))

    def problems(self, *, everything_due: bool = False) -> list[str]:
        """What a reader of all queues would find wrong."""
        found: list[str] = []
        seen: set[bytes] = set()
        for key in self.state.queues:
            order = self.delivered(key)
            for each in order:
                if each in seen:
                    found.append(f"{each!r} comes twice")
                seen.add(each)
                if self.sent[each].cancelled:
                    found.append(f"{each!r} was cancelled, and comes")
                if self.sent[each].due_us > self.now_us:
                    found.append(f"{each!r} comes early")
                if self.state.queues[key].parent is not None and self.owner(each) != key:
                    sealed = self.state.queues[key].sealed
                    if not sealed:
                        found.append(f"{each!r} is in queue {key.queue_id}")
            ranks = [(self.sent[each].due_us, self.sent[each].number) for each in order]
            for at, each in enumerate(order):
                for late in order[at + 1 :]:
                    rank = self.sent[late].due_us, self.sent[late].number
                    known = self.sent[late].number < self.released_before.get(each, 1 << 40)
                    if rank < ranks[at] and known:
                        found.append(f"{each!r} comes before {late!r}")
        waiting = [each for key in self.state.queues for each in self.delayed(key)]
        if len(waiting) != len(set(waiting)) or seen & set(waiting):
            found.append("a message waits and was delivered, or waits twice")
        left = {each for each, sent in self.sent.items() if not sent.cancelled}
        if seen | set(waiting) != left:
            found.append(f"lost or back: {seen ^ set(waiting) ^ left}")
        if everything_due and waiting:
            found.append(f"{waiting} still wait")
        return found

    def verify(self, key: QueueKey) -> QueueReport:
        """The queue as `semel verify` reads it."""
        table = TableVerifier()
        for frame in self.frames:
            table.feed(frame)
        assert not table.problems, table.problems
        replica: Any = SimpleNamespace(state=self.state, bodies=None)
        one = _with_extents(_capture(replica, key), Courtesy(lambda: 0))
        assert table.log_end_offset(key) == one.log_end_offset
        assert table.queue_digest(key) == one.live_table_digest
        verifier = BatchVerifier(
            key,
            one.log_start_offset,
            one.log_end_offset,
            expired=one.expired,
            inherited=one.inherited,
            gaps=one.gaps,
        )
        log: Any = self
        for extent in one.extents:
            stored = read_batch(log, (extent.index, extent.position, extent.length), "it is")
            rows = extent.first_row, extent.append_time_us
            parts = extent.index in one.parted
            verifier.feed(extent.base_offset, extent.count, stored, *rows, parts=parts)
        for delayed in each_extent(one.delayed):
            where = delayed.entry, delayed.position, delayed.length
            stored = read_batch(log, where, "it is")
            cancelled = one.cancelled.get(delayed.ordinal, 0)
            parts = delayed.entry in one.parted
            verifier.feed_delayed(delayed.entry, delayed.messages, stored, cancelled, parts=parts)
        verifier.hold_against(table.windows(key))
        return verifier.finish()


class LogOf:
    """The log of a group, as `semel verify` reads it."""

    first_index = 1

    def __init__(self, group: PartingGroup) -> None:
        self._group = group

    def read_record(self, index: int, position: int, length: int) -> bytes:
        return self._group.read_record(index, position, length)

    def fit(self, lo: int, hi: int, max_bytes: int) -> int:
        return hi

    def read_frames(self, lo: int, hi: int) -> list[bytes]:
        return self._group.frames[lo - 1 : hi - 1]


def verify_as_of(group: PartingGroup, index: int) -> dict[int, broker_pb2.VerifiedQueue]:
    """What `semel verify` tells of the group's queues as of an entry, by number, now."""
    replica: Any = SimpleNamespace(state=group.state, bodies=None)
    wanted = [_capture(replica, key) for key in group.state.queues]
    found: dict[int, broker_pb2.VerifiedQueue] = {}

    def report(reply: broker_pb2.VerifyQueuesReply) -> None:
        found.update({each.queue.queue_id: each for each in reply.queues})

    log: Any = LogOf(group)
    _verify(log, wanted, None, index, group.state.applied_index, Courtesy(lambda: 0), report)
    return found
