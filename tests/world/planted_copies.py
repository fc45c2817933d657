"""Bugs in the copying of messages, for the worlds of `parts/deliveries.py` to find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any
from unittest.mock import patch

from semel.client.core.copies import record_bytes
from semel.client.dead_letters import redrive as redriving
from semel.client.dead_letters import relay, retrying
from semel.client.dead_letters.listing import DeadLetters
from semel.client.dead_letters.redrive_lock import RedriveLock
from semel.client.dead_letters.retrying import Retrying
from semel.client.reading.feed_queue import FeedQueue
from semel.client.reading.outstanding import Outstanding
from semel.protos.errors import SemelError
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from semel.protos.v1.copies_pb2 import CopyRecord


def forgets_copies() -> AbstractContextManager[object]:
    """An owner does not look for what an earlier one copied."""

    async def nothing(*_: object) -> list[Any]:
        return []

    return patch.object(retrying, "settle", nothing)


def commits_first() -> AbstractContextManager[object]:
    """Progress is stored before the copies are made."""
    publish = Retrying.publish

    async def nothing(retrying: Retrying, queue: FeedQueue, offset: int) -> int:
        return retrying.covered(queue, offset)

    def late(self: Retrying, queue: FeedQueue, offset: int) -> None:
        async def both() -> None:
            await publish(self, queue, offset)
            on_committed(self, queue, offset)

        self._cluster.spawn(both(), "late")

    on_committed = Retrying.on_committed
    plants = ExitStack()
    plants.enter_context(patch.object(Retrying, "publish", nothing))
    plants.enter_context(patch.object(Retrying, "on_committed", late))
    return plants


def ends_nobody() -> AbstractContextManager[object]:
    """An earlier owner's producer is not ended: copies that are under way may land at any time."""

    async def nothing(cluster: Any, target: Any, attempt: Any) -> Any:
        return await cluster.topic(target.topic, refresh=True)

    return patch.object(relay, "_end_producer", nothing)


def intends_late() -> AbstractContextManager[object]:
    """The first copy leaves before the record of the intent is durable."""
    store = Retrying._store_record

    async def late(retrying: Retrying, found: Any) -> None:
        async def store_then() -> None:
            with suppress(SemelError):
                await store(retrying, found)

        retrying._cluster.spawn(store_then(), "late")

    return patch.object(Retrying, "_store_record", late)


def looks_where_it_would_copy() -> AbstractContextManager[object]:
    """An owner looks for copies in the topics of its own policy, and in no others."""
    take_over = Retrying.take_over

    async def own(retrying: Retrying, queue: FeedQueue, start: int, metadata: bytes) -> int:
        record = CopyRecord.FromString(metadata)
        if record.HasField("attempt"):
            mine = retrying._targets(queue.topic)
            kept = [target for target in record.attempt.targets if target.topic in mine]
            del record.attempt.targets[:]
            record.attempt.targets.extend(kept)
        return await take_over(retrying, queue, start, record.SerializeToString())

    return patch.object(Retrying, "take_over", own)


def forgets_the_older_copies() -> AbstractContextManager[object]:
    """A record names the newest owner's copies, and not those of earlier owners."""
    make = record_bytes

    def bad(copied: Any, attempt: Any, progress: int) -> bytes:
        return make((), attempt, progress)

    return patch.object(retrying, "record_bytes", bad)


def trusts_rows() -> AbstractContextManager[object]:
    """The rows are asked what an earlier owner has stored; they may have expired."""

    async def asked(cluster: Any, runtime: Any, route: Any, target: Any, producer_id: int) -> Any:
        rows = []
        for queue in route.every:
            reply = await cluster.call_master(
                queue.group_id,
                "DescribeProducers",
                broker_pb2.DescribeProducersRequest(
                    queues=[queue_ref(queue.key)], producer_id=producer_id, confirmed=True
                ),
            )
            rows += reply.rows
        if not any(row.last_sequence >= 0 for row in rows):
            return []
        return await stored_by(cluster, runtime, route, target, producer_id)

    stored_by = relay._stored_by
    return patch.object(relay, "_stored_by", asked)


def reads_the_ledger_first() -> AbstractContextManager[object]:
    """A redrive believes what the ledger said before it ended the runs before it."""
    ledger = DeadLetters.ledger
    read: dict[object, set[tuple[int, int]]] = {}

    async def first(self: Any, topic: str) -> set[tuple[int, int]]:
        if self not in read:
            read[self] = await ledger(self, topic)
        return read[self]

    return patch.object(DeadLetters, "ledger", first)


def redrives_without_a_record() -> AbstractContextManager[object]:
    """Nobody knows the copies of a run that died before it wrote them down."""

    async def nothing(*_: object) -> None:
        pass

    return patch.object(RedriveLock, "store", nothing)


def writes_down_first() -> AbstractContextManager[object]:
    """The ledger has an entry before the copies are durable."""
    bring_back = redriving._Run._bring_back

    async def bad(self: Any, relay: Any, lock: Any, round_: Any) -> None:
        if round_:
            await relay.prepare([self._ledger], afresh=True)
            places = {(message.queue, message.offset) for message, _ in round_}
            await self._write_down(relay, places)
        await bring_back(self, relay, lock, round_)

    return patch.object(redriving._Run, "_bring_back", bad)


def commits_past_copies_under_way() -> AbstractContextManager[object]:
    """A commit reaches past a message whose copy is on its way, and the record says that it is
    copied."""
    publish, covered = Retrying.publish, Retrying.covered
    publishing: set[asyncio.Task[Any] | None] = set()

    async def bad(self: Retrying, queue: FeedQueue, offset: int) -> int:
        task = asyncio.current_task()
        publishing.add(task)
        try:
            await publish(self, queue, offset)
        finally:
            publishing.discard(task)
        return covered(self, queue, offset)

    def below(self: Retrying, queue: FeedQueue, offset: int) -> int:
        return offset if asyncio.current_task() in publishing else covered(self, queue, offset)

    def record(held: Any, progress: int) -> bytes:
        attempt = held.relay.attempt(held.end) if held.end > progress else None
        return record_bytes(held.queue.skip, attempt, progress)

    plants = ExitStack()
    plants.enter_context(patch.object(Retrying, "publish", bad))
    plants.enter_context(patch.object(Retrying, "covered", below))
    plants.enter_context(patch.object(retrying._Held, "record", record))
    return plants


def commits_past_a_seek_back() -> AbstractContextManager[object]:
    """A commit covers what was given out before a seek back, and is to be given out again."""
    return patch.object(Outstanding, "on_seek", lambda *_: None)


PLANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "forgets copies": forgets_copies,
    "commits first": commits_first,
    "ends nobody": ends_nobody,
    "intends late": intends_late,
    "looks where it would copy": looks_where_it_would_copy,
    "forgets the older copies": forgets_the_older_copies,
    "trusts rows": trusts_rows,
    "reads the ledger first": reads_the_ledger_first,
    "redrives without a record": redrives_without_a_record,
    "writes down first": writes_down_first,
    "commits past copies under way": commits_past_copies_under_way,
    "commits past a seek back": commits_past_a_seek_back,
}
