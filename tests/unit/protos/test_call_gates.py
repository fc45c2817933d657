"""Gates of calls: how many go on, who waits, who is refused, and how calls begin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from semel.protos import call_gates, compat
from semel.protos.call_classes import LIMITS, ClassLimits
from semel.protos.call_gates import WAITING_BYTES_MAX, CallGates, Gate, Pacer
from semel.protos.errors import Throttled
from semel.protos.rpc import ServerInterceptor, error_from_rpc
from semel.protos.v1 import broker_pb2, broker_pb2_grpc
from semel.protos.v1 import isolation_pb2 as pb

pytestmark = pytest.mark.both_loops


def gate(running: int, waiting: int, pacer: Pacer | None = None) -> Gate:
    limits = ClassLimits(name="test", running_max=running, paced=pacer is not None)
    return Gate(limits, waiting, pacer)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_so_many_go_on_others_wait_in_order_and_more_are_refused() -> None:
    one, order = gate(2, 2), list[int]()

    async def call(number: int) -> None:
        await one.enter()
        order.append(number)

    tasks = [asyncio.create_task(call(number)) for number in range(4)]
    await turns()
    assert (order, one.running, one.waiting) == ([0, 1], 2, 2)
    with pytest.raises(Throttled, match="2 calls of the class 'test' are under way") as refused:
        await one.enter()
    assert refused.value.retry_after_ms > 0
    assert one.refused == 1
    one.leave()
    await turns()
    assert order == [0, 1, 2]
    one.leave()
    one.leave()
    one.leave()
    await asyncio.gather(*tasks)
    assert (order, one.running, one.waiting) == ([0, 1, 2, 3], 0, 0)


async def test_requests_that_wait_take_so_many_bytes_together() -> None:
    one = gate(1, 100)
    await one.enter(1 << 30)  # what goes on does not wait
    waiting = asyncio.create_task(one.enter(WAITING_BYTES_MAX))
    await turns()
    with pytest.raises(Throttled):
        await one.enter(1)
    one.leave()
    await waiting
    later = asyncio.create_task(one.enter(1))
    await turns()
    assert one.waiting == 1
    one.leave()
    await later


async def test_whoever_goes_away_gives_its_place_back_once() -> None:
    one = gate(1, 2)
    await one.enter()
    waits, behind = asyncio.create_task(one.enter()), asyncio.create_task(one.enter())
    await turns()
    waits.cancel()
    await turns()
    assert (one.running, one.waiting) == (1, 1)
    one.leave()
    await behind
    assert (one.running, one.waiting) == (1, 0)
    # Cancelled in the very turn in which it was let in.
    last = asyncio.create_task(one.enter())
    await turns()
    one.leave()
    last.cancel()
    await turns()
    assert last.cancelled()
    assert (one.running, one.waiting) == (0, 0)


async def test_calls_that_come_and_go_away_leave_nothing_in_the_line() -> None:
    one = gate(1, 3)
    await one.enter()
    for _ in range(100):
        task = asyncio.create_task(one.enter())
        await turns(2)
        task.cancel()
        await turns(2)
    assert (one.waiting, len(one._line)) == (0, 0)
    one.leave()


async def begun_in_one_turn(pacer: Pacer, gates: list[Gate], calls: int) -> int:
    """How many of `calls` at each gate begin before the loop has rested."""
    begun = 0

    async def call(one: Gate) -> None:
        nonlocal begun
        await one.enter()
        begun += 1

    tasks = [asyncio.create_task(call(one)) for one in gates for _ in range(calls)]
    await turns(2)
    found = begun
    await asyncio.gather(*tasks)
    return found


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU of the loop in seconds: each look finds a slice more."""
    used = [0.0]

    def thread_time() -> float:
        used[0] += call_gates.SLICE_S
        return used[0]

    clocks = SimpleNamespace(thread_time=thread_time, monotonic=time.monotonic)
    monkeypatch.setattr(call_gates, "time", clocks)
    return used


@pytest.mark.usefixtures("used")
async def test_calls_of_paced_classes_begin_a_few_at_a_time() -> None:
    pacer = Pacer()
    found = await begun_in_one_turn(pacer, [gate(100, 100, pacer) for _ in range(3)], 20)
    assert found == call_gates.BURST


