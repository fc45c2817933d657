"""Random histories against the model of `world.py`, and planted bugs that it must catch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from semel.broker.state import Admission, Duplicate, Refused, StateDiverged
from semel.broker.state.admission.pending import PendingState, RecordUse
from semel.broker.state.apply.delayed_block import DelayedBlock
from semel.broker.state.apply.delayed_extent import EXTENT
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.expired import Expired
from semel.broker.state.apply.rows import ENTRY, Row
from semel.protos.errors import OutOfOrderSequence
from semel.protos.ids import Offset
from tests.unit.broker.state.world import KEYS, PRODUCERS, World

producers = st.sampled_from(PRODUCERS)
keys = st.sampled_from(KEYS)
kinds = st.sampled_from(["contiguous", "contiguous", "late", "late positions", "positions", "mark"])
picks = st.integers(0, 1 << 16)


class Histories(RuleBasedStateMachine):
    """Everything a network, a client and a master may do."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(producer=producers, key=keys, size=st.integers(1, 5), kind=kinds, sends=st.integers(0, 2))
    def make(self, producer: int, key: Any, size: int, kind: str, sends: int) -> None:
        self.world.make(producer, key, size, kind)
        for _ in range(sends):
            self.world.send(self.world.network[-1])

    @rule(producer=producers, key=keys, count=st.integers(60, 70))
    def burst(self, producer: int, key: Any, count: int) -> None:
        begin = len(self.world.network)
        for at in range(count):
            self.world.make(producer, key, 1, "contiguous")
            if at % 60 == 59:
                self.world.commit(99)
            self.world.send(self.world.network[begin + at])

    @precondition(lambda self: self.world.network)
    @rule(pick=picks, count=st.integers(1, 4))
    def deliver(self, pick: int, count: int) -> None:
        begin = pick % len(self.world.network)
        for head in self.world.network[begin : begin + count]:
            self.world.send(head)

    @precondition(lambda self: self.world.network)
    @rule(pick=st.integers(1, 6))
    def deliver_recent(self, pick: int) -> None:
        self.world.send(self.world.network[-min(pick, len(self.world.network))])

    @precondition(lambda self: self.world.network)
    @rule(pick=picks, kind=st.sampled_from(["same", "wider", "before"]))
    def forge(self, pick: int, kind: str) -> None:
        self.world.forge(self.world.network[pick % len(self.world.network)], kind)
        self.world.send(self.world.network[-1])

    @rule(producer=producers, key=keys)
    def resend(self, producer: int, key: Any) -> None:
        self.world.resend(producer, key)

    @rule()
    def cut_entry(self) -> None:
        self.world.cut_entry()

    @rule(count=st.integers(1, 4))
    def commit(self, count: int) -> None:
        self.world.commit(count)

    @rule(survive=st.integers(0, 3))
    def step_down(self, survive: int) -> None:
        self.world.become_master(survive)

    @rule(producer=producers, epoch=st.booleans())
    def reopen(self, producer: int, epoch: bool) -> None:
        self.world.reopen(producer, epoch=epoch)

    @rule(pick=picks)
    def late_fence(self, pick: int) -> None:
        self.world.fence(self.world.fences[pick % len(self.world.fences)])

    @rule()
    def old_connections(self) -> None:
        self.world.wake_old_connections()

    @rule(key=keys, idle_ms=st.sampled_from([0, 500]), rows_max=st.integers(0, 2))
    def expire(self, key: Any, idle_ms: int, rows_max: int) -> None:
        self.world.expire(key, idle_ms, rows_max)

    @rule(ms=st.integers(0, 1_500))
    def pass_time(self, ms: int) -> None:
        self.world.cut_entry()
        self.world.pass_time(ms)

    @rule(key=keys, batches_max=st.integers(1, 4))
    def release(self, key: Any, batches_max: int) -> None:
        self.world.release(key, batches_max)

    @rule()
    def restart_replica(self) -> None:
        self.world.restart_replica()

    @rule()
    def verify(self) -> None:
        self.world.verify()

    @invariant()
    def agree(self) -> None:
        self.world.check()


QUICK = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_nothing_stored_twice_lost_or_reordered() -> None:
    run_state_machine_as_test(Histories, settings=QUICK)


