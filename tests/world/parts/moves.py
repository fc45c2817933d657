"""Two broker groups, between which an operator moves queues while all else goes on.

The product refuses some moves, of a family's queues; the operator meets that as anybody would, and
goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partialmethod
from random import Random
from typing import Any
from unittest.mock import patch

from semel.broker.server import moves_service
from semel.broker.state import Delays
from semel.controller.moves import moves as controller_moves
from tests.checking.moves import Did
from tests.world.nemesis import Nemesis
from tests.world.operator import Job, open_queue
from tests.world.plan import Plan, Step, draw_groups, over_groups
from tests.world.registry import Part, add_part, fault
from tests.world.run import Run

_WHILE_MOVING = (
    "strike in a move",
    "strike in a move",
    "strike in a move",
    "strike in a move",
    "controller crash in a write",
    "kill master",
    "crash in operation",
    "stop master",
    "heal",
)
_SMALL = (
    (moves_service, "COPY_BYTES", 2_000),
    (moves_service, "PART_BYTES", 300),
    (controller_moves, "SEALED_S", 0.8),
)
"""Settings with which queues move in several pieces, and moves are given up in time."""


def with_moves(plan: Plan) -> Plan:
    random = Random(plan.seed * 2 + 11)
    groups = draw_groups(plan, random, ((1, 1), (1, 1), (3, 1), (1, 3), (3, 3)))
    kinds = ("move queue",) * 4 + ("move there and back",) * 3 + ("move and cancel",) * 2
    chosen = random.choices(kinds, k=random.choice((3, 5, 8)))
    chosen += random.choices(_WHILE_MOVING, k=random.choice((1, 3, 6)))
    steps = [
        Step(round(random.uniform(0, plan.duration_s), 6), kind, random.getrandbits(32))
        for kind in chosen
    ]
    armed = [Step(0.0, "strike in a move", random.getrandbits(32)) for _ in range(2)]
    steps += armed[: random.choice((0, 1, 2))]  # they wait for their move
    moved = over_groups(plan, random, groups, steps, ("follower 1", "watcher 1", "watcher 2"))
    return replace(
        moved,
        controllers=max(plan.controllers, random.choice((1, 1, 3))),
        lease_s=plan.lease_s or random.choice((0.3, 1.0)),
    )


@contextmanager
def small_moves(run: Run) -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in _SMALL:
            stack.enter_context(patch.object(module, name, value))
        stack.enter_context(patch.object(Delays, "adopt", partialmethod(_adopt, run, Delays.adopt)))
        yield


def _adopt(self: Delays, run: Run, adopt: Any, key: Any, queue: Any, *rest: Any) -> None:
    """Counts, on each node, the queues that arrive with delayed messages."""
    if queue.batches:
        run.world.count("queue arrived with delayed messages")
    if queue.cancelled.batches:
        run.world.count("queue arrived with cancelled messages")
    adopt(self, key, queue, *rest)


@fault("move queue")
def move(nemesis: Nemesis) -> None:
    job = move_queue(nemesis.topics, nemesis.random.random())
    nemesis.run.operator.ask("moved a queue", job, once=True)


@fault("move there and back")
def move_back(nemesis: Nemesis) -> None:
    job = move_there_and_back(nemesis.topics, nemesis.random.random())
    nemesis.run.operator.ask("moved a queue there and back", job, once=True)


@fault("move and cancel")
def cancel(nemesis: Nemesis) -> None:
    random = nemesis.random
    pauses = (0.0, 0.01, 0.03, 0.06, 0.1)
    job = move_and_cancel(nemesis.topics, random.random(), random.choice(pauses))
    nemesis.run.operator.ask("moved a queue and gave it up", job, once=True)


@fault("strike in a move")
def strike(nemesis: Nemesis) -> None:
    """A process dies, or is not reached, at a certain step of a move."""
    steps = [Did.BEGUN, Did.SEALED, Did.SEALED, Did.ACTIVATED]
    if "tabler 1" in nemesis.run.plan.clients:  # a compacted topic
        steps += [Did.HELD, Did.HELD]
    nemesis.arm(
        nemesis.random.choice(steps),
        (
            nemesis.kill_controller,
            nemesis.kill_master_of,
            nemesis.kill_master_of,
            nemesis.cut_off_from_controllers,
            nemesis.cut_off_from_controllers,
            nemesis.cut_off_from_each_other,
        ),
    )


# --- what the operator does


def move_queue(topics: Sequence[str], choice: float) -> Job:
    """From one of two broker groups to the other."""

    async def job(client: Any) -> None:
        await client.admin.move_queue(*await _elsewhere(client, topics, choice))

    return job


def move_there_and_back(topics: Sequence[str], choice: float) -> Job:
    async def job(client: Any) -> None:
        topic, queue, group = await _elsewhere(client, topics, choice)
        await client.admin.move_queue(topic, queue, group)
        await _arrival(client, topic, queue)
        await client.admin.move_queue(topic, queue, 3 - group)

    return job


def move_and_cancel(topics: Sequence[str], choice: float, pause_s: float) -> Job:
    async def job(client: Any) -> None:
        topic, queue, group = await _elsewhere(client, topics, choice)
        await client.admin.move_queue(topic, queue, group)
        await asyncio.sleep(pause_s)
        await client.admin.cancel_move(topic, queue)

    return job


async def _elsewhere(client: Any, topics: Sequence[str], choice: float) -> tuple[str, int, int]:
    """A topic, a queue of it, and a broker group that does not have the queue."""
    topic, queue = await open_queue(client, topics, choice)
    return topic, queue.key.queue_id, 3 - queue.group_id


async def _arrival(client: Any, topic: str, queue: int) -> None:
    """Waits for the end of a move, not for long."""
    for _ in range(20):
        moves = await client.admin.list_moves(topic)
        if all(move.queue != queue or move.stage == "aborted" for move in moves):
            return
        await asyncio.sleep(0.05)


add_part(
    Part(
        name="moves",
        help="two broker groups, between which queues move",
        add=with_moves,
        exchange=small_moves,
    )
)
