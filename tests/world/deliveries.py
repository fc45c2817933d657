"""Whole clusters whose consumers reject messages: each is processed or a dead letter, never both.

How it works. It is the run of `run.py` with other clients: *sorters* consume in a group, decide by
chance what becomes of each message, and note what they decided before and after the commit. They
crash, sleep beyond their sessions and locks, and come back; the nemesis strikes as ever. At the end
an *auditor* reads the dead letters, and `judge` compares.

What must hold for each message of the topic
1. It was decided about at least once: nothing is skipped.
2. It is a dead letter once or not at all.
3. Rejected, and the commit acknowledged: a dead letter. Processed, and acknowledged: none.
4. A dead letter was rejected by somebody; what is none was processed by somebody.

Not here: what holds for all runs (`invariants.py`), faults (`nemesis.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from unittest.mock import patch

from semel.client import RetryPolicy
from semel.client.core import letters
from semel.client.feed_queue import FeedQueue
from semel.client.relay import Relay
from semel.client.retrying import Retrying
from semel.protos.errors import LockLost, SemelError, UnknownTopic
from tests.checking.exactly_once import Report
from tests.world.clients import TOPIC, ClientHost, Member, Sender
from tests.world.loop import PROCESS
from tests.world.nodes import BrokerHost
from tests.world.operator import Operator
from tests.world.plan import Plan, make_plan
from tests.world.run import Failed, Result, Run
from tests.world.world import World

GROUP = "sorting"
REJECTED, PROCESSED = "rejected", "processed"
LEFT_OUT = ("expiry", "fence all")
"""Strangers that fence or forget a relay's producers: that is outside the promise."""

Place = tuple[int, int]
"""Queue and offset of a message."""


class Decisions:
    """What the sorters of one run decided."""

    def __init__(self) -> None:
        self.made: dict[Place, set[str]] = {}
        self.acknowledged: dict[Place, set[str]] = {}
        self.dead: list[Place] | None = None
        """Origins of the dead letters, once they are read."""


class Sorter(Member):
    """A consumer that rejects some messages."""

    def __init__(self, world: World, name: str, lock_ms: int, decisions: Decisions) -> None:
        super().__init__(world, name, lock_ms)
        self.decisions = decisions

    async def work(self, client: Any) -> None:
        world = self.world
        async with client.consumer(
            GROUP,
            TOPIC,
            lock_ms=self.lock_ms,
            session_ms=800,
            retry=RetryPolicy(steps_ms=(), queues=2),
        ) as consumer:
            while not (self.stopping and self.caught_up()):
                messages = await consumer.poll(max_messages=6, timeout=0.3)
                decided: dict[Place, str] = {}
                try:
                    for message in messages:
                        decision = REJECTED if self.random.random() < 0.4 else PROCESSED
                        place = (message.queue, message.offset)
                        if decision == REJECTED:
                            consumer.reject(message, self.name)
                        decided[place] = decision
                        self.decisions.made.setdefault(place, set()).add(decision)
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
                    continue
                for place, decision in decided.items():
                    self.decisions.acknowledged.setdefault(place, set()).add(decision)
        self.done = True

    async def wind_up(self) -> None:
        """It is done when everything is sorted, not before."""


class Auditor(ClientHost):
    """Reads the dead letters when everything is over."""

    def __init__(self, world: World, name: str, decisions: Decisions) -> None:
        super().__init__(world, name)
        self.decisions = decisions
        self.caught_up: Callable[[], bool] = lambda: False

    async def work(self, client: Any) -> None:
        while not (self.stopping and self.caught_up()):
            await asyncio.sleep(0.1)
        dead: list[Place] = []
        try:
            async with client.reader(letters.dead_letter_topic(GROUP), end="latest") as reader:
                async for message in reader:
                    dead.append((message.origin.queue, message.origin.offset))
        except UnknownTopic:
            self.world.count("no sorter ever began")
        self.decisions.dead = dead
        self.done = True

    async def wind_up(self) -> None:
        """It is done when it has read them, not before."""


