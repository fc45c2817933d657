"""A node that finds a newer format refuses by name and number, and touches nothing.

Each file of a real data directory in turn gets another version, with a checksum that fits: what a
newer program would have left behind. Kept files and the console's plan are tested where they live.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from semel.broker.log import checkpoint, current, directory_identity, hard_state, segment
from semel.broker.node import BrokerNode
from semel.broker.raft import Message, MessageKind, encode_message
from semel.broker.replication.receiver import split_message
from semel.broker.state.apply.state_machine import STATE_MAGIC
from semel.protos.errors import CorruptFrame, InvalidRequest, StorageError
from semel.protos.frames import FRAME_HEADER_CRC_AT, FRAME_MAGIC, check_frame
from semel.protos.ids import NodeId
from semel.protos.levels import LEVEL_MAX
from tests.kit.brokers import BrokerGroup, RawClient, make_batch
from tests.kit.log_entries import frame

NEWER = LEVEL_MAX + 1


def reseal(data: bytearray, at: int, size: int) -> None:
    """Version NEWER in the header of `size` bytes at `at`, whose CRC stands at its end."""
    struct.pack_into("<H", data, at + 4, NEWER)
    crc = google_crc32c.value(bytes(data[at : at + size - 4]))
    struct.pack_into("<I", data, at + size - 4, crc)


def newer_segment(data: bytearray) -> None:
    for page in range(segment.HEADER_PAGES):
        reseal(data, page * segment.PAGE, segment.HEADER_STRUCT.size)


def newer_hard_state(data: bytearray) -> None:
    for block in range(4):
        reseal(data, block * hard_state.BLOCK_BYTES, hard_state.RECORD_STRUCT.size)


def newer_identity(data: bytearray) -> None:
    text = bytes(data).replace(b"format=%d" % directory_identity.FORMAT, b"format=%d" % NEWER)
    text = text[: text.index(b"crc32c=")]
    data[:] = text + b"crc32c=%08x\n" % google_crc32c.value(text)


def newer_current(data: bytearray) -> None:
    reseal(data, 0, current.CURRENT_STRUCT.size)


def newer_checkpoint(data: bytearray) -> None:
    reseal(data, 0, checkpoint.HEADER_BYTES)


def newer_state(data: bytearray) -> None:
    """The payload of a checkpoint whose own header is of today."""
    size = checkpoint.HEADER_BYTES
    assert data[size : size + 4] == STATE_MAGIC
    struct.pack_into("<I", data, size + 4, NEWER)
    struct.pack_into("<I", data, len(data) - 4, google_crc32c.value(bytes(data[size:-4])))
    fields = list(checkpoint.HEADER_STRUCT.unpack_from(data))
    fields[6] = google_crc32c.value(bytes(data[size:]))
    body = checkpoint.HEADER_STRUCT.pack(*fields)[:-4]
    data[:size] = body + struct.pack("<I", google_crc32c.value(body))


def newer_frame(data: bytearray) -> None:
    """The last entry of the log, whole, of a version that comes after this one."""
    at = data.rindex(FRAME_MAGIC)
    struct.pack_into("<H", data, at + 4, NEWER)
    crc = google_crc32c.value(bytes(data[at : at + FRAME_HEADER_CRC_AT]))
    struct.pack_into("<I", data, at + FRAME_HEADER_CRC_AT, crc)


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        ("IDENTITY", newer_identity),
        ("hard_state", newer_hard_state),
        ("log/CURRENT", newer_current),
        ("log/log-*/segment-*", newer_segment),
        ("log/log-*/segment-*", newer_frame),
        ("log/log-*/checkpoint-*", newer_checkpoint),
        ("log/log-*/checkpoint-*", newer_state),
    ],
)
async def test_a_file_of_a_newer_version_is_refused_by_name(
    tmp_path: Path, pattern: str, change: Callable[[bytearray], None]
) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        node = await group.master()
        async with RawClient(node.address) as client:
            await client.create_queue()
            await client.fence(1)
            await client.produce(make_batch(-1, [b"before"]))
            await node.checkpoints.write()
            await client.produce(make_batch(0, [b"after"]))
    path = min((tmp_path / "1").glob(pattern))
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    before = contents(tmp_path / "1")
    with pytest.raises(StorageError, match=rf"(version|format) {NEWER}\b") as caught:
        await BrokerNode(group.config(1)).__aenter__()
    shown = path.parent if path.name == "IDENTITY" else path
    assert str(shown) in caught.value.message
    assert contents(tmp_path / "1") == before, "the directory of a newer program was changed"


def test_a_message_of_a_newer_version_is_refused() -> None:
    message = Message(kind=MessageKind.HEARTBEAT, source=NodeId(1), target=NodeId(2), term=3)
    data = bytearray(encode_message(message))
    data[0] = NEWER
    struct.pack_into("<I", data, 76, google_crc32c.value(bytes(data[:76])))
    with pytest.raises(InvalidRequest, match=rf"unknown version {NEWER}, .* from node 1 to 2"):
        split_message(memoryview(bytes(data)))


def test_a_frame_of_a_newer_version_says_so() -> None:
    data = bytearray(frame(1))
    newer_frame(data)
    with pytest.raises(CorruptFrame, match=f"frame version {NEWER} is unknown"):
        check_frame(bytes(data))