async def test_calls_that_take_little_follow_each_other_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = SimpleNamespace(thread_time=float, monotonic=time.monotonic)
    monkeypatch.setattr(call_gates, "time", clocks)
    pacer, begun = Pacer(), 0
    one = gate(100, 100, pacer)

    async def call() -> None:
        nonlocal begun
        await one.enter()
        begun += 1

    tasks = [asyncio.create_task(call()) for _ in range(5 * call_gates.BURST)]
    for number in range(1, 4):
        await turns(1)
        assert begun <= number * call_gates.BURST
    await asyncio.gather(*tasks)
    await turns(3)
    assert pacer._turning is None, "nothing is left to do"


@pytest.mark.usefixtures("used")
async def test_without_the_pace_all_of_them_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug of the test above."""
    monkeypatch.setattr(call_gates, "BURST", 1 << 30)
    pacer = Pacer()
    assert await begun_in_one_turn(pacer, [gate(100, 100, pacer) for _ in range(3)], 20) == 60


async def test_a_long_line_does_not_hold_up_a_short_one() -> None:
    pacer = Pacer()
    long, short, order = gate(1000, 1000, pacer), gate(1000, 1000, pacer), list[str]()

    async def call(one: Gate, name: str) -> None:
        await one.enter()
        order.append(name)

    tasks = [asyncio.create_task(call(long, "long")) for _ in range(100)]
    await turns(2)
    tasks.append(asyncio.create_task(call(short, "short")))
    await asyncio.gather(*tasks)
    assert order.index("short") <= 5 * call_gates.BURST


async def test_a_full_class_keeps_no_other_one_waiting() -> None:
    pacer = Pacer()
    full, other = gate(1, 100, pacer), gate(1, 100, pacer)
    await full.enter()
    waiting = [asyncio.create_task(full.enter()) for _ in range(50)]
    await turns()
    async with compat.timeout(10):
        await other.enter()
    assert full.waiting == 50
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


# --- at a real server ----------------------------------------------------------------------------


class SlowBroker(broker_pb2_grpc.BrokerServicer):
    """Verifications that do not end before `done`; all else is answered at once."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.begun = 0

    async def VerifyQueues(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.begun += 1
        await self.done.wait()
        yield broker_pb2.VerifyQueuesReply()

    async def ListOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        return broker_pb2.ListOffsetsReply()


async def flooded(
    gates: CallGates | None, then: Callable[[Any, SlowBroker], Awaitable[None]]
) -> None:
    """Runs `then` while one verification goes on, and another one waits."""
    service = SlowBroker()
    server = grpc.aio.server(interceptors=[ServerInterceptor(gates=gates)])
    broker_pb2_grpc.add_BrokerServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = broker_pb2_grpc.BrokerStub(channel)
        calls = [stub.VerifyQueues(broker_pb2.VerifyQueuesRequest()) for _ in range(2)]
        reading = [asyncio.create_task(call.read()) for call in calls]
        while not service.begun:
            await asyncio.sleep(0.001)
        await then(stub, service)
        service.done.set()
        await asyncio.gather(*reading)
    await server.stop(None)


async def test_a_call_beyond_the_line_is_refused_and_another_class_is_served() -> None:
    gates = CallGates(1)

    async def then(stub: Any, service: SlowBroker) -> None:
        verify = gates.of("/semel.protos.v1.Broker/VerifyQueues")
        while not verify.waiting:
            await asyncio.sleep(0.001)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.VerifyQueues(broker_pb2.VerifyQueuesRequest()).read()
        error = error_from_rpc(refused.value)
        assert isinstance(error, Throttled)
        assert "the class 'scan'" in error.message
        assert error.retry_after_ms > 0
        assert service.begun == LIMITS[pb.CALL_CLASS_SCAN].running_max
        await stub.ListOffsets(broker_pb2.ListOffsetsRequest(), timeout=10)

    await flooded(gates, then)
    assert [one.running for one in gates] == [0] * len(LIMITS)


async def test_without_gates_all_calls_go_on() -> None:
    """The planted bug of the test above."""

    async def then(stub: Any, service: SlowBroker) -> None:
        extra = stub.VerifyQueues(broker_pb2.VerifyQueuesRequest())
        while service.begun < 3:
            await asyncio.sleep(0.001)
        extra.cancel()

    await flooded(None, then)
