"""A new cluster gets the topics of one that is lost, with their ids, from a tier.

How it works. An operator's program reads the tier and drives the steps; each is one call, and may
be repeated. What is decided is stored first:

    begin      the cluster is empty, and is restored from this tier      /restore (placing)
    place      a topic's queues get their broker groups                  /restoring/TOPIC_ID
    producers  named producers, and ids that nobody gets                 /producers/…, /producer-ids
    placed     all topics have come: from here on the plan stands        /restore (restoring)
    activate   the queues of a topic are there: it is in the routes      /topics/NAME
    end        all topics are active                                     /restore (ended)

Until it is placed, a restore that is begun again begins with an empty plan, and nothing was given
to a broker group yet. Afterwards the plan is what this module has stored, and no other.

Queues that come from one split stay on one group, where their order is kept.

Invariants
1. A restore begins only in a cluster that has no topic and no named producer.
2. Epochs and ids that are given out afterwards are far above all that the lost cluster can have
   given out since the facts were noted.

Not here: reading the tier and making queues (brokers), the order of the calls (the client's
`admin/tier_restore.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from semel.controller import records
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.producers import ProducerService, adopted_epoch
from semel.controller.store import VersionConflict
from semel.controller.topics import rules
from semel.controller.topics.foreign_topics import (
    ID_STEP,
    Groups,
    check_step,
    page_after,
    usable_groups,
)
from semel.controller.topics.lineages import check_lineage, queue_records
from semel.controller.topics.placement import place
from semel.controller.topics.topic_table import TopicTable
from semel.protos.errors import InvalidRequest, Throttled
from semel.protos.ids import GroupId
from semel.protos.levels import TIER_LEVEL
from semel.protos.v1.controller_pb2 import (
    RestoreActivate,
    RestoreBegin,
    RestoreClusterReply,
    RestoreClusterRequest,
    RestorePlace,
    RestoreProducers,
)
from semel.protos.v1.metadata_pb2 import (
    RESTORE_STAGE_ENDED,
    RESTORE_STAGE_PLACING,
    RESTORE_STAGE_RESTORING,
    TOPIC_STATE_ACTIVE,
    ProducerRecord,
    RestorableQueue,
    RestoreRecord,
    RestoringTopic,
    TopicRecord,
)

_KEYS_AT_ONCE: Final = 200


class RestoreService:
    """The restore of this cluster, if there ever is one. `clock_us` is the wall clock."""

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
        self._record: RestoreRecord | None = None
        self._version: int | None = None

    async def load(self) -> None:
        """Reads how far it is; to be called once."""
        entry = await self._epoch.store.get(records.RESTORE)
        if entry is not None:
            self._record = records.load(RestoreRecord, records.RESTORE, entry)
            self._version = entry.version

    @property
    def producer_ids_floor(self) -> int:
        """Ids below this one may be those of the lost cluster; 0 if there is none."""
        return 0 if self._record is None else self._record.producer_ids_floor

    async def step(self, request: RestoreClusterRequest) -> RestoreClusterReply:
        """Does one step. Raises InvalidRequest, UnsupportedVersion, Unavailable."""
        check_step(self._epoch, request.cluster_id, TIER_LEVEL)
        name = request.WhichOneof("step")
        match name:
            case "look":
                return await self._look(request.look.after_topic_id)
            case "begin":
                await unbroken(self._begin(request.begin))
            case "place":
                await unbroken(self._place(request.place))
            case "producers":
                await unbroken(self._take_producers(request.producers))
            case "placed":
                await unbroken(self._placed())
            case "activate":
                await unbroken(self._activate(request.activate))
            case "end":
                await unbroken(self._end())
            case None:
                raise InvalidRequest("a restore has no such step: upgrade the controllers")
            case _:
                assert_never(name)
        return RestoreClusterReply(restore=self._record)

    # --- steps

    async def _look(self, after_topic_id: int) -> RestoreClusterReply:
        reply = RestoreClusterReply(restore=self._record)
        if self._record is None:
            reply.refusal = await self._refusal()
            return reply
        topics = (topic for topic, _ in (await self._topics()).values())
        reply.topics.extend(page_after(topics, after_topic_id))
        return reply

    async def _refusal(self) -> str:
        """Why no restore can begin here; empty if one can."""
        what = ""
        if names := self._table.names():
            what = f"{len(names)} topics, such as {names[0]!r}"
        elif self._table.ids():
            what = "topics that are being created or deleted"
        elif found := await self._producers.list(""):
            what = f"{len(found)} producers, such as {found[0].name!r}"
        return what and (
            f"this cluster is not empty, it has {what}: restore into a new one. Nothing was changed"
        )

    async def _begin(self, asked: RestoreBegin) -> None:
        known = self._record
        if known is not None:
            if (known.url, known.folder) != (asked.url, asked.folder):
                raise InvalidRequest(
                    f"this cluster is restored from {known.url}, cluster {known.folder}, already"
                )
            if known.stage == RESTORE_STAGE_PLACING:
                await self._drop_topics()
            return
        if refusal := await self._refusal():
            raise InvalidRequest(refusal)
        await self._put(
            RestoreRecord(
                url=asked.url,
                folder=asked.folder,
                owner=asked.owner,
                stage=RESTORE_STAGE_PLACING,
                begun_us=self._clock_us(),
            )
        )

    async def _place(self, asked: RestorePlace) -> None:
        self._at(RESTORE_STAGE_PLACING)
        rules.check_name(asked.name)
        rules.check_queues(len(asked.queues))
        check_lineage(asked.name, asked.queues)
        topics = await self._topics()
        key = records.restoring_key(asked.topic_id)
        others = [topic.topic for other, (topic, _) in topics.items() if other != key]
        if any(topic.name == asked.name for topic in others):
            raise InvalidRequest(
                f"the tier has two topics with the name {asked.name!r}: leave one out by its id"
            )
        placed = [group for topic in others for group in topic.placement]
        loads = {GroupId(group): placed.count(group) for group in usable_groups(self._groups)}
        record = TopicRecord(
            name=asked.name,
            topic_id=asked.topic_id,
            state=TOPIC_STATE_ACTIVE,
            settings=asked.settings,
            placement=_placement(asked.queues, loads),
            created_us=self._clock_us(),
        )
        record.queues.extend(queue_records(asked.queues))
        before = topics.get(key)
        restoring = RestoringTopic(topic=record, queues=asked.queues)
        await self._epoch.transact(
            checks={key: None if before is None else before[1], **self._check()},
            puts={key: records.dump(restoring)},
        )

    async def _take_producers(self, asked: RestoreProducers) -> None:
        record = self._at(RESTORE_STAGE_PLACING)
        now_us = self._clock_us()
        known = {each.name: each for each in await self._producers.list("")}
        for first in range(0, len(asked.producers), _KEYS_AT_ONCE):
            puts: dict[str, bytes] = {}
            for each in asked.producers[first : first + _KEYS_AT_ONCE]:
                before = known.get(each.name)
                if before is not None and before.producer_id == each.producer_id:
                    continue  # this step was done before, and it may have been opened since
                producer = ProducerRecord(
                    name=each.name,
                    producer_id=each.producer_id,
                    epoch=adopted_epoch(each.epoch, now_us),
                    opened_us=now_us,
                )
                puts[records.producer_key(each.name)] = records.dump(producer)
            if puts:
                await self._epoch.transact(checks=self._check(), puts=puts)
        floor = max(asked.producer_id_max + ID_STEP, now_us, record.producer_ids_floor)
        await self._producers.raise_ids(floor)
        changed = _copied(record)
        changed.producer_ids_floor = floor
        await self._put(changed)

    async def _placed(self) -> None:
        record = self._at(RESTORE_STAGE_PLACING, RESTORE_STAGE_RESTORING)
        if record.stage == RESTORE_STAGE_PLACING:
            if not record.producer_ids_floor:
                raise InvalidRequest("the producers of the lost cluster were not told yet")
            changed = _copied(record)
            changed.stage = RESTORE_STAGE_RESTORING
            await self._put(changed)

    async def _activate(self, asked: RestoreActivate) -> None:
        self._at(RESTORE_STAGE_RESTORING)
        key = records.restoring_key(asked.topic_id)
        found = (await self._topics()).get(key)
        if found is None:
            raise InvalidRequest(f"topic {asked.topic_id:#x} is not one that is restored")
        topic, version = found
        if topic.active:
            return
        done = RestoringTopic()
        done.CopyFrom(topic)
        done.active = True
        if self._table.has(topic.topic.name):
            raise InvalidRequest(
                f"a topic with the name {topic.topic.name!r} was created since the restore began:"
                " delete it"
            )
        await self._table.add(
            topic.topic, checks={key: version, **self._check()}, puts={key: records.dump(done)}
        )

    async def _end(self) -> None:
        record = self._at(RESTORE_STAGE_RESTORING, RESTORE_STAGE_ENDED)
        if record.stage == RESTORE_STAGE_ENDED:
            return
        waiting = [topic for topic, _ in (await self._topics()).values() if not topic.active]
        if waiting:
            raise InvalidRequest(f"topic {waiting[0].topic.name!r} is not active yet")
        changed = _copied(record)
        changed.stage = RESTORE_STAGE_ENDED
        await self._put(changed)

    # --- what is stored

    def _at(self, *stages: int) -> RestoreRecord:
        """The record, at one of these stages. Raises InvalidRequest."""
        if self._record is None or self._record.stage not in stages:
            raise InvalidRequest("this step does not fit: begin the restore again, it goes on")
        return self._record

    def _check(self) -> dict[str, int | None]:
        return {records.RESTORE: self._version}

    async def _put(self, record: RestoreRecord) -> None:
        try:
            self._version = await self._epoch.transact(
                checks=self._check(), puts={records.RESTORE: records.dump(record)}
            )
        except VersionConflict:
            await self.load()
            raise Throttled("another call drives the restore; ask again") from None
        self._record = record

    async def _topics(self) -> dict[str, tuple[RestoringTopic, int]]:
        """The topics of the plan, with the versions of their records, by key."""
        found = await self._epoch.store.scan(records.RESTORING)
        return {
            key: (records.load(RestoringTopic, key, entry), entry.version)
            for key, entry in found.items()
        }

    async def _drop_topics(self) -> None:
        keys = sorted(await self._topics())
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            part = frozenset(keys[first : first + _KEYS_AT_ONCE])
            await self._epoch.transact(checks=self._check(), deletes=part)


def _copied(record: RestoreRecord) -> RestoreRecord:
    made = RestoreRecord()
    made.CopyFrom(record)
    return made


def _placement(queues: Sequence[RestorableQueue], loads: dict[GroupId, int]) -> list[GroupId]:
    """The group of each queue: that of the queue from whose split it comes, else the least
    loaded."""
    roots = [queue.queue_id for queue in queues if not queue.HasField("parent_id")]
    found = dict(zip(roots, place(len(roots), loads), strict=True))
    for queue in queues:  # a child has a higher number than its parent
        if queue.HasField("parent_id"):
            if queue.parent_id not in found:
                raise InvalidRequest(f"queue {queue.queue_id} comes from a queue that is not there")
            found[queue.queue_id] = found[queue.parent_id]
    return [found[queue.queue_id] for queue in queues]
