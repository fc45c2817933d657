"""What one batch costs the brokers, counted and not timed: a guard against slow code that is right.

How it works. A quiet simulated cluster of three brokers takes batches, one after the other, and
gives them out again; each run is the same as the last. Counted are the lines of Python that the
brokers execute (each turn of a loop executes its lines again), what they ask of their disks, and
the bytes that they hand to disks and to each other. What they do anyway in that time is counted in
an idle stretch of the same length, and taken off.

A budget that is exceeded is a mistake, or is raised with a reason. One that is far from used up is
lowered: the test says so too.

Not here: seconds (`benchmarks/`).
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from semel.broker.state import Judge
from tests.world import sockets
from tests.world.clients import TOPIC, ClientHost
from tests.world.disk import NodeFiles
from tests.world.loop import PROCESS
from tests.world.plan import Plan, make_plan
from tests.world.run import Run
from tests.world.sockets import SimTransport
from tests.world.world import World

BATCHES = 20
READS = 5
"""Times that everything is read: a heartbeat more or less would count as much as a few batches."""
VALUE_BYTES = 100
FEW, MANY = 1, 400
"""Messages of a batch."""
MASTER, SLAVE = "the master", "the slaves"

PRODUCED = {
    "lines of the master": (1_450, 2_000),
    "lines of the slaves": (1_200, 1_700),
    "write of the master": (2, 2),  # the entry, and its ID
    "write of the slaves": (4, 4),
    "sync of the master": (1, 1),
    "sync of the slaves": (2, 2),
    "bytes to peers of the master": (2 * MANY * VALUE_BYTES, 2.2 * MANY * VALUE_BYTES),
    "bytes to peers of the slaves": (0, 250),
}
"""Least and most of one batch of MANY messages, all slaves together. Of lines the lower bound is
there to be moved: what has become cheaper is not to become dearer again."""
CONSUMED = {
    "lines of the master": (90, 150),
    "lines of the slaves": (0, 60),
    "bytes to peers of the master": (0, 20),
    "bytes to peers of the slaves": (0, 20),
}
"""Several batches come in one answer."""


def quiet_plan() -> Plan:
    """Three brokers without faults, on a network and disks that cost little simulated time."""
    return replace(
        make_plan(0),
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
        segment_bytes=16 << 20,
        cache_bytes=64 << 20,
        producers_max=100,
        producer_idle_ms=7 * 24 * 3_600_000,
    )


class Count:
    """What happens on brokers while `active`, under the broker's role."""

    def __init__(self) -> None:
        self.roles: dict[str, str] = {}
        """By host."""
        self.active = False
        self.counted: Counter[str] = Counter()
        self._wanted: dict[str, bool] = {}

    def role(self) -> str | None:
        """Of the broker that is running; None for anybody else."""
        process = PROCESS.get(None) if self.active else None
        return None if process is None else self.roles.get(process.host)

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """For `sys.settrace`: asked at each call, then told of each line."""
        name = frame.f_code.co_filename
        wanted = self._wanted.get(name)
        if wanted is None:
            wanted = self._wanted[name] = "/semel/broker/" in name or "/semel/protos/" in name
        return self._line if wanted else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and (role := self.role()) is not None:
            self.counted[f"lines of {role}"] += 1
        return self._line

    @contextmanager
    def installed(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """On this thread and on those of the simulator that are made meanwhile."""
        before, write = NodeFiles.before, SimTransport.write

        def counted_before(files: NodeFiles, kind: str) -> None:
            if (role := self.role()) is not None:
                self.counted[f"{kind} of {role}"] += 1
            before(files, kind)

        def counted_write(transport: SimTransport, data: bytes) -> None:
            if (role := self.role()) is not None:
                self.counted[f"bytes to peers of {role}"] += len(data)
            write(transport, data)

        with patch.context() as patched:
            patched.setattr(NodeFiles, "before", counted_before)
            patched.setattr(SimTransport, "write", counted_write)
            patched.setattr(sockets, "_SPLIT", 0.0)
            patched.setattr(sockets, "BUFFER_BYTES", 64 << 20)
            old = sys.gettrace()
            threading.settrace(self.trace)
            sys.settrace(self.trace)
            try:
                yield
            finally:
                sys.settrace(old)
                threading.settrace(None)


class Bulk(ClientHost):
    """Sends batches of one size, each when the one before is acknowledged; then reads them."""

    def __init__(self, world: World, count: int) -> None:
        super().__init__(world, "x1")
        self.count = count
        self.value_bytes = VALUE_BYTES
        self.wanted = 0
        self.sent = 0
        self.read = 0
        """Messages."""
        self.reads = False

    async def work(self, client: Any) -> None:
        producer = client.producer(linger_ms=0, compression="none")
        values = [self.value(number) for number in range(self.count)]
        while not self.reads:
            if self.sent < self.wanted:
                await (await producer.send_many(TOPIC, values))
                self.sent += 1
            else:
                await self.pause(0.0005)
        for number in range(1, READS + 1):
            async with client.reader(TOPIC) as reader:
                while self.read < number * self.wanted * self.count:
                    self.read += len(await reader.poll(max_messages=10 * self.count, timeout=1.0))
        self.done = True


class Measured(Run):
    """One quiet run, in which `figures` come together: a batch, and a batch read."""

    def __init__(self, count: int, patch: pytest.MonkeyPatch) -> None:
        super().__init__(quiet_plan())
        self.counting = Count()
        self.count = count
        self.patch = patch
        self.produced: dict[str, float] = {}
        self.consumed: dict[str, float] = {}

    def _execute(self) -> Any:
        self._boot()
        world, counting = self.world, self.counting
        client = Bulk(world, self.count)
        client.bootstrap = self.bootstrap
        client.wanted = 5
        client.start()
        self._run_until(world.now + 30, lambda: client.sent == client.wanted)
        self._run_until(world.now + 1)
        for host in self.hosts.values():
            assert host.replica is not None
            counting.roles[host.name] = MASTER if host.replica.is_master else SLAVE
        assert sorted(counting.roles.values()) == [MASTER, SLAVE, SLAVE]

        def send() -> None:
            client.wanted += BATCHES
            self._run_until(world.now + 30, lambda: client.sent == client.wanted)
            assert client.sent == client.wanted

        def read() -> None:
            client.reads = True
            self._run_until(world.now + 30, lambda: client.done)
            assert client.read == READS * client.wanted * self.count

        self.produced = self._of_a_batch(send, BATCHES)
        self.consumed = self._of_a_batch(read, READS * BATCHES)
        return None

    def _of_a_batch(self, work: Callable[[], None], batches: int) -> dict[str, float]:
        """What the work costs for each of its batches, without what goes on anyway."""
        busy, seconds = self._counted(work)
        idle, _ = self._counted(lambda: self._run_until(self.world.now + seconds))
        busy.subtract(idle)
        return {name: round(value / batches, 2) for name, value in sorted(busy.items())}

    def _counted(self, work: Callable[[], None]) -> tuple[Counter[str], float]:
        began, self.counting.counted = self.world.now, Counter()
        self.counting.active = True
        work()
        self.counting.active = False
        return self.counting.counted, self.world.now - began


def measure(count: int, patch: pytest.MonkeyPatch) -> Measured:
    run = Measured(count, patch)
    with run.counting.installed(patch):
        run.execute()
    return run


@pytest.fixture(scope="module")
def measured() -> dict[int, Measured]:
    """By messages of a batch."""
    with pytest.MonkeyPatch.context() as patch:
        return {count: measure(count, patch) for count in (FEW, MANY)}


def over(budget: Mapping[str, tuple[float, float]], found: Mapping[str, float]) -> list[str]:
    """What lies outside of its bounds, or has none."""
    return [
        f"{name}: {value}"
        for name, value in found.items()
        if not budget.get(name, (0, 0))[0] <= value <= budget.get(name, (0, 0))[1]
    ]


def test_a_batch_stays_within_its_budget(measured: dict[int, Measured]) -> None:
    assert not over(PRODUCED, measured[MANY].produced)
    assert PRODUCED.keys() == measured[MANY].produced.keys()


def test_reading_a_batch_stays_within_its_budget(measured: dict[int, Measured]) -> None:
    assert not over(CONSUMED, measured[MANY].consumed)


def test_only_bytes_rise_with_the_messages_of_a_batch(measured: dict[int, Measured]) -> None:
    assert not per_message(measured[FEW], measured[MANY])
    sent = measured[MANY].produced["bytes to peers of the master"]
    assert 2 * MANY * VALUE_BYTES < sent < 1.1 * 2 * MANY * VALUE_BYTES, "once to each slave"


def per_message(few: Measured, many: Measured) -> list[str]:
    """The counts that rise by more than one for every tenth message."""
    return [
        name
        for small, large in ((few.produced, many.produced), (few.consumed, many.consumed))
        for name in large
        if not name.startswith("bytes") and large[name] - small.get(name, 0) > 0.1 * (MANY - FEW)
    ]


def test_a_planted_loop_over_messages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {"judge": Judge.judge_batch}
    code = """
def judge_batch(self, header, *arguments, **options):
    for _ in range(header.count):
        pass
    return judge(self, header, *arguments, **options)
"""
    exec(compile(code, "/semel/broker/planted.py", "exec"), namespace)
    monkeypatch.setattr(Judge, "judge_batch", namespace["judge_batch"])
    few, many = (measure(count, monkeypatch) for count in (FEW, MANY))
    assert per_message(few, many) == ["lines of the master"]
    assert over(PRODUCED, many.produced)
