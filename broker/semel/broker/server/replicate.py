"""The receiving side of replication: streams of Raft messages from the other replicas.

How it works. Each peer sends on two streams (`peers.py`); nothing is ever answered on them. A
message is decoded, its frames are checked (both CRCs), and the node gets it in the same loop turn.

Not here: snapshots' bytes (`snapshots.py`), what a message does (`raft/`, `node.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc
import grpc.aio

from semel.broker.peers import Identity
from semel.broker.raft import EntryMeta, Membership, Message, decode_message, envelope_length
from semel.broker.server.stream import StreamContext
from semel.protos.control_records import membership_nodes
from semel.protos.errors import SemelError
from semel.protos.frames import (
    FRAME_HEADER_BYTES,
    RECORD_HEADER_STRUCT,
    FrameHeader,
    RecordKind,
    check_frame,
    frame_length_at,
    iter_records,
)
from semel.protos.ids import NodeId
from semel.protos.streams import frame_data

logger = logging.getLogger(__name__)


class MessageSink(Protocol):
    """The node, as this module needs it."""

    def on_message(self, message: Message, frames: Sequence[bytes]) -> None: ...


def frame_meta(frame: bytes, header: FrameHeader) -> EntryMeta:
    """What the Raft core knows of a frame that was checked before."""
    membership = None
    kind: int = RECORD_HEADER_STRUCT.unpack_from(frame, FRAME_HEADER_BYTES)[1]
    if kind == RecordKind.MEMBERSHIP:
        _, _, payload = next(iter_records(frame))
        voters, learners = membership_nodes(payload)
        membership = Membership(voters=frozenset(voters), learners=frozenset(learners))
    return EntryMeta(index=header.index, term=header.term, size=len(frame), membership=membership)


def split_message(data: memoryview) -> tuple[Message, list[bytes]]:
    """The message and the frames behind it, all checked. Raises SemelError."""
    at = envelope_length(data)
    end = len(data)
    frames: list[bytes] = []
    metas: list[EntryMeta] = []
    while at < end:
        frame = bytes(data[at : at + frame_length_at(data, at)])
        metas.append(frame_meta(frame, check_frame(frame)))
        frames.append(frame)
        at += len(frame)
    return decode_message(data, tuple(metas)), frames


class ReplicateHandler:
    """Handles RaftPeer's Control and Bulk."""

    def __init__(
        self, sink: MessageSink, identity: Identity, is_member: Callable[[NodeId], bool]
    ) -> None:
        self._sink = sink
        self._identity = identity
        self._is_member = is_member

    async def receive(self, _: object, context: StreamContext) -> None:
        """One peer's stream, until it ends or says something malformed."""
        peer = await self._check_identity(context)
        await context.send_initial_metadata(())
        while True:
            data = await context.read()
            if data is grpc.aio.EOF:
                return
            try:
                message, frames = split_message(frame_data(data))
            except SemelError as error:
                logger.error(
                    "malformed message dropped with its stream peer=%s error=%s", peer, error
                )
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if message.source != peer or message.target != self._identity.node_id:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"message of node {message.source} to node {message.target} "
                    f"on a stream of node {peer} to node {self._identity.node_id}",
                )
            self._sink.on_message(message, frames)

    async def _check_identity(self, context: StreamContext) -> NodeId:
        told = {key: str(value) for key, value in context.invocation_metadata() or ()}
        cluster = told.get("semel-cluster")
        group = told.get("semel-group")
        node = told.get("semel-node", "")
        own = self._identity
        if cluster != own.cluster_id or group != str(own.group_id):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this is node {own.node_id} of group {own.group_id} of cluster "
                f"{own.cluster_id}, the caller belongs to group {group} of cluster {cluster}",
            )
        if not node.isdecimal() or not self._is_member(NodeId(int(node))):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"node {node or '?'} is not a member of group {own.group_id}",
            )
        return NodeId(int(node))
