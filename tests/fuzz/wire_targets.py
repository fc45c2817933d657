"""What comes over connections: batches, frames, stream messages, replies, errors.

Not here: files (`stored_targets.py`), the fields of ordinary calls (`messages.py`).
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any, Final, cast

import google_crc32c
import grpc
import numpy as np

from semel.broker.memory.carried import CRC as BODIES_CRC
from semel.broker.memory.carried import HEAD as BODIES_HEAD
from semel.broker.memory.carried import MAGIC as BODIES_MAGIC
from semel.broker.raft import EntryMeta, Membership, Message, MessageKind, SnapshotMark
from semel.broker.raft.wire import encode_message, envelope_length
from semel.broker.replication.receiver import split_message
from semel.broker.state import RECORD_BYTES
from semel.client.core.dropped_rows import read_table
from semel.client.message import Rows
from semel.protos.addresses import Address
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BROKER_HEADER_CRC_AT,
    HEADER_BYTES,
    HEADER_CRC_AT,
    BatchFlags,
    BrokerHeader,
    Codec,
    check_batch,
    decode_header,
)
from semel.protos.body import unpack_body
from semel.protos.codecs import pack
from semel.protos.column_checks import check_columns
from semel.protos.columns import decode_columns
from semel.protos.compacted_rows import compact_rows, offsets_of_rows
from semel.protos.dropped import ANSWER, read_answer
from semel.protos.errors import (
    CorruptBatch,
    InvalidRequest,
    MessageTooLarge,
    NotMaster,
    to_detail,
)
from semel.protos.framed import (
    MessageBuffer,
    decode_asking,
    decode_hello,
    encode_asking,
    encode_head,
    encode_hello,
    new_area,
)
from semel.protos.frames import (
    FRAME_HEADER_BYTES,
    FRAME_HEADER_CRC_AT,
    RecordKind,
    build_frame,
    check_frame,
    decode_frame_header,
    iter_records,
)
from semel.protos.ids import NodeId, Offset, QueueId, QueueKey, Term, TopicId
from semel.protos.kept_rows import encode_rows, keep_rows, part_of
from semel.protos.parted_rows import Heir, part_rows
from semel.protos.rpc import error_from_rpc
from semel.protos.slots import SLOT_COUNT
from semel.protos.streams import (
    Ping,
    decode_fetch_header,
    decode_produce,
    encode_fetch_reply,
    encode_ping,
    encode_produce,
    fetched_batches,
    frame_prefix,
)
from semel.protos.v1 import broker_pb2
from tests.fuzz.targets import Target
from tests.kit.tier_rows import random_rows

_KEY: Final = QueueKey(TopicId(1), QueueId(0))
_LENGTH_AT: Final = 8
_CODEC_AT: Final = 5
_U32: Final = struct.Struct("<I")
_LENGTHS: Final = struct.Struct("<IIII")
"""body_length, uncompressed_length, body_crc, content_crc, at byte 8 of the header."""


def _stored_batches() -> list[bytes]:
    """Stored batches of every kind, with every column and codec."""
    rows = [*random_rows(1, 60), *random_rows(2, 30, compacted=True)]
    found = {bytes(each.stored): None for each in rows}
    first = bytes(rows[0].stored)
    header = check_batch(first[BROKER_HEADER_BYTES:])
    traced = replace(decode_columns(first[BROKER_HEADER_BYTES:], header), context=b"a\0b\0")
    found[first[:BROKER_HEADER_BYTES] + encode_rows(header, traced)] = None
    return [each for each in found if len(each) < 16 << 10]


STORED: Final = _stored_batches()
BATCHES: Final = [each[BROKER_HEADER_BYTES:] for each in STORED]


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def seal_batch(data: bytes, rng: random.Random) -> bytes:
    """Makes the header's lengths and CRCs fit, mostly: the content lies, the checksums do not."""
    if len(data) < HEADER_BYTES:
        return data
    head, body = bytearray(data[:HEADER_BYTES]), data[HEADER_BYTES:]
    _, uncompressed, _, content = _LENGTHS.unpack_from(head, _LENGTH_AT)
    if rng.random() < 0.9:
        if head[_CODEC_AT] == Codec.NONE:
            uncompressed = len(body)
        _LENGTHS.pack_into(head, _LENGTH_AT, len(body), uncompressed, _crc(body), content)
    _U32.pack_into(head, HEADER_CRC_AT, _crc(bytes(head[:HEADER_CRC_AT])))
    return bytes(head) + body


