"""The routes: which broker group has a queue, which node is master, which queue gets a message.

How it works. `RouteTable` keeps the latest routes from the controllers and corrects them by the
answers of brokers. A group's master is known with its term, and the higher term wins, no matter
which node reports it. A master that failed is *suspect*: the same (term, address) is accepted again
only from the node itself, not from a controller that has not noticed the failure yet.

Invariants
1. The term of a group's known master never falls.
2. Routes of an older version never replace newer ones.
3. `queues_of_slots` is a pure function of the topic's route.

Not here: calls to controllers and brokers (`transport/cluster.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from semel.client.core.message_ids import NOT_COMPARED, IdRules
from semel.protos.errors import QueueMoved
from semel.protos.id_dedup import COMPARED_ID_BYTES_MAX
from semel.protos.ids import GroupId, NodeId, QueueId, QueueKey, Term, TopicId
from semel.protos.v1 import broker_pb2, control_pb2, controller_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRoute:
    """The route of one queue."""

    key: QueueKey
    group_id: GroupId
    slot_start: int
    slot_end: int
    parent: int | None = None
    """Number of the queue that was split into it."""
    sealed: bool = False
    """It was split: it accepts no messages and is read to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """The route of one topic, as of one version of the routes."""

    name: str
    topic_id: TopicId
    queues: tuple[QueueRoute, ...]
    """The open queues, by number; every slot belongs to one of them."""
    sealed: tuple[QueueRoute, ...] = ()
    """The queues that were split, by number."""
    message_bytes_max: int
    """0: the default."""
    batch_bytes_max: int
    """0: the default."""
    compares_ids: bool = False
    """A message whose id is known is not stored again."""
    id_rules: IdRules = field(init=False, repr=False)
    """The rules for message ids, by the groups that have the open queues."""
    by_slot: npt.NDArray[np.int32] = field(repr=False)
    """Indices in `queues`, by rising slot."""
    slot_starts: npt.NDArray[np.int32] = field(repr=False)
    """First slot of each of `by_slot`."""

    def __post_init__(self) -> None:
        rules = NOT_COMPARED
        if self.compares_ids:
            groups = {queue.group_id for queue in self.queues}
            rules = IdRules(self.name, COMPARED_ID_BYTES_MAX, len(groups))
        object.__setattr__(self, "id_rules", rules)

    def queues_of_slots(self, slots: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Returns the index in `queues` of the owner of each slot."""
        at = np.searchsorted(self.slot_starts, slots, side="right") - 1
        owners: npt.NDArray[np.int32] = self.by_slot[at]
        return owners

    def queue_of_slot(self, slot: int) -> int:
        """Returns the index in `queues` of the owner of one slot."""
        return int(self.by_slot[bisect_right(self.slot_starts, slot) - 1])

    @property
    def every(self) -> tuple[QueueRoute, ...]:
        """All queues, open or split, by number."""
        if not self.sealed:
            return self.queues
        return tuple(sorted(self.queues + self.sealed, key=_number))

    def find(self, queue_id: int) -> QueueRoute | None:
        """Returns the queue with a number, open or split, or None."""
        for queues in (self.queues, self.sealed):
            place = bisect_left(queues, queue_id, key=_number)
            if place < len(queues) and queues[place].key.queue_id == queue_id:
                return queues[place]
        return None

    def after_split(self, split: control_pb2.SplitQueue) -> TopicRoute:
        """Returns the route after a split that a broker reported; itself if the split is known."""
        place = self.position_of(split.queue.queue_id)
        if place is None or split.queue.topic_id != self.topic_id:
            return self
        parent = self.queues[place]
        children = children_of(parent, split)
        return _assemble(
            replace(
                self,
                sealed=tuple(sorted((*self.sealed, replace(parent, sealed=True)), key=_number)),
            ),
            (*self.queues[:place], *self.queues[place + 1 :], *children),
        )

    def after_move(self, key: QueueKey, group_id: GroupId) -> TopicRoute:
        """Returns the route after a broker has told which group has a queue."""

        def placed(queue: QueueRoute) -> QueueRoute:
            return replace(queue, group_id=group_id) if queue.key == key else queue

        return replace(
            self, queues=tuple(map(placed, self.queues)), sealed=tuple(map(placed, self.sealed))
        )

    def position_of(self, queue_id: int) -> int | None:
        """Returns the index in `queues` of an open queue by its number."""
        if queue_id < len(self.queues) and self.queues[queue_id].key.queue_id == queue_id:
            return queue_id
        for position, queue in enumerate(self.queues):
            if queue.key.queue_id == queue_id:
                return position
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """A broker group and its master, as far as it is known."""

    address: str
    node_id: NodeId
    term: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Where a node may be asked for streams, and which node that is."""

    port: int
    cluster_id: str
    group_id: GroupId
    node_id: NodeId


@dataclass(slots=True)
class _Group:
    addresses: dict[NodeId, str]
    stream_ports: dict[NodeId, int]
    master: Master | None = None
    term: int = -1
    """The highest term heard of; it never falls."""
    suspect: tuple[int, str] | None = None
    """(term, address) of a master that failed."""


def topic_route(topic: controller_pb2.TopicRoute) -> TopicRoute:
    """Decodes the route of one topic."""
    topic_id = TopicId(topic.topic_id)

    def routes(messages: Iterable[controller_pb2.QueueRoute], *, sealed: bool) -> list[QueueRoute]:
        return [
            QueueRoute(
                key=QueueKey(topic_id, QueueId(queue.queue_id)),
                group_id=GroupId(queue.group_id),
                slot_start=queue.slot_start,
                slot_end=queue.slot_end,
                parent=queue.parent_id if queue.HasField("parent_id") else None,
                sealed=sealed,
            )
            for queue in messages
        ]

    empty = np.empty(0, np.int32)
    bare = TopicRoute(
        name=topic.name,
        topic_id=topic_id,
        queues=(),
        sealed=tuple(sorted(routes(topic.sealed, sealed=True), key=_number)),
        message_bytes_max=topic.settings.message_bytes_max,
        batch_bytes_max=topic.settings.batch_bytes_max,
        compares_ids=topic.settings.HasField("dedup"),
        by_slot=empty,
        slot_starts=empty,
    )
    return _assemble(bare, routes(topic.queues, sealed=False))


def children_of(parent: QueueRoute, split: control_pb2.SplitQueue) -> list[QueueRoute]:
    """Returns the queues that a split made, by rising slot, in the parent's group at first."""
    return [
        QueueRoute(
            key=QueueKey(parent.key.topic_id, QueueId(child.queue_id)),
            group_id=parent.group_id,
            slot_start=child.slot_start,
            slot_end=child.slot_end,
            parent=parent.key.queue_id,
        )
        for child in split.children
    ]


def _number(queue: QueueRoute) -> int:
    return queue.key.queue_id


def _assemble(topic: TopicRoute, queues: Iterable[QueueRoute]) -> TopicRoute:
    """Returns the topic with these open queues."""
    ordered = tuple(sorted(queues, key=_number))
    starts = np.array([queue.slot_start for queue in ordered], np.int32)
    by_slot = np.argsort(starts, kind="stable").astype(np.int32)
    return replace(topic, queues=ordered, by_slot=by_slot, slot_starts=starts[by_slot])


class RouteTable:
    """The routes that a client knows."""

    def __init__(self) -> None:
        self.version = 0
        self.cluster_id = ""
        self.watches = 0
        """How many clients watch the routes at the controller, as it has told."""
        self._topics: dict[str, TopicRoute] = {}
        self._groups: dict[GroupId, _Group] = {}

    def on_routes(self, routes: controller_pb2.Routes) -> None:
        """Takes routes from a controller, or a copy of them: all groups, and some topics."""
        if routes.watches:
            self.watches = routes.watches
        if routes.version < self.version:  # a copy: it adds only what is not known at all
            for topic in routes.topics:
                self._topics.setdefault(topic.name, topic_route(topic))
            return
        self.version = routes.version
        self.cluster_id = routes.cluster_id
        for topic in routes.topics:
            self._topics[topic.name] = topic_route(topic)
        for message in routes.groups:
            group_id = GroupId(message.group_id)
            group = self._groups.setdefault(group_id, _Group({}, {}))
            group.addresses = {NodeId(node.node_id): node.address for node in message.nodes}
            group.stream_ports = {
                NodeId(node.node_id): node.stream_port for node in message.nodes if node.stream_port
            }
            address = group.addresses.get(NodeId(message.master_id), "")
            if address and (message.term, address) != group.suspect:
                self.on_hint(group_id, address, message.term, message.master_id)

    def forget(self) -> None:
        """Drops all routes: they were another cluster's."""
        self.version, self.cluster_id = 0, ""
        self._topics.clear()
        self._groups.clear()

    def on_hint(self, group_id: GroupId, address: str, term: int, node_id: int) -> bool:
        """A broker or a controller named a master. Returns True if it was not known."""
        group = self._groups.get(group_id)
        if group is None or not address or term < group.term:
            return False
        if term == group.term and (group.master is not None or group.suspect == (term, address)):
            return False
        group.term = term
        group.suspect = None
        group.master = Master(address=address, node_id=NodeId(node_id), term=Term(term))
        return True

    def on_node_status(self, group_id: GroupId, status: broker_pb2.NodeStatusReply) -> bool:
        """A node reported its status. Returns True if the group has a new master by it."""
        group = self._groups.get(group_id)
        if group is None:
            return False
        address = group.addresses.get(NodeId(status.master_id), "") or status.master_address
        if status.role == "master":
            if group.suspect is not None and group.suspect[0] <= status.term:
                group.suspect = None
            own = group.addresses.get(NodeId(status.node_id), "") or status.master_address
            return self.on_hint(group_id, own, status.term, status.node_id)
        return self.on_hint(group_id, address, status.term, status.master_id)

    def on_master_failed(self, group_id: GroupId, master: Master) -> None:
        """The master did not answer, or answered that it is not master and named no other node."""
        group = self._groups.get(group_id)
        if group is not None and group.master == master:
            group.master = None
            group.suspect = (master.term, master.address)

    def on_topic_gone(self, name: str, topic_id: TopicId) -> None:
        """Brokers or controllers reported that the topic does not exist any more."""
        topic = self._topics.get(name)
        if topic is not None and topic.topic_id == topic_id:
            del self._topics[name]

    def on_moved(self, error: QueueMoved) -> None:
        """A broker reported that a queue has moved to another group."""
        key = QueueKey(TopicId(error.topic_id), QueueId(error.queue_id))
        for name, topic in self._topics.items():
            if topic.topic_id == key.topic_id:
                self._topics[name] = topic.after_move(key, GroupId(error.group_id))

    def home(self, queue: QueueRoute) -> GroupId:
        """Returns the group that has the queue, by the latest report."""
        for topic in self._topics.values():
            if topic.topic_id == queue.key.topic_id:
                found = topic.find(queue.key.queue_id)
                return queue.group_id if found is None else found.group_id
        return queue.group_id

    def by_home(self, queues: Iterable[QueueRoute]) -> dict[GroupId, list[QueueKey]]:
        """Returns the queues by the group that has them, by the latest reports."""
        found: dict[GroupId, list[QueueKey]] = {}
        for queue in queues:
            found.setdefault(self.home(queue), []).append(queue.key)
        return found

    def on_split(self, name: str, split: control_pb2.SplitQueue) -> None:
        """A broker reported a split that the controllers may not have published yet."""
        topic = self._topics.get(name)
        if topic is not None:
            self._topics[name] = topic.after_split(split)

    def topic(self, name: str) -> TopicRoute | None:
        return self._topics.get(name)

    def topics(self) -> Iterable[TopicRoute]:
        return self._topics.values()

    def master(self, group_id: GroupId) -> Master | None:
        group = self._groups.get(group_id)
        return group.master if group is not None else None

    def suspect(self, group_id: GroupId) -> str:
        """Returns the address of the group's master that failed last; empty if there is none."""
        group = self._groups.get(group_id)
        return "" if group is None or group.suspect is None else group.suspect[1]

    def stream_place(self, address: str) -> StreamPlace | None:
        """Returns where the node at HOST:PORT may be asked for streams, if that is known."""
        for group_id, group in self._groups.items():
            for node_id, port in group.stream_ports.items():
                if group.addresses[node_id] == address:
                    return StreamPlace(
                        port=port,
                        cluster_id=self.cluster_id,
                        group_id=group_id,
                        node_id=node_id,
                    )
        return None

    def replicas(self, group_id: GroupId) -> Sequence[str]:
        """Returns the addresses of all nodes of a group; none if the group is unknown."""
        group = self._groups.get(group_id)
        return list(group.addresses.values()) if group is not None else []

    def nodes(self, group_id: GroupId) -> dict[NodeId, str]:
        """Returns the addresses of a group's nodes by node number."""
        group = self._groups.get(group_id)
        return dict(group.addresses) if group is not None else {}

    def groups(self) -> Sequence[GroupId]:
        return list(self._groups)
