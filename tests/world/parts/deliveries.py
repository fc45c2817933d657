"""Consumers that reject messages or try them again: each is processed, or a dead letter, not both.

How it works. *Sorters* consume in a group, decide by chance what becomes of each message, and note
what they decided before and after the commit. They crash, sleep beyond their sessions and locks,
and come back; the nemesis strikes as ever. At the end an *auditor* reads the dead letters, and
`judge` compares. The part `retries` has them try some messages again, some time later.

What must hold for each message of the topic
1. It was decided about at least once: nothing is skipped.
2. It is a dead letter once or not at all, and each further attempt at it is one copy.
3. Rejected, and the commit acknowledged: a dead letter. Processed, and acknowledged: none, and no
   further attempt. To be tried again, and acknowledged: the next attempt comes, or, after the last
   one, a dead letter.
4. A dead letter was rejected by somebody; what is none was processed by somebody; a further attempt
   was asked for by somebody.

Not here: what holds for all runs (`../invariants.py`), faults (`../nemesis.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeAlias
from unittest.mock import patch

from semel.client import RetryPolicy
from semel.client.core import letters
from semel.client.feed_queue import FeedQueue
from semel.client.relay import Relay
from semel.client.retrying import Retrying
from semel.protos.errors import LockLost, UnknownTopic
from tests.checking.raw_log import Fold
from tests.world import soak
from tests.world.clients import AUDITS, READS, TOPIC, ClientHost, Member
from tests.world.loop import PROCESS
from tests.world.plan import Plan, make_plan, with_clients
from tests.world.registry import Part, add_part, program, random_of, with_parts
from tests.world.run import Run, run_plan
from tests.world.world import World

GROUP = "sorting"
REJECTED, PROCESSED, RETRIED = "rejected", "processed", "to be tried again"
LEFT_OUT = ("expiry", "fence all")
"""Strangers that fence or forget a relay's producers: that is outside the promise."""
STEPS_MAX = 2
DEAD_LETTERS = letters.dead_letter_topic(GROUP)
RETRIES = tuple(letters.retry_topic(GROUP, step) for step in range(1, STEPS_MAX + 1))

Place: TypeAlias = tuple[int, int]
"""Queue and offset of a message, where it was first."""
Decided: TypeAlias = dict[Place, dict[int, set[str]]]
"""By message and attempt, from 1."""


def _nothing() -> Decided:
    return defaultdict(lambda: defaultdict(set))


class Decisions:
    """What the sorters of one run decided."""

    def __init__(self) -> None:
        self.made = _nothing()
        self.acknowledged = _nothing()
        self.copies: dict[tuple[Place, int], set[tuple[str, int, int]]] = defaultdict(set)
        """Where each attempt was read: topic, queue, offset."""
        self.attempts_max = 1
        self.dead: list[Place] | None = None
        """Origins of the dead letters, once they are read."""


class Sorter(Member):
    """A consumer that rejects some messages."""

    stage = READS
    topics = (DEAD_LETTERS, *RETRIES)

    def __init__(self, world: World, name: str, lock_ms: int, decisions: Decisions) -> None:
        super().__init__(world, name, lock_ms)
        self.decisions = decisions
        self.steps_ms: tuple[int, ...] = ()

    async def work(self, client: Any) -> None:
        async with client.consumer(
            GROUP,
            TOPIC,
            lock_ms=self.lock_ms,
            session_ms=800,
            retry=RetryPolicy(steps_ms=self.steps_ms, queues=2),
        ) as consumer:
            while not (self.stopping and self.caught_up()):
                await self._sort(consumer)
        self.done = True

    async def _sort(self, consumer: Any) -> None:
        world = self.world
        messages = await consumer.poll(max_messages=6, timeout=0.3)
        decided: list[tuple[Place, int, str]] = []
        try:
            for message in messages:
                origin, attempt = message.origin, message.attempt
                place = origin.queue, origin.offset
                where = message.topic, message.queue, message.offset
                self.decisions.copies[place, attempt].add(where)
                decision = self._decide()
                if decision == REJECTED:
                    consumer.reject(message, self.name)
                elif decision == RETRIED:
                    consumer.retry(message, self.name)
                decided.append((place, attempt, decision))
                self.decisions.made[place][attempt].add(decision)
            if not self.stopping and self.random.random() < 0.05:
                world.count("sorter slept beyond its lock")
                await asyncio.sleep(self.lock_ms / 1000 * 1.5)
            if not self.stopping and decided and self.random.random() < 0.08:
                # It wakes up with a commit in hand, and knows nothing of its lost locks.
                world.count("sorter froze before its commit")
                until = world.now + self.random.uniform(0.9, 2.0)
                world.loop.stop_process(PROCESS.get(), until)
            await consumer.commit()
        except LockLost:
            world.count("sorter: lock lost")
            return
        for place, attempt, decision in decided:
            self.decisions.acknowledged[place][attempt].add(decision)
            world.count(f"message {decision}")

    def _decide(self) -> str:
        chance = self.random.random()
        if chance < 0.4:
            return RETRIED if self.steps_ms and chance < 0.3 else REJECTED
        return PROCESSED

    async def wind_up(self) -> None:
        """It is done when everything is sorted, not before."""