def _repacked(data: bytes, rng: random.Random) -> bytes:
    """The batch with its body compressed: a changed body then lies behind a sound codec."""
    codec = rng.choice((Codec.LZ4, Codec.ZSTD))
    body = data[HEADER_BYTES:]
    packed = pack(body, codec)
    head = bytearray(data[:HEADER_BYTES])
    head[_CODEC_AT] = codec
    content = _LENGTHS.unpack_from(head, _LENGTH_AT)[3]
    _LENGTHS.pack_into(head, _LENGTH_AT, len(packed), len(body), _crc(packed), content)
    _U32.pack_into(head, HEADER_CRC_AT, _crc(bytes(head[:HEADER_CRC_AT])))
    return bytes(head) + packed


def _unpacked() -> list[bytes]:
    found = []
    for batch in BATCHES:
        header = check_batch(batch)
        if header.flags & BatchFlags.POSITION_MARK:
            continue
        body = unpack_body(batch, header).to_pybytes()
        head = replace(
            header,
            codec=Codec.NONE,
            body_length=len(body),
            uncompressed_length=len(body),
            body_crc=_crc(body),
        )
        found.append(head.encode() + body)
    return found


def run_batch(data: bytes) -> None:
    """A batch as brokers and readers use it. What `check_columns` lets in, readers must be able to
    decode, and brokers to cut."""
    header = check_batch(data)
    try:
        check_columns(data, header)
    except CorruptBatch:
        _refused_by_readers(data)
        raise
    stored = BrokerHeader(Offset(5), 7, Term(1)).encode() + data
    _read(Rows.whole("t", _KEY, memoryview(stored)))
    if not header.count or header.flags & BatchFlags.OFFSET:
        return
    columns = decode_columns(data, header)
    kept = np.arange(header.count) % 2 == 0
    for work in (
        lambda: keep_rows(header, columns, kept),
        lambda: part_of(header, columns, 0, header.count),
        lambda: compact_rows(header, columns, offsets_of_rows(columns, 5, 0, header.count), kept),
        lambda: part_rows(data, [], _heirs(header.queue_id), by_id=True),
    ):
        try:
            made: Any = work()
        except MessageTooLarge:
            continue
        for each in [made] if isinstance(made, bytes) else [part for _, part in made]:
            again = check_batch(each)
            check_columns(each, again)


