"""A look at all queues finds those that are wanted, and lets other tasks run meanwhile."""

from __future__ import annotations

import asyncio

from semel.broker.background.queues_in_turns import queues_in_turns
from semel.broker.state import QueueSettings, QueueState, State
from semel.protos.ids import QueueId, QueueKey, TopicId


def state_of(count: int) -> State:
    state = State()
    for number in range(count):
        key = QueueKey(TopicId(1), QueueId(number))
        state.queues[key] = QueueState(key, "orders", 0, 1, QueueSettings())
    return state


async def test_other_tasks_have_their_turn() -> None:
    state, turns = state_of(45), 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(beside())
    even = queues_in_turns(state, lambda queue: queue.key.queue_id % 2 == 0, at_once=10)
    found = [queue.key.queue_id async for queue in even]
    task.cancel()
    assert found == list(range(0, 45, 2))
    assert turns == 4, "once between two tens"


async def test_queues_may_come_and_go_meanwhile() -> None:
    state = state_of(6)
    found = []
    async for queue in queues_in_turns(state, lambda queue: not queue.frozen, at_once=2):
        found.append(queue.key.queue_id)
        state.queues.pop(queue.key)
        later = state.queues.get(QueueKey(TopicId(1), QueueId(queue.key.queue_id + 1)))
        if later is not None:
            later.frozen = True
    assert found == [0, 2, 4], "what is wanted is judged when its turn comes"
