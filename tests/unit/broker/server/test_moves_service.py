"""Calls that fetch a queue which comes here from another broker group."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.moved_ids import Pass
from semel.broker.replica.message_ids import MessageIds
from semel.broker.replica.pools import Pools
from semel.broker.server import moves_service
from semel.broker.server.moves_service import MovesService
from semel.broker.state import QueueState, State
from semel.broker.state.apply.id_windows import IdSettings
from semel.broker.state.apply.queues import QueueSettings
from semel.protos.errors import Throttled
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import own_levels
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from semel.protos.v1.common_pb2 import QueueRef
from tests.kit.waiting import until_async


class Pulls:
    """Stands in for `QueuePull`: each pull goes on until the test ends it."""

    def __init__(self) -> None:
        self.at_work: list[asyncio.Event] = []
        self.ended = 0

    def __call__(self, *_: object, **__: object) -> Pulls:
        return self

    async def run(self, max_s: float, *, finish: bool) -> broker_pb2.PullQueueReply:
        end = asyncio.Event()
        self.at_work.append(end)
        await end.wait()
        self.at_work.remove(end)
        self.ended += 1
        return broker_pb2.PullQueueReply()


async def test_a_queue_is_pulled_by_one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a third call, which comes when the first has ended and the second has its turn: both
    would copy the same batches, and the controller would give the move up."""
    pulls = Pulls()
    monkeypatch.setattr(moves_service, "QueuePull", pulls)

    async def wait_master() -> None:
        """It is one."""

    config: Any = SimpleNamespace(cluster_id="c", security=None, move_bytes_per_second=1)
    replica: Any = SimpleNamespace(wait_master=wait_master, levels=own_levels)
    routes: Any = SimpleNamespace(check_epoch=lambda epoch: None)
    service = MovesService(config, replica, routes)
    request = broker_pb2.PullQueueRequest(cluster_id="c", queue=QueueRef(topic_id=1, queue_id=0))

    async def start() -> asyncio.Task[broker_pb2.PullQueueReply]:
        call = asyncio.create_task(service.PullQueue(request, None))
        for _ in range(10):
            await asyncio.sleep(0)
        return call

    calls = [await start(), await start()]
    for ended in range(1, 3):
        (at_work,) = pulls.at_work
        at_work.set()
        await calls[ended - 1]
        await until_async(lambda: pulls.at_work)
        calls.append(await start())
        assert len(pulls.at_work) == 1
    for call in calls[2:]:
        await until_async(lambda: pulls.at_work)
        pulls.at_work[0].set()
        await call
    assert pulls.ended == len(calls)
    assert not service._pulling


async def test_a_damaged_index_that_ids_are_copied_from_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call would find the same damage, and the queue would never move."""

    def damaged(*_: object) -> None:
        raise CorruptIndex("block checksum mismatch")

    async def wait_master() -> None:
        """It is one."""

    key = QueueKey(TopicId(1), QueueId(0))
    settings = IdSettings(window_bytes=1 << 20, seed=b"0123456789abcdef")
    index, given_up = SimpleNamespace(is_abandoned=False, topic_id=1), list[CorruptIndex]()
    state = State()
    state.queues[key] = QueueState(key, "t", 0, 65_536, QueueSettings())
    state.id_windows.configure(1, settings)
    ids = object.__new__(MessageIds)
    ids.behind = False
    monkeypatch.setattr(ids, "index_of", lambda _: index)
    monkeypatch.setattr(ids, "on_damage", given_up.append)
    monkeypatch.setattr(Pass, "of", damaged)
    with ThreadPoolExecutor(1) as readers:
        replica: Any = SimpleNamespace(
            wait_master=wait_master, state=state, ids=ids, pools=Pools.of_one(readers)
        )
        service = MovesService(SimpleNamespace(), replica, SimpleNamespace())  # type: ignore[arg-type]
        for abandoned in (False, True):
            index.is_abandoned = abandoned
            with pytest.raises(Throttled, match="block checksum mismatch"):
                await service.CopyIds(broker_pb2.CopyIdsRequest(queue=queue_ref(key)), None)
            assert len(given_up) == 1, "nobody gives up the index that is there by now"
