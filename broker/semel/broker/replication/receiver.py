"""The receiving side of replication: streams of Raft messages from the other replicas.

How it works. A peer asks over gRPC for a stream. Its identity is checked there, and it gets a
ticket. With that it connects to the peer port and sends Raft messages, which are not answered on
the stream (`replication/framed_port.py`). Each message is decoded and its frames are checked (both
CRCs), and so are the bodies of topics in memory behind them; the node gets it in the same loop turn
in which its last byte arrived.

Invariants
1. A stream ends if its bytes are malformed or if it carries messages of another node; the node goes
   on.
2. With TLS, a stream of node N is a connection whose certificate is that of node N of this cluster.
   Only inside a network that both nodes' operators have declared private, it may be in plaintext;
   then the ticket alone, which went over TLS, shows that it is node N.

Not here: the sending side (`replication/sender.py`), snapshots' bytes
(`snapshots/snapshot_service.py`), what a message does (`raft/`, `replica/driver.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from semel.broker.identity import NodeIdentity
from semel.broker.memory import Carried, read_bodies
from semel.broker.memory.carried import MAGIC as BODIES_MAGIC
from semel.broker.raft import EntryMeta, Membership, Message, decode_message, envelope_length
from semel.broker.replication.framed_port import FramedStream, TicketPort
from semel.broker.replication.sender import SILENCE_MAX_S
from semel.protos.control_records import membership_nodes
from semel.protos.errors import DataDirectoryError, InvalidRequest
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
from semel.protos.levels import check_levels, check_member, own_levels, untold_levels
from semel.protos.security.credentials import Contexts
from semel.protos.security.identity import BROKER, check_peer, identity_of_auth_context
from semel.protos.security.networks import Networks, host_of_peer
from semel.protos.v1 import raft_pb2, raft_pb2_grpc
from semel.protos.v1.common_pb2 import Levels


class MessageSink(Protocol):
    """The node, as this module needs it."""

    def on_message(
        self,
        message: Message,
        frames: Sequence[bytes],
        carried: Mapping[int, Sequence[Carried]] = ...,
    ) -> None: ...


def frame_meta(frame: bytes, header: FrameHeader) -> EntryMeta:
    """The part of a frame that the Raft core knows; the frame was checked before."""
    membership = None
    kind: int = RECORD_HEADER_STRUCT.unpack_from(frame, FRAME_HEADER_BYTES)[1]
    if kind == RecordKind.MEMBERSHIP:
        _, _, payload = next(iter_records(frame))
        voters, learners = membership_nodes(payload)
        membership = Membership(voters=frozenset(voters), learners=frozenset(learners))
    return EntryMeta(index=header.index, term=header.term, size=len(frame), membership=membership)


def split_message(
    data: memoryview,
) -> tuple[Message, list[bytes], Mapping[int, Sequence[Carried]]]:
    """The message, the frames behind it, and the bodies of their MEMORY records by entry, all
    checked. Raises SemelError."""
    at = envelope_length(data)
    end = len(data)
    frames: list[bytes] = []
    metas: list[EntryMeta] = []
    carried: Mapping[int, Sequence[Carried]] = {}
    while at < end:
        if bytes(data[at : at + len(BODIES_MAGIC)]) == BODIES_MAGIC:
            indexes = [meta.index for meta in metas]
            carried = read_bodies(data, at, list(zip(indexes, frames, strict=True)))
            break
        frame = bytes(data[at : at + frame_length_at(data, at)])
        metas.append(frame_meta(frame, check_frame(frame)))
        frames.append(frame)
        at += len(frame)
    return decode_message(data, tuple(metas)), frames, carried


class PeerPort(raft_pb2_grpc.RaftPeerServicer):
    """Lets peers in and hands their messages on; `serve` and `close` open and shut the port."""

    def __init__(
        self,
        sink: MessageSink,
        identity: NodeIdentity,
        is_member: Callable[[NodeId], bool],
        *,
        levels: Callable[[], Levels] = own_levels,
        level_needed: Callable[[], int] = int,
        tls: Contexts | None = None,
        plaintext_within: Networks = Networks(),  # noqa: B008 (it is frozen)
    ) -> None:
        """`levels` are this node's, and `level_needed` what every member must know, as they are
        now. `tls` is None for plaintext."""
        self._sink = sink
        self._levels = levels
        self._level_needed = level_needed
        self._identity = identity
        self._is_member = is_member
        self._tls = tls
        self._plaintext_within = plaintext_within
        self._port = TicketPort(
            silence_max_s=SILENCE_MAX_S, tls=tls, plaintext=plaintext_within.__contains__
        )
        self.serve = self._port.serve
        self.close = self._port.close

    async def OpenStream(  # noqa: N802
        self, request: raft_pb2.OpenStreamRequest, context: Any
    ) -> raft_pb2.OpenStreamReply:
        """A ticket for one stream.

        Raises DataDirectoryError if the caller belongs to another group, Unauthenticated if its
        certificate is not that of the node that it says it is, Unavailable while it is not known to
        which founding this node or the caller belongs, UnsupportedVersion if the caller does not
        know the rules of the group's log.
        """
        own = self._identity
        identity = None
        if self._tls is not None:
            # That the certificate is of the CA has been checked for the call (`guard.py`).
            identity = check_peer(
                identity_of_auth_context(context.auth_context()),
                own.cluster_id,
                (BROKER,),
                str(request.node_id),
            )
        own.check_caller(request, request.address)
        levels = self._levels()
        told = request.levels if request.HasField("levels") else untold_levels()
        peer = NodeId(request.node_id)
        if not self._is_member(peer):
            raise DataDirectoryError(
                f"node {request.node_id or '?'} is not a member of group {own.group_id}"
            )

        check_levels(levels, f"node {own.node_id}", told, f"node {peer}")
        check_member(f"node {peer}", told, self._level_needed())

        def taker(_: FramedStream) -> _Incoming:
            return _Incoming(self._sink, peer, own)

        plaintext = (
            identity is not None
            and request.plaintext_wanted
            and host_of_peer(context.peer()) in self._plaintext_within
        )
        return raft_pb2.OpenStreamReply(
            port=self._port.port,
            ticket=self._port.give_ticket(taker, identity, plaintext=plaintext),
            feature_level_max=levels.max,
            levels=levels,
            plaintext=plaintext,
        )


class _Incoming:
    """What one peer sends (`framed_port.Taker`)."""

    def __init__(self, sink: MessageSink, peer: NodeId, own: NodeIdentity) -> None:
        self._sink = sink
        self._peer = peer
        self._own = own.node_id
        self._identity = own
        self._founding = own.founding
        self.whose = f"node {peer}"

    def on_message(self, data: memoryview, *, owned: bool) -> None:
        """Raises InvalidRequest and other SemelErrors when `data` is malformed."""
        message, frames, carried = split_message(data)
        if message.source != self._peer or message.target != self._own:
            raise InvalidRequest(
                f"message of node {message.source} to node {message.target} on a stream of node "
                f"{self._peer} to node {self._own}"
            )
        if self._identity.founding != self._founding:
            raise InvalidRequest(
                f"node {self._own} belongs to another founding of its group than when node "
                f"{self._peer} opened the stream"
            )
        self._sink.on_message(message, frames, carried)

    def on_writable(self) -> None:
        """Peers are answered on their own streams."""

    def on_lost(self) -> None:
        """The sending side of the link notices."""