def test_a_forgery_among_the_sequences_that_a_batch_skips_stands_for_it() -> None:
    """Found by Hypothesis: two writers under one identity, and the first one's batch comes again
    when the window does not reach back to the other's any more."""
    histories = Histories()
    histories.make(producer=PRODUCERS[0], key=KEYS[0], size=1, kind="late positions", sends=1)
    histories.forge(pick=0, kind="before")
    histories.burst(producer=PRODUCERS[0], key=KEYS[0], count=63)
    histories.old_connections()
    histories.agree()


def walk(seed: int, steps: int) -> World:
    """The same world under a seed, without hypothesis: longer and cheaper."""
    chance = random.Random(seed)
    world = World()
    for _ in range(steps):
        producer, key = chance.choice(PRODUCERS), chance.choice(KEYS)
        recent = world.network[-12:]
        match chance.choices(range(14), WEIGHTS)[0]:
            case 0:
                world.make(producer, key, chance.randint(1, 4), chance.choice(KINDS))
                if chance.random() < 0.8:
                    world.send(world.network[-1])
            case 1 if recent:
                world.send(chance.choice(recent))
            case 2 if world.network:
                world.send(chance.choice(world.network))
            case 3:
                world.cut_entry()
            case 4:
                world.commit(chance.randint(1, 3))
            case 5:
                world.become_master(chance.randint(0, 3))
            case 6:
                world.reopen(producer, epoch=chance.random() < 0.5)
            case 7:
                world.fence(chance.choice(world.fences))
            case 8:
                world.expire(key, chance.choice([0, 60_000]), chance.randint(0, 2))
            case 9:
                world.cut_entry()
                world.pass_time(chance.uniform(0, 900))
            case 10 if recent:
                world.forge(chance.choice(recent), chance.choice(FORGERIES))
                world.send(world.network[-1])
            case 11:
                world.resend(producer, key)
            case 12:
                world.wake_old_connections()
            case 13:
                world.release(key, chance.choice([1, 3, 100]))
        if chance.random() < 0.02:
            world.restart_replica()
            world.check()
    world.commit(99)
    world.check()
    world.verify()
    world.settle()
    world.check()
    world.verify()
    return world


def walks(seeds: int = 24, steps: int = 1_200) -> set[str]:
    """Several walks; every answer that came up."""
    return set().union(*(walk(seed, steps).seen for seed in range(seeds)))


WEIGHTS = (160, 120, 30, 40, 90, 8, 10, 10, 2, 40, 6, 40, 4, 60)
FORGERIES = ("same", "wider", "before")
KINDS = ("contiguous", "contiguous", "contiguous", "late", "late", "positions", "mark")


def test_long_walks_meet_every_answer() -> None:
    assert walks() >= {
        "Accepted",
        "Duplicate",
        "DuplicateInFlight",
        "Parked",
        "ProducerFenced",
        "DedupStateExpired",
        "OutOfOrderSequence",
        "PartialOverlap",
        "SequenceConflict",
        "Throttled",
        "expired",
        "released",
    }


# --- planted bugs ---------------------------------------------------------------------------


def gap_check_first(patch: pytest.MonkeyPatch) -> None:
    def decide(self: Admission, header: Any, queue: Any, row: Any, *at: Any) -> Any:
        last = row.applied.last_sequence if row.applied else -1
        return Refused(OutOfOrderSequence("planted", last_sequence=last))

    patch.setattr(Admission, "_decide_unchained", decide)


def window_of_one(patch: pytest.MonkeyPatch) -> None:
    append = Row.append

    def forgetful(self: Row, *args: int) -> None:
        append(self, *args)
        self.window = bytearray(self.window[-ENTRY.size :])

    patch.setattr(Row, "append", forgetful)


def expiry_without_floor(patch: pytest.MonkeyPatch) -> None:
    def anybody(self: object, producer_id: int, epoch: int, *, after_expiry: bool) -> bool:
        return True

    patch.setattr(Expired, "may_open", anybody)


def expiry_without_memory(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: object, producer_id: int) -> bool:
        return False

    patch.setattr(Expired, "may_have_stored", nothing)


def unapplied_ignored(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: PendingState, *args: Any) -> None:
        pass

    patch.setattr(PendingState, "use", nothing)
    patch.setattr(PendingState, "on_applied", nothing)


def duplicate_before_applied(patch: pytest.MonkeyPatch) -> None:
    def decide(self: Admission, header: Any, row: Any) -> Any:
        return Duplicate(Offset(-1))

    patch.setattr(Admission, "_decide_in_flight", decide)


