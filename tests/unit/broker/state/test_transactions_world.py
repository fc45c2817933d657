"""Transactions over two broker groups under any interleaving: all or nothing, at most once, dense.

Programs under one transaction id stage, begin, pin and decide, in any order among each other; each
step may be repeated (a reply was lost) or be the last one (the program dies). Between any two steps
brokers look after what is open: they publish what is decided, ask about pins, end what is too old;
masters change. In the end everything is looked after once more, and both logs are read.

Each program stages progress of a consumer group, too: its own number as the offset, so at any time
the progress must be that of the program whose messages are the newest visible ones.

Planted bugs show that the checks can fail: pins that are thrown away without asking, progress that
is stored before the publication or forgotten by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.state import Published
from semel.protos.batch import BROKER_HEADER_BYTES, BatchHeader, decode_header
from semel.protos.errors import LockLost, SemelError, TransactionAborted
from semel.protos.frames import RecordKind, iter_records
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import LEVEL_MAX, STAGED_COMMITS_LEVEL
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.v1 import transaction_records_pb2 as records
from tests.kit.state_log import header
from tests.unit.broker.state.staging import (
    HOUR_MS,
    Stage,
    lock,
    progress,
    stage_commits,
    staged,
    winner,
)

KEYS = (QueueKey(TopicId(7), QueueId(0)), QueueKey(TopicId(7), QueueId(1)))
COORDINATOR, OTHER = 0, 1
TTL_US = HOUR_MS * 1000
MOST = 200
"""More messages than there are programs."""
PLAIN = 1_000
"""Contents from here on are no program's."""


@dataclass
class Program:
    """One run of a program: it dies after any step."""

    number: int
    """Also the content of its messages."""
    epoch: int | None
    plan: list[str]
    heads: list[list[BatchHeader]] = field(default_factory=lambda: [[], []])
    attempt: int = 0
    begun_epoch: int = -1
    committed: bool | None = None
    """As it was told; None when it was not."""