class DeliveryRun(Run):
    """One plan with sorters for clients."""

    def __init__(self, plan: Plan, *, traced: bool = False) -> None:
        super().__init__(plan, traced=traced)
        self.decisions = Decisions()

    def execute(self) -> Result:
        """Raises Failed."""
        take_over = Retrying.take_over

        async def observed(retrying: Retrying, queue: FeedQueue, start: int) -> int:
            covered = await take_over(retrying, queue, start)
            if queue.skip or covered > start:
                self.world.count("copies skipped")
            return covered

        with patch.object(Retrying, "take_over", observed):
            return super().execute()

    def _make_clients(self) -> None:
        world, plan = self.world, self.plan
        for number in (1, 2):
            sender = Sender(world, f"s{number}", plan.send_mean_s, plan.send_timeout_ms)
            sender.value_bytes = plan.value_bytes
            self.clients.append(sender)
        for number in (1, 2):
            sorter = Sorter(world, f"m{number}", plan.lock_ms, self.decisions)
            sorter.caught_up = self._sorted
            self.clients.append(sorter)
        auditor = Auditor(world, "d1", self.decisions)
        auditor.caught_up = self._sorted
        self.operator = Operator(world, "o1")
        self.clients += [auditor, self.operator]

    @staticmethod
    def _only_topic(host: BrokerHost) -> bool:
        """Nothing is left of topics that were deleted, or half made."""
        assert host.replica is not None
        known = (TOPIC, letters.dead_letter_topic(GROUP))
        return all(queue.topic in known for queue in host.replica.state.queues.values())

    def _sorted(self) -> bool:
        """The group has committed everything that is stored."""
        if not all(one.done for one in self.clients if isinstance(one, Sender)):
            return False
        replica = self.groups[0].judge()
        if replica is None:
            return False
        groups = replica.state.groups
        for key, queue in replica.state.queues.items():
            held = groups.lookup(GROUP, key)
            # An empty queue is never committed on: -1.
            done = max(0, held.committed_offset) if held is not None else 0
            if queue.topic == TOPIC and done < queue.log_end_offset:
                return False
        return True

    def _judge(self) -> Report:
        ends = {
            key.queue_id: queue.log_end_offset
            for key, queue in self._up(self.groups[0])[0].replica.state.queues.items()  # type: ignore[union-attr]
            if queue.topic == TOPIC
        }
        stored = {(queue, offset) for queue, end in ends.items() for offset in range(end)}
        found = judge(self.decisions, stored)
        if found:
            raise Failed(f"deliveries: {found}")
        self.world.seen["dead letter"] += len(self.decisions.dead or ())
        return Report(**{field.name: 0 for field in dataclasses.fields(Report)})


def judge(decisions: Decisions, stored: set[Place]) -> str:
    """What is wrong first; empty when nothing is."""
    assert decisions.dead is not None, "nobody read the dead letters"
    dead = Counter(decisions.dead)
    for place in sorted(stored | set(dead)):
        made = decisions.made.get(place, set())
        acknowledged = decisions.acknowledged.get(place, set())
        where = f"message {place[1]} of queue {place[0]}"
        if not made:
            return f"{where} was skipped"
        if dead[place] > 1:
            return f"{where} is {dead[place]} dead letters"
        if REJECTED in acknowledged and not dead[place]:
            return f"{where} was rejected for certain, and is no dead letter"
        if PROCESSED in acknowledged and dead[place]:
            return f"{where} was processed for certain, and is a dead letter"
        if dead[place] and REJECTED not in made:
            return f"{where} is a dead letter that nobody rejected"
        if not dead[place] and PROCESSED not in made:
            return f"{where} is lost: rejected only, and no dead letter"
    return ""


def plan_of(seed: int) -> Plan:
    """The plan of a seed, without what is outside the promise."""
    plan = make_plan(seed)
    return dataclasses.replace(
        plan,
        steps=tuple(step for step in plan.steps if step.kind not in LEFT_OUT),
        clients=(),
        retention_bytes=0,
        producers_max=100,
        producer_idle_ms=7 * 24 * 3_600_000,
    )


def run_delivery(
    seed: int, plant: AbstractContextManager[object] | None = None
) -> tuple[Counter[str], str]:
    """What was seen, and what failed; empty for nothing."""
    run = DeliveryRun(plan_of(seed))
    with plant if plant is not None else nullcontext():
        try:
            return run.execute().seen, ""
        except (Failed, SemelError) as error:
            return run.world.seen, str(error)


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
    """`./run soak deliveries --seeds A:B`: many runs; the exit status is 1 after a failure."""
    parser = argparse.ArgumentParser(prog="./run soak deliveries", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:one past the last")
    first, _, end = parser.parse_args(arguments).seeds.partition(":")
    seen: Counter[str] = Counter()
    failed = 0
    for seed in range(int(first), int(end)):
        counts, failure = run_delivery(seed)
        seen += counts
        if failure:
            failed += 1
            print(f"seed {seed}: {failure}", flush=True)
    for event, count in sorted(seen.items()):
        print(f"{count:8} {event}")
    print(f"{int(end) - int(first)} seeds, {failed} failed")
    return 1 if failed else 0
