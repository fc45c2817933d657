"""Which of the two streams to a peer a message takes, and how it waits there."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.raft import EntryMeta, Message, MessageKind
from semel.broker.replication.sender import PeerLink, _Stream
from semel.protos.ids import NodeId

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
    written: list[bytes] = []
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
    written: list[bytes] = []
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
