"""The calls by which an operator makes the queues of a lost cluster anew, from its tier.

How it works. The node was started with the tier's URL, and may read it though it is another
cluster's (`--tier-restore`). Plans are made of what it says: which topics there are, and what would
become of each queue. Then the tier is taken over: its identity names this cluster, and a broker of
the lost one that is still alive writes nothing more. Only then queues are made.

Not here: the order of the calls (the client's `admin/tier_restore.py`), cutting a queue
(`state/apply/restored.py`), making it (`background/queue_restore.py`).
"""

# ruff: noqa: N802  (gRPC names the methods)

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from semel.broker.background.queue_restore import is_restored, restore_queue
from semel.broker.config import BrokerConfig
from semel.broker.replica.replica import Replica
from semel.broker.state import RestoredSlice, restore_slice
from semel.broker.tiers.place import TierPlace
from semel.protos.errors import (
    CorruptSegment,
    InvalidRequest,
    RetriableError,
    SemelError,
    StorageError,
    Unavailable,
)
from semel.protos.ids import QueueKey, TopicId
from semel.protos.levels import TIER_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import common_pb2, restores_pb2, restores_pb2_grpc
from semel.protos.v1.metadata_pb2 import RestorableQueue
from semel.tier import (
    CorruptTier,
    Pointer,
    QueueFacts,
    Store,
    TierUnavailable,
    identity_of,
    is_deleted,
    newest_facts,
    queues_of,
    read_facts,
    read_manifest,
    topics_of,
)

T = TypeVar("T")


class _Request(Protocol):
    @property
    def cluster_id(self) -> str: ...

    @property
    def url(self) -> str: ...


class RestoresService(restores_pb2_grpc.RestoresServicer):
    """Serves semel.protos.v1.Restores on one replica."""

    def __init__(self, config: BrokerConfig, replica: Replica, place: TierPlace | None) -> None:
        self._config = config
        self._replica = replica
        self._place = place
        self._restoring = asyncio.Lock()
        """One queue at a time: a call that its caller has given up may still be at work."""
        self._under_way: set[asyncio.Future[None]] = set()

    async def ListTier(
        self, request: restores_pb2.ListTierRequest, context: Any
    ) -> restores_pb2.ListTierReply:
        topics = not request.identity_only
        return await self._look(request, lambda store: _listed(store, topics=topics))

    async def DescribeTieredQueue(
        self, request: restores_pb2.DescribeTieredQueueRequest, context: Any
    ) -> restores_pb2.DescribeTieredQueueReply:
        key, level = queue_key_of(request.queue), self._replica.state.feature_level
        return await self._look(request, lambda store: _described(store, key, level))

    async def TakeTier(
        self, request: restores_pb2.TakeTierRequest, context: Any
    ) -> restores_pb2.TakeTierReply:
        place = await self._checked(request)
        await self._told(place.take_over(request.owner))
        return restores_pb2.TakeTierReply()

    async def RestoreQueue(
        self, request: restores_pb2.RestoreQueueRequest, context: Any
    ) -> restores_pb2.RestoreQueueReply:
        place = await self._checked(request)
        await self._replica.require_level(TIER_LEVEL)
        # A caller that goes away leaves no step behind that comes in between those of the next one.
        work = asyncio.ensure_future(self._restore(request, place))
        self._under_way.add(work)
        work.add_done_callback(self._on_done)
        await asyncio.wait([work])
        work.result()
        return restores_pb2.RestoreQueueReply()

    async def _restore(self, request: restores_pb2.RestoreQueueRequest, place: TierPlace) -> None:
        key, level = queue_key_of(request.create.queue), self._replica.state.feature_level

        def work(store: Store) -> RestoredSlice:
            facts = read_facts(store, place.folder, key, request.facts)
            return _cut(facts, level, ancestors_whole=request.ancestors_whole)

        async with self._restoring:
            if is_restored(self._replica.state, key):
                # By an earlier call, which its caller did not see end. The queue has noted newer
                # facts since, and those that are asked for may have been collected.
                return
            cut = await self._told(place.call(work))
            await restore_queue(self._replica, request.create, cut)

    def _on_done(self, work: asyncio.Future[None]) -> None:
        self._under_way.discard(work)
        if not work.cancelled():
            work.exception()  # its caller may be gone

    async def _checked(self, request: _Request) -> TierPlace:
        """The place that the request is about. Raises InvalidRequest, NotMaster."""
        if request.cluster_id != self._config.cluster_id:
            raise InvalidRequest(
                f"this broker belongs to cluster {self._config.cluster_id}, "
                f"the caller to {request.cluster_id}"
            )
        await self._replica.wait_master()
        if self._place is None:
            raise InvalidRequest(
                "the brokers were started without a tier: start them with"
                f" --tier {request.url} --tier-restore"
            )
        if request.url.rstrip("/") != self._place.url.rstrip("/"):
            raise InvalidRequest(
                f"the brokers were started with --tier {self._place.url}, and {request.url} was"
                " asked for: name the same URL"
            )
        return self._place

    async def _look(self, request: _Request, work: Callable[[Store], T]) -> T:
        place = await self._checked(request)
        return await self._told(place.look(work))

    async def _told(self, call: Awaitable[T]) -> T:
        """The result of a call to the store; its errors as those of the protocol."""
        try:
            return await call
        except RetriableError as error:
            raise Unavailable(str(error)) from error
        except SemelError as error:
            raise InvalidRequest(str(error)) from error


