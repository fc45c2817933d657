"""Streams between the controllers of a group, on their ordinary ports.

How it works. Each controller keeps one outgoing stream to every other one and sends its messages
there; the others' messages arrive on their streams. A stream begins with a hello that names the
cluster, both ends, the whole group, and the sender's membership status; the welcome that comes back
has the receiver's status. A controller whose status changes ends all its streams, and they are
opened again with a new hello. An empty frame every `PING_S` shows that a controller lives, also to
controllers to which it has nothing to say.

Any message may be lost: a stream that breaks drops what it had not sent, and a stream whose
receiver takes nothing is broken off. Consensus sends again.

Invariants
1. A message from another cluster, from another group, or meant for another controller is never
   handled.
2. The queue for a peer is bounded, in frames and bytes.
3. When one stream ends, for whatever reason, the others stay and this one is retried; an internal
   error ends `run`, and with it the store.

Not here: the handling of messages (`consensus.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Final

import grpc.aio

from semel.controller.store.embedded.consensus import Peer
from semel.controller.store.embedded.exposed import now
from semel.controller.store.embedded.identity import Identity
from semel.controller.store.embedded.member import Member
from semel.controller.store.embedded.messages import check
from semel.protos import compat
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.levels import levels_metadata, own_levels
from semel.protos.rpc import (
    PEER_CHANNEL_OPTIONS,
    error_from_rpc,
)
from semel.protos.security import identity as tls_identity
from semel.protos.security.credentials import Security, channel
from semel.protos.security.guard import Guard
from semel.protos.v1.metadata_store_pb2 import (
    CONTROLLER_MEMBERSHIP_NON_COUNTING,
    CONTROLLER_MEMBERSHIP_UNFORMED,
    CONTROLLER_MEMBERSHIP_VOTER,
    ControllerMembership,
    GroupHello,
    GroupMessage,
    LinkFrame,
    LinkWelcome,
    MembershipReply,
)
from semel.protos.v1.metadata_store_pb2_grpc import (
    MetadataGroupStub,
    add_MetadataGroupServicer_to_server,
)

log = logging.getLogger(__name__)

_TOLD: Final = levels_metadata(own_levels())
"""Sent with every call: the feature levels of this program."""

PING_S: Final = 0.4
HEARD_S: Final = 1.5
"""A controller that was silent for longer is shown as absent."""
RETRY_S: Final = 0.1
DESCRIBE_S: Final = 2.0
QUEUED_FRAMES_MAX: Final = 4_096
QUEUED_BYTES_MAX: Final = 64 << 20

Post = Callable[[Callable[[Member], None]], None]
"""Runs a function on the member's thread."""


class _Outbox:
    """The messages that wait to be sent to one peer."""

    def __init__(self) -> None:
        self.frames: deque[GroupMessage] = deque()
        self.bytes = 0
        self.filled = asyncio.Event()
        self.open = False
        """True while a stream takes the messages; otherwise they are dropped."""

    def put(self, message: GroupMessage) -> bool:
        """Returns False when there is no room: the stream must then be broken off."""
        if not self.open:
            return True
        self.frames.append(message)
        self.bytes += message.ByteSize()
        self.filled.set()
        return len(self.frames) <= QUEUED_FRAMES_MAX and self.bytes <= QUEUED_BYTES_MAX

    def pop(self) -> GroupMessage | None:
        if not self.frames:
            self.filled.clear()
            return None
        message = self.frames.popleft()
        self.bytes -= message.ByteSize()
        return message

    def reset(self, *, open: bool) -> None:
        self.frames.clear()
        self.bytes = 0
        self.open = open
        self.filled.clear()


