"""Restores a cluster: the topics of one that is lost, in a new and empty one, from a tier.

How it works. `look` asks a broker what the tier has, and changes nothing. `restore` drives the
steps, and each of them may be repeated: the controllers remember how far it is, and a call after an
interruption goes on there.

    begin       at the controllers: the cluster is empty, and comes from this tier
    take over   the tier becomes this cluster's: the lost one, if it lives, can write no more
    plan        what the tier has now, queue by queue; topics and producers are told the controllers
    queues      each is made by the broker group that gets it
    activate    topic by topic; then the end

What the plan says of each queue is what is lost: offsets from its new end to the end that it was
last known to have.

Not here: what becomes of a queue (the broker's `state/apply/restored.py`), the controllers' steps
(the controller's `topics/restores.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from semel.client.admin.descriptions import Described
from semel.client.transport.cluster import Cluster
from semel.protos import compat
from semel.protos.errors import InvalidRequest, TimedOut, Unavailable
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.slots import SLOT_COUNT
from semel.protos.v1 import (
    control_pb2,
    controller_pb2,
    metadata_pb2,
    restores_pb2,
    restores_pb2_grpc,
)

T = TypeVar("T")

RESTORES: Final[type[Any]] = restores_pb2_grpc.RestoresStub
CALLS_AT_ONCE: Final = 8
CALL_S: Final = 60.0
PRODUCERS_A_CALL: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredQueue(Described):
    """One queue as it is, or will be, after the restore."""

    queue: int
    start: int
    end: int
    """It goes on here: the next message gets this offset."""
    known_end: int
    """Where it ended in the lost cluster, as far as the tier knows."""
    lost: int
    """Messages from `end` to `known_end`, which are gone."""
    known_us: int
    """As of when that is known; what came later is gone, too. Microseconds since the epoch."""
    delayed_lost: int
    """Delayed messages that are gone."""
    producers: int
    """Producers that go on: what they send again is recognized."""
    reopened: int
    """Producers that have to be opened anew: what they stored last is not known."""
    groups: int
    """Consumer groups whose offsets are there."""
    groups_back: int
    """Those of them that had read what is gone, and go on at `end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopic(Described):
    """One topic as it is, or will be, after the restore."""

    name: str
    topic_id: str
    """16 hexadecimal digits."""
    forgets_ids: bool
    """It compares message ids, and begins anew with it: no id of its messages is known."""
    queues: tuple[RestoredQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRestorePlan(Described):
    """What a restore would do, or has done."""

    url: str
    owner: str
    """Id of the cluster that is lost."""
    stage: str
    """new, placing, restoring or ended: how far an earlier call came."""
    topics: tuple[RestoredTopic, ...]
    left_out: tuple[str, ...]
    """Topics of the tier that are not restored, as was asked for."""

    @property
    def queues(self) -> int:
        return sum(len(topic.queues) for topic in self.topics)

    @property
    def lost(self) -> int:
        """Messages that are known to be gone."""
        return sum(queue.lost + queue.delayed_lost for t in self.topics for queue in t.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRestoreProgress(Described):
    """The present step of a restore."""

    step: str
    """plan (the tier is read) or queues (they are made)."""
    done: int
    """Queues that are done."""
    total: int


class _Topic(NamedTuple):
    """A topic of the tier, as brokers describe it."""

    name: str
    topic_id: int
    queues: list[restores_pb2.DescribeTieredQueueReply]


class TierRestoreWork:
    """One operator's call. Lives on the I/O thread."""

    def __init__(
        self, cluster: Cluster, url: str, without: Collection[str], note: Callable[[Any], object]
    ) -> None:
        """`without` names topics, by name or id, that are not restored; `note` hears progress."""
        self._cluster = cluster
        self._url = url
        self._without = frozenset(without)
        self._note = note

    async def look(self, timeout_s: float) -> TierRestorePlan:
        """The plan. Raises InvalidRequest when a restore is impossible, Unavailable, TimedOut."""
        return await within(self._look(), timeout_s)

    async def restore(self, timeout_s: float) -> TierRestorePlan:
        """Carries it out; returns what was restored, and what is lost.

        Raises InvalidRequest, Unavailable, TimedOut: the same call goes on.
        """
        return await within(self._restore(), timeout_s)

    async def _look(self) -> TierRestorePlan:
        restore, stored = await self._ask()
        if restore is not None and restore.stage != metadata_pb2.RESTORE_STAGE_PLACING:
            return self._stored_plan(restore, stored)
        tier, topics = await self._tier()
        left_out = sorted({*tier_names(tier)} - {topic.name for topic in topics})
        return TierRestorePlan(
            url=self._url,
            owner=tier.owner if restore is None else restore.owner,
            stage="new" if restore is None else "placing",
            topics=tuple(
                _topic(topic.name, topic.topic_id, _settings(topic), _queues_of(topic))
                for topic in topics
            ),
            left_out=tuple(left_out),
        )

    async def _restore(self) -> TierRestorePlan:
        restore, _ = await self._ask()
        if restore is None or restore.stage == metadata_pb2.RESTORE_STAGE_PLACING:
            await self._place(restore)
        restore, stored = await self._ask()
        if restore.stage == metadata_pb2.RESTORE_STAGE_RESTORING:
            await self._make_queues(stored)
            await self._step(end=controller_pb2.RestoreEnd())
            restore, stored = await self._ask()
        return self._stored_plan(restore, stored)

    # --- steps

    async def _place(self, restore: Any) -> None:
        """From nothing to a plan that stands."""
        tier, topics = await self._tier()
        owner = tier.owner if restore is None else restore.owner
        await self._step(
            begin=controller_pb2.RestoreBegin(url=self._url, folder=tier.folder, owner=owner)
        )
        await self._call("TakeTier", restores_pb2.TakeTierRequest(owner=owner, **self._names()))
        _, topics = await self._tier()  # nobody else writes from here on
        for topic in topics:
            await self._step(
                place=controller_pb2.RestorePlace(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    settings=_settings(topic),
                    queues=_queues_of(topic),
                )
            )
        await self._tell_producers([each for topic in topics for each in topic.queues])
        await self._step(placed=controller_pb2.RestorePlaced())

    async def _tell_producers(
        self, queues: Sequence[restores_pb2.DescribeTieredQueueReply]
    ) -> None:
        found: dict[str, metadata_pb2.RestoredProducer] = {}
        for queue in queues:
            for producer in queue.producers:
                known = found.get(producer.name)
                rank = producer.producer_id, producer.epoch
                if known is None or rank > (known.producer_id, known.epoch):
                    found[producer.name] = producer
        id_max = max((queue.producer_id_max for queue in queues), default=0)
        producers = [found[name] for name in sorted(found)]
        for first in range(0, max(1, len(producers)), PRODUCERS_A_CALL):
            part = producers[first : first + PRODUCERS_A_CALL]
            await self._step(
                producers=controller_pb2.RestoreProducers(producers=part, producer_id_max=id_max)
            )

    async def _make_queues(self, topics: Sequence[metadata_pb2.RestoringTopic]) -> None:
        total, done = sum(len(topic.queues) for topic in topics), 0
        free = asyncio.Semaphore(CALLS_AT_ONCE)
        self._progress("queues", done, total)

        async def make(topic: metadata_pb2.RestoringTopic, number: int) -> None:
            nonlocal done
            queue, record = topic.queues[number], topic.topic
            create = control_pb2.CreateQueue(
                queue=queue_ref(QueueKey(TopicId(record.topic_id), QueueId(queue.queue_id))),
                topic=record.name,
                slot_start=queue.slot_start,
                slot_end=queue.slot_end,
                settings=record.settings,
            )
            request = restores_pb2.RestoreQueueRequest(
                create=create,
                facts=queue.facts,
                ancestors_whole=_ancestors_whole(queue, topic.queues),
                **self._names(),
            )
            async with free:
                await self._call("RestoreQueue", request, record.placement[number])
            done += 1
            self._progress("queues", done, total)

        for topic in topics:
            if topic.active:
                done += len(topic.queues)
                continue
            await _all(make(topic, number) for number in range(len(topic.queues)))
            await self._step(activate=controller_pb2.RestoreActivate(topic_id=topic.topic.topic_id))

    # --- what there is

    async def _tier(self) -> tuple[restores_pb2.ListTierReply, list[_Topic]]:
        """The tier, and its topics that are to be restored; every broker group can read it."""
        for group in await self._groups():
            request = restores_pb2.ListTierRequest(identity_only=True, **self._names())
            await self._call("ListTier", request, group)
        tier: restores_pb2.ListTierReply = await self._call(
            "ListTier", restores_pb2.ListTierRequest(**self._names())
        )
        wanted = [topic for topic in tier.topics if not self._is_left_out(topic)]
        total, done = sum(len(topic.queue_ids) for topic in wanted), 0
        free = asyncio.Semaphore(CALLS_AT_ONCE)
        self._progress("plan", done, total)

        async def describe(topic_id: int, queue_id: int) -> Any:
            nonlocal done
            key = QueueKey(TopicId(topic_id), QueueId(queue_id))
            request = restores_pb2.DescribeTieredQueueRequest(queue=queue_ref(key), **self._names())
            async with free:
                found = await self._call("DescribeTieredQueue", request)
            done += 1
            self._progress("plan", done, total)
            return found

        topics = []
        for topic in wanted:
            queues = await _all(describe(topic.topic_id, number) for number in topic.queue_ids)
            if not queues or any(queue.deleted for queue in queues):
                continue
            topics.append(_Topic(topic.name, topic.topic_id, _family(topic.name, queues)))
        return tier, topics

    def _is_left_out(self, topic: restores_pb2.TierTopic) -> bool:
        return not self._without.isdisjoint((topic.name, f"{topic.topic_id:016x}"))

    async def _ask(self) -> tuple[Any, list[metadata_pb2.RestoringTopic]]:
        """How far the restore is, None if it has not begun, and the topics of its plan.

        Raises InvalidRequest if none can begin here, and for another tier's restore.
        """
        topics: list[metadata_pb2.RestoringTopic] = []
        after = 0
        while True:
            reply = await self._step(look=controller_pb2.RestoreLook(after_topic_id=after))
            if reply.refusal:
                raise InvalidRequest(reply.refusal)
            if not reply.HasField("restore"):
                return None, []
            if reply.restore.url != self._url:
                raise InvalidRequest(
                    f"this cluster is restored from {reply.restore.url} already. Nothing was"
                    " changed"
                )
            if not reply.topics:
                return reply.restore, topics
            topics += reply.topics
            after = topics[-1].topic.topic_id

    def _stored_plan(
        self, restore: Any, topics: Sequence[metadata_pb2.RestoringTopic]
    ) -> TierRestorePlan:
        ended = restore.stage == metadata_pb2.RESTORE_STAGE_ENDED
        made = [
            _topic(each.topic.name, each.topic.topic_id, each.topic.settings, each.queues)
            for each in topics
        ]
        return TierRestorePlan(
            url=restore.url,
            owner=restore.owner,
            stage="ended" if ended else "restoring",
            topics=tuple(sorted(made, key=lambda topic: topic.name)),
            left_out=tuple(sorted(self._without)),
        )

    def _progress(self, step: str, done: int, total: int) -> None:
        self._note(TierRestoreProgress(step=step, done=done, total=total))

    async def _step(self, **step: Any) -> Any:
        request = controller_pb2.RestoreClusterRequest(
            cluster_id=self._cluster.routes.cluster_id, **step
        )
        return await self._cluster.controller("RestoreCluster", request)

    async def _call(self, method: str, request: Any, group: int = 0) -> Any:
        """Calls the master of a broker group; of any if none is named."""
        group = group or (await self._groups())[0]
        return await self._cluster.call_master(
            GroupId(group), method, request, CALL_S, service=RESTORES
        )

    async def _groups(self) -> list[int]:
        """The numbers of all broker groups, at least one. Raises Unavailable."""
        status = await self._cluster.controller(
            "GetClusterStatus", controller_pb2.ClusterStatusRequest()
        )
        if not status.groups:
            raise Unavailable("no broker has reported to the controller yet. Start the brokers")
        return sorted(each.group_id for each in status.groups)

    def _names(self) -> dict[str, Any]:
        return {"cluster_id": self._cluster.routes.cluster_id, "url": self._url}


async def within(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """The result of `work`. Raises TimedOut."""
    try:
        async with compat.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise TimedOut(
            f"the restore was not done within {timeout_s:g} s; the same call goes on"
        ) from None


async def _all(calls: Iterable[Any]) -> list[Any]:
    """The results; the first error, after all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


def tier_names(tier: restores_pb2.ListTierReply) -> list[str]:
    """Names of the topics of a tier."""
    return [topic.name for topic in tier.topics]


def _family(
    topic: str, queues: Sequence[restores_pb2.DescribeTieredQueueReply]
) -> list[restores_pb2.DescribeTieredQueueReply]:
    """The queues that are restored, by number, with what a loss in their ancestors means for their
    producers. A split that its parent's facts do not know is as if it had not been.

    Raises InvalidRequest for a queue that cannot be restored.
    """
    by_number = {reply.queue.queue_id: reply for reply in queues}
    kept: list[restores_pb2.DescribeTieredQueueReply] = []
    unknown: set[int] = set()
    for number in sorted(by_number):
        reply = by_number[number]
        queue = reply.queue
        problem = reply.problem
        if not problem and queue.HasField("parent_id"):
            parent = by_number.get(queue.parent_id)
            noted = parent is not None and number in parent.queue.child_ids
            if not noted or queue.parent_id in unknown:
                if not queue.tiered:
                    unknown.add(number)
                    continue
                problem = f"the split of queue {queue.parent_id} that made it is not known"
        if problem:
            raise InvalidRequest(
                f"queue {number} of topic {topic!r} cannot be restored: {problem}. Leave the topic"
                f" out with --without {topic}"
            )
        kept.append(reply)
    present = {reply.queue.queue_id for reply in kept}
    at = 0
    for queue in sorted(
        (reply.queue for reply in kept if not reply.queue.child_ids),
        key=lambda queue: queue.slot_start,
    ):
        at = queue.slot_end if queue.slot_start == at else -1
    missing = {child for reply in kept for child in reply.queue.child_ids} - present
    if at != SLOT_COUNT or missing or present != set(range(len(present))):
        raise InvalidRequest(
            f"topic {topic!r} cannot be restored: the tier has no facts of some of its queues, as"
            f" it was new. Leave it out with --without {topic}"
        )
    replies = [reply.queue for reply in kept]
    for queue in replies:
        if not _ancestors_whole(queue, replies):
            queue.reopened += queue.producers
            queue.producers = 0
    return kept


def _ancestors_whole(
    queue: metadata_pb2.RestorableQueue, queues: Sequence[metadata_pb2.RestorableQueue]
) -> bool:
    """Whether nothing is lost of the queues from whose splits it comes."""
    by_number: Mapping[int, metadata_pb2.RestorableQueue] = {q.queue_id: q for q in queues}
    while queue.HasField("parent_id"):
        queue = by_number[queue.parent_id]
        if queue.log_end_offset < queue.known_end_offset or queue.delayed_messages:
            return False
    return True


def _queues_of(topic: _Topic) -> list[metadata_pb2.RestorableQueue]:
    return [reply.queue for reply in topic.queues]


def _settings(topic: _Topic) -> Any:
    """The newest settings that any queue of the topic had."""
    return max(topic.queues, key=lambda reply: reply.queue.known_us).settings


def _topic(name: str, topic_id: int, settings: Any, queues: Iterable[Any]) -> RestoredTopic:
    return RestoredTopic(
        name=name,
        topic_id=f"{topic_id:016x}",
        forgets_ids=settings.HasField("dedup"),
        queues=tuple(
            RestoredQueue(
                queue=queue.queue_id,
                start=queue.log_start_offset,
                end=queue.log_end_offset,
                known_end=queue.known_end_offset,
                lost=queue.known_end_offset - queue.log_end_offset,
                known_us=queue.known_us,
                delayed_lost=queue.delayed_messages,
                producers=queue.producers,
                reopened=queue.reopened,
                groups=queue.groups,
                groups_back=queue.groups_back,
            )
            for queue in queues
        ),
    )
