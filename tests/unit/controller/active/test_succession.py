"""Several controllers over one store: which one answers, and what becomes of an epoch that is lost.

The store's word on the mastership comes from the test, so every order can be had: also two
controllers that are both told to be master, and one that is not told that it is none any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import grpc.aio
import pytest

from semel.controller import ControllerConfig, ControllerNode
from semel.controller.active import succession as succession_module
from semel.controller.active.active_controller import ActiveController
from semel.controller.active.succession import Succession
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import ControllerAddress, Mastership, MetadataStore, Transaction
from semel.protos import compat
from semel.protos.errors import (
    DataDirectoryError,
    DiskFull,
    NotMaster,
    SemelError,
    TimedOut,
    TopicExists,
    Unavailable,
)
from semel.protos.rpc import error_from_rpc
from semel.protos.v1 import controller_pb2 as pb
from tests.kit.controller_cluster import Client, FakeBroker, raised_by
from tests.kit.electing_store import ControllerStore, Group
from tests.kit.waiting import until_async

METHODS = pb.DESCRIPTOR.services_by_name["Controller"].methods


class Controllers:
    """Controllers 1, 2, … over one store; `elect` is the store's word."""

    def __init__(self, directory: Path) -> None:
        self.group = Group()
        self.nodes: dict[int, ControllerNode] = {}
        self.stores: dict[int, ControllerStore] = {}
        self.clients: dict[int, Client] = {}
        self._directory = directory

    async def start(self, number: int, **settings: Any) -> ControllerNode:
        config = ControllerConfig(
            data=self._directory,
            listen="127.0.0.1:0",
            controller_id=number,
            broker_call_timeout_ms=1_000,
            stop_ms=100,
            **settings,
        )
        self.stores[number] = ControllerStore(self.group)
        node = ControllerNode(config, store=self.stores[number], loop_clock=lambda: 0)
        await node.__aenter__()
        self.nodes[number] = node
        self.clients[number] = Client(node.address)
        return node

    async def stop(self, number: int) -> None:
        node = self.nodes.pop(number)
        await self.stores[number].close()
        await node.__aexit__(None, None, None)
        await self.clients.pop(number).channel.close()
        del self.group.present[number]

    async def elect(self, number: int) -> None:
        """Makes one the master, and waits until it is active."""
        self.group.elect(number)
        await until_async(lambda: self.nodes[number].is_active)

    async def open_producer(self, number: int, open_id: bytes, timeout: float = 10.0) -> int:
        """Opens the producer "p" at one controller; returns its epoch."""
        request = pb.OpenProducerRequest(name="p", open_id=open_id)
        return int((await self.clients[number].call("OpenProducer", request, timeout)).epoch)


@asynccontextmanager
async def running(directory: Path, *numbers: int) -> AsyncIterator[Controllers]:
    controllers = Controllers(directory)
    try:
        for number in numbers:
            await controllers.start(number)
        yield controllers
    finally:
        for number in list(controllers.nodes):
            await controllers.stop(number)
        await controllers.group.data.close()


@asynccontextmanager
async def broker(controllers: Controllers, number: int) -> AsyncIterator[FakeBroker]:
    """A broker group of one node, known to one controller."""
    node = FakeBroker(1, 10, {})
    await node.start()
    try:
        await controllers.clients[number].call("ReportNode", node.report())
        yield node
    finally:
        await node.stop()


async def test_a_standby_refuses_every_call_and_names_the_master(tmp_path: Path) -> None:
    """But for the call that is meant for one controller, whichever it is."""
    async with running(tmp_path, 1, 2) as controllers:
        await controllers.elect(1)
        await asyncio.sleep(0)
        for method in METHODS:
            if method.name == "RestartController":
                continue
            request = getattr(pb, method.input_type.name)()
            if method.server_streaming:
                stub = getattr(controllers.clients[2]._stub, method.name)
                error = await raised_by(_first(stub(request)))
            else:
                error = await raised_by(controllers.clients[2].call(method.name, request))
            assert isinstance(error, NotMaster), method.name
            assert error.master_address == controllers.nodes[1].address
            assert error.master_id == 1


async def _first(stream: Any) -> Any:
    """The next reply of a stream. Raises SemelError."""
    try:
        async for reply in stream:
            return reply
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error


