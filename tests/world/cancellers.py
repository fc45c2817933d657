"""Programs that cancel delayed messages by their ids, some long before they are due and some when
they are being released.

How it works. A *canceller* takes a message that a repeater has just sent, or any id of the pool,
and cancels it with the SDK. A call that fails is made again, and now and then one that was
answered. Repeaters use the ids again, which are free. Everything that it is told is noted, and
compared with the log at the end (`tests/checking/cancel_answers.py`).

Not here: who sends (`repeaters.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from semel.protos.errors import InvalidRequest, SemelError
from tests.checking.cancel_answers import NOT_DELAYED, CancelAnswer
from tests.world.clients import ClientHost
from tests.world.id_sizes import TOPICS, Sizes
from tests.world.registry import program
from tests.world.repeaters import SentIds
from tests.world.run import Run


class CancelAnswers:
    """What all cancellers of a world were told."""

    def __init__(self) -> None:
        self.answers: list[CancelAnswer] = []


class Canceller(ClientHost):
    """Cancels one message after the other."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._pool = Sizes(run.plan).pool
        self._known = run.shared(SentIds)
        self._told = run.shared(CancelAnswers)
        self._mean_s = run.plan.send_mean_s / 2

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self.pause(self._mean_s)
            topic, name = await self._choose()
            for _ in range(4):
                answered = await self._cancel(client, topic, name)
                if self.stopping or (answered and self.random.random() < 0.8):
                    break
                await self.pause(0.03)
        self.done = True

    async def _choose(self) -> tuple[str, bytes]:
        waiting = [each for each in self._known.delayed if each[2] > self.log_time_us()]
        if not waiting or self.random.random() < 0.1:
            return self.random.choice(TOPICS), b"id %d" % self.random.randrange(self._pool)
        topic, name, due_us = self.random.choice(waiting)
        if self.random.random() < 0.6:  # so that it arrives at about the time when it is due
            left_s = (due_us - self.log_time_us()) / 1e6 - self.random.uniform(-0.01, 0.06)
            await asyncio.sleep(max(0.0, min(left_s, 1.0)))
        return topic, name

    async def _cancel(self, client: Any, topic: str, name: bytes) -> bool:
        """Whether there was an answer."""
        world, began_s = self.world, self.world.now
        topic_id = int((await client._session.cluster.topic(topic)).topic_id)
        try:
            found = await client.admin.cancel(topic, name)
        except InvalidRequest:
            self._note(topic_id, name, began_s, result=NOT_DELAYED)
        except SemelError as error:
            world.count(f"cancel in doubt: {type(error).__name__}")
            return False
        else:
            self._note(
                topic_id,
                name,
                began_s,
                result=found.result,
                queue=found.queue,
                offset=found.offset,
                due_us=found.due_us,
                delivered_us=found.delivered_us,
            )
        return True

    def _note(self, topic_id: int, name: bytes, began_s: float, **told: Any) -> None:
        answer = CancelAnswer(
            topic_id=topic_id,
            message_id=name,
            began_s=began_s,
            ended_s=self.world.now,
            **told,
        )
        self._told.answers.append(answer)
        self.world.count(f"cancel answered: {answer.result}")


@program("canceller", host="ca")
def _canceller(run: Run, host: str) -> Canceller:
    return Canceller(run, host)