def fence_ignored(patch: pytest.MonkeyPatch) -> None:
    original = Admission.admit_batch

    def lenient(self: Admission, header: Any, now_ms: float, *, time_us: int) -> Any:
        row = self._state.producers.find(header.queue_key, header.producer_id)
        if row is not None:
            header = replace(header, epoch=row.epoch, session=row.session)
        return original(self, header, now_ms, time_us=time_us)

    patch.setattr(Admission, "admit_batch", lenient)


def gaps_are_duplicates(patch: pytest.MonkeyPatch) -> None:
    original = Admission._decide_unchained

    def trusting(self: Admission, header: Any, queue: Any, row: Any, *at: Any) -> Any:
        decision = original(self, header, queue, row, *at)
        if row.applied and header.last_sequence <= row.applied.last_sequence:
            error = getattr(decision, "error", None)
            return Duplicate(Offset(-1)) if isinstance(error, OutOfOrderSequence) else decision
        return decision

    patch.setattr(Admission, "_decide_unchained", trusting)


def rows_not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    pack = Row.pack

    def windowless(self: Row, producer_id: int) -> bytes:
        kept, self.window = self.window, self.window[-ENTRY.size :]
        data = pack(self, producer_id)
        self.window = kept
        return data

    patch.setattr(Row, "pack", windowless)


def released_twice(patch: pytest.MonkeyPatch) -> None:
    def stays(self: Delays, key: Any, extents: Any) -> None:
        pass

    patch.setattr(Delays, "remove", stays)


def released_early(patch: pytest.MonkeyPatch) -> None:
    first = DelayedQueue.first

    def early(self: DelayedQueue, until_us: int, *bounds: Any) -> Any:
        return first(self, until_us + 1_000_000, *bounds)

    patch.setattr(DelayedQueue, "first", early)


def delays_forgotten_by_snapshots(patch: pytest.MonkeyPatch) -> None:
    read = Delays.read_parts.__func__  # type: ignore[attr-defined]

    def forgetful(cls: type[Delays], reader: Any, /, **known: bool) -> Delays:
        read(cls, reader, **known)
        return cls()

    patch.setattr(Delays, "read_parts", classmethod(forgetful))


def release_in_flight_ignored(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: PendingState, queue: Any) -> None:
        self.use(RecordUse.RELEASE, (queue,), ())
        queue.releasing = False

    patch.setattr(PendingState, "use_release", nothing)


def delayed_in_flight_not_foreseen(patch: pytest.MonkeyPatch) -> None:
    first = DelayedQueue.first

    def all_of_them(self: DelayedQueue, until_us: int, below: int, *bounds: Any) -> Any:
        return first(self, until_us, 1 << 60, *bounds)

    patch.setattr(DelayedQueue, "first", all_of_them)


def delayed_not_in_the_window(patch: pytest.MonkeyPatch) -> None:
    append = Row.append

    def windowless(self: Row, base: int, last: int, base_offset: int, *rest: int) -> None:
        append(self, base, last, base_offset, *rest)
        if base_offset < 0:
            del self.window[-ENTRY.size :]  # type: ignore[union-attr]

    patch.setattr(Row, "append", windowless)


def due_out_of_order(patch: pytest.MonkeyPatch) -> None:
    def at_the_end(self: DelayedQueue, extent: Any) -> None:
        made = DelayedBlock(np.array([tuple(extent)], EXTENT))
        self._blocks.append(made)
        self._count(extent, 1)

    patch.setattr(DelayedQueue, "add", at_the_end)


def heap_forgets_the_next(patch: pytest.MonkeyPatch) -> None:
    remove = Delays.remove

    def only_the_first(self: Delays, key: Any, extents: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Delays, "_push", lambda *_: None)
            remove(self, key, extents)

    patch.setattr(Delays, "remove", only_the_first)


PLANTED = [
    gap_check_first,
    window_of_one,
    expiry_without_floor,
    expiry_without_memory,
    unapplied_ignored,
    duplicate_before_applied,
    fence_ignored,
    gaps_are_duplicates,
    rows_not_in_snapshots,
    released_twice,
    released_early,
    delays_forgotten_by_snapshots,
    release_in_flight_ignored,
    delayed_in_flight_not_foreseen,
    delayed_not_in_the_window,
    due_out_of_order,
    heap_forgets_the_next,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_walks_catch_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, StateDiverged, LookupError)):
        walks()


@pytest.mark.parametrize("plant", PLANTED[:4])
def test_state_machine_catches_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    hunt = settings(
        QUICK,
        max_examples=4_000,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises((AssertionError, StateDiverged, LookupError)):
        run_state_machine_as_test(Histories, settings=hunt)
