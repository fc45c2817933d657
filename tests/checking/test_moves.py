"""A queue moves between two groups' logs: a good move passes, and every spoilt one is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from semel.protos.batch import BROKER_HEADER_BYTES, BrokerHeader, decode_broker_header
from semel.protos.frames import RecordKind, iter_records
from semel.protos.ids import Offset, Term
from semel.protos.v1 import control_pb2
from tests.checking.exactly_once import Violation, check
from tests.checking.raw_log import NodeLog
from tests.checking.small_run import REF, START_US, Run
from tests.checking.small_transaction import VALUES, Teller

JOB = 1 << 32 | 1


class Pair:
    """Queue 0 with two messages goes from group 1 to group 2, which stores a third one."""

    def __init__(self) -> None:
        self.source, self.target = Run(), Run(queues=False)
        self.target.history = self.source.history

    def step(self, run: Run, name: str, job: int = JOB) -> None:
        move = control_pb2.MoveQueue(
            queue=REF,
            job=job,
            group_id=2 if run is self.source else 1,
            step=f"MOVE_STEP_{name}",
        )
        run.control(move_queue=move)

    def copy(self, frame: bytes, spoil: Callable[[bytes], bytes] = bytes) -> None:
        for _, kind, payload in iter_records(frame):
            if kind is RecordKind.BATCH:
                self.target._frame(RecordKind.COPY, spoil(bytes(payload)))

    def copy_all(self) -> None:
        for frame in self.source.frames:
            self.copy(frame)

    def copy_staged(self, frame: bytes, base_offset: int, append_time_us: int) -> None:
        """As the target stores it: with the place that the publication gave it."""
        ((_, kind, payload),) = iter_records(frame)
        assert kind is RecordKind.STAGED
        head = BrokerHeader(
            base_offset=Offset(base_offset), append_time_us=append_time_us, term=Term(1)
        )
        self.target._frame(RecordKind.COPY, head.encode() + bytes(payload[BROKER_HEADER_BYTES:]))

    def go_on(self, number: int) -> None:
        """The next message, at the new group."""
        self.target.last, self.target.end = self.source.last, self.source.end
        self.target.both(number)

    def check(self) -> None:
        check(
            self.source.history,
            [
                NodeLog(
                    group=group,
                    node=group,
                    frames=dict(enumerate(run.frames, 1)),
                    commit_index=len(run.frames),
                )
                for group, run in ((1, self.source), (2, self.target))
            ],
        )


def sealed() -> Pair:
    """Two messages are stored, copied and sealed."""
    pair = Pair()
    pair.source.both(0)
    pair.source.both(1)
    pair.step(pair.target, "BEGIN")
    pair.copy_all()
    pair.step(pair.source, "SEAL")
    return pair


def test_a_queue_goes_on_at_the_other_group() -> None:
    pair = sealed()
    pair.step(pair.target, "ACTIVATE")
    pair.step(pair.source, "FORWARD")
    pair.go_on(2)
    pair.check()


def fewer_copies(pair: Pair) -> None:
    pair.target.frames.pop()
    pair.step(pair.target, "ACTIVATE")


def another_time(pair: Pair) -> None:
    def later(stored: bytes) -> bytes:
        head = decode_broker_header(stored)
        head = replace(head, append_time_us=head.append_time_us + 1)
        return head.encode() + stored[BROKER_HEADER_BYTES:]

    pair.target.frames.pop()
    pair.copy(pair.source.frames[-2], later)
    pair.step(pair.target, "ACTIVATE")


def stored_after_the_seal(pair: Pair) -> None:
    pair.source.both(2)


def stored_before_activation(pair: Pair) -> None:
    pair.go_on(2)


def stored_at_both(pair: Pair) -> None:
    pair.step(pair.target, "ACTIVATE")
    pair.go_on(2)
    pair.target.store(b"m1")


def without_rows(pair: Pair) -> None:
    pair.step(pair.target, "ACTIVATE")
    pair.source.last = -1
    pair.go_on(2)


def other_offsets(pair: Pair) -> None:
    pair.step(pair.target, "ACTIVATE")
    pair.source.end = 0
    pair.go_on(0)


def decided_twice(pair: Pair) -> None:
    pair.step(pair.target, "ACTIVATE")
    pair.step(pair.source, "UNSEAL")


def never_sealed(pair: Pair) -> None:
    pair.source.frames.pop()
    pair.step(pair.target, "ACTIVATE")


def forwarded_into_nothing(pair: Pair) -> None:
    pair.step(pair.source, "FORWARD")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (fewer_copies, "is activated with copies up to 1, and was sealed at 2"),
        (another_time, "the copy of queue"),
        (stored_after_the_seal, "a batch in queue (7, 0), which is sealed here"),
        (stored_before_activation, "a batch in queue (7, 0), which is not here"),
        (stored_at_both, "duplicate: message 1"),
        (without_rows, "sequences 0 to 0 behind -1, the queue has 1"),
        (other_offsets, "base offset 0, not 2"),
        (decided_twice, "is activated, and given up"),
        (never_sealed, "activates a queue that no other group has sealed"),
        (forwarded_into_nothing, "is forwarded, and nobody has activated the queue"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_spoils_a_move_is_found(spoil: Callable[[Pair], None], said: str) -> None:
    pair = sealed()
    spoil(pair)
    with pytest.raises(Violation) as found:
        pair.check()
    assert said in str(found.value)


def test_a_move_that_was_given_up_leaves_the_queue_where_it_is() -> None:
    pair = sealed()
    pair.step(pair.source, "UNSEAL")
    pair.step(pair.target, "ABORT")
    pair.step(pair.target, "BEGIN")  # late: of a job that is over
    pair.source.both(2)
    pair.check()


def test_a_later_move_brings_the_queue_back() -> None:
    pair = sealed()
    pair.step(pair.target, "ACTIVATE")
    pair.step(pair.source, "FORWARD")
    pair.go_on(2)
    pair.step(pair.source, "BEGIN", JOB + 1)
    pair.target, pair.source = pair.source, pair.target
    for frame in (*pair.target.frames, *pair.source.frames):
        for _, kind, payload in iter_records(frame):
            if kind is RecordKind.BATCH:
                pair.target._frame(RecordKind.COPY, bytes(payload))
    pair.step(pair.source, "SEAL", JOB + 1)
    pair.step(pair.target, "ACTIVATE", JOB + 1)
    pair.go_on(3)
    pair.source, pair.target = pair.target, pair.source
    pair.check()


class Committed(Pair):
    """Queue 0 holds what a transaction has published in two batches, and is sealed."""

    def __init__(self) -> None:
        super().__init__()
        teller = self.source = Teller()
        self.target.history = teller.history
        teller.stage(b"a", b"b")
        teller.stage(b"c")
        self.staged = teller.frames[-2:]
        teller.pin()
        teller.publish()
        self.published_us = START_US + len(teller.frames)
        teller.sent()
        self.step(self.target, "BEGIN")
        self.step(teller, "SEAL")


def test_what_a_transaction_published_moves_with_the_place_it_got() -> None:
    pair = Committed()
    pair.copy_staged(pair.staged[0], 0, pair.published_us)
    pair.copy_staged(pair.staged[1], 2, pair.published_us)
    pair.step(pair.target, "ACTIVATE")
    pair.check()


@pytest.mark.parametrize(("batch", "later_us"), [(0, 0), (1, 1)], ids=["another batch", "later"])
def test_a_wrong_copy_of_what_was_published_is_found(batch: int, later_us: int) -> None:
    pair = Committed()
    pair.copy_staged(pair.staged[0], 0, pair.published_us)
    pair.copy_staged(pair.staged[batch], 2, pair.published_us + later_us)
    pair.step(pair.target, "ACTIVATE")
    with pytest.raises(Violation, match="the copy of queue"):
        pair.check()


@pytest.mark.parametrize("dated_us", [START_US + 1_000_000, START_US])
def test_what_is_published_after_a_move_is_dated_like_the_newest_copy(dated_us: int) -> None:
    """At least: the clock of the group that the queue came from was ahead."""
    pair = Pair()
    source, teller = pair.source, Teller(queues=False)
    pair.target, teller.history = teller, source.history
    source.append_us = START_US + 1_000_000
    source.both(0)
    pair.step(teller, "BEGIN")
    pair.copy(source.frames[-1])
    pair.step(source, "SEAL")
    pair.step(teller, "ACTIVATE")
    pair.step(source, "FORWARD")
    teller.stage(*VALUES)
    staged = teller.frames[-1]
    teller.pin()
    teller.publish(base_offset=1)
    teller.sent()
    # And back again, which shows how the messages are dated.
    pair.step(source, "BEGIN", JOB + 1)
    pair.step(teller, "SEAL", JOB + 1)
    pair.target = source
    pair.copy(source.frames[3])
    pair.copy_staged(staged, 1, dated_us)
    pair.step(source, "ACTIVATE", JOB + 1)
    pair.target = teller
    if dated_us > START_US:
        pair.check()
        return
    with pytest.raises(Violation, match="the copy of queue"):
        pair.check()


def test_what_was_staged_goes_when_its_queue_moves_away() -> None:
    """It is staged again, here after the queue has come back."""
    pair = Pair()
    teller = pair.source = Teller()
    pair.target.history = teller.history
    teller.stage(b"x")
    for job, source, target in ((JOB, teller, pair.target), (JOB + 1, pair.target, teller)):
        pair.step(target, "BEGIN", job)
        pair.step(source, "SEAL", job)
        pair.step(target, "ACTIVATE", job)
        pair.step(source, "FORWARD", job)
    teller.open(2, REF)
    teller.stage(*VALUES, session=2)
    teller.pin()
    teller.publish()
    teller.sent()
    pair.check()
