"""Administrative calls, on the I/O thread: topics, groups, producers, the cluster.

How it works. Controllers report metadata, masters report what is in the logs. A description joins
both.

Not here: `verify` (`admin/verify.py`), the API's classes (`api/aio_admin.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from semel.client.admin.descriptions import (
    BrokerGroupDescription,
    ClusterStatus,
    ControllerDescription,
    GroupDescription,
    GroupQueue,
    GroupSummary,
    LockAge,
    MemberDescription,
    NodeDescription,
    ProduceOutcome,
    ProducerDescription,
    ProducerQueue,
    ProducerSummary,
    QueueDescription,
    QueueMove,
    TopicDescription,
    TopicSettings,
    TopicSummary,
    UnfinishedTopic,
)
from semel.client.admin.id_windows import describe_dedup
from semel.client.admin.inspection import (
    Inspection,
    group_states,
    idle_producers,
    inspect,
    open_transactions,
    with_topics,
)
from semel.client.admin.progress import publish_progress
from semel.client.admin.resets import (
    OffsetReset,
    Shift,
    Target,
    active_consumers,
    carry_out,
    forget_group,
    forget_in_topic,
    plan_resets,
    refuse_active,
)
from semel.client.admin.topic_index import TopicIndex
from semel.client.admin.topic_settings import (
    Compaction,
    CompactionChange,
    DedupChange,
    IdDedup,
    change_compaction,
    change_dedup,
    settings_message,
)
from semel.client.core.routing import topic_route
from semel.client.reading.offsets import (
    Place,
    Places,
    check_places,
    list_offsets,
    resolve_places,
)
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest, UnknownGroup, UnknownProducer, UnknownQueue
from semel.protos.groups import check_not_reserved
from semel.protos.ids import GroupId
from semel.protos.queue_refs import queue_ref
from semel.protos.slots import SLOT_COUNT
from semel.protos.v1 import broker_pb2, controller_pb2, metadata_pb2

_KINDS = {
    metadata_pb2.GROUP_KIND_CONSUMERS: "consumers",
    metadata_pb2.GROUP_KIND_KAFKA: "kafka",
    metadata_pb2.GROUP_KIND_GATEWAYS: "gateways",
}
_OUTCOMES = {
    broker_pb2.ProduceOutcomeReply.OUTCOME_COMMITTED: "committed",
    broker_pb2.ProduceOutcomeReply.OUTCOME_NOT_COMMITTED: "not_committed",
    broker_pb2.ProduceOutcomeReply.OUTCOME_TOO_OLD: "too_old",
}


class AdminCore:
    """Every administrative call of one client. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.topic_index = TopicIndex(cluster)

    # --- topics ---------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        queues: int,
        settings: dict[str, int | None],
        if_not_exists: bool,
        groups: list[int] | None,
        dedup: IdDedup | None = None,
        compaction: Compaction | None = None,
    ) -> bool:
        """Returns True if the topic is new."""
        _check_queues(queues)
        request = controller_pb2.CreateTopicRequest(
            name=name,
            queues=queues,
            settings=settings_message(settings),
            if_not_exists=if_not_exists,
            groups=groups or [],
            request_id=os.urandom(16),
        )
        change_dedup(request.settings, dedup)
        change_compaction(request.settings, compaction)
        reply = await self._cluster.controller("CreateTopic", request)
        return bool(reply.created)

    async def alter_topic(
        self,
        name: str,
        settings: dict[str, int | None],
        queues: int | None,
        dedup: DedupChange = None,
        compaction: CompactionChange = None,
    ) -> TopicSettings:
        request = controller_pb2.AlterTopicRequest(name=name)
        if settings.get("tier_after_ms") == -1 and settings.get("local_retention_ms") is None:
            settings = settings | {"local_retention_ms": -1}  # it is for tiered topics
        changes = (dedup, compaction, *settings.values())
        if any(value is not None for value in changes):
            request.settings.CopyFrom((await self._routes([name])).topics[0].settings)
            request.settings.MergeFrom(settings_message(settings))
            change_dedup(request.settings, dedup)
            change_compaction(request.settings, compaction)
        elif queues is None:
            raise InvalidRequest("nothing to alter: name a setting, or a number of queues")
        if queues is not None:
            _check_queues(queues)
            request.queues = queues
        reply = await self._cluster.controller("AlterTopic", request)
        return TopicSettings.of(reply.topic.settings)

    async def split_queue(self, topic: str, queue: int, children: int) -> list[int]:
        """Splits a queue and returns the numbers of its children."""
        for what, number in (("queue", queue), ("children", children)):
            if not isinstance(number, int) or not 0 <= number <= SLOT_COUNT:
                raise InvalidRequest(f"{what} must be a whole number, not {number!r}")
        reply = await self._cluster.controller(
            "SplitQueue",
            controller_pb2.SplitQueueRequest(name=topic, queue_id=queue, children=children),
        )
        return [
            each.queue_id
            for each in (*reply.topic.queues, *reply.topic.sealed)
            if each.HasField("parent_id") and each.parent_id == queue
        ]

    async def move_queue(self, topic: str, queue: int, group: int) -> QueueMove:
        """Begins a move."""
        return await self._move(topic, queue, group_id=group)

    async def cancel_move(self, topic: str, queue: int) -> QueueMove:
        """Cancels a move."""
        return await self._move(topic, queue, cancel=True)

    async def _move(
        self, topic: str, queue: int, *, group_id: int = 0, cancel: bool = False
    ) -> QueueMove:
        for what, number in (("queue", queue), ("group", group_id)):
            if not isinstance(number, int) or not 0 <= number < 1 << 32:
                raise InvalidRequest(f"{what} must be a whole number, not {number!r}")
        status = await self._cluster.controller(
            "MoveQueue",
            controller_pb2.MoveQueueRequest(
                name=topic, queue_id=queue, group_id=group_id, cancel=cancel
            ),
        )
        return QueueMove.of(status, topic)

    async def list_moves(self, topic: str) -> list[QueueMove]:
        """Returns the moves under way, and those that were given up."""
        reply = await self._cluster.controller(
            "ListMoves", controller_pb2.ListMovesRequest(name=topic)
        )
        return [QueueMove.of(status, status.topic) for status in reply.moves]

    async def delete_topic(self, name: str, if_exists: bool) -> bool:
        """Returns False if there was no such topic."""
        reply = await self._cluster.controller(
            "DeleteTopic", controller_pb2.DeleteTopicRequest(name=name, if_exists=if_exists)
        )
        route = self._cluster.routes.topic(name)
        self._cluster.on_topic_gone(name, None if route is None else route.topic_id)
        return bool(reply.deleted)

    async def list_topics(self) -> list[TopicSummary]:
        return [
            TopicSummary(
                name=topic.name,
                topic_id=topic.topic_id,
                queues=len(topic.queues),
                settings=TopicSettings.of(topic.settings),
                created_us=topic.created_us,
            )
            for topic in sorted((await self._routes([])).topics, key=lambda topic: topic.name)
        ]

    async def describe_topic(self, name: str) -> TopicDescription:
        (topic,) = await self.describe_topics([name])
        return topic

    async def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        """Returns the descriptions in the order of `names`."""
        if not names:
            return []
        found = {topic.name: topic for topic in (await self._routes(list(names))).topics}
        return list(await asyncio.gather(*(self._describe_topic(found[name]) for name in names)))

    async def offsets_at(self, name: str, time_us: int) -> dict[int, int]:
        """Returns offsets by queue; the end of a queue that has nothing so late."""
        route = await self._cluster.topic(name, refresh=True)
        found = await list_offsets(self._cluster, list(route.every), max(1, time_us))
        return {queue: offsets.time_offset for queue, offsets in found.items()}

    async def _describe_topic(self, topic: Any) -> TopicDescription:
        route, settings = topic_route(topic), TopicSettings.of(topic.settings)
        offsets, dedup = await asyncio.gather(
            list_offsets(self._cluster, list(route.every)),
            describe_dedup(self._cluster, route, settings.dedup),
        )
        return TopicDescription(
            name=topic.name,
            topic_id=topic.topic_id,
            settings=settings,
            created_us=topic.created_us,
            dedup=dedup,
            queues=[
                QueueDescription.of(queue, offsets[queue.key.queue_id]) for queue in route.every
            ],
        )

    async def _routes(self, topics: list[str]) -> Any:
        request = controller_pb2.GetRoutesRequest(topics=topics)
        routes = await self._cluster.controller("GetRoutes", request)
        self._cluster.routes.on_routes(routes)
        return routes

    # --- the cluster ----------------------------------------------------------------------------

    async def cluster_status(self) -> ClusterStatus:
        status = await self._cluster.controller(
            "GetClusterStatus", controller_pb2.ClusterStatusRequest()
        )
        return ClusterStatus(
            cluster_id=status.cluster_id,
            version=status.version,
            topics=status.topics,
            groups=[
                BrokerGroupDescription(
                    id=group.group_id,
                    term=group.term,
                    master=group.master_id,
                    commit_index=group.commit_index,
                    queues=group.queues,
                    nodes=[
                        NodeDescription(
                            id=node.node_id,
                            address=node.address,
                            role=node.role,
                            log_end_index=node.log_end_index,
                            alive=node.alive,
                            silent_ms=node.silent_ms,
                            damaged=node.damaged,
                            lost=node.lost,
                            disk_full=node.disk_full,
                            rack=node.rack,
                            produced_messages=node.load.produced_messages,
                            produced_bytes=node.load.produced_bytes,
                            fetched_messages=node.load.fetched_messages,
                            fetched_bytes=node.load.fetched_bytes,
                            disk_free_bytes=node.load.disk_free_bytes,
                            disk_total_bytes=node.load.disk_total_bytes,
                        )
                        for node in group.nodes
                    ],
                )
                for group in status.groups
            ],
            controllers=[
                ControllerDescription(
                    id=controller.controller_id,
                    address=controller.address,
                    role=controller.role,
                    alive=controller.alive,
                )
                for controller in status.controllers
            ],
            unfinished=[
                UnfinishedTopic(
                    name=topic.name, topic_id=topic.topic_id, step=topic.step, reason=topic.reason
                )
                for topic in status.unfinished
            ],
        )

    async def inspect_cluster(self, deep: bool) -> Inspection:
        """Returns the controllers' view and every node's own report; see `admin/inspection.py`."""
        found = await inspect(self._cluster, await self.cluster_status())
        if not deep:
            return found
        groups = [group.id for group in found.status.groups]
        masters = [master for group in groups if (master := found.master(group)) is not None]
        routes, reply, states, (producers, crowded), transactions = await asyncio.gather(
            self._routes([]),
            self._cluster.controller("ListGroups", controller_pb2.ListGroupsRequest()),
            group_states(self._cluster, masters),
            idle_producers(self._cluster, masters),
            open_transactions(self._cluster, masters),
        )
        return dataclasses.replace(
            found,
            nodes=with_topics(found.nodes, {each.topic_id: each.name for each in routes.topics}),
            consumers=_summaries(routes, reply, states),
            producers=producers,
            transactions=transactions,
            crowded_groups=crowded,
            unseen_groups=sorted(set(groups) - {master.group for master in masters}),
        )

    # --- consumer groups ------------------------------------------------------------------------

    async def list_groups(self) -> list[str]:
        """Returns the names of groups that have members, or committed anything."""
        routes, reply = await asyncio.gather(
            self._routes([]),
            self._cluster.controller("ListGroups", controller_pb2.ListGroupsRequest()),
        )
        names = {info.group for info in reply.groups}
        for states in await self._group_states("", _group_ids(routes)):
            names.add(states.group)
        return sorted(names)

    async def group_summaries(self) -> list[GroupSummary]:
        """Returns the same groups with their figures."""
        routes, reply = await asyncio.gather(
            self._routes([]),
            self._cluster.controller("ListGroups", controller_pb2.ListGroupsRequest()),
        )
        return _summaries(routes, reply, await self._group_states("", _group_ids(routes)))

    async def describe_group(self, group: str) -> GroupDescription:
        await self.topic_index.refresh()
        try:
            request = controller_pb2.ListGroupsRequest(group=group)
            infos = list((await self._cluster.controller("ListGroups", request)).groups)
        except UnknownGroup:  # it may have progress without ever having had a member
            infos = []
        states = await self._group_states(group, self.topic_index.group_ids)
        if not infos and not states:
            raise UnknownGroup(f"there is no consumer group {group!r}")
        topic_name = self.topic_index.name_of
        members = [
            MemberDescription(
                member_id=member.member_id,
                client=member.client,
                topics=list(member.topics),
                queues=[
                    (topic_name(ref.topic_id) or str(ref.topic_id), ref.queue_id)
                    for ref in member.assignment
                ],
            )
            for info in infos
            for member in info.members
        ]
        queues = [
            GroupQueue(
                topic=name,
                queue=state.queue.queue_id,
                committed_offset=state.committed_offset,
                log_start_offset=state.log_start_offset,
                log_end_offset=state.high_watermark,
                lag=_lag(state),
                owner=state.owner,
                token=state.token,
                lock=LockAge.of(state.lock) if state.HasField("lock") else None,
            )
            for state in states
            if (name := topic_name(state.queue.topic_id)) is not None
        ]
        queues.sort(key=lambda queue: (queue.topic, queue.queue))
        return GroupDescription(
            group=group,
            generation=infos[0].generation if infos else 0,
            members=members,
            queues=queues,
            kind=_KINDS[infos[0].kind] if infos else "consumers",
        )

    async def _group_states(self, group: str, asked: Iterable[GroupId]) -> list[Any]:
        request = broker_pb2.DescribeGroupOffsetsRequest(group=group)
        replies = await asyncio.gather(
            *(
                self._cluster.call_master(number, "DescribeGroupOffsets", request)
                for number in asked
            )
        )
        return [state for reply in replies for state in reply.states]

    async def plan_resets(
        self, group: str, targets: Sequence[Target], to: Place | Shift
    ) -> tuple[list[OffsetReset], list[str]]:
        """Returns the changes that a reset would make, and the present consumers."""
        routes = await self._routes([])
        states = await self._group_states(group, _group_ids(routes))
        names = {topic.topic_id: topic.name for topic in routes.topics}
        plan = await plan_resets(self._cluster, group, targets, to, states, names)
        return plan, await active_consumers(self._cluster, group, states)

    async def carry_out_resets(self, group: str, plan: Sequence[OffsetReset]) -> None:
        """Moves an idle group as planned."""
        states = await self._group_states(group, _group_ids(await self._routes([])))
        refuse_active(group, await active_consumers(self._cluster, group, states))
        await carry_out(self._cluster, group, plan)

    async def reset_offsets(self, group: str, topic: str, to: Places) -> dict[int, int]:
        """Moves the group's progress. Its running consumers lose their locks."""
        check_places("to", to)
        route = await self._cluster.topic(topic, refresh=True)
        offsets = await resolve_places(self._cluster, route, list(route.every), to)
        commits: dict[GroupId, Any] = {}
        for queue in route.every:
            if queue.key.queue_id in offsets:
                request = commits.setdefault(
                    queue.group_id, broker_pb2.ResetOffsetsRequest(group=group)
                )
                request.offsets.add(queue=queue_ref(queue.key), offset=offsets[queue.key.queue_id])
        await asyncio.gather(
            *(
                self._cluster.call_master(group_id, "ResetOffsets", request)
                for group_id, request in commits.items()
            )
        )
        return offsets

    async def publish_progress(
        self, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> list[tuple[str, int]]:
        """Shows the progress of a reader under a group's name; see `admin/progress.py`."""
        if not isinstance(group, str) or not group:
            raise InvalidRequest(f"group must be a name, not {group!r}")
        check_not_reserved(group)
        return await publish_progress(self._cluster, group, offsets)

    async def delete_group(self, group: str, topic: str | None = None) -> None:
        """Forgets a group without members, everywhere, or its progress in one topic."""
        check_not_reserved(group)
        if topic is not None:
            await forget_in_topic(self._cluster, group, topic)
        else:
            await forget_group(self._cluster, group)

    # --- producers ------------------------------------------------------------------------------

    async def list_producers(self) -> list[ProducerSummary]:
        reply = await self._cluster.controller(
            "ListProducers", controller_pb2.ListProducersRequest()
        )
        return [_producer(info) for info in reply.producers]

    async def describe_producer(self, name: str) -> ProducerDescription:
        info = await self._producer(name)
        routes = await self._routes([])
        names = {topic.topic_id: topic.name for topic in routes.topics}
        replies = await asyncio.gather(
            *(
                self._cluster.call_master(
                    GroupId(message.group_id),
                    "DescribeProducers",
                    broker_pb2.DescribeProducersRequest(producer_id=info.producer_id, windows=True),
                )
                for message in routes.groups
            )
        )
        queues = [
            ProducerQueue(
                topic=names[row.queue.topic_id],
                queue=row.queue.queue_id,
                epoch=row.epoch,
                session=row.session,
                last_sequence=row.last_sequence,
                window=len(row.window),
                last_time_us=row.last_time_us,
            )
            for reply in replies
            for row in reply.rows
            if row.queue.topic_id in names
        ]
        queues.sort(key=lambda queue: (queue.topic, queue.queue))
        return ProducerDescription(
            name=info.name,
            producer_id=info.producer_id,
            epoch=info.epoch,
            opened_us=info.opened_us,
            queues=queues,
        )

    async def produce_outcome(
        self, name: str, topic: str, queue: int, sequence: int
    ) -> ProduceOutcome:
        info = await self._producer(name)
        route = await self._cluster.topic(topic, refresh=True)
        owner = route.find(queue)
        if owner is None:
            raise UnknownQueue(f"topic {topic!r} has no queue {queue}")
        reply = await self._cluster.call_master(
            owner.group_id,
            "GetProduceOutcome",
            broker_pb2.ProduceOutcomeRequest(
                queue=queue_ref(owner.key), producer_id=info.producer_id, sequence=sequence
            ),
        )
        return ProduceOutcome(
            outcome=_OUTCOMES[reply.outcome],
            offset=reply.offset,
            last_sequence=reply.last_sequence,
        )

    async def _producer(self, name: str) -> ProducerSummary:
        if not name:
            raise InvalidRequest("a producer's name must not be empty")
        reply = await self._cluster.controller(
            "ListProducers", controller_pb2.ListProducersRequest(name=name)
        )
        for info in reply.producers:
            if info.name == name:
                return _producer(info)
        raise UnknownProducer(f"there is no producer {name!r}")


def _group_ids(routes: Any) -> list[GroupId]:
    return [GroupId(message.group_id) for message in routes.groups]


def _summaries(routes: Any, reply: Any, found: Sequence[Any]) -> list[GroupSummary]:
    topics = {topic.topic_id: topic.name for topic in routes.topics}
    members = {info.group: len(info.members) for info in reply.groups}
    states: dict[str, list[Any]] = {name: [] for name in members}
    for state in found:
        if state.queue.topic_id in topics:
            states.setdefault(state.group, []).append(state)
    return [
        GroupSummary(
            group=name,
            members=members.get(name, 0),
            topics=sorted({topics[state.queue.topic_id] for state in known}),
            lag=sum(map(_lag, known)),
            locks=sum(bool(state.owner) for state in known),
            joined=name in members,
        )
        for name, known in sorted(states.items())
    ]


def _lag(state: broker_pb2.GroupQueueState) -> int:
    """Returns the lag; without a commit, everything that the queue still has."""
    done = max(state.committed_offset, state.log_start_offset)
    return int(state.high_watermark - done)


def _producer(info: controller_pb2.ProducerInfo) -> ProducerSummary:
    return ProducerSummary(
        name=info.name,
        producer_id=info.producer_id,
        epoch=info.epoch,
        opened_us=info.opened_us,
    )


def _check_queues(queues: object) -> None:
    if not isinstance(queues, int) or isinstance(queues, bool) or not 1 <= queues <= SLOT_COUNT:
        raise InvalidRequest(f"queues must be from 1 to {SLOT_COUNT}, not {queues!r}")
