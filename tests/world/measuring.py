"""Runs whose cost is counted: a client stores batches in a quiet cluster and reads them.

How it works. Batches of one size go one after the other to three brokers, in two ways, and come
back, in four. Every way is a *phase*, counted in a window of its own. What goes on anyway is
counted in an idle window of the same length behind it, and subtracted. Every run is the same.

Batches have values alone, no codec, and one queue: keys and several queues cost the client more.

Not here: how it is counted (`counting.py`), and what it may come to (`test_budget.py`).
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from semel.client.transport import shared_memory
from tests.world.clients import TOPIC, ClientHost
from tests.world.counting import Count
from tests.world.plan import Plan, make_plan
from tests.world.run import Run
from tests.world.world import World

BATCHES = 15
"""All batches that are stored fit into one segment."""
WARM_UP = 5
WINDOW_S = 1.0
"""Heartbeats and the like happen about as often in each stretch of so long."""
VALUE_BYTES = 1024
FEW, MANY = 1, 400
"""Messages of a batch. A single one is short: copies of it are as good as nothing."""
BODY_BYTES = MANY * VALUE_BYTES
"""Values of a large batch; whatever else is allocated is smaller by far."""

LIST, ARRAY = "send_many of a list", "send_many of an Arrow array"
POLL, POLL_ARROW = "poll, and every value", "poll_arrow"
POLL_MEMORY, POLL_ARROW_MEMORY = f"{POLL}, through memory", f"{POLL_ARROW}, through memory"
THROUGH_MEMORY = (POLL_MEMORY, POLL_ARROW_MEMORY)
"""As on one machine. The first answer of each reader is sent all the same."""
PHASES = (LIST, ARRAY, POLL, POLL_ARROW, *THROUGH_MEMORY)

MASTER, SLAVES, CLIENT = "the master", "the slaves", "the client"


def quiet_plan() -> Plan:
    """Three brokers without faults, on a network and disks that cost little simulated time."""
    return replace(
        make_plan(0),
        system_calls_vary=False,
        size=3,
        steps=(),
        clients=(),
        loss=0.0,
        repeat=0.0,
        slow=0.0,
        latency_max_s=0.0002,
        sync_max_s=0.0002,
        skew=0.0,
        streams=True,
        queues=1,
        retention_bytes=0,
        checkpoint_records=100_000,
        kernel_bytes=1 << 20,  # batches of all sizes go the same way
        segment_bytes=16 << 20,
        cache_bytes=64 << 20,
        producers_max=100,
        producer_idle_ms=7 * 24 * 3_600_000,
    )


class Bulk(ClientHost):
    """Stores as many batches as it is told, or reads everything."""

    def __init__(self, world: World, count: int) -> None:
        super().__init__(world, "x1")
        self.value_bytes = 0 if count == FEW else VALUE_BYTES
        self.values = [self.value(number) for number in range(count)]
        self.array = pa.array(self.values, pa.binary())
        self.phase = LIST
        self.left = 0
        """How many times the work is still to be done."""
        self.stored = 0
        """Number of stored batches."""

    async def work(self, client: Any) -> None:
        producer = client.producer(linger_ms=0, compression="none")
        while True:
            if not self.left:
                await asyncio.sleep(0.01)
                continue
            if self.phase in (LIST, ARRAY):
                values = self.values if self.phase == LIST else self.array
                await (await producer.send_many(TOPIC, values))
                self.stored += 1
            else:
                await self._read(client)
            self.left -= 1

    async def _read(self, client: Any) -> None:
        left = self.stored * len(self.values)
        async with client.reader(TOPIC) as reader:
            while left:
                if self.phase in (POLL, POLL_MEMORY):
                    messages = await reader.poll(max_messages=10 * len(self.values))
                    values = [message.value for message in messages]
                    left -= len(values)
                elif (batch := await reader.poll_arrow()) is not None:
                    left -= batch.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a batch, on the average of one phase, without what goes on anyway."""

    counts: dict[str, float]
    """Number by what was counted and whose it is."""
    copies: tuple[str, ...]
    """Where bodies were copied: number, process and line."""


class Measured(Run):
    """One quiet run. Use `measure`."""

    def __init__(self, count: int, phases: Sequence[str], patch: pytest.MonkeyPatch) -> None:
        super().__init__(quiet_plan())
        self._patch = patch
        self.counting = Count(BODY_BYTES)
        self.costs: dict[str, Cost] = {}
        """By phase."""
        self._count = count
        self._phases = phases

    def _execute(self) -> Any:
        self._boot()
        client = Bulk(self.world, self._count)
        client.bootstrap = self.bootstrap
        client.start()
        self._do(client, LIST, WARM_UP)
        self._run_until(self.world.now + 1)
        roles = self.counting.roles
        for host in self.hosts.values():
            assert host.replica is not None
            roles[host.name] = MASTER if host.replica.is_master else SLAVES
        assert sorted(roles.values()) == [MASTER, SLAVES, SLAVES]
        self.counting.brokers = set(roles)
        roles[client.name] = CLIENT
        for phase in self._phases:
            self._do(client, phase, 1)  # what is made once is there
            self.costs[phase] = self._cost_of(client, phase)
        return None

    def _cost_of(self, client: Bulk, phase: str) -> Cost:
        before = client.stored
        times = BATCHES - 1 if phase in (LIST, ARRAY) else 1
        busy, copied_at = self._counted(lambda: self._do(client, phase, times))
        idle, _ = self._counted(lambda: None)
        busy.subtract(idle)
        batches = client.stored - before or client.stored
        return Cost(
            counts={what: round(number / batches, 2) for what, number in sorted(busy.items())},
            copies=tuple(
                f"{number / batches:g} by {place}" for place, number in copied_at.most_common()
            ),
        )

    def _do(self, client: Bulk, phase: str, times: int) -> None:
        busy = 0 if phase in THROUGH_MEMORY else sys.maxsize
        self._patch.setattr(shared_memory, "BUSY_BYTES", busy)
        client.phase, client.left = phase, times
        self._run_until(self.world.now + 30, lambda: not client.left)
        assert not client.left, f"{phase}: {client.left} of {times} are left"

    def _counted(self, work: Callable[[], None]) -> tuple[Counter[str], Counter[str]]:
        """What happens in a window that begins with the work, and where bodies are copied."""
        end = self.world.now + WINDOW_S
        with self.counting.counting():
            work()
            assert self.world.now <= end
            self._run_until(end)
        return self.counting.counted, self.counting.copied_at


def measure(
    count: int, patch: pytest.MonkeyPatch, phases: Sequence[str] = PHASES
) -> dict[str, Cost]:
    """Costs of a batch of `count` messages, by phase."""
    run = Measured(count, phases, patch)
    with run.counting.installed(patch):
        run.execute()
    return run.costs
