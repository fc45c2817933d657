"""Consumers that reject messages or try them again: each is processed, or a dead letter, not both.

How it works. *Sorters* consume in a group, decide by chance what becomes of each message, and note
what they decided before and after the commit. They crash, sleep beyond their sessions and locks,
and come back; in half of the worlds they give commits up, too, and seek back to what those were
about, while copies are slow. The nemesis strikes as ever. At the end an *auditor* reads the dead
letters, and `judge` compares. The part `retries` has them try some messages again, some time later;
`policies` gives each of a sorter's lives a retry policy of its own, so that a group's members
differ and each takes over what another policy has left; `idle` forgets producers while they are
busy, as idle days do, and strangers fence them; `redrive` brings dead letters back to the group
while more of them come, two programs at a time, which end each other; with `moves` the queue that
remembers them moves while they are at work, and they go on.

What must hold for each message of the topic
1. It was decided about at least once: nothing is skipped.
2. It is a dead letter once or not at all, and each further attempt at it is one copy.
3. Rejected, and the commit acknowledged: a dead letter. Processed, and acknowledged: none, and no
   further attempt. To be tried again, and acknowledged: the next attempt comes, or, after the last
   one, a dead letter.
4. A dead letter was rejected by somebody; what is none was processed by somebody; a further attempt
   was asked for by somebody.
5. A dead letter is brought back once at most, and once for certain by a redrive that ends well.

Not here: what holds for all runs (`../invariants.py`), faults (`../nemesis.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from random import Random
from typing import Any, TypeAlias
from unittest.mock import patch

from semel.broker.state.apply import expired
from semel.client import Message, RetryPolicy
from semel.client.core import letters
from semel.client.dead_letters import redrive as redriving
from semel.client.dead_letters.redrive_lock import RedriveLock
from semel.client.dead_letters.retrying import Retrying
from semel.client.reading.feed_queue import FeedQueue
from semel.protos.errors import Closed, InvalidRequest, LockLost, ProducerFenced, UnknownTopic
from tests.checking.raw_log import Fold
from tests.world import soak
from tests.world.clients import AUDITS, READS, TOPIC, ClientHost, Member
from tests.world.loop import PROCESS
from tests.world.parts.moves import move_queue
from tests.world.plan import Plan, Step, make_plan, with_clients, with_steps
from tests.world.registry import Part, add_part, program, random_of, with_parts
from tests.world.run import Run, run_plan
from tests.world.world import World

GROUP = "sorting"
REJECTED, PROCESSED, RETRIED = "rejected", "processed", "to be tried again"
STEPS_MAX = 2
DEAD_LETTERS = letters.dead_letter_topic(GROUP)
GRAVEYARD = "graveyard"
"""The topic to which some policies bring dead letters."""
STRIKES_MAX = 6
"""Limit of the times that sorters die or freeze while they copy: a run has to end."""
DOUBTS_MAX = 15
"""Limit of the commits that a sorter gives up."""
STEPS = ((0,), (150,), (150, 400), (500, 0))
RETRIES = tuple(letters.retry_topic(GROUP, step) for step in range(1, STEPS_MAX + 1))

Place: TypeAlias = tuple[int, int]
"""Queue and offset of a message, where it was first."""
Decided: TypeAlias = dict[Place, dict[int, set[str]]]
"""Decisions by message and attempt, counted from 1."""


def _nothing() -> Decided:
    return defaultdict(lambda: defaultdict(set))


class Decisions:
    """What the sorters of one run decided."""

    def __init__(self) -> None:
        self.made = _nothing()
        self.acknowledged = _nothing()
        self.copies: dict[tuple[Place, int], set[tuple[str, int, int]]] = defaultdict(set)
        """The places where each attempt was read: topic, queue, offset."""
        self.attempts_max = 1
        self.dead: list[Place] | None = None
        """Origins of the dead letters, once they are read."""
        self.letters: list[str] = []
        """Places of the dead letters that can be brought back."""
        self.back: Counter[str] = Counter()
        """The dead letters that were brought back, as the copies say."""


class Sorter(Member):
    """A consumer that rejects some messages."""

    stage = READS
    topics = (DEAD_LETTERS, GRAVEYARD, *RETRIES)

    def __init__(self, world: World, name: str, lock_ms: int, decisions: Decisions) -> None:
        super().__init__(world, name, lock_ms)
        self.decisions = decisions
        self.steps_ms: tuple[int, ...] = ()
        self.changes_policy = False
        """True when each of its lives has another retry policy."""
        self.doubts: Random | None = None
        """Set when it gives commits up: whether it does, and when."""
        self.doubts_left = DOUBTS_MAX

    async def work(self, client: Any) -> None:
        dead_letter = ""
        if self.changes_policy:
            self.steps_ms = self.random.choice(((), *STEPS))
            dead_letter = self.random.choice(("", GRAVEYARD))
        async with client.consumer(
            GROUP,
            TOPIC,
            lock_ms=self.lock_ms,
            session_ms=800,
            retry=RetryPolicy(steps_ms=self.steps_ms, queues=2, dead_letter=dead_letter),
        ) as consumer:
            while not (self.stopping and self.caught_up()):
                await self._sort(consumer)
        self.done = True

    async def _sort(self, consumer: Any) -> None:
        world = self.world
        most = 6 if self.doubts is None else self.doubts.choice((1, 2, 6))
        messages = await consumer.poll(max_messages=most, timeout=0.3)
        decided: list[tuple[Place, int, str]] = []
        try:
            for message in messages:
                if letters.read(message.headers).redriven:
                    continue  # it was decided about
                origin, attempt = message.origin, message.attempt
                place = origin.queue, origin.offset
                where = message.topic, message.queue, message.offset
                self.decisions.copies[place, attempt].add(where)
                decision = self._decide()
                if decision == REJECTED:
                    consumer.reject(message, self.name)
                elif decision == RETRIED:
                    consumer.retry(message, self.name)
                    if attempt > len(self.steps_ms):
                        decision = REJECTED  # by the policy
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
            if await self._gives_up(consumer, messages):
                return
            await consumer.commit()
        except LockLost:
            world.count("sorter: lock lost")
            return
        except (Closed, InvalidRequest) as error:
            raise AssertionError(f"{self.name} did nothing wrong, and was told: {error}") from None
        for place, attempt, decision in decided:
            self.decisions.acknowledged[place][attempt].add(decision)
            world.count(f"message {decision}")

    async def _gives_up(self, consumer: Any, messages: Sequence[Message]) -> bool:
        """Begins a commit, gives it up soon, and asks for the messages once more; or asks for them
        first, and commits then. Returns False if it has done neither."""
        doubts = self.doubts
        if doubts is None or not self.doubts_left or not messages or doubts.random() > 0.4:
            return False
        self.doubts_left -= 1
        begins = bool(self.doubts_left % 3)
        if begins:
            commit = asyncio.ensure_future(consumer.commit())
            await asyncio.wait([commit], timeout=doubts.uniform(0, 0.04))
            commit.cancel()
            with suppress(asyncio.CancelledError):
                await commit
        first: dict[tuple[str, int], int] = {}
        for message in messages:
            place = message.topic, message.queue
            first[place] = min(message.offset, first.get(place, message.offset))
        held = {(each.topic, key.queue_id): each for key, each in consumer._core.locks.held.items()}
        for place in first.keys() & held.keys():
            # What is committed was decided for good.
            await consumer.seek(*place, max(first[place], held[place].done))
        if not begins:
            await consumer.commit()  # of nothing that is given out again
        self.world.count("commit given up")
        return True

    def _decide(self) -> str:
        chance = self.random.random()
        if chance < 0.4:
            return RETRIED if self.steps_ms and chance < 0.3 else REJECTED
        return PROCESSED

    async def wind_up(self) -> None:
        """It is done when everything is sorted, not before."""


class Redriver(ClientHost):
    """Brings dead letters back, again and again."""

    topics = (letters.redriven_topic(DEAD_LETTERS),)

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = 8
        """How often it has to begin yet, at least."""

    async def work(self, client: Any) -> None:
        while self.left > 0 or not self.stopping:
            await self.pause(0.15)
            self.left -= 1
            try:
                found = await client.admin.redrive(GROUP, to="group")
            except (ProducerFenced, UnknownTopic) as error:
                self.world.count(f"redrive: {type(error).__name__}")
            else:
                self.world.seen["letter brought back"] += found.redriven
                self.world.seen["letter found brought back"] += found.recovered
        self.done = True

    async def wind_up(self) -> None:
        """It goes on until it has begun often enough."""


class Auditor(ClientHost):
    """Reads the dead letters when everything is over."""

    stage = AUDITS

    def __init__(self, world: World, name: str, decisions: Decisions) -> None:
        super().__init__(world, name)
        self.decisions = decisions
        self.redrives = False
        """True when it brings the last letters back itself."""

    async def work(self, client: Any) -> None:
        while not (self.stopping and self.quiet()):
            await asyncio.sleep(0.1)
        dead = [
            message
            for topic in (DEAD_LETTERS, GRAVEYARD)
            async for message in self._messages(client, topic)
        ]
        if self.redrives:
            with suppress(UnknownTopic):
                await client.admin.redrive(GROUP, to="group")
            tags = [
                letters.read(message.headers).redriven
                async for message in self._messages(client, RETRIES[0])
            ]
            self.decisions.back = Counter(tag for tag in tags if tag)
            self.decisions.letters = [
                f"{DEAD_LETTERS}/{message.queue}/{message.offset}"
                for message in dead
                if message.topic == DEAD_LETTERS
            ]
        self.decisions.dead = [(one.origin.queue, one.origin.offset) for one in dead]
        self.done = True

    async def _messages(self, client: Any, topic: str) -> AsyncIterator[Any]:
        try:
            async with client.reader(topic, end="latest") as reader:
                async for message in reader:
                    yield message
        except UnknownTopic:
            self.world.count("no dead-letter topic")

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
    """The first error among all messages; empty when there is none."""
    assert decisions.dead is not None, "nobody read the dead letters"
    dead = Counter(decisions.dead)
    for (place, attempt), copies in sorted(decisions.copies.items()):
        if len(copies) > 1:
            return f"attempt {attempt} at {_name(place)} is there more than once: {sorted(copies)}"
    for tag, count in sorted(decisions.back.items()):
        if count > 1:
            return f"dead letter {tag} was brought back {count} times"
    if decisions.back and (missing := set(decisions.letters) - decisions.back.keys()):
        return f"dead letters were not brought back: {sorted(missing)}"
    for place in sorted(stored | set(dead)):
        found = _judge(decisions, place, dead[place])
        if found:
            return f"{_name(place)} {found}"
    return ""


def _name(place: Place) -> str:
    return f"message {place[1]} of queue {place[0]}"


def _judge(decisions: Decisions, place: Place, dead: int) -> str:
    """The first error about one message; empty when there is none."""
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


def _gives_commits_up(plan: Plan) -> bool:
    """In half of the worlds sorters cancel commits and seek back, and copies are slow."""
    return random_of(plan, "patience").random() < 0.5


@program("sorter", host="q")
def sorter(run: Run, host: str) -> Sorter:
    decisions = run.shared(Decisions)
    made = Sorter(run.world, host, run.plan.lock_ms, decisions)
    made.caught_up = lambda: run.is_read(GROUP, (TOPIC, *RETRIES))
    if {"retries", "redrive"} & set(run.plan.parts):
        made.steps_ms = random_of(run.plan, "retries").choice(STEPS)
    made.changes_policy = "policies" in run.plan.parts
    if _gives_commits_up(run.plan):
        made.doubts = random_of(run.plan, f"doubts of {host}")
    decisions.attempts_max = len(made.steps_ms) + 1 if not made.changes_policy else STEPS_MAX + 1
    return made


@program("auditor", host="z")
def auditor(run: Run, host: str) -> Auditor:
    made = Auditor(run.world, host, run.shared(Decisions))
    made.redrives = "redrive" in run.plan.parts
    return made


@program("redriver", host="v")
def redriver(run: Run, host: str) -> Redriver:
    return Redriver(run.world, host)


def with_deliveries(plan: Plan) -> Plan:
    return with_clients(plan, ("sender 1", "sender 2", "sorter 1", "sorter 2", "auditor 1"))


def inside_the_promise(plan: Plan) -> Plan:
    """Nothing is trimmed before it is read."""
    return dataclasses.replace(plan, retention_bytes=0)


def with_idle_days(plan: Plan) -> Plan:
    """Rows expire while their producers are busy, floors rise, and strangers fence producers that
    are at work: what a relay knows of its copies must not depend on any row."""
    random = random_of(plan, "idle")
    kinds = ("expiry",) * 3 + ("fence all", "client crash")
    steps = [
        Step(round(random.uniform(0, plan.duration_s), 6), kind, random.getrandbits(32))
        for kind in random.choices(kinds, k=random.choice((4, 8, 12)))
    ]
    return dataclasses.replace(
        with_deliveries(with_steps(plan, steps)),
        producers_max=random.choice((1, 2)),
        producer_idle_ms=random.choice((50, 100, 400)),
    )


def few_are_remembered(run: Run) -> AbstractContextManager[object]:
    """A queue remembers two expired rows, and of the others the floor."""
    return patch.object(expired, "REMEMBERED_MAX", 2)


@contextmanager
def struck_while_copying(run: Run) -> Iterator[None]:
    """Programs die and freeze at the worst moments: between record and copies, and right behind
    those."""
    take_over, store, send = Retrying.take_over, Retrying._store_record, Retrying._send
    acquire, intend = RedriveLock.acquire, RedriveLock.store
    write_down, check_latest = redriving._Run._write_down, redriving._Run._check_latest
    random, world = random_of(run.plan, "copies"), run.world
    mover = random_of(run.plan, "ledger")
    slow = random_of(run.plan, "slow copies") if _gives_commits_up(run.plan) else None

    left = STRIKES_MAX

    async def strike(when: str) -> None:
        nonlocal left
        if not left or random.random() > 0.3:
            return
        left -= 1
        process = PROCESS.get()
        if random.random() < 0.6:
            (name,) = (name for name, each in world.hosts.items() if each is process)
            world.fault(f"{'sorter' if name[0] == 'q' else 'redriver'} died {when}")
            world.crash(name, when)
        else:
            world.fault(f"somebody froze {when}")
            world.loop.stop_process(process, world.now + random.uniform(0.9, 2.0))
        await asyncio.sleep(0)

    async def kept_on(self: Any, lock: Any) -> None:
        await check_latest(self, lock)
        world.count("redrive went on")

    async def acquired(self: Any) -> bytes:
        await strike("before its lock")
        return await acquire(self)

    async def intended(self: Any, record: bytes) -> None:
        if "moves" in run.plan.parts and mover.random() < 0.6:
            job = move_queue([Redriver.topics[0]], mover.random())
            run.operator.ask("moved the ledger of a redrive", job, once=True)
            await asyncio.sleep(mover.uniform(0, 1.0))
        await intend(self, record)
        await strike("before its copies")

    async def wrote_down(self: Any, *about: Any) -> None:
        await strike("behind its copies")
        await write_down(self, *about)

    async def observed(self: Retrying, queue: FeedQueue, start: int, metadata: bytes) -> int:
        covered = await take_over(self, queue, start, metadata)
        world.seen["copies looked for"] += bool(metadata)
        if queue.skip or covered > start:
            world.count("copies skipped")
        return covered

    async def stored(self: Retrying, found: Any) -> None:
        await store(self, found)
        if slow is not None and slow.random() < 0.5:
            await asyncio.sleep(slow.uniform(0, 0.2))  # what was given up is asked for meanwhile
        await strike("before its copies")

    async def sent(self: Retrying, *about: Any) -> None:
        await send(self, *about)
        if random.random() < 0.5:
            await asyncio.sleep(random.uniform(0, 0.03))  # some are stored by then
        await strike("behind its copies")

    with (
        patch.object(Retrying, "take_over", observed),
        patch.object(Retrying, "_store_record", stored),
        patch.object(Retrying, "_send", sent),
        patch.object(RedriveLock, "acquire", acquired),
        patch.object(RedriveLock, "store", intended),
        patch.object(redriving._Run, "_check_latest", kept_on),
        patch.object(redriving._Run, "_write_down", wrote_down),
    ):
        yield


add_part(
    Part(
        name="deliveries",
        help="a group rejects messages: each is processed or a dead letter",
        add=with_deliveries,
        leave_out=inside_the_promise,
        exchange=struck_while_copying,
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


add_part(
    Part(
        name="redrive",
        help="and its dead letters are brought back while more of them come",
        add=lambda plan: with_clients(with_deliveries(plan), ("redriver 1", "redriver 2")),
        leave_out=inside_the_promise,
    )
)
add_part(
    Part(
        name="policies",
        help="and each life of a sorter has another retry policy",
        add=with_deliveries,
        leave_out=inside_the_promise,
    )
)
add_part(
    Part(
        name="idle",
        help="a group rejects messages while rows of producers expire and floors rise",
        add=with_idle_days,
        leave_out=inside_the_promise,
        exchange=few_are_remembered,
    )
)


def plan_of(seed: int, *more: str) -> Plan:
    """The plan of a seed with sorters for clients, and other parts."""
    alone = dataclasses.replace(make_plan(seed), clients=())
    return with_parts(alone, ("deliveries", *more))


def run_delivery(
    seed: int, *more: str, plant: AbstractContextManager[object] | None = None
) -> tuple[Counter[str], str]:
    """Runs a seed. Returns what was seen, and the error, which is empty when nothing failed."""
    result, failure, _ = run_plan(plan_of(seed, *more), plant=plant or nullcontext())
    return result.seen if result else Counter(), failure


def main(arguments: list[str]) -> int:
    """`./run soak deliveries [OPTION...]`: as `./run soak sim`, with these programs alone."""
    return soak.main(["--alone", "--deliveries", *arguments], name="deliveries")