class Auditor(ClientHost):
    """Reads the dead letters when everything is over."""

    stage = AUDITS

    def __init__(self, world: World, name: str, decisions: Decisions) -> None:
        super().__init__(world, name)
        self.decisions = decisions

    async def work(self, client: Any) -> None:
        while not (self.stopping and self.quiet()):
            await asyncio.sleep(0.1)
        dead: list[Place] = []
        try:
            async with client.reader(DEAD_LETTERS, end="latest") as reader:
                async for message in reader:
                    dead.append((message.origin.queue, message.origin.offset))
        except UnknownTopic:
            self.world.count("no sorter ever began")
        self.decisions.dead = dead
        self.done = True

    async def wind_up(self) -> None:
        """It is done when it has read them, not before."""

    def verdict(self, fold: Fold) -> str:
        stored = {
            (row.queue[1], row.offset) for row in fold.rows if fold.topics[row.queue[0]] == TOPIC
        }
        self.world.seen["dead letter"] += len(self.decisions.dead or ())
        found = judge(self.decisions, stored)
        return found and f"deliveries: {found}"


def judge(decisions: Decisions, stored: set[Place]) -> str:
    """What is wrong first; empty when nothing is."""
    assert decisions.dead is not None, "nobody read the dead letters"
    dead = Counter(decisions.dead)
    for (place, attempt), copies in sorted(decisions.copies.items()):
        if len(copies) > 1:
            return f"attempt {attempt} at {_name(place)} is there more than once: {sorted(copies)}"
    for place in sorted(stored | set(dead)):
        found = _judge(decisions, place, dead[place])
        if found:
            return f"{_name(place)} {found}"
    return ""


def _name(place: Place) -> str:
    return f"message {place[1]} of queue {place[0]}"


def _judge(decisions: Decisions, place: Place, dead: int) -> str:
    """What is wrong with one message."""
    made = decisions.made.get(place, {})
    if 1 not in made:
        return "was skipped"
    if dead > 1:
        return f"is {dead} dead letters"
    for attempt, certain in decisions.acknowledged.get(place, {}).items():
        again = any(later > attempt for later in made)
        rejected = REJECTED in certain or (RETRIED in certain and attempt == decisions.attempts_max)
        if rejected and not dead:
            return "was rejected for certain, and is no dead letter"
        if PROCESSED in certain and dead:
            return "was processed for certain, and is a dead letter"
        if (rejected or PROCESSED in certain) and again:
            return f"was decided for certain in attempt {attempt}, and came again"
        if RETRIED in certain and not rejected and not again:
            return f"was to be tried again for certain after attempt {attempt}, and never came"
    for attempt in made:
        if attempt > 1 and RETRIED not in made.get(attempt - 1, ()):
            return f"came a {attempt}th time, and nobody asked for it"
    rejected = any(
        REJECTED in some or (RETRIED in some and attempt == decisions.attempts_max)
        for attempt, some in made.items()
    )
    if dead and not rejected:
        return "is a dead letter that nobody rejected"
    if not dead and not any(PROCESSED in some for some in made.values()):
        return "is lost: rejected only, and no dead letter"
    return ""


