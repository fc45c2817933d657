"""Copies topics of one cluster, the source, to another one, the target, until it is told to end.

How it works. Every few seconds the source's topics are looked at, and the target's controllers are
told of those that are copied: so new topics, queues and settings follow. Each queue has a task that
asks the source's broker group and brings the answer to the target's (`core/mirroring.py` says
what). The program remembers nothing: the target's queues say how far they are.

A program takes every queue over by its *epoch*, which is above those of all earlier ones. One that
meets a queue that another program has taken over ends.

Not here: what becomes of a copy (`ending.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from semel.client.core.mirroring import QueueMirror, TopicMirror
from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.mirror.mirror_progress import MirrorProgress, TopicProgress
from semel.client.transport.cluster import Cluster
from semel.protos import compat
from semel.protos.errors import (
    FencedError,
    InvalidRequest,
    QueueMoved,
    SemelError,
    Unavailable,
)
from semel.protos.ids import GroupId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2, controller_pb2, mirrors_pb2, mirrors_pb2_grpc
from semel.protos.v1.metadata_pb2 import (
    MIRROR_STAGE_COPYING,
    MirroredTopic,
    MirrorsRecord,
    RestoredProducer,
)

logger = logging.getLogger(__name__)

MIRRORS: Final[type[Any]] = mirrors_pb2_grpc.MirrorsStub
LOOK_S: Final = 2.0
CALL_S: Final = 10.0
CALLS_AT_ONCE: Final = 16
RETRY: Final = BackoffPolicy(initial_ms=100, max_ms=5_000)


async def mirror_step(cluster: Cluster, **step: Any) -> controller_pb2.MirrorTopicsReply:
    """One step at the controllers of a cluster. Raises SemelError."""
    request = controller_pb2.MirrorTopicsRequest(cluster_id=cluster.routes.cluster_id, **step)
    reply: controller_pb2.MirrorTopicsReply = await cluster.controller("MirrorTopics", request)
    return reply


async def look_at_mirrors(cluster: Cluster) -> tuple[MirrorsRecord, list[MirroredTopic], int]:
    """A cluster's part in mirrors, its mirrored topics, and the next id of a producer."""
    topics: list[MirroredTopic] = []
    after = 0
    while True:
        reply = await mirror_step(cluster, look=controller_pb2.MirrorLook(after_topic_id=after))
        if not reply.topics:
            return reply.mirrors, topics, reply.next_producer_id
        topics += reply.topics
        after = topics[-1].topic.topic_id


async def statuses_of(
    cluster: Cluster, topic: MirroredTopic
) -> list[mirrors_pb2.MirroredQueueStatus]:
    """How far the copies of a topic's queues are, by number, without those that are not there."""
    groups: dict[int, list[int]] = {}
    for number, group in enumerate(topic.topic.placement):
        groups.setdefault(group, []).append(number)

    async def ask(group: int, numbers: list[int]) -> list[mirrors_pb2.MirroredQueueStatus]:
        request = mirrors_pb2.DescribeMirroredRequest(cluster_id=cluster.routes.cluster_id)
        for number in numbers:
            request.queues.add(topic_id=topic.topic.topic_id, queue_id=number)
        reply = await cluster.call_master(
            GroupId(group), "DescribeMirrored", request, CALL_S, service=MIRRORS
        )
        return list(reply.queues)

    found = await asyncio.gather(*(ask(group, numbers) for group, numbers in groups.items()))
    return sorted((each for part in found for each in part), key=lambda each: each.queue.queue_id)


def matching(names: Collection[str], patterns: Collection[str]) -> list[str]:
    """The names that fit one of the patterns, in which * stands for any characters."""
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