def _listed(store: Store, *, topics: bool) -> restores_pb2.ListTierReply:
    """BLOCKING."""
    identity = identity_of(store)
    reply = restores_pb2.ListTierReply(owner=identity.cluster_id, folder=identity.folder)
    for topic in topics_of(store, identity.folder) if topics else ():
        numbers = [key.queue_id for key in queues_of(store, identity.folder, topic.topic_id)]
        reply.topics.add(name=topic.name, topic_id=topic.topic_id, queue_ids=numbers)
    return reply


def _described(store: Store, key: QueueKey, level: int) -> restores_pb2.DescribeTieredQueueReply:
    """BLOCKING."""
    folder = identity_of(store).folder
    reply = restores_pb2.DescribeTieredQueueReply(queue=RestorableQueue(queue_id=key.queue_id))
    if is_deleted(store, folder, key):
        reply.deleted = True
        return reply
    try:
        found = newest_facts(store, folder, key)
        if found is None:
            reply.problem = "the tier has no facts of it"
            return reply
        _describe(store, *found, level, reply)
    except TierUnavailable:
        raise
    except StorageError as error:
        reply.problem = str(error)
    return reply


def _describe(
    store: Store,
    name: str,
    facts: QueueFacts,
    level: int,
    reply: restores_pb2.DescribeTieredQueueReply,
) -> None:
    """BLOCKING. Raises CorruptTier, ObjectMissing."""
    cut = _cut(facts, level, ancestors_whole=True)
    source = cut.source.queue
    if facts.number:
        pointer = Pointer(
            cluster_id=facts.cluster_id,
            topic_id=TopicId(facts.topic_id),
            queue_id=facts.queue_id,
            number=facts.number,
            length=facts.length,
            sha256=facts.sha256,
        )
        manifest = read_manifest(store, pointer)
        if (manifest.start, manifest.end) != (source.tier.start, source.tier.end):
            raise CorruptTier(f"{store.url}/{name} and the manifest that it names do not fit")
    queue = reply.queue
    queue.facts = name
    queue.slot_start, queue.slot_end = source.slot_start, source.slot_end
    if source.parent is not None:
        queue.parent_id = source.parent
    queue.child_ids.extend(child.queue_id for child in source.children)
    queue.log_start_offset = source.log_start_offset
    queue.log_end_offset, queue.known_end_offset = cut.log_end_offset, source.log_end_offset
    queue.known_us = facts.time_us
    queue.tiered = facts.number > 0
    queue.producers, queue.reopened = cut.producers, cut.reopened
    queue.delayed_messages = cut.source.delayed.messages
    queue.groups, queue.groups_back = cut.groups, cut.groups_back
    reply.settings.CopyFrom(common_pb2.TopicSettings.FromString(facts.settings))
    expired = source.expired
    reply.producer_id_max = max([0, expired.ceiling, *expired.rows])
    for row in cut.source.producers.rows(facts.queue):
        reply.producer_id_max = max(reply.producer_id_max, row.producer_id)
        if row.name:
            reply.producers.add(name=row.name, producer_id=row.producer_id, epoch=row.epoch)


def _cut(facts: QueueFacts, level: int, *, ancestors_whole: bool) -> RestoredSlice:
    """Raises CorruptTier."""
    try:
        return restore_slice(
            facts.slice, released=facts.released, ancestors_whole=ancestors_whole, level=level
        )
    except CorruptSegment as error:
        raise CorruptTier(f"the facts of queue {facts.queue_id} cannot be read: {error}") from error
