"""Moves between groups in all interleavings with sends, retries, late steps and restarts."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semel.broker.state import (
    Accepted,
    Duplicate,
    MoveState,
    State,
)
from semel.protos.batch import BatchHeader
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, header, ref
from tests.unit.broker.state.moving import Home, begin, bring_slice, copy_some

STEPS = ["BEGIN", "SEAL", "UNSEAL", "ABORT", "ACTIVATE", "FORWARD", "INGEST", "FLOOR"]


class Moving(RuleBasedStateMachine):
    """One producer writes all the time; jobs begin, are decided or given up, and begin again;
    steps of old jobs come late; masters change; nodes go on from checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = {1: Home(1, queues=(KEY,)), 2: Home(2)}
        self.groups[1].fence()
        self.home = 1
        """Where the store says that the queue lives."""
        self.job = 0
        self.stage = "none"
        self.made: list[BatchHeader] = []
        self.offsets: dict[int, int] = {}
        """What was acknowledged, by content."""

    @property
    def source(self) -> Home:
        return self.groups[self.home]

    @property
    def target(self) -> Home:
        return self.groups[3 - self.home]

    # The producer.

    @rule(size=st.integers(1, 3))
    def make(self, size: int) -> None:
        last = self.made[-1].last_sequence if self.made else -1
        self.made.append(header(last, last=last + size, crc=len(self.made) + 1))

    @rule(group=st.sampled_from([1, 2]), back=st.integers(0, 70), durable=st.booleans())
    def send(self, group: int, back: int, durable: bool) -> None:
        """Some batch, the newest or an old one again, to either group."""
        if not self.made:
            return
        batch = self.made[max(0, len(self.made) - 1 - back)]
        answer = self.groups[group].produce(batch, commit=durable)
        if isinstance(answer, Accepted) and durable:
            assert batch.content_crc not in self.offsets, "stored twice"
            self.offsets[batch.content_crc] = answer.base_offset
        elif isinstance(answer, Accepted):
            self.groups[group].new_master()  # it is lost, with all that was not applied
        elif isinstance(answer, Duplicate):
            wanted = self.offsets[batch.content_crc]
            assert answer.base_offset in (wanted, -1), "another place"
            if len(self.made) - back > len(self.made) - 60:
                assert answer.base_offset == wanted, "the window did not come over"

    @rule()
    def send_all(self) -> None:
        """All unstored batches, in order: each must get somewhere unless the queue is sealed."""
        for batch in self.made:
            if batch.content_crc in self.offsets:
                continue
            answers = [self.groups[number].produce(batch) for number in (1, 2)]
            accepted = [each for each in answers if isinstance(each, Accepted)]
            assert len(accepted) <= 1, "two groups took it"
            if accepted:
                self.offsets[batch.content_crc] = accepted[0].base_offset
            else:
                assert self.stage in ("sealed", "ready", "decided", "activated")
                return

    # The controllers, who do what the store has decided.

    @precondition(lambda self: self.stage == "none")
    @rule()
    def begin(self) -> None:
        self.job += 1
        assert begin(self.source, self.target, self.job) is None
        self.stage = "copying"

    @precondition(lambda self: self.stage in ("copying", "sealed"))
    @rule(batches=st.integers(1, 5))
    def copy(self, batches: int) -> None:
        copy_some(self.source, self.target, batches)

    @precondition(lambda self: self.stage == "copying")
    @rule()
    def seal(self) -> None:
        assert self.source.step("SEAL", self.job, self.target.number) is None
        self.stage = "sealed"

    @precondition(lambda self: self.stage == "sealed")
    @rule()
    def ingest(self) -> None:
        assert bring_slice(self.source, self.target, self.job) is None
        self.stage = "ready"

    @precondition(lambda self: self.stage == "ready")
    @rule()
    def decide(self) -> None:
        self.stage = "decided"

    @precondition(lambda self: self.stage == "decided")
    @rule()
    def activate(self) -> None:
        assert self.target.step("ACTIVATE", self.job, self.home) is None
        self.stage = "activated"

    @precondition(lambda self: self.stage == "activated")
    @rule()
    def forward(self) -> None:
        assert self.source.step("FORWARD", self.job, self.target.number) is None
        self.home = 3 - self.home
        self.stage = "none"

    @precondition(lambda self: self.stage in ("copying", "sealed", "ready"))
    @rule(first=st.booleans())
    def give_up(self, first: bool) -> None:
        for group, step in ((self.source, "UNSEAL"), (self.target, "ABORT"))[:: 1 if first else -1]:
            assert group.step(step, self.job, 3 - group.number) is None
        self.stage = "none"

    # What can always happen.

    @precondition(lambda self: self.job)
    @rule(
        group=st.sampled_from([1, 2]),
        back=st.integers(1, 3),
        step=st.sampled_from(STEPS),
    )
    def late_step(self, group: int, back: int, step: str) -> None:
        """A step of a job that is over, from a controller that does not know that."""
        job = self.job - back + (self.stage == "none")
        if job > 0:
            create = control_pb2.CreateQueue(queue=ref(), topic="orders", slot_end=65_536)
            self.groups[group].step(step, job, 3 - group, create=create, offset=1 << 40)

    @precondition(lambda self: self.stage not in ("none",))
    @rule()
    def repeat(self) -> None:
        """The step that led here, again: its answer was lost."""
        again = {
            "sealed": (self.source, "SEAL"),
            "activated": (self.target, "ACTIVATE"),
        }.get(self.stage)
        if self.stage == "copying":
            assert begin(self.source, self.target, self.job) is None
        elif self.stage == "ready":
            assert bring_slice(self.source, self.target, self.job) is None
        elif again is not None:
            group, step = again
            assert group.step(step, self.job, 3 - group.number) is None

    @rule(group=st.sampled_from([1, 2]))
    def restart(self, group: int) -> None:
        self.groups[group].restart()

    @invariant()
    def every_message_once(self) -> None:
        homes = [group for group in self.groups.values() if KEY in group.state.queues]
        serving = [group for group in homes if not group.state.queues[KEY].frozen]
        assert len(serving) == (self.stage not in ("sealed", "ready", "decided"))
        newest = max(homes, key=lambda group: group in serving).state.queues[KEY]
        assert newest.log_end_offset == sum(
            batch.count for batch in self.made if batch.content_crc in self.offsets
        )

    def teardown(self) -> None:
        for group in self.groups.values():
            assert not group.tables.problems, group.tables.problems
            digest = group.state.producers.queue_digest(KEY)
            assert digest == group.tables.queue_digest(KEY)
            data = b"".join(group.state.to_parts())
            assert State.from_bytes(data).digest() == group.state.digest()
            assert group.replayed().digest() == group.state.digest()
            for place in group.state.moves.places.values():
                assert (place.state is MoveState.FROZEN) == group.state.queues.get(
                    KEY, _NOT_FROZEN
                ).frozen


class _NotFrozen:
    frozen = False


_NOT_FROZEN: Any = _NotFrozen()

TestMoving = Moving.TestCase
TestMoving.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
