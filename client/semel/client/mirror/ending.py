"""What becomes of the copies of another cluster's topics: looked at, promoted, dropped.

How it works. Only the target is asked: the source may be gone. A promotion takes every queue over
from the mirror that may run, so that what is promoted does not change any more. It tells the
controllers which queues are promoted, from which slices; then each is; then the topic is in the
routes. Every step may be repeated, so a promotion that was interrupted is begun again and goes on.

Not here: which queues those are (`core/mirroring.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

from semel.client.core.mirroring import promotion
from semel.client.mirror.mirror_progress import MirroredQueueInfo, MirroredTopicInfo, MirrorsInfo
from semel.client.mirror.topic_copy import (
    CALL_S,
    MIRRORS,
    begin_request,
    look_at_mirrors,
    matching,
    mirror_step,
    statuses_of,
)
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest
from semel.protos.ids import GroupId
from semel.protos.v1 import controller_pb2, mirrors_pb2
from semel.protos.v1.metadata_pb2 import (
    MIRROR_STAGE_COPYING,
    MIRROR_STAGE_PROMOTED,
    MIRROR_STAGE_PROMOTING,
    MirroredQueue,
    MirroredTopic,
    RestoredProducer,
)

ATTEMPTS: Final = 5
PRODUCERS_A_CALL: Final = 1_000
_STAGES: Final = {
    MIRROR_STAGE_COPYING: "copying",
    MIRROR_STAGE_PROMOTING: "promoting",
    MIRROR_STAGE_PROMOTED: "promoted",
}


class MirrorEnd:
    """One operator's call. Lives on the I/O thread."""

    def __init__(self, target: Cluster, patterns: Collection[str]) -> None:
        """`patterns` are those of topics' names."""
        self._target = target
        self._patterns = list(patterns)

    async def look(self) -> MirrorsInfo:
        """How far the topics are. Raises SemelError."""
        mirrors, topics, _ = await look_at_mirrors(self._target)
        wanted = matching({topic.topic.name for topic in topics}, self._patterns)
        found = [await self._describe(each) for each in topics if each.topic.name in wanted]
        return MirrorsInfo(
            source=mirrors.source, topics=tuple(sorted(found, key=lambda topic: topic.name))
        )

    async def promote(self, *, forget_producers: bool) -> MirrorsInfo:
        """Makes ordinary topics of the copies; returns what they are.

        Raises InvalidRequest if one cannot be promoted: those before it, by name, are. With
        `forget_producers` named producers that are other ones here begin anew in these topics.
        """
        for topic in await self._wanted():
            if topic.stage != MIRROR_STAGE_PROMOTED:
                await self._promote(topic, forget=forget_producers)
        return await self.look()

    async def drop(self) -> MirrorsInfo:
        """Gives up the copies of topics that are not promoted. Raises InvalidRequest."""
        for topic in await self._wanted():
            if topic.stage == MIRROR_STAGE_COPYING:
                numbers = range(len(topic.topic.placement))
                await asyncio.gather(*(self._end(topic, number) for number in numbers))
                step = controller_pb2.MirrorDrop(topic_id=topic.topic.topic_id)
                await mirror_step(self._target, drop=step)
        return await self.look()

    async def _wanted(self) -> list[MirroredTopic]:
        _, topics, _ = await look_at_mirrors(self._target)
        wanted = matching({topic.topic.name for topic in topics}, self._patterns)
        if not wanted:
            raise InvalidRequest(
                f"no mirrored topic fits {', '.join(map(repr, self._patterns))}: see `semel mirror"
                " status`"
            )
        found = [topic for topic in topics if topic.topic.name in wanted]
        return sorted(found, key=lambda topic: topic.topic.name)

    async def _promote(self, topic: MirroredTopic, *, forget: bool) -> None:
        for attempt in range(ATTEMPTS):
            statuses = await self._taken_over(topic)
            queues = promotion(topic, statuses)
            await self._tell_producers(statuses, forget=forget)
            topic_id = topic.topic.topic_id
            step = controller_pb2.MirrorPromote(topic_id=topic_id, queues=queues)
            topic = (await mirror_step(self._target, promote=step)).topics[0]
            try:
                chosen = [queue for queue in topic.queues if queue.digest]
                await asyncio.gather(*(self._end(topic, queue.queue_id, queue) for queue in chosen))
            except InvalidRequest:
                if attempt == ATTEMPTS - 1:
                    raise
                continue  # a mirror that began meanwhile has settled newer slices
            left = range(len(chosen), len(topic.topic.placement))
            await asyncio.gather(*(self._end(topic, number) for number in left))
            promoted = controller_pb2.MirrorPromoted(topic_id=topic_id)
            await mirror_step(self._target, promoted=promoted)
            return

    async def _taken_over(self, topic: MirroredTopic) -> list[mirrors_pb2.MirroredQueueStatus]:
        """The copies, which no mirror settles any more."""
        mirrors, _, _ = await look_at_mirrors(self._target)
        statuses = await statuses_of(self._target, topic)
        for status in statuses:
            if not status.promoted:
                number, epoch = status.queue.queue_id, status.mirror_epoch + 1
                request = begin_request(topic, number, mirrors.source, self._target, epoch)
                await self._call(topic, number, "BeginMirrored", request)
        return await statuses_of(self._target, topic)

    async def _tell_producers(
        self, statuses: Collection[mirrors_pb2.MirroredQueueStatus], *, forget: bool
    ) -> None:
        found: dict[str, RestoredProducer] = {}
        for status in statuses:
            for producer in status.producers:
                known = found.get(producer.name)
                if known is None or producer.epoch > known.epoch:
                    found[producer.name] = producer
        producers = [found[name] for name in sorted(found)]
        for first in range(0, len(producers), PRODUCERS_A_CALL):
            part = producers[first : first + PRODUCERS_A_CALL]
            step = controller_pb2.MirrorProducers(producers=part, forget=forget)
            await mirror_step(self._target, producers=step)

    async def _end(
        self, topic: MirroredTopic, number: int, queue: MirroredQueue | None = None
    ) -> None:
        request = mirrors_pb2.EndMirroredRequest(
            cluster_id=self._target.routes.cluster_id,
            digest=b"" if queue is None else queue.digest,
            settings=topic.topic.settings,
        )
        request.queue.topic_id, request.queue.queue_id = topic.topic.topic_id, number
        await self._call(topic, number, "EndMirrored", request)

    async def _call(self, topic: MirroredTopic, number: int, method: str, request: Any) -> Any:
        group = GroupId(topic.topic.placement[number])
        return await self._target.call_master(group, method, request, CALL_S, service=MIRRORS)

    async def _describe(self, topic: MirroredTopic) -> MirroredTopicInfo:
        problem = ""
        if topic.stage == MIRROR_STAGE_PROMOTED:
            queues = [_decided(queue) for queue in topic.queues]
        else:
            statuses = await statuses_of(self._target, topic)
            queues = [_info(status) for status in statuses]
            try:
                promotion(topic, statuses)
            except InvalidRequest as error:
                problem = error.message
        return MirroredTopicInfo(
            name=topic.topic.name,
            topic_id=f"{topic.topic.topic_id:016x}",
            stage=_STAGES.get(topic.stage, "?"),
            queues=tuple(queues),
            problem=problem,
        )


def _info(status: mirrors_pb2.MirroredQueueStatus) -> MirroredQueueInfo:
    end = status.log_end_offset if status.promoted else status.settled_end_offset
    return MirroredQueueInfo(
        queue=status.queue.queue_id,
        end=end,
        known_us=status.settled_us if status.settled_digest else 0,
        copied_end=status.log_end_offset,
        delayed=status.delayed_messages,
        groups=status.groups,
        producers=len(status.producers),
    )


def _decided(queue: MirroredQueue) -> MirroredQueueInfo:
    return MirroredQueueInfo(
        queue=queue.queue_id,
        end=queue.log_end_offset,
        known_us=queue.source_time_us,
        copied_end=queue.log_end_offset,
        delayed=queue.delayed_messages,
        groups=queue.groups,
        producers=queue.producers,
    )
