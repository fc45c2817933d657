"""Topics that are copies of another cluster's, until they are promoted.

How it works. `semel mirror` and `semel mirror promote` drive the steps; each is one call, and may
be repeated. What is decided is stored first:

    begin      this cluster becomes the target of another one   /mirrors
    place      a topic's queues get their broker groups         /mirrored/TOPIC_ID (copying)
    producers  named producers of the source                    /producers/…
    promote    which queues of a topic, and from which slices   /mirrored/… (promoting)
    promoted   its queues are there: it is in the routes        /topics/NAME
    drop       a topic is given up                              (no record)

Queues that come from one split stay on one group, where their order is kept.

Invariants
1. No id of a producer means two of them. So a cluster becomes a target only while it has neither
   topics nor named producers of its own, and then gives out ids above all of its source; or if its
   source has done so before, as this cluster's target.
2. Once a topic is being promoted it takes no copies. Which slices those are may be decided anew, as
   long as it is not in the routes: each queue is promoted once, by its broker group.
3. A topic is in the routes only when its queues are promoted.

Not here: copying (brokers), the order of the calls (the client's `mirror/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from semel.controller import records
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.producers import ProducerService
from semel.controller.store import VersionConflict
from semel.controller.topics import rules
from semel.controller.topics.foreign_topics import (
    ID_STEP,
    Groups,
    check_step,
    page_after,
    usable_groups,
)
from semel.controller.topics.lineages import check_lineage, check_numbers, queue_records
from semel.controller.topics.placement import place
from semel.controller.topics.topic_table import TopicTable
from semel.protos.errors import InvalidRequest, Throttled, UnknownTopic
from semel.protos.ids import GroupId
from semel.protos.levels import MIRROR_LEVEL
from semel.protos.v1.controller_pb2 import (
    MirrorBegin,
    MirrorPlace,
    MirrorPromote,
    MirrorTopicsReply,
    MirrorTopicsRequest,
)
from semel.protos.v1.metadata_pb2 import (
    MIRROR_STAGE_COPYING,
    MIRROR_STAGE_PROMOTED,
    MIRROR_STAGE_PROMOTING,
    TOPIC_STATE_ACTIVE,
    MirroredTopic,
    MirrorsRecord,
    TopicRecord,
)


class MirrorService:
    """This cluster's part in mirrors. `clock_us` is the wall clock."""

    def __init__(
        self,
        epoch: ControllerEpoch,
        table: TopicTable,
        groups: Groups,
        producers: ProducerService,
        *,
        clock_us: Callable[[], int],
    ) -> None:
        self._epoch = epoch
        self._table = table
        self._groups = groups
        self._producers = producers
        self._clock_us = clock_us
        self._record: MirrorsRecord | None = None
        self._version: int | None = None
        self._names: dict[str, int] = {}
        """Names of mirrored topics that are not promoted, and their ids."""

    async def load(self) -> None:
        """Reads how far mirrors are; to be called once."""
        entry = await self._epoch.store.get(records.MIRRORS)
        if entry is not None:
            self._record = records.load(MirrorsRecord, records.MIRRORS, entry)
            self._version = entry.version
        for topic, _ in (await self._topics()).values():
            self._note(topic)

    @property
    def producer_ids_floor(self) -> int:
        """Ids below this one may be those of the source; 0 if there is none."""
        return 0 if self._record is None else self._record.producer_ids_floor

    def is_taken(self, name: str) -> bool:
        """Whether the name is that of a mirrored topic that is not promoted."""
        return name in self._names

    async def step(self, request: MirrorTopicsRequest) -> MirrorTopicsReply:
        """Does one step. Raises InvalidRequest, UnsupportedVersion, Unavailable."""
        check_step(self._epoch, request.cluster_id, MIRROR_LEVEL)
        topic: MirroredTopic | None = None
        name = request.WhichOneof("step")
        match name:
            case "look":
                return await self._look(request.look.after_topic_id)
            case "begin":
                await unbroken(self._begin(request.begin))
            case "place":
                topic = await unbroken(self._place(request.place))
            case "producers":
                self._source()
                asked = request.producers
                await unbroken(self._producers.adopt(asked.producers, forget=asked.forget))
            case "promote":
                topic = await unbroken(self._promote(request.promote))
            case "promoted":
                topic = await unbroken(self._promoted(request.promoted.topic_id))
            case "drop":
                await unbroken(self._drop(request.drop.topic_id))
            case None:
                raise InvalidRequest("a mirror has no such step: upgrade the controllers")
            case _:
                assert_never(name)
        return MirrorTopicsReply(mirrors=self._record, topics=[] if topic is None else [topic])

    # --- steps

    async def _look(self, after_topic_id: int) -> MirrorTopicsReply:
        reply = MirrorTopicsReply(
            mirrors=self._record, next_producer_id=await self._producers.next_id()
        )
        topics = (topic for topic, _ in (await self._topics()).values())
        there = (topic for topic in topics if not self._is_gone(topic))
        reply.topics.extend(page_after(there, after_topic_id))
        return reply

    async def _begin(self, asked: MirrorBegin) -> None:
        if not asked.source or asked.source == self._epoch.cluster_id:
            raise InvalidRequest(f"cluster {self._epoch.cluster_id} cannot mirror itself")
        known = self._record
        if known is not None and known.source:
            if known.source != asked.source:
                raise InvalidRequest(
                    f"this cluster is the target of cluster {known.source}: it cannot be that of"
                    f" {asked.source} as well, whose producers may have the same ids"
                )
            return
        floor = 0
        if not asked.source_is_target:
            if reason := await self._own():
                raise InvalidRequest(
                    f"this cluster has {reason} of its own, and gives out ids of producers that"
                    f" cluster {asked.source} gives out, too: mirror into a cluster that is new"
                )
            floor = max(asked.next_producer_id + ID_STEP, self._clock_us())
            await self._producers.raise_ids(floor)
        made = MirrorsRecord(source=asked.source, producer_ids_floor=floor)
        try:
            self._version = await self._epoch.transact(
                checks={records.MIRRORS: self._version}, puts={records.MIRRORS: records.dump(made)}
            )
        except VersionConflict:
            await self.load()
            raise Throttled("another call begins a mirror; ask again") from None
        self._record = made

    async def _own(self) -> str:
        """What this cluster has of its own; empty if it is new."""
        if self._table.names():
            return f"topics, such as {self._table.names()[0]!r},"
        if self._table.ids():
            return "topics that are being created or deleted"
        found = await self._producers.list("")
        return f"producers, such as {found[0].name!r}," if found else ""

    async def _place(self, asked: MirrorPlace) -> MirroredTopic:
        self._source()
        rules.check_name(asked.name)
        rules.check_queues(len(asked.queues))
        check_numbers(asked.name, asked.queues)
        topics = await self._topics()
        key = records.mirrored_key(asked.topic_id)
        before, version = topics.get(key, (None, None))
        if before is not None and self._is_gone(before):
            before = None  # it was promoted here and deleted since
        if before is not None and before.stage != MIRROR_STAGE_COPYING:
            raise InvalidRequest(f"topic {asked.name!r} is promoted here: it takes no copies")
        if before is None:
            self._check_name(asked.name, asked.topic_id)
        placement = [] if before is None else list(before.topic.placement)
        if len(placement) > len(asked.queues):
            raise InvalidRequest(f"topic {asked.name!r} had {len(placement)} queues before")
        loads = self._loads(topic for topic, _ in topics.values())
        for queue in asked.queues[len(placement) :]:
            if queue.HasField("parent_id"):
                if queue.parent_id >= len(placement):
                    raise InvalidRequest(
                        f"queue {queue.queue_id} comes from a queue that is not there"
                    )
                placement.append(placement[queue.parent_id])
                continue
            (group,) = place(1, loads)
            loads[group] += 1
            placement.append(group)
        record = TopicRecord(
            name=asked.name,
            topic_id=asked.topic_id,
            state=TOPIC_STATE_ACTIVE,
            settings=asked.settings,
            placement=placement,
            created_us=self._clock_us() if before is None else before.topic.created_us,
        )
        made = MirroredTopic(topic=record, queues=asked.queues, stage=MIRROR_STAGE_COPYING)
        if made != before:
            await self._put(made, version)
        return made

    def _is_gone(self, topic: MirroredTopic) -> bool:
        promoted = topic.stage == MIRROR_STAGE_PROMOTED
        return promoted and self._table.by_id(topic.topic.topic_id) is None

    def _check_name(self, name: str, topic_id: int) -> None:
        if self._table.has(name) or self._names.get(name, topic_id) != topic_id:
            raise InvalidRequest(f"this cluster has another topic with the name {name!r}")
        if self._table.by_id(topic_id) is not None:
            raise InvalidRequest(f"this cluster is deleting topic {name!r}: mirror it afterwards")

    def _loads(self, topics: Iterable[MirroredTopic]) -> dict[GroupId, int]:
        loads = {
            GroupId(group): self._table.promised(group) for group in usable_groups(self._groups)
        }
        coming = (topic for topic in topics if topic.stage != MIRROR_STAGE_PROMOTED)
        for group in (group for topic in coming for group in topic.topic.placement):
            if group in loads:
                loads[GroupId(group)] += 1
        return loads

    async def _promote(self, asked: MirrorPromote) -> MirroredTopic:
        topic, version = await self._topic(asked.topic_id)
        if topic.stage == MIRROR_STAGE_PROMOTED:
            return topic
        wanted = list(asked.queues)
        check_lineage(topic.topic.name, wanted)
        if len(wanted) > len(topic.queues) or not all(queue.digest for queue in wanted):
            raise InvalidRequest(f"topic {topic.topic.name!r} has no such queues here")
        made = MirroredTopic()
        made.CopyFrom(topic)
        made.stage = MIRROR_STAGE_PROMOTING
        del made.queues[:]
        made.queues.extend([*wanted, *topic.queues[len(wanted) :]])
        for queue in made.queues[len(wanted) :]:
            queue.ClearField("digest")
        await self._put(made, version)
        return made

    async def _promoted(self, topic_id: int) -> MirroredTopic:
        topic, version = await self._topic(topic_id)
        if topic.stage == MIRROR_STAGE_PROMOTED:
            return topic
        if topic.stage != MIRROR_STAGE_PROMOTING:
            raise InvalidRequest(f"topic {topic.topic.name!r} is not being promoted")
        made = MirroredTopic()
        made.CopyFrom(topic)
        made.stage = MIRROR_STAGE_PROMOTED
        chosen = [queue for queue in made.queues if queue.digest]
        del made.queues[len(chosen) :]
        record = made.topic
        del record.placement[len(made.queues) :]
        del record.queues[:]
        record.queues.extend(queue_records(made.queues))
        key = records.mirrored_key(topic_id)
        if self._table.has(record.name):
            raise InvalidRequest(f"this cluster has another topic with the name {record.name!r}")
        await self._table.add(record, checks={key: version}, puts={key: records.dump(made)})
        self._note(made)
        return made

    async def _drop(self, topic_id: int) -> None:
        key = records.mirrored_key(topic_id)
        found = (await self._topics()).get(key)
        if found is None:
            return
        topic, version = found
        if topic.stage == MIRROR_STAGE_PROMOTING:
            raise InvalidRequest(
                f"topic {topic.topic.name!r} is being promoted: promote it to the end, and delete"
                " it then"
            )
        await self._epoch.transact(checks={key: version}, deletes=frozenset({key}))
        self._names.pop(topic.topic.name, None)

    # --- what is stored

    def _source(self) -> MirrorsRecord:
        if self._record is None or not self._record.source:
            raise InvalidRequest("this cluster is the target of no mirror yet: begin one")
        return self._record

    async def _topic(self, topic_id: int) -> tuple[MirroredTopic, int]:
        found = (await self._topics()).get(records.mirrored_key(topic_id))
        if found is None:
            raise UnknownTopic(f"topic {topic_id:#x} is not mirrored here")
        return found

    async def _put(self, topic: MirroredTopic, version: int | None) -> None:
        key = records.mirrored_key(topic.topic.topic_id)
        try:
            await self._epoch.transact(checks={key: version}, puts={key: records.dump(topic)})
        except VersionConflict:
            raise Throttled("another call changes the mirrored topic; ask again") from None
        self._note(topic)

    def _note(self, topic: MirroredTopic) -> None:
        if topic.stage == MIRROR_STAGE_PROMOTED:
            self._names.pop(topic.topic.name, None)
        else:
            self._names[topic.topic.name] = topic.topic.topic_id

    async def _topics(self) -> dict[str, tuple[MirroredTopic, int]]:
        """The mirrored topics, with the versions of their records, by key."""
        found = await self._epoch.store.scan(records.MIRRORED)
        return {
            key: (records.load(MirroredTopic, key, entry), entry.version)
            for key, entry in found.items()
        }