async def test_nobody_is_named_while_nobody_is_master(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as controllers:
        error = await raised_by(controllers.clients[1].routes())
        assert isinstance(error, NotMaster)
        assert not error.master_address


async def test_each_controller_tells_who_the_others_are(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2, 3) as controllers:
        await controllers.elect(2)
        request = pb.ClusterStatusRequest(standby=True)
        for number in (1, 2, 3):
            status = await controllers.clients[number].call("GetClusterStatus", request)
            assert [(c.controller_id, c.role, c.alive) for c in status.controllers] == [
                (1, "standby", True),
                (2, "master", True),
                (3, "standby", True),
            ]
        cluster_id = controllers.nodes[2].cluster_id
        await until_async(
            lambda: all(n.cluster_id == cluster_id for n in controllers.nodes.values())
        )
        addresses = [controllers.nodes[number].address for number in (1, 2, 3)]
        assert (await controllers.clients[2].routes()).controllers == addresses


async def test_topics_and_routes_go_over_to_the_next_master(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as controllers:
        await controllers.elect(1)
        async with broker(controllers, 1) as node:
            await controllers.clients[1].create("orders", 3)
            before = await controllers.clients[1].routes()
            await controllers.elect(2)
            after = await controllers.clients[2].routes()
            assert after.topics == before.topics
            assert after.groups == before.groups
            assert after.version > before.version
            assert after.cluster_id == before.cluster_id
            await controllers.clients[2].call("ReportNode", node.report())
            await controllers.clients[2].create("more", 1)
            await controllers.elect(1)  # and it can come back
            assert {t.name for t in (await controllers.clients[1].routes()).topics} == {
                "more",
                "orders",
            }


async def _watched_to_the_end(controllers: Controllers, patience_s: float = 60) -> SemelError:
    """What a watch at controller 1 ends with when controller 2 becomes master."""
    await controllers.elect(1)
    watch = controllers.clients[1].watch()
    await anext(aiter(watch))
    ending = asyncio.ensure_future(raised_by(_first(watch)))
    await controllers.elect(2)
    async with compat.timeout(patience_s):
        return await ending


async def test_a_watch_ends_with_the_new_masters_name(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as controllers:
        error = await _watched_to_the_end(controllers)
        assert isinstance(error, NotMaster)
        assert error.master_address == controllers.nodes[2].address


async def test_an_epoch_without_an_end_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: the end of the epoch reaches nobody."""
    monkeypatch.setattr(ActiveController, "end", lambda self, reason: None)
    async with running(tmp_path, 1, 2) as controllers:
        with pytest.raises(TimeoutError):
            await _watched_to_the_end(controllers, patience_s=1)


async def test_a_call_under_way_ends_with_the_epoch_and_the_next_master_finishes_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, 1, 2) as controllers:
        await controllers.elect(1)
        async with broker(controllers, 1) as node:
            reached, go_on = asyncio.Event(), asyncio.Event()

            async def hold() -> None:
                reached.set()
                await go_on.wait()

            node.before = hold
            creating = asyncio.ensure_future(raised_by(controllers.clients[1].create("orders", 2)))
            await reached.wait()
            controllers.group.elect(2)
            error = await creating
            assert type(error) is Unavailable
            assert "unknown" in error.message
            assert not node.queues  # the old master's call was given up with its epoch
            node.before = None
            go_on.set()
            await until_async(lambda: controllers.nodes[2].is_active)
            await until_async(lambda: len(node.queues) == 2)
            await controllers.clients[2].create("orders", 2, if_not_exists=True)  # once active
            (topic,) = (await controllers.clients[2].routes()).topics
            assert {key[0] for key in node.queues} == {topic.topic_id}


async def test_a_split_under_way_ends_with_the_epoch_and_the_next_master_finishes_it(
    tmp_path: Path,
) -> None:
    split = pb.SplitQueueRequest(name="orders", queue_id=0, children=2)
    async with running(tmp_path, 1, 2) as controllers:
        await controllers.elect(1)
        async with broker(controllers, 1) as node:
            await controllers.clients[1].create("orders", 1)
            reached, go_on = asyncio.Event(), asyncio.Event()

            async def hold() -> None:
                reached.set()
                await go_on.wait()

            node.before = hold
            client = controllers.clients[1]
            splitting = asyncio.ensure_future(raised_by(client.call("SplitQueue", split, 60.0)))
            await reached.wait()
            controllers.group.elect(2)
            error = await splitting
            assert type(error) is Unavailable
            assert "unknown" in error.message
            assert len(node.queues) == 1
            node.before = None
            go_on.set()
            await until_async(lambda: controllers.nodes[2].is_active)
            reply = await controllers.clients[2].call("SplitQueue", split, 60.0)
            assert len(reply.topic.queues) == 2
            assert len(node.queues) == 3


async def test_the_old_master_writes_nothing_once_the_next_is_active(tmp_path: Path) -> None:
    """Both are told to be master; the store's versions decide."""
    async with running(tmp_path, 1, 2) as controllers:
        await controllers.elect(1)
        assert await controllers.open_producer(1, b"1") == 1
        controllers.group.present[2].say(
            controllers.group.present[1]._word  # "mine", while nobody tells controller 1
        )
        await until_async(lambda: controllers.nodes[2].is_active)
        assert controllers.nodes[1].is_active
        assert await controllers.open_producer(2, b"2") == 2
        before = await controllers.group.data.scan("/producers/")
        error = await raised_by(controllers.open_producer(1, b"3"))
        assert "taken over" in error.message
        assert await controllers.group.data.scan("/producers/") == before
        assert not controllers.nodes[1].is_active


async def test_an_ended_epoch_does_not_even_ask_the_store() -> None:
    group = Group()
    store = ControllerStore(group)
    epoch = await ControllerEpoch.begin(store, now_us=1)
    asked = store.transactions
    epoch.end()
    with pytest.raises(Unavailable, match="taken over"):
        await epoch.transact(puts={"/a": b""})
    assert store.transactions == asked


async def test_an_epoch_ends_with_the_stores_hint_and_not_with_the_next_epoch(
    tmp_path: Path,
) -> None:
    """No other controller is active yet, so the store's versions would let it write."""
    async with running(tmp_path, 1) as controllers:
        epochs: list[ControllerEpoch] = []
        begin = ControllerEpoch.begin.__func__  # type: ignore[attr-defined]

        async def noted(store: MetadataStore, **fields: Any) -> ControllerEpoch:
            epochs.append(await begin(ControllerEpoch, store, **fields))
            return epochs[-1]

        with patch.object(ControllerEpoch, "begin", noted):
            await controllers.elect(1)
        (epoch,) = epochs
        await epoch.transact(puts={"/a": b"active"})
        controllers.group.elect()
        await until_async(lambda: not controllers.nodes[1].is_active)
        with pytest.raises(Unavailable, match="taken over"):
            await epoch.transact(puts={"/a": b"too late"})
        entry = await controllers.group.data.get("/a")
        assert entry is not None
        assert entry.value == b"active"


async def test_an_epoch_that_is_lost_while_it_begins_makes_nobody_active(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as controllers:
        reached = asyncio.Event()

        async def hang(operation: str) -> None:
            if operation == "scan":
                reached.set()
                await asyncio.Event().wait()

        controllers.stores[1].before = hang
        controllers.group.elect(1)
        await reached.wait()
        await controllers.elect(2)
        assert not controllers.nodes[1].is_active
        assert isinstance(await raised_by(controllers.clients[1].routes()), NotMaster)
        controllers.stores[1].before = None
        await controllers.elect(1)
        await controllers.clients[1].routes()


async def test_a_store_without_a_majority_is_asked_again(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as controllers:
        refused = 0

        async def no_majority(operation: str) -> None:
            nonlocal refused
            refused += operation == "get"
            raise Unavailable("no majority")

        controllers.stores[1].before = no_majority
        controllers.group.elect(1)
        await until_async(lambda: refused >= 4)
        assert isinstance(await raised_by(controllers.clients[1].routes()), NotMaster)
        controllers.stores[1].before = None
        await until_async(lambda: controllers.nodes[1].is_active)


async def test_after_an_unknown_outcome_everything_is_read_again(tmp_path: Path) -> None:
    """Else the topic could never be created: it is stored, and not in memory."""
    async with running(tmp_path, 1) as controllers:
        await controllers.elect(1)
        async with broker(controllers, 1) as node:
            store, client = controllers.stores[1], controllers.clients[1]
            epoch = _epoch(controllers.nodes[1])
            transact = store.transact

            async def unheard(transaction: Transaction) -> int:
                store.transact = transact  # type: ignore[method-assign]
                await transact(transaction)
                raise Unavailable("no majority; whether the change took effect is unknown")

            store.transact = unheard  # type: ignore[method-assign]
            error = await raised_by(client.create("orders", 2))
            assert "unknown" in error.message
            assert not controllers.nodes[1].is_active, "it must not answer from what it remembers"
            await until_async(lambda: controllers.nodes[1].is_active)
            assert _epoch(controllers.nodes[1]) == epoch + 1
            await until_async(lambda: len(node.queues) == 2)
            await client.create("orders", 2, if_not_exists=True)
            assert [topic.name for topic in (await client.routes()).topics] == ["orders"]


async def _no_room(transaction: Transaction) -> int:
    raise DiskFull("less than 64 MiB are free at c1. Free some disk space")


async def test_a_controller_without_room_hands_over_and_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(succession_module, "RESIGNED_S", 0.01)
    async with running(tmp_path, 1, 2) as controllers:
        store = controllers.stores[1]
        store.on_resign = lambda: controllers.group.elect(2)
        with monkeypatch.context() as full:
            full.setattr(store, "transact", _no_room)
            controllers.group.elect(1)
            await until_async(lambda: controllers.nodes[2].is_active)
        assert store.resigned == 1
        assert "disk is full" in caplog.text
        assert "Free some disk space" in caplog.text
        assert isinstance(await raised_by(controllers.clients[1].routes()), NotMaster)
        await controllers.elect(1)


async def test_a_controller_that_is_alone_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession_module, "RESIGNED_S", 0.01)
    async with running(tmp_path, 1) as controllers:
        store = controllers.stores[1]
        with monkeypatch.context() as full:
            full.setattr(store, "transact", _no_room)
            controllers.group.elect(1)
            await until_async(lambda: store.resigned >= 3)
            assert isinstance(await raised_by(controllers.clients[1].routes()), NotMaster)
        await until_async(lambda: controllers.nodes[1].is_active)


class QueueingStore(ControllerStore):
    """Its hints are delivered one by one, several in one step of the event loop if need be."""

    def __init__(self) -> None:
        super().__init__(Group())
        self.hints: asyncio.Queue[Mastership] = asyncio.Queue()

    async def mastership(self) -> AsyncGenerator[Mastership]:
        while True:
            yield await self.hints.get()


class Beginnings:
    """A succession of which the test decides when each `begin` returns."""

    def __init__(self) -> None:
        self.store = QueueingStore()
        self.waiting: list[asyncio.Future[None]] = []
        self.succession = Succession(self.store, self._begin, cluster_id="")

    async def _begin(self) -> ActiveController:
        self.waiting.append(asyncio.get_running_loop().create_future())
        number = len(self.waiting)
        await self.waiting[-1]
        active = MagicMock(ended=False, number=number)
        active.__aenter__.return_value = active
        active.__aexit__.return_value = False
        active.run = AsyncMock(side_effect=asyncio.Event().wait)
        active.routes.cluster_id = "c"
        active.epoch.number = number

        def end(reason: NotMaster) -> None:
            active.ended = True

        active.end = end
        return active

    def say(self, *, mine: bool) -> None:
        other = ControllerAddress(controller_id=2, address="b:1")
        self.store.hints.put_nowait(Mastership(master=self.store.me if mine else other, mine=mine))


@pytest.mark.parametrize("turns", range(4))
async def test_an_epoch_that_has_just_begun_is_not_active_once_the_hint_has_gone(
    turns: int,
) -> None:
    test = Beginnings()
    await test.store.start(ControllerAddress(controller_id=1, address="a:1"))
    running_ = asyncio.ensure_future(test.succession.run())
    test.say(mine=True)
    await until_async(lambda: len(test.waiting) == 1)
    test.say(mine=False)
    heard = False
    for turn in range(20):
        if turn == turns:
            test.waiting[0].set_result(None)
        await asyncio.sleep(0)
        heard = heard or not test.succession._hint.mine
        assert not (heard and test.succession.is_active)
    assert heard
    running_.cancel()
    await asyncio.gather(running_, return_exceptions=True)


async def test_a_hint_that_went_and_came_back_begins_another_epoch() -> None:
    test = Beginnings()
    await test.store.start(ControllerAddress(controller_id=1, address="a:1"))
    running_ = asyncio.ensure_future(test.succession.run())
    test.say(mine=True)
    await until_async(lambda: len(test.waiting) == 1)
    test.say(mine=False)
    test.say(mine=True)
    test.waiting[0].set_result(None)
    await until_async(lambda: test.succession.is_active or len(test.waiting) == 2)
    assert not test.succession.is_active
    test.waiting[1].set_result(None)
    await until_async(lambda: test.succession.is_active)
    assert test.succession.active().epoch.number == 2
    running_.cancel()
    await asyncio.gather(running_, return_exceptions=True)


async def test_a_controller_of_another_cluster_ends_also_as_a_standby(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as controllers:
        await controllers.elect(1)
        stranger = await controllers.start(2, cluster_id="another")
        error = await stranger.failed()
        assert isinstance(error, DataDirectoryError)
        assert "another" in error.message


@pytest.mark.parametrize("seed", range(12))
async def test_any_order_of_gains_losses_and_crashes_keeps_every_epoch(
    tmp_path: Path, seed: int
) -> None:
    """Epochs that were given out rise whoever gave them, and the last one elected serves."""
    dice = random.Random(seed)
    epochs: list[int] = []
    newest = 0
    async with running(tmp_path, 1, 2, 3) as controllers:
        for step in range(25):
            up = sorted(controllers.nodes)
            match dice.randrange(8):
                case 0 | 1:
                    controllers.group.elect(dice.choice(up))
                case 2:
                    controllers.group.elect(*dice.sample(up, min(2, len(up))))
                case 3:
                    controllers.group.elect()
                case 4 if len(up) > 1:
                    await controllers.stop(dice.choice(up))
                case 5 if len(up) < 3:
                    await controllers.start(next(n for n in (1, 2, 3) if n not in up))
                case _:
                    with contextlib.suppress(NotMaster, Unavailable, TimedOut):
                        opening = controllers.open_producer(dice.choice(up), bytes([step]))
                        epochs.append(await opening)
            for _ in range(dice.choice([0, 1, 30])):
                await asyncio.sleep(0)
            newest = max(newest, *(_epoch(node) for node in controllers.nodes.values()))
        last = dice.choice(sorted(controllers.nodes))
        controllers.group.elect()
        await until_async(lambda: not any(node.is_active for node in controllers.nodes.values()))
        await controllers.elect(last)
        epochs.append(await controllers.open_producer(last, b"last"))
        assert _epoch(controllers.nodes[last]) > newest
        assert [n for n, node in controllers.nodes.items() if node.is_active] == [last]
    assert epochs == sorted(set(epochs))


def _epoch(node: ControllerNode) -> int:
    """The number of a node's present epoch; 0 without one."""
    succession = node._succession
    assert succession is not None
    return succession.active().epoch.number if succession.is_active else 0


async def test_a_create_that_is_asked_again_at_the_next_master_is_its_own_topic(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, 1, 2) as controllers:
        await controllers.elect(1)
        async with broker(controllers, 1) as node:
            reached = asyncio.Event()

            async def hold() -> None:
                reached.set()
                await asyncio.Event().wait()

            node.before = hold
            first = controllers.clients[1].create("orders", 2, request_id=b"1")
            creating = asyncio.ensure_future(raised_by(first))
            await reached.wait()
            node.before = None
            await controllers.elect(2)
            assert isinstance(await creating, Unavailable)
            await controllers.clients[2].call("ReportNode", node.report())
            again = await controllers.clients[2].create("orders", 2, request_id=b"1")
            assert again.created
            other = controllers.clients[2].create("orders", 2, request_id=b"2")
            assert isinstance(await raised_by(other), TopicExists)
            assert isinstance(
                await raised_by(controllers.clients[2].create("orders", 2)), TopicExists
            )
