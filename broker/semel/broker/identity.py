"""The identity of this node, and the check whether another node belongs to the same group.

How it works. The cluster, the group and the node come from the configuration and are compared with
the data directory at the start. The *founding* is the birth of the group; its random name
identifies one history of the group. When an operator begins the group anew, after a majority of
disks was lost, the group gets another founding, so nodes of two histories never take each other for
members of one group. A node with an empty directory belongs to no founding until it learns the
group's (`membership/status.py`); until then it answers no node that belongs to one.

Every call between nodes of a group names the caller and the called node. The called node checks all
of it, because an address may lead to another machine today than yesterday. A node that asks another
one for its status checks the answer in the same way.

Invariants
1. `founding` is what the disk says: it is durable before anybody is told.

Not here: the file (`log/directory_identity.py`), which founding a node belongs to
(`membership/founding.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc.aio

from semel.broker.config import BrokerConfig
from semel.broker.log import FileLayer, check_identity, save_founding
from semel.protos.errors import DataDirectoryError, Unavailable
from semel.protos.ids import NodeId
from semel.protos.rpc import PEER_CHANNEL_OPTIONS
from semel.protos.security.credentials import channel
from semel.protos.security.guard import Guard
from semel.protos.security.identity import BROKER, Identity
from semel.protos.v1 import broker_pb2, raft_pb2

BEFORE_FOUNDINGS: Final = "first"
"""The founding of a group whose history began before foundings had names."""


class Caller(Protocol):
    """The fields of every request between nodes of a group that name the caller and the called
    node."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def group_id(self) -> int: ...

    @property
    def node_id(self) -> int: ...

    @property
    def founding_id(self) -> str: ...

    @property
    def to_node_id(self) -> int: ...


def peer_channel(config: BrokerConfig, node: NodeId, address: str) -> grpc.aio.Channel:
    """Returns a channel to a node of the group. With TLS no other node is spoken to."""
    to = Identity(BROKER, str(node), config.cluster_id)
    return channel(address, PEER_CHANNEL_OPTIONS, config.security, to)


class NodeIdentity:
    """The identity of one node. Call `open` first. All methods except `open`, `check_disk` and
    `found` are quick."""

    def __init__(self, config: BrokerConfig, files: FileLayer) -> None:
        self._config = config
        self._files = files
        self.guard = Guard(config.security)
        """The check of the certificates of callers."""
        self._writing = threading.Lock()
        self.cluster_id = config.cluster_id
        self.group_id = config.group_id
        self.node_id = config.node_id
        self.address = config.members.get(config.node_id, config.listen)
        """HOST:PORT at which the other nodes of the group reach this one."""
        self.founding = ""
        """The founding to which this node belongs; empty for none."""
        self.prepared = ""
        """The founding in which this node has durably promised to take part; empty for none."""
        self.on_founded_caller: Callable[[str, NodeId, str], None] = lambda *_: None
        """Hears (founding, caller, address) when a node of this group that belongs to a founding
        calls this node while it belongs to none."""

    # --- the disk

    def open(self) -> None:
        """BLOCKING. Reads or creates the identity. Raises DataDirectoryError."""
        self.founding = self.check_disk()

    def check_disk(self) -> str:
        """BLOCKING. Returns the founding that the directory names, and repairs a damaged copy.

        Raises DataDirectoryError.
        """
        config = self._config
        with self._writing:
            return check_identity(
                config.data,
                cluster_id=config.cluster_id,
                group_id=config.group_id,
                node_id=config.node_id,
                files=self._files,
            )

    def found(self, founding: str) -> None:
        """BLOCKING. Records durably that the node belongs to this founding from now on."""
        config = self._config
        with self._writing:
            save_founding(
                config.data,
                founding,
                cluster_id=config.cluster_id,
                group_id=config.group_id,
                node_id=config.node_id,
                files=self._files,
            )
        self.founding = founding

    # --- others

    def channel(self, node: NodeId, address: str) -> grpc.aio.Channel:
        """Returns a channel to a node of the group. With TLS no other node is spoken to."""
        return peer_channel(self._config, node, address)

    def check_proof(self, context: Any, node: int) -> None:
        """Checks that the certificate of a call is that of the node that its request names.

        Raises Unauthenticated.
        """
        self.guard.check_node(context, BROKER, node)

    def caller(self, to: NodeId) -> raft_pb2.PeerCaller:
        """The caller fields of this node for a call to node `to`."""
        return raft_pb2.PeerCaller(
            cluster_id=self.cluster_id,
            group_id=self.group_id,
            node_id=self.node_id,
            founding_id=self.founding,
            to_node_id=to,
        )

    def check_caller(self, caller: Caller, address: str = "") -> None:
        """Checks that the caller is a node of this group and means this node.

        Raises DataDirectoryError when the caller belongs elsewhere or means another node, and
        Unavailable while one of the two nodes does not know the group's founding yet.
        """
        own = f"node {self.node_id} of group {self.group_id} of cluster {self.cluster_id}"
        if (caller.cluster_id, caller.group_id) != (self.cluster_id, self.group_id):
            raise DataDirectoryError(
                f"this is {own}, the caller belongs to group {caller.group_id} of cluster "
                f"{caller.cluster_id}"
            )
        if caller.to_node_id not in (0, self.node_id):
            raise DataDirectoryError(
                f"this is {own}, the call is for node {caller.to_node_id}: its address has changed"
            )
        theirs = caller.founding_id or self._unnamed
        if theirs == self.founding:
            if not theirs:
                raise Unavailable(f"{own} belongs to no founding of the group yet")
            return
        if not self.founding:
            self.on_founded_caller(theirs, NodeId(caller.node_id), address)
        if not (self.founding and theirs):
            raise Unavailable(
                f"{own} belongs to founding {self.founding or '?'} of the group, node "
                f"{caller.node_id} to founding {theirs or '?'}; one of them does not know yet"
            )
        raise DataDirectoryError(
            f"{own} belongs to founding {self.founding} of the group, node {caller.node_id} to "
            f"founding {theirs}: the group was begun anew without the one or the other, whose data "
            "is of another history; give that node an empty directory"
        )

    def check_message(self, caller: raft_pb2.PeerCaller | None) -> None:
        """Like `check_caller`, for a call in which programs that know no foundings send no
        caller."""
        if caller is not None:
            self.check_caller(caller)
        elif self.founding != BEFORE_FOUNDINGS:
            raise DataDirectoryError(
                f"node {self.node_id} of group {self.group_id} answers nobody who does not say who "
                "he is: upgrade the calling node"
            )

    @property
    def _unnamed(self) -> str:
        """The founding to assume for a caller that names none, whose program may be from before
        foundings had names."""
        return BEFORE_FOUNDINGS if self.founding == BEFORE_FOUNDINGS else ""

    def stranger(self, node: NodeId, answer: broker_pb2.NodeStatusReply) -> str:
        """The reason why an answer is not from member `node`; empty when it is."""
        found = (answer.cluster_id, answer.group_id, answer.node_id)
        if found == (self.cluster_id, self.group_id, node):
            return ""
        return (
            f"node {answer.node_id} of group {answer.group_id} of cluster {answer.cluster_id} "
            f"answers in the place of node {node} of group {self.group_id} of cluster "
            f"{self.cluster_id}"
        )

    def same_founding(self, answer: broker_pb2.NodeStatusReply) -> bool:
        """Whether a group member's answer belongs to the same history as this node."""
        theirs = answer.founding_id or ("" if answer.knows_foundings else BEFORE_FOUNDINGS)
        return theirs == self.founding != ""