@program("sorter", host="q")
def sorter(run: Run, host: str) -> Sorter:
    decisions = run.shared(Decisions)
    made = Sorter(run.world, host, run.plan.lock_ms, decisions)
    made.caught_up = lambda: run.is_read(GROUP, (TOPIC, *RETRIES))
    if "retries" in run.plan.parts:
        random = random_of(run.plan, "retries")
        made.steps_ms = random.choice(((0,), (150,), (150, 400), (500, 0)))
        decisions.attempts_max = len(made.steps_ms) + 1
    return made


@program("auditor", host="z")
def auditor(run: Run, host: str) -> Auditor:
    return Auditor(run.world, host, run.shared(Decisions))


def with_deliveries(plan: Plan) -> Plan:
    return with_clients(plan, ("sender 1", "sender 2", "sorter 1", "sorter 2", "auditor 1"))


def inside_the_promise(plan: Plan) -> Plan:
    """Nothing is trimmed before it is read, and nobody fences or forgets a relay's producers."""
    return dataclasses.replace(
        plan,
        steps=tuple(step for step in plan.steps if step.kind not in LEFT_OUT),
        retention_bytes=0,
        producers_max=100,
        producer_idle_ms=7 * 24 * 3_600_000,
    )


@contextmanager
def count_skips(run: Run) -> Iterator[None]:
    take_over = Retrying.take_over

    async def observed(retrying: Retrying, queue: FeedQueue, start: int) -> int:
        covered = await take_over(retrying, queue, start)
        if queue.skip or covered > start:
            run.world.count("copies skipped")
        return covered

    with patch.object(Retrying, "take_over", observed):
        yield


add_part(
    Part(
        name="deliveries",
        help="a group rejects messages: each is processed or a dead letter",
        add=with_deliveries,
        leave_out=inside_the_promise,
        exchange=count_skips,
    )
)
add_part(
    Part(
        name="retries",
        help="and tries some of them again, some time later",
        add=with_deliveries,
        leave_out=inside_the_promise,
    )
)


def plan_of(seed: int, *more: str) -> Plan:
    """The plan of a seed with sorters for clients, and other parts."""
    alone = dataclasses.replace(make_plan(seed), clients=())
    return with_parts(alone, ("deliveries", *more))


def run_delivery(
    seed: int, *more: str, plant: AbstractContextManager[object] | None = None
) -> tuple[Counter[str], str]:
    """What was seen, and what failed; empty for nothing."""
    result, failure, _ = run_plan(plan_of(seed, *more), plant=plant or nullcontext())
    return result.seen if result else Counter(), failure


# --- planted bugs


def forgets_copies() -> AbstractContextManager[object]:
    """An owner does not look for what an earlier one copied."""
    take_over = Relay.take_over

    async def bad(relay: Relay, topics: Sequence[str]) -> list[Any]:
        await take_over(relay, topics)
        return []

    return patch.object(Relay, "take_over", bad)


def commits_first() -> AbstractContextManager[object]:
    """Progress is stored before the copies are made."""
    publish = Retrying.publish

    async def nothing(retrying: Retrying, queue: FeedQueue, offset: int) -> None:
        pass

    async def late(retrying: Retrying, queue: FeedQueue, offset: int) -> None:
        await publish(retrying, queue, offset)
        await on_committed(retrying, queue, offset)

    on_committed = Retrying.on_committed
    plants = ExitStack()
    plants.enter_context(patch.object(Retrying, "publish", nothing))
    plants.enter_context(patch.object(Retrying, "on_committed", late))
    return plants


PLANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "forgets copies": forgets_copies,
    "commits first": commits_first,
}


def main(arguments: list[str]) -> int:
    """`./run soak deliveries [OPTION...]`: as `./run soak sim`, with these programs alone."""
    return soak.main(["--alone", "--deliveries", *arguments], name="deliveries")