class World:
    def __init__(
        self,
        random: Random,
        *,
        careless: bool = False,
        hasty: bool = False,
        eager: bool = False,
        forgetful: bool = False,
        level: int = LEVEL_MAX,
    ) -> None:
        self.random = random
        self.careless, self.hasty = careless, hasty
        self.eager, self.forgetful = eager, forgetful
        self.with_progress = level >= STAGED_COMMITS_LEVEL
        self.groups = [Stage(queues=(key,), level=level) for key in KEYS]
        self.programs: list[Program] = []
        self.made = 0
        self.plain = PLAIN
        self.committed_epochs: dict[int, int] = {}
        """Epoch to program."""
        self.events: set[str] = set()
        for group, key in zip(self.groups, KEYS, strict=True):
            group.fence(keys=(key,))
            group.produce(header(-1, last=MOST - 1, crc=self.plain, key=key))
        self.tokens = [lock(group, key=key) for group, key in zip(self.groups, KEYS, strict=True)]
        self.progress = [-1, -1]
        """The program whose messages are the newest of each group."""

    # --- programs ---------------------------------------------------------------------------

    def start(self) -> None:
        self.made += 1
        plan = ["stage0", "stage1", "stage0", "begin", "pin0", "pin1", "decide"]
        if self.random.random() < 0.5:
            del plan[2]
        if self.random.random() < 0.3:
            order = [0, 1] if self.random.random() < 0.5 else [1, 0]
            plan[-3:-1] = [f"pin{at}" for at in order]
        if self.random.random() < 0.4:  # it heard nothing, and commits the same receipts again
            cut = self.random.randint(plan.index("begin") + 1, len(plan))
            plan[cut:] = plan[plan.index("begin") :]
        elif self.random.random() < 0.15:
            plan.remove("pin1")  # a bug of the program: the brokers must not be asked to decide
            plan.remove("decide")
        epoch = None if self.random.random() < 0.5 else self.random.randrange(6)
        self.programs.append(Program(self.made, epoch, plan))

    def advance(self) -> None:
        if not self.programs:
            return
        program = self.random.choice(self.programs)
        if self.random.random() < 0.08 or not program.plan:
            self.programs.remove(program)
            return
        for _ in range(self.random.choice((1, 1, 1, 2))):  # a lost reply: the same step again
            if not self.perform(program, program.plan[0]):
                self.programs.remove(program)
                return
        program.plan.pop(0)

    def perform(self, program: Program, step: str) -> bool:
        """False when the program gives up."""
        at = int(step[-1]) if step[-1].isdigit() else COORDINATOR
        group = self.groups[at]
        stager = STAGER_ID_MIN + program.number
        if step.startswith("stage"):
            heads = program.heads[at]
            epoch = 0 if program.epoch is None else program.epoch
            opened = group.open(stager, epoch=epoch, keys=(KEYS[at],))
            if isinstance(opened, SemelError):
                return False
            base = sum(head.count for head in heads)
            count = self.random.randint(1, 3)
            head = staged(stager, base, count, crc=program.number, key=KEYS[at])
            if group.stage(head) not in ("staged", "duplicate"):
                return False
            assert group.stage(head) == "duplicate"
            heads.append(head)
            return self.stage_progress(program, at)
        if step == "begin":
            record = records.BeginTransaction(transaction_id="t", query_id="q")
            # Whoever lets the epochs go on has staged under the number it expects next.
            record.epoch = 0 if program.epoch is None else program.epoch
            begun = group.step(begin=record)
            if isinstance(begun, SemelError):
                return False
            program.begun_epoch, program.attempt, _ = begun
            if not program.attempt:
                self.events.add("replay")
                return False
            return True
        if step.startswith("pin"):
            before = group.state.transactions.staging.pins.get("t")
            pinned = group.pin(
                winner(
                    stager,
                    {KEYS[at]: program.heads[at]},
                    commits=int(self.with_progress and bool(program.heads[at])),
                ),
                epoch=program.begun_epoch,
                attempt=program.attempt,
            )
            if isinstance(pinned, SemelError):
                self.events.add(type(pinned).__name__)
                mine = group.state.transactions.staging.stagers.get(stager)
                assert (
                    mine is None or not mine.pinned or not isinstance(pinned, TransactionAborted)
                ), "what an attempt has pinned, the next one cannot commit"
                return False
            if before is not None and before.attempt < program.attempt:
                self.events.add("pinned again" if stager in before.winners else "replaced")
            return True
        decided = self.groups[COORDINATOR].step(
            decide=records.DecideTransaction(
                transaction_id="t",
                epoch=program.begun_epoch,
                attempt=program.attempt,
                participants=[COORDINATOR, OTHER],
            )
        )
        if isinstance(decided, SemelError):
            assert program.committed is None, "what was committed stays committed"
            program.committed = False
            self.events.add("fenced")
            return False
        program.committed = True
        first = self.committed_epochs.setdefault(program.begun_epoch, program.number)
        assert first == program.number, "an epoch was committed twice"
        self.events.add("committed")
        return True

    def stage_progress(self, program: Program, at: int) -> bool:
        """False when the program gives up, as its batches are gone meanwhile."""
        if not self.with_progress:
            return True
        group, key = self.groups[at], KEYS[at]
        stager = STAGER_ID_MIN + program.number
        fields: dict[str, Any] = {"key": key, "stager": stager, "epoch": program.epoch or 0}
        late = stage_commits(group, self.tokens[at] - 1, MOST, may_lower=True, **fields)
        assert isinstance(late, LockLost), "another one holds the lock"
        offset = program.number
        found = stage_commits(group, self.tokens[at], offset, may_lower=True, **fields)
        if self.eager and found is None:
            commits = group.state.transactions.staging.stagers[stager].commits
            group.state.groups.commit_staged("g", key, commits["g", key])
        return found is None

    # --- brokers ----------------------------------------------------------------------------

    def look_after(self, at: int) -> None:
        """What a master does beside serving."""
        group = self.groups[at]
        coordination = self.groups[COORDINATOR].state.transactions.coordination
        if at == COORDINATOR:
            row = coordination.rows.get("t")
            if row is not None and not row.published:
                for participant in row.participants:
                    if self.hasty and self.random.random() < 0.5:
                        continue  # it does not answer, and nobody waits for it
                    self.publish(participant, row.epoch, row.decided_attempt)
                if self.random.random() < 0.7:
                    self.groups[COORDINATOR].step(
                        finish=records.FinishTransaction(transaction_id="t", epoch=row.epoch)
                    )
        pin = group.state.transactions.staging.pins.get("t")
        if pin is not None and self.random.random() < 0.5:
            if self.careless:
                committed = False
            else:
                (answer,) = self.groups[COORDINATOR].step(
                    abort=records.AbortTransaction(transaction_id="t", attempt=pin.attempt)
                )
                committed = bool(answer)
            if committed:
                self.publish(at, pin.epoch, pin.attempt)
            else:
                self.events.add("aborted")
                group.step(drop_pin=records.DropPin(transaction_id="t", attempt=pin.attempt))
        staging = group.state.transactions.staging
        sums: dict[int, int] = {}
        for stager in staging.stagers.values():
            for key, queue in stager.queues.items():
                for extent in queue.extents:
                    sums[key.topic_id] = sums.get(key.topic_id, 0) + extent.length
        assert {topic: staging.bytes_of(topic) for topic in sums} == sums
        assert staging.bytes == sum(sums.values())
        expired = staging.expired(group.now_us, 10)
        if expired:
            self.events.add("expired")
            group.step(drop_stagers=records.DropStagers(stager_ids=expired, expired_only=True))

    def publish(self, at: int, epoch: int, attempt: int) -> None:
        """Idempotent, as often as anybody likes."""
        group, key = self.groups[at], KEYS[at]
        for _ in range(self.random.choice((1, 2))):
            pin = group.state.transactions.staging.pin_of("t", attempt)
            if self.forgetful and pin is not None:
                for number in pin.winners:
                    group.state.transactions.staging.stagers[number].commits.clear()
            if isinstance(group.publish(epoch=epoch, attempt=attempt), Published):
                self.events.add("published")
                if self.with_progress:
                    shown = [each for each in group.contents(key) if each < PLAIN]
                    self.progress[at] = shown[-1]
        self.check_progress()

    def check_progress(self) -> None:
        """Progress and messages are always those of the same program."""
        for group, key, expected in zip(self.groups, KEYS, self.progress, strict=True):
            assert progress(group, key=key) == expected, "progress and messages differ"

    def anything(self) -> None:
        at = self.random.randrange(2)
        chance = self.random.random()
        self.check_progress()
        if self.random.random() < 0.05:  # somebody else holds the lock from here on
            self.tokens[at] = lock(self.groups[at], key=KEYS[at])
        if chance < 0.15:
            self.start()
        elif chance < 0.75:
            self.advance()
        elif chance < 0.87:
            self.look_after(at)
        elif chance < 0.91:
            self.groups[at].new_master()
        elif chance < 0.94:
            self.groups[at].now_us += self.random.randrange(TTL_US)
        else:
            self.plain += 1
            group, key = self.groups[at], KEYS[at]
            last = group.state.producers.lookup(key, 1)
            assert last is not None
            group.produce(header(last.last_sequence, crc=self.plain, key=key))

    # --- the end ----------------------------------------------------------------------------

    def check(self) -> None:
        self.programs.clear()
        for _ in range(40):
            for at in range(2):
                self.look_after(at)
        for group in self.groups:
            group.now_us += 2 * TTL_US
        for _ in range(40):
            for at in range(2):
                self.look_after(at)
        visible = [
            [content for content in group.contents(key) if content < PLAIN]
            for group, key in zip(self.groups, KEYS, strict=True)
        ]
        for group in self.groups:
            staging = group.state.transactions.staging
            assert (staging.stagers, staging.pins, staging.bytes) == ({}, {}, 0), "left hanging"
            assert staging.places.cost == 0
            assert group.replayed().digest() == group.state.digest()
        assert set(visible[0]) == set(visible[1]), "committed here and not there"
        assert sorted(set(visible[0])) == sorted(self.committed_epochs.values())
        if self.with_progress and self.committed_epochs:
            newest = self.committed_epochs[max(self.committed_epochs)]
            assert self.progress == [newest, newest]
        sizes = self.sizes()
        for at, contents in enumerate(visible):
            for content in set(contents):
                assert contents.count(content) == sizes[content][at]

    def sizes(self) -> dict[int, list[int]]:
        """Messages of each committed program by group, from the log's STAGED records."""
        found: dict[int, list[int]] = {}
        for at, group in enumerate(self.groups):
            seen: set[tuple[int, int]] = set()
            for frame in group.frames:
                for _, kind, payload in iter_records(frame):
                    if kind is RecordKind.STAGED:
                        batch = decode_header(payload, BROKER_HEADER_BYTES)
                        place = batch.producer_id, batch.base_sequence
                        if place not in seen:
                            seen.add(place)
                            found.setdefault(batch.content_crc, [0, 0])[at] += batch.count
        return found