def _heirs(queue_id: int) -> list[Heir]:
    one, two = ((queue_id + more) % (1 << 32) for more in (1, 2))
    return [Heir(one, 0, SLOT_COUNT // 2), Heir(two, SLOT_COUNT // 2, SLOT_COUNT)]


def _refused_by_readers(data: bytes) -> None:
    """A batch that brokers refuse is one that readers refuse, too."""
    header = decode_header(data)
    if header.flags & BatchFlags.POSITION_MARK:
        return
    stored = BrokerHeader(Offset(5), 7, Term(1)).encode() + data
    try:
        _read(Rows.whole("t", _KEY, memoryview(stored)))
        decode_columns(data, header)
    except CorruptBatch:
        return
    raise AssertionError("brokers refuse what readers can read")


def _read(rows: Rows) -> None:
    """Reads all that an application can ask for."""
    if not rows.count:
        return
    values = rows.values
    assert len(values) == rows.count == len(rows.keys)
    columns = rows.columns
    for name in columns.__slots__:
        column: Any = getattr(columns, name)
        if column is not None and name != "context":
            column.validate(full=True)
            column.to_pylist()
    assert columns.values.to_pylist() == values, "two decoders, two results"
    for row in range(rows.count):
        rows.offset_of(row)
        rows.position(row)


def _run_stored(data: bytes) -> None:
    header = decode_header(data, BROKER_HEADER_BYTES)
    for rows in {(0, header.count), (0, 1), (1, 3)}:
        try:
            _read(Rows("t", _KEY, memoryview(data), 5, *rows))
        except CorruptBatch:
            if rows[0] == 0:
                raise


def _seal_stored(data: bytes, rng: random.Random) -> bytes:
    head = data[:BROKER_HEADER_CRC_AT]
    rest = seal_batch(data[BROKER_HEADER_BYTES:], rng)
    return head + _U32.pack(_crc(head)) + rest


# --- frames -------------------------------------------------------------------------------------


def _frames() -> list[bytes]:
    batches = [(RecordKind.BATCH, [each]) for each in STORED[:6]]
    memory = (RecordKind.MEMORY, [STORED[0][:RECORD_BYTES]])
    return [
        build_frame(7, 3, 1_000, [(RecordKind.NOOP, [b""])])[0],
        build_frame(8, 3, 1_000, batches)[0],
        build_frame(9, 4, 2_000, [batches[0], (RecordKind.CONTROL, [b"\x0a\x00"]), memory])[0],
    ]


def _seal_frame(data: bytes, rng: random.Random) -> bytes:
    if len(data) < FRAME_HEADER_BYTES:
        return data
    head, payload = bytearray(data[:FRAME_HEADER_BYTES]), data[FRAME_HEADER_BYTES:]
    if rng.random() < 0.9:
        struct.pack_into("<II", head, 32, len(payload), _crc(payload))
    _U32.pack_into(head, FRAME_HEADER_CRC_AT, _crc(bytes(head[:FRAME_HEADER_CRC_AT])))
    return bytes(head) + payload


def _run_frame(data: bytes) -> None:
    decode_frame_header(data)
    check_frame(data)
    assert sum(len(payload) for _, _, payload in iter_records(data)) <= len(data)


# --- streams ------------------------------------------------------------------------------------


def _run_produce(data: bytes) -> None:
    message = decode_produce(data)
    if not isinstance(message, Ping):
        for batch in message:
            check_columns(batch, check_batch(batch))


def _reply(parts: list[bytes]) -> bytes:
    ranges = [
        broker_pb2.BatchRange(length=len(part), base_offset=3, row_start=0, row_end=1)
        for part in parts
    ]
    header = broker_pb2.FetchReplyHeader(
        correlation_id=1, results=[broker_pb2.FetchResult(batches=ranges, high_watermark=9)]
    )
    return encode_fetch_reply(header, parts)


def _run_reply(data: bytes) -> None:
    header, rest = decode_fetch_header(data)
    parts = fetched_batches(header, rest)
    ranges = [each for result in header.results for each in result.batches]
    for place, part in zip(ranges, parts, strict=True):
        try:
            rows = Rows("t", _KEY, part, place.base_offset, place.row_start, place.row_end)
            _read(rows)
        except CorruptBatch:
            continue


_ASKED: Final = broker_pb2.AskStream(
    stream=broker_pb2.DIRECT_STREAM_PRODUCE, cluster_id="c", group_id=1, node_id=2
).SerializeToString()


def _framed() -> list[bytes]:
    def framed(message: bytes) -> bytes:
        return encode_head(len(message)) + message

    return [
        encode_hello(bytes(range(16))),
        encode_hello(bytes(16)) + framed(b"x") + framed(b"y" * 300),
        encode_hello(bytes(16)) + framed(b"z" * 5_000) + framed(b"w"),
        encode_asking(_ASKED) + framed(b"x"),
    ]


def _run_framed(data: bytes) -> None:
    """The bytes come in pieces, as from a socket; a stranger's first message is a hello."""
    taken: list[int] = []

    def on_hello(message: memoryview) -> None:
        if decode_asking(message) is None:
            decode_hello(message)
        buffer.on_message = lambda each: taken.append(len(each))

    buffer = MessageBuffer(on_hello, area=new_area(), length_max=1 << 20)
    rng = random.Random(len(data))
    at = 0
    while at < len(data):
        target = buffer.target()
        size = min(len(target), rng.choice((1, 3, 8, 100, 1 << 16)), len(data) - at)
        target[:size] = data[at : at + size]
        buffer.received(size)
        at += size
    assert sum(taken) <= len(data)


def _seal_framed(data: bytes, rng: random.Random) -> bytes:
    """Gives the first message a sound head."""
    if len(data) < 8:
        return data
    return encode_head(24) + data[8:]


# --- replication --------------------------------------------------------------------------------


def _messages() -> list[bytes]:
    node = NodeId(2)
    frames = _frames()
    mark = SnapshotMark(index=5, term=2, membership=Membership(voters=frozenset((NodeId(1), node))))
    plain = [
        Message(kind, NodeId(1), node, 4, 6, 3, 5)
        for kind in MessageKind
        if kind not in (MessageKind.APPEND, MessageKind.SNAPSHOT_OFFER)
    ]
    metas = [EntryMeta(index=7, term=3, size=len(frames[0]))]
    append = Message(MessageKind.APPEND, NodeId(1), node, 4, 6, 3, 5, tuple(metas))
    offer = replace(plain[0], kind=MessageKind.SNAPSHOT_OFFER, snapshot=mark)
    memory = build_frame(7, 3, 1, [(RecordKind.MEMORY, [STORED[0][:RECORD_BYTES]])])[0]
    body = STORED[0][RECORD_BYTES:]
    table = BODIES_HEAD.pack(BODIES_MAGIC, 1) + _U32.pack(len(body))
    bodies = table + BODIES_CRC.pack(_crc(table)) + body
    return [
        *map(encode_message, [*plain, offer]),
        encode_message(append) + frames[0],
        encode_message(append) + memory + bodies,
    ]


def _seal_message(data: bytes, rng: random.Random) -> bytes:
    if len(data) < 80:
        return data
    head, behind = data[:76], data[80:]
    try:
        length = envelope_length(data)
    except InvalidRequest:
        length = 80
    crc = google_crc32c.extend(_crc(head), data[80:length])
    if rng.random() < 0.5:  # the table of bodies, too
        at = behind.find(BODIES_MAGIC)
        if 0 <= at <= len(behind) - BODIES_HEAD.size:
            end = at + BODIES_HEAD.size + 4 * min(BODIES_HEAD.unpack_from(behind, at)[1], 1000)
            behind = behind[:end] + _U32.pack(_crc(behind[at:end])) + behind[end + 4 :]
    return head + _U32.pack(crc) + behind


def _run_message(data: bytes) -> None:
    split_message(memoryview(data))


# --- small things -------------------------------------------------------------------------------


def _answers() -> list[bytes]:
    rows = np.zeros(3, ANSWER)
    rows["sequence"], rows["verdict"] = (1, 2, 4), (1, 2, 1)
    return [b"", rows[:1].tobytes(), rows.tobytes()]


def _run_answer(data: bytes) -> None:
    read_answer(data)
    read_table(data)


class _Status(Exception):
    """An RpcError, as far as `error_from_rpc` looks at it."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata

    def trailing_metadata(self) -> Any:
        return (("semel-error-bin", self._metadata),)

    def code(self) -> Any:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return self._metadata.decode("latin-1")


def _details() -> list[bytes]:
    found = [
        NotMaster("another is", master_address="h:1", term=3),
        InvalidRequest("no"),
        MessageTooLarge("long", limit_bytes=5),
    ]
    return [to_detail(each).SerializeToString() for each in found]


def _run_address(data: bytes) -> None:
    Address.parse(data.decode("utf-8", "replace"), what="address")


def _run_detail(data: bytes) -> None:
    """A client makes an exception of whatever a server sends as the detail of an error, and may
    have to tell it to others."""
    error = error_from_rpc(cast("grpc.RpcError", _Status(data)))
    to_detail(error)
    str(error)


def wire_targets() -> list[Target]:
    """All targets of this module."""
    unpacked = _unpacked()
    produce = [encode_ping(7), encode_produce(BATCHES[:1]), encode_produce(BATCHES[:9])]
    return [
        Target(name="batch", corpus=BATCHES, run=run_batch, seal=seal_batch),
        Target(name="packed batch", corpus=unpacked, run=run_batch, seal=_repacked_if_whole),
        Target(name="stored batch", corpus=STORED, run=_run_stored, seal=_seal_stored),
        Target(name="frame", corpus=_frames(), run=_run_frame, seal=_seal_frame),
        Target(name="produce request", corpus=produce, run=_run_produce, seal=_seal_wrapped),
        Target(
            name="fetch reply",
            corpus=[_reply([]), _reply(STORED[:1]), _reply(STORED[:9])],
            run=_run_reply,
            seal=_seal_wrapped,
        ),
        Target(name="framed stream", corpus=_framed(), run=_run_framed, seal=_seal_framed),
        Target(name="Raft message", corpus=_messages(), run=_run_message, seal=_seal_message),
        Target(name="dropped messages", corpus=_answers(), run=_run_answer),
        Target(name="error detail", corpus=_details(), run=_run_detail),
        Target(name="address", corpus=[b"h:1", b"[::1]:7", b"127.0.0.1:70"], run=_run_address),
    ]


def _repacked_if_whole(data: bytes, rng: random.Random) -> bytes:
    return _repacked(data, rng) if len(data) >= HEADER_BYTES else data


def _seal_wrapped(data: bytes, rng: random.Random) -> bytes:
    """Gives a stream message a `Frame` of its length, around what a decoder sees of it."""
    at = 1
    while at < min(len(data), 6) and data[at] & 0x80:
        at += 1
    rest = data[at + 1 :]
    return frame_prefix(len(rest)) + rest