class MirrorWork:
    """One run of a mirror. Lives on the I/O thread."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        patterns: Collection[str],
        *,
        settle_s: float,
        progress_s: float,
        once: bool,
        note: Callable[[MirrorProgress], object],
    ) -> None:
        """`patterns` are those of topics' names. With `once` the run ends when the target has all
        that the source had at the beginning. `note` hears progress every `progress_s` seconds."""
        self._source = source
        self._target = target
        self._patterns = list(patterns)
        self._settle_s = settle_s
        self._progress_s = progress_s
        self._once = once
        self._note = note
        self._epoch = 0
        self._topics: dict[int, TopicMirror] = {}
        self._placed: dict[int, MirroredTopic] = {}
        """Topics as the target's controllers have them."""
        self._named: dict[str, int] = {}
        """Producers that the target's controllers were told."""
        self._free = asyncio.Semaphore(CALLS_AT_ONCE)
        self._followed: set[tuple[int, int]] = set()
        self._following: list[asyncio.Task[Any]] = []
        self._version = 0
        """That of the newest routes of the source."""
        self._looked = False
        self._done = asyncio.Event()

    async def run(self) -> None:
        """Copies until it is cancelled; with `once` until all is copied.

        Raises InvalidRequest if the clusters cannot be a pair, or nothing is left to copy, and
        FencedError once another program goes on.
        """
        await self._begin()
        try:
            async with compat.TaskGroup() as tasks:
                working = [tasks.create_task(self._look_on(tasks)), tasks.create_task(self._tell())]
                await self._done.wait()
                for task in [*working, *self._following]:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from None
        self._note(self._progress())

    async def _begin(self) -> None:
        (source, _, next_id), (_, topics, _) = await asyncio.gather(
            look_at_mirrors(self._source), look_at_mirrors(self._target)
        )
        begin = controller_pb2.MirrorBegin(
            source=self._source.routes.cluster_id,
            next_producer_id=next_id,
            source_is_target=source.source == self._target.routes.cluster_id,
        )
        await mirror_step(self._target, begin=begin)
        epoch = time.time_ns() // 1000
        for topic in topics:
            if topic.stage == MIRROR_STAGE_COPYING:
                statuses = await statuses_of(self._target, topic)
                epoch = max([epoch, *(status.mirror_epoch + 1 for status in statuses)])
        self._epoch = epoch

    # --- topics

    async def _look_on(self, tasks: compat.TaskGroup) -> None:
        backoff = Backoff(RETRY, random.random)
        while True:
            try:
                await self._look(tasks)
                backoff.reset()
                wait_s = LOOK_S
            except SemelError as error:
                if isinstance(error, FencedError) or not error.retriable:
                    raise
                logger.warning("mirror cannot look at the topics error=%s", error)
                wait_s = max(LOOK_S, backoff.next_ms() / 1000)
            await asyncio.sleep(wait_s)

    async def _look(self, tasks: compat.TaskGroup) -> None:
        routes = await self._source.controller("GetRoutes", controller_pb2.GetRoutesRequest())
        if routes.version < self._version:  # a broker's copy, while no controller answers
            raise Unavailable("nobody at the source tells its newest routes")
        self._version = routes.version
        self._source.routes.on_routes(routes)
        by_name = {topic.name: topic for topic in routes.topics}
        wanted = [by_name[name] for name in matching(by_name, self._patterns)]
        _, known, _ = await look_at_mirrors(self._target)
        stages = {topic.topic.topic_id: topic.stage for topic in known}
        for route in wanted:
            topic = self._topics.get(route.topic_id)
            if topic is None:
                topic = TopicMirror(route, self._source.routes.cluster_id, self._settle_s)
                self._topics[route.topic_id] = topic
            await self._place(topic, route, stages)
            for queue in topic.queues:
                name = int(queue.key.topic_id), int(queue.key.queue_id)
                if not topic.problem and name not in self._followed:
                    self._followed.add(name)
                    self._following.append(tasks.create_task(self._follow(topic, queue)))
        there = {route.topic_id for route in wanted}
        for topic_id, topic in self._topics.items():
            if topic_id not in there:
                topic.problem = "it does not exist at the source any more"
        self._looked = True
        self._check_ended(stages)

    def _check_ended(self, stages: Mapping[int, int]) -> None:
        """Raises InvalidRequest if every topic is promoted."""
        promoted = [
            topic.name
            for topic_id, topic in self._topics.items()
            if stages.get(topic_id, MIRROR_STAGE_COPYING) != MIRROR_STAGE_COPYING
        ]
        if promoted and len(promoted) == len(self._topics):
            raise InvalidRequest(
                f"nothing is left to mirror: {', '.join(sorted(promoted)[:5])} is promoted at the"
                " target, which is ahead from here on"
            )

    async def _place(
        self, topic: TopicMirror, route: controller_pb2.TopicRoute, stages: Mapping[int, int]
    ) -> None:
        """Tells the target's controllers of the topic; notes why it cannot be copied."""
        if stages.get(route.topic_id, MIRROR_STAGE_COPYING) != MIRROR_STAGE_COPYING:
            topic.problem = "it is promoted at the target"
        queues = topic.on_route(route)
        place = controller_pb2.MirrorPlace(
            name=route.name, topic_id=route.topic_id, settings=route.settings, queues=queues
        )
        try:
            reply = await mirror_step(self._target, place=place)
        except InvalidRequest as error:
            topic.problem = error.message
            return
        self._placed[route.topic_id] = reply.topics[0]
        topic.problem = ""

    # --- queues

    async def _follow(self, topic: TopicMirror, queue: QueueMirror) -> None:
        backoff = Backoff(RETRY, random.random)
        while True:
            now = time.monotonic()
            if queue.due > now:
                await asyncio.sleep(queue.due - now)
            try:
                async with self._free:
                    await self._turn(topic, queue)
            except SemelError as error:
                if isinstance(error, FencedError):
                    raise
                if isinstance(error, QueueMoved) and error.group_id:
                    topic.groups[int(queue.key.queue_id)] = error.group_id
                logger.info("mirror of a queue waits queue=%s error=%s", queue.key, error)
                queue.on_failed(time.monotonic(), backoff.next_ms() / 1000, str(error))
            else:
                backoff.reset()

    async def _turn(self, topic: TopicMirror, queue: QueueMirror) -> None:
        """One question to the source, and its answer to the target. Raises SemelError."""
        number = int(queue.key.queue_id)
        group = self._placed[topic.topic_id].topic.placement[number]
        if queue.status is None:
            placed, source = self._placed[topic.topic_id], self._source.routes.cluster_id
            begin = begin_request(placed, number, source, self._target, self._epoch)
            queue.on_begun(await self._call(self._target, group, "BeginMirrored", begin))
        request = queue.next_read(time.monotonic())
        read = await self._call(self._source, topic.groups[number], "ReadMirrored", request)
        now = time.monotonic()
        bring = queue.on_read(now, read, may_settle=topic.may_settle(read.child_ids))
        await self._tell_producers(queue)
        if bring is None:
            return
        write = mirrors_pb2.WriteMirroredRequest(
            cluster_id=self._target.routes.cluster_id,
            queue=queue_ref(queue.key),
            mirror_epoch=self._epoch,
            read=bring,
        )
        queue.on_written(await self._call(self._target, group, "WriteMirrored", write))

    async def _tell_producers(self, queue: QueueMirror) -> None:
        """Tells the target's controllers of named producers before a slice with them settles."""
        new = {
            name: (producer_id, epoch)
            for name, (producer_id, epoch) in queue.producers.items()
            if self._named.get(name) != producer_id
        }
        if new:
            told = [
                RestoredProducer(name=name, producer_id=producer_id, epoch=epoch)
                for name, (producer_id, epoch) in sorted(new.items())
            ]
            producers = controller_pb2.MirrorProducers(producers=told, forget=True)
            await mirror_step(self._target, producers=producers)
            self._named.update({name: producer_id for name, (producer_id, _) in new.items()})
        queue.producers.clear()

    async def _call(self, cluster: Cluster, group: int, method: str, request: Any) -> Any:
        return await cluster.call_master(GroupId(group), method, request, CALL_S, service=MIRRORS)

    # --- progress

    async def _tell(self) -> None:
        while True:
            progress = self._progress()
            self._note(progress)
            if self._once and self._looked and progress.complete:
                self._done.set()
            await asyncio.sleep(self._progress_s if not self._once else min(0.2, self._progress_s))

    def _progress(self) -> MirrorProgress:
        now = time.monotonic()
        topics = tuple(
            TopicProgress(
                name=topic.name,
                queues=len(topic.queues),
                lag=topic.lag,
                lag_seconds=topic.lag_s(now),
                problem=topic.problem or topic.trouble,
            )
            for topic in sorted(self._topics.values(), key=lambda topic: topic.name)
        )
        return MirrorProgress(topics=topics)


def begin_request(
    placed: MirroredTopic, number: int, source: str, target: Cluster, epoch: int
) -> mirrors_pb2.BeginMirroredRequest:
    """The request by which a program takes a queue over; `source` is the cluster's id."""
    record, queue = placed.topic, placed.queues[number]
    create = control_pb2.CreateQueue(
        topic=record.name,
        slot_start=queue.slot_start,
        slot_end=queue.slot_end,
        settings=record.settings,
    )
    create.queue.topic_id, create.queue.queue_id = record.topic_id, number
    return mirrors_pb2.BeginMirroredRequest(
        cluster_id=target.routes.cluster_id,
        create=create,
        source=source,
        mirror_epoch=epoch,
    )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the run."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