def run(seed: int, **planted: Any) -> set[str]:
    world = World(Random(seed), **planted)
    for _ in range(120):
        world.anything()
    world.check()
    return world.events


@settings(max_examples=40, deadline=None)
@given(st.integers(min_value=0, max_value=1 << 32))
def test_any_interleaving_is_all_or_nothing(seed: int) -> None:
    run(seed)


def test_the_world_is_not_too_tame() -> None:
    events = set().union(*(run(seed) for seed in range(25)))
    wanted = {"committed", "published", "aborted", "expired", "fenced", "replay"}
    assert events >= wanted | {"pinned again", "replaced"}, events


def test_pins_that_are_thrown_away_without_asking_are_noticed() -> None:
    def careless() -> None:
        for seed in range(60):
            run(seed, careless=True)

    with pytest.raises(AssertionError):
        careless()


def test_receipts_that_cannot_be_committed_again_are_noticed() -> None:
    """As it was below feature level 6."""

    def older() -> None:
        for seed in range(60):
            run(seed, level=5)

    with pytest.raises(AssertionError, match="the next one cannot commit"):
        older()


def test_an_epoch_that_is_finished_before_all_have_published_is_noticed() -> None:
    def hasty() -> None:
        for seed in range(60):
            run(seed, hasty=True)

    with pytest.raises(AssertionError, match="committed here and not there"):
        hasty()


@pytest.mark.parametrize("planted", ["eager", "forgetful"])
def test_progress_without_its_messages_or_messages_without_it_are_noticed(planted: str) -> None:
    def spoilt() -> None:
        for seed in range(60):
            run(seed, **{planted: True})

    with pytest.raises(AssertionError, match="progress and messages differ"):
        spoilt()