class Links:
    """All streams of one controller. One event loop, except for `send`."""

    def __init__(
        self,
        identity: Identity,
        peers: Mapping[int, str],
        *,
        post: Post,
        post_message: Post,
        describe: Callable[[], MembershipReply],
        must_ask: Callable[[], bool],
        security: Security | None = None,
    ) -> None:
        """`peers` has HOST:PORT of the others; `post_message` may drop, `post` may not."""
        self._identity = identity
        self._peers = dict(peers)
        self._post = post
        self._post_message = post_message
        self._describe = describe
        self._must_ask = must_ask
        self._security = security
        self._guard = Guard(security)
        self._loop = asyncio.get_running_loop()
        self._outboxes = {peer: _Outbox() for peer in peers}
        self._calls: dict[int, Any] = {}
        self._heard_at: dict[int, float] = {}
        self._membership: ControllerMembership = CONTROLLER_MEMBERSHIP_UNFORMED
        self._changed = asyncio.Event()
        self.refused: dict[int, str] = {}
        """The reason for which a peer refuses this controller, by the peer's number."""

    def attach(self, server: grpc.aio.Server) -> None:
        """Adds the service to the controller's server."""
        add_MetadataGroupServicer_to_server(self, server)

    def send(self, receiver: int, message: GroupMessage) -> None:
        """Sends the message or drops it. Callable from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: so is the store
            self._loop.call_soon_threadsafe(self._put, receiver, message)

    def is_heard(self, peer: int) -> bool:
        """True when the peer was heard within the last `HEARD_S`."""
        heard_at = self._heard_at.get(peer)
        return heard_at is not None and self._loop.time() - heard_at <= HEARD_S

    def on_membership(self, membership: ControllerMembership) -> None:
        """Handles a new membership status of this controller: all streams begin anew."""
        if membership == self._membership:
            return
        self._membership = membership
        self._changed.set()
        self._changed = asyncio.Event()
        for outbox in self._outboxes.values():
            outbox.filled.set()

    async def run(self) -> None:
        """Keeps the streams open; ends only by cancellation or an internal error."""
        async with compat.TaskGroup() as tasks:
            for peer in self._peers:
                tasks.create_task(self._keep(peer))
            if self._peers:
                tasks.create_task(self._find_membership())

    # --- sending --------------------------------------------------------------------------------

    def _put(self, receiver: int, message: GroupMessage) -> None:
        if not self._outboxes[receiver].put(message):
            log.warning("link given up, too much waits peer=%d", receiver)
            self._outboxes[receiver].reset(open=False)
            call = self._calls.get(receiver)
            if call is not None:
                call.cancel()

    async def _keep(self, peer: int) -> None:
        async with self._channel(peer) as opened:
            stub = MetadataGroupStub(opened)
            while True:
                try:
                    await self._converse(peer, stub)
                except grpc.aio.AioRpcError as error:
                    self._note(peer, error_from_rpc(error))
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # The call was cancelled, not this task.
                await asyncio.sleep(RETRY_S)

    async def _converse(self, peer: int, stub: MetadataGroupStub) -> None:
        membership = self._membership
        call = stub.OpenLink(metadata=_TOLD)
        self._calls[peer] = call
        outbox = self._outboxes[peer]
        ended: asyncio.Future[Any] | None = None
        key: Peer | None = None
        try:
            if not await _write(call, LinkFrame(hello=self._hello(peer))):
                return
            welcome = await call.read()
            if not isinstance(welcome, LinkWelcome):
                await _raise_status(call)
                return
            self.refused.pop(peer, None)
            ended = asyncio.ensure_future(call.read())
            ended.add_done_callback(lambda _: outbox.filled.set())
            if welcome.membership in (
                CONTROLLER_MEMBERSHIP_VOTER,
                CONTROLLER_MEMBERSHIP_NON_COUNTING,
            ):
                key = (peer, welcome.membership == CONTROLLER_MEMBERSHIP_NON_COUNTING)
                outbox.reset(open=True)
                self._post(_connected(key))
            while not ended.done() and membership == self._membership:
                message = outbox.pop()
                if message is None:
                    try:
                        async with compat.timeout(PING_S):
                            await outbox.filled.wait()
                        continue
                    except TimeoutError:
                        frame = LinkFrame()
                else:
                    frame = LinkFrame(message=message)
                if not await _write(call, frame):
                    return
        finally:
            outbox.reset(open=False)
            if key is not None:
                self._post(_disconnected(key))
            if ended is not None:
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)
            call.cancel()
            del self._calls[peer]

    async def _find_membership(self) -> None:
        """Asks all others for their status, until this is a voter of a group with a history."""
        async with contextlib.AsyncExitStack() as exits:
            stubs = {
                peer: MetadataGroupStub(await exits.enter_async_context(self._channel(peer)))
                for peer in self._peers
            }
            while self._must_ask():
                asked = [
                    stub.DescribeStanding(self._hello(peer), timeout=DESCRIBE_S, metadata=_TOLD)
                    for peer, stub in stubs.items()
                ]
                replies = await asyncio.gather(*asked, return_exceptions=True)
                known = [reply for reply in replies if isinstance(reply, MembershipReply)]
                if len(known) == len(stubs):
                    self._post(_learn(known))
                await asyncio.sleep(RETRY_S)

    def _channel(self, peer: int) -> grpc.aio.Channel:
        to = tls_identity.Identity(tls_identity.CONTROLLER, str(peer), self._identity.cluster_id)
        return channel(self._peers[peer], PEER_CHANNEL_OPTIONS, self._security, to)

    def _hello(self, peer: int) -> GroupHello:
        return GroupHello(
            cluster_id=self._identity.cluster_id,
            sender=self._identity.controller_id,
            receiver=peer,
            members=self._identity.members,
            membership=self._membership,
        )

    def _note(self, peer: int, error: SemelError) -> None:
        if error.retriable:
            return
        if self.refused.get(peer) != error.message:
            log.error(
                "a controller does not talk to this one controller=%d reason=%s",
                *(peer, error.message),
            )
        self.refused[peer] = error.message

    # --- receiving ------------------------------------------------------------------------------

    async def DescribeStanding(  # noqa: N802
        self, request: GroupHello, context: grpc.aio.ServicerContext[Any, Any]
    ) -> MembershipReply:
        self._check_hello(request)
        self._guard.check_node(context, tls_identity.CONTROLLER, request.sender)
        return self._describe()

    async def OpenLink(  # noqa: N802
        self,
        request_iterator: AsyncIterator[LinkFrame],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[LinkWelcome]:
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("kind") != "hello":
            raise InvalidRequest("a link begins with a hello")
        self._check_hello(first.hello)
        self._guard.check_node(context, tls_identity.CONTROLLER, first.hello.sender)
        changed = asyncio.ensure_future(self._changed.wait())
        sender = (first.hello.sender, first.hello.membership == CONTROLLER_MEMBERSHIP_NON_COUNTING)
        reading = asyncio.ensure_future(self._read(sender, request_iterator))
        try:
            yield LinkWelcome(membership=self._membership)
            await asyncio.wait({changed, reading}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            changed.cancel()
            reading.cancel()
            await asyncio.gather(changed, reading, return_exceptions=True)

    async def _read(self, sender: Peer, frames: AsyncIterator[LinkFrame]) -> None:
        async for frame in frames:
            self._heard_at[sender[0]] = self._loop.time()
            if frame.WhichOneof("kind") == "message":
                try:
                    message = check(frame.message)
                except ValueError as error:
                    raise InvalidRequest(f"controller {sender[0]} sends {error}") from error
                self._post_message(_receive(sender, message))

    def _check_hello(self, hello: GroupHello) -> None:
        """Raises InvalidRequest unless the caller is of this group and calls this controller."""
        mine = self._identity
        if hello.cluster_id != mine.cluster_id:
            raise InvalidRequest(
                f"controller {hello.sender} of cluster {hello.cluster_id} has called controller "
                f"{mine.controller_id} of cluster {mine.cluster_id}: two clusters. Give it the "
                "addresses of its own controllers"
            )
        if (
            hello.receiver != mine.controller_id
            or tuple(hello.members) != mine.members
            or hello.sender not in self._peers
        ):
            raise InvalidRequest(
                f"controller {hello.sender} of a group {list(hello.members)} wants controller "
                f"{hello.receiver} and has called controller {mine.controller_id} of a group "
                f"{list(mine.members)}. Give all of them the same numbers and addresses"
            )


async def _write(call: Any, frame: LinkFrame) -> bool:
    """Returns False when the call has ended with OK. Raises AioRpcError if it ended otherwise.

    gRPC can know of the end of a call a moment before its reader does. A write in between is not
    the writer's fault, but gRPC raises InvalidStateError for it.
    """
    try:
        await call.write(frame)
    except asyncio.InvalidStateError:
        await _raise_status(call)
        return False
    return True


async def _raise_status(call: Any) -> None:
    """Raises the status with which a call has ended, unless that is OK."""
    code = await call.code()
    if code != grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code,
            await call.initial_metadata(),
            await call.trailing_metadata(),
            details=await call.details(),
        )


def _connected(peer: Peer) -> Callable[[Member], None]:
    return lambda member: member.connected(peer)


def _disconnected(peer: Peer) -> Callable[[Member], None]:
    return lambda member: member.disconnected(peer)


def _receive(peer: Peer, message: GroupMessage) -> Callable[[Member], None]:
    arrived = now()
    return lambda member: member.receive(peer, message, arrived)


def _learn(replies: list[MembershipReply]) -> Callable[[Member], None]:
    return lambda member: member.learn(replies)
