"""Which of the two streams to a peer a message takes, and how it waits there."""

from __future__ import annotations

import asyncio
import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from semel.broker.raft import EntryMeta, Message, MessageKind
from semel.broker.replication.sender import PeerLink, _nobody_listens, _Stream
from semel.protos import compat
from semel.protos.errors import UnsupportedVersion
from semel.protos.ids import NodeId
from semel.protos.rpc import PEER_CHANNEL_OPTIONS
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

pytestmark = pytest.mark.both_loops

ENTRY = EntryMeta(index=2, term=1, size=100)


@pytest.mark.parametrize("kind", MessageKind)
@pytest.mark.parametrize("entries", [(), (ENTRY,)], ids=["empty", "entries"])
def test_an_append_never_overtakes_another(
    kind: MessageKind, entries: tuple[EntryMeta, ...]
) -> None:
    nothing: Any = None
    link = PeerLink(
        peer_id=NodeId(2),
        address="",
        identity=nothing,
        log=nothing,
        readers=nothing,
        on_broken=nothing,
        on_unreachable=nothing,
    )
    control: list[Message] = []
    bulk: list[Message] = []
    streams: list[Any] = [SimpleNamespace(send=control.append), SimpleNamespace(send=bulk.append)]
    link._streams = streams
    message = Message(kind=kind, source=NodeId(1), target=NodeId(2), term=1, entries=entries)
    link.send(message)
    wanted = (bulk, control) if kind is MessageKind.APPEND else (control, bulk)
    assert wanted == ([message], [])


async def test_a_message_without_entries_may_wait_in_line() -> None:
    """There is nothing to read for it when its turn comes."""
    nothing: Any = None
    stream = _Stream(NodeId(2), nothing, nothing)
    written: list[bytes | memoryview] = []
    transport: Any = SimpleNamespace(write=written.append, abort=lambda: None)
    stream._transport = transport
    stream.pause_writing()
    stream.send(Message(kind=MessageKind.APPEND, source=NodeId(1), target=NodeId(2), term=1))
    stream.send(Message(kind=MessageKind.HEARTBEAT, source=NodeId(1), target=NodeId(2), term=1))
    running = asyncio.create_task(stream.run())
    await asyncio.sleep(0)
    assert not written
    stream.resume_writing()
    while len(written) < 2:
        assert not running.done(), running.exception()
        await asyncio.sleep(0)
    stream.close()
    await running


async def test_entries_that_cannot_be_read_are_logged_and_break_no_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node without free descriptors would else open its links anew for ever, and say nothing."""
    errors: list[OSError] = [OSError(errno.EMFILE, "no descriptors")] * 2

    def read_frames(lo: int, hi: int) -> list[bytes]:
        if errors:
            raise errors.pop()
        return [b"frame"]

    log: Any = SimpleNamespace(
        cached_frames=lambda lo, hi: None, read_frames=read_frames, term_at=lambda index: 1
    )
    written: list[bytes | memoryview] = []
    with ThreadPoolExecutor(1) as readers:
        stream = _Stream(NodeId(2), log, readers)
        transport: Any = SimpleNamespace(abort=lambda: None)
        stream._transport = transport
        stream._write_parts = written.extend
        append = Message(
            kind=MessageKind.APPEND, source=NodeId(1), target=NodeId(2), term=1, entries=(ENTRY,)
        )
        running = asyncio.create_task(stream.run())
        for _ in range(3):
            stream.send(append)
        while not written:
            assert not running.done(), running.exception()
            await asyncio.sleep(0)
        stream.close()
        await running
    assert written[-1] == b"frame"
    (logged,) = caplog.records
    assert logged.getMessage() == "entries not read peer=2 reason=[Errno 24] no descriptors"


def _rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


REFUSED = "failed to connect to all addresses; connect: Connection refused (111)"


async def test_a_peer_is_unreachable_once_a_stream_broke_and_nobody_listens() -> None:
    """What a living peer answers, and silence, end no lease."""
    unavailable = grpc.StatusCode.UNAVAILABLE
    attempts: list[tuple[Exception | None, list[str]]] = [
        (_rpc_error(unavailable, REFUSED), []),  # it is not up yet: nothing broke
        (None, ["broken"]),
        (TimeoutError(), []),
        (_rpc_error(grpc.StatusCode.FAILED_PRECONDITION, "who are you?"), []),
        (UnsupportedVersion("too old"), []),
        (_rpc_error(unavailable, "connection attempt timed out"), []),
        (ConnectionResetError("the peer closed the stream"), []),
        (_rpc_error(unavailable, REFUSED), ["unreachable"]),
        (ConnectionRefusedError(), ["unreachable"]),
    ]
    heard: list[str] = []
    wanted: list[str] = []
    done = asyncio.Event()
    nothing: Any = None

    class Link(PeerLink):
        async def _open(self, stream: _Stream) -> None:
            assert heard == wanted, f"before the last {len(attempts)} attempts"
            if not attempts:
                done.set()
                await asyncio.get_running_loop().create_future()
            error, told = attempts.pop(0)
            wanted.extend(told)
            if error is not None:
                raise error
            stream.connection_lost(None)

    link = Link(
        peer_id=NodeId(2),
        address="",
        identity=nothing,
        log=nothing,
        readers=nothing,
        on_broken=lambda _: heard.append("broken"),
        on_unreachable=lambda _: heard.append("unreachable"),
    )
    keeping = asyncio.create_task(link._keep(0))
    async with compat.timeout(60):
        await done.wait()
    assert heard == ["broken", "unreachable", "unreachable"]
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_grpc_says_that_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with grpc.aio.insecure_channel(address, options=PEER_CHANNEL_OPTIONS) as channel:
            stub = raft_pb2_grpc.RaftPeerStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.OpenStream(raft_pb2.OpenStreamRequest(), timeout=60)
    assert _nobody_listens(caught.value)
