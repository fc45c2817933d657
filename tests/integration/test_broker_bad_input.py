"""What a broker answers to nonsense: one typed error each, and it goes on serving."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import google_crc32c
import grpc
import grpc.aio
import pytest
import pytest_asyncio

from semel.broker.node import BrokerNode
from semel.broker.server import produce
from semel.client.transport.shared_memory import Region
from semel.protos.batch import HEADER_BYTES, BatchFlags, Codec, check_batch
from semel.protos.codecs import pack
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import (
    CorruptBatch,
    DataDirectoryError,
    DedupStateExpired,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    NotMaster,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartialOverlap,
    QueueLocked,
    SequenceConflict,
    Unavailable,
    UnknownQueue,
    from_detail,
)
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.streams import (
    FETCH_METHOD,
    MEMORY_HEAD_BYTES,
    MEMORY_SECRET_BYTES,
    encode_ping,
    encode_produce,
    frame_prefix,
)
from semel.protos.v1 import broker_pb2, common_pb2, control_pb2
from tests.kit.brokers import (
    CLUSTER,
    QUEUE,
    TOPIC,
    BrokerGroup,
    RawClient,
    acquire,
    make_batch,
)

COMMITTED = broker_pb2.PRODUCE_STATUS_COMMITTED


@pytest_asyncio.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    async with BrokerGroup(tmp_path, nodes=1) as started:
        yield started


@pytest_asyncio.fixture
async def client(group: BrokerGroup) -> AsyncIterator[RawClient]:
    """With a queue, an open producer and one batch of two messages stored."""
    async with RawClient((await group.master()).address) as raw:
        await raw.create_queue(settings=common_pb2.TopicSettings(batch_bytes_max=100_000))
        await raw.fence(1)
        (ack,) = await raw.produce(make_batch(-1, [b"a", b"b"]))
        assert ack.status == COMMITTED
        yield raw
        # whatever the test did: what was stored is there, and more can be stored
        (ack,) = await raw.produce(make_batch(1, [b"c"]))
        assert ack.status == COMMITTED
        values = await raw.values()
        assert [value for value in values if len(value) == 1] == [b"a", b"b", b"c"]


def resealed(batch: bytes, **fields: Any) -> bytes:
    """The batch with header fields changed and a header CRC that fits: a malicious client's."""
    layout = {
        "magic": (0, "4s"),
        "count": (36, "<I"),
        "body_length": (8, "<I"),
        "version": (4, "B"),
    }
    changed = bytearray(batch)
    for name, value in fields.items():
        at, kind = layout[name]
        struct.pack_into(kind, changed, at, value)
    struct.pack_into("<I", changed, 124, google_crc32c.value(bytes(changed[:124])))
    return bytes(changed)


GOOD = make_batch(1, [b"c"])
FRAME = encode_produce([GOOD])


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"", InvalidRequest),
        (b"\x00\x01\x02", InvalidRequest),
        (FRAME[:20], InvalidRequest),
        (FRAME[:-8], InvalidRequest),
        (FRAME + b"\0" * 8, InvalidRequest),
        (frame_prefix(16) + struct.pack("<BBHIQ", 9, 0, 1, 0, 0), InvalidRequest),
        (frame_prefix(16) + struct.pack("<BBHIQ", 1, 0, 500, 0, 0), InvalidRequest),
        (
            frame_prefix(24) + struct.pack("<BBHIQII", 1, 0, 1, 0, 0, 1 << 31, 0),
            InvalidRequest,
        ),
        (encode_produce([b"not a batch at all"]), CorruptBatch),
        (encode_produce([GOOD[:-1] + bytes([GOOD[-1] ^ 1])]), CorruptBatch),
        (encode_produce([GOOD[:90] + b"\xff" + GOOD[91:]]), CorruptBatch),
        (encode_produce([GOOD[:-3]]), CorruptBatch),
        (encode_produce([resealed(GOOD, magic=b"KAFK")]), CorruptBatch),
        (encode_produce([resealed(GOOD, version=200)]), CorruptBatch),
        (encode_produce([resealed(GOOD, count=1 << 30)]), CorruptBatch),
        (encode_produce([resealed(GOOD, count=7)]), CorruptBatch),
        (encode_produce([resealed(GOOD, body_length=1 << 31)]), CorruptBatch),
    ],
)
async def test_malformed_produce_requests(
    client: RawClient, message: bytes, expected: type[Exception]
) -> None:
    error = from_detail(await client.produce_raw(message))
    assert type(error) is expected, error
    assert str(error)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (make_batch(1, [b"x"], key=QueueKey(TOPIC, QueueId(9))), UnknownQueue),
        (make_batch(1, [b"x"], producer=6), DedupStateExpired),
        (make_batch(1, [b"x"], epoch=2), DedupStateExpired),
        (make_batch(-1, [b"a", b"B"]), SequenceConflict),
        (make_batch(0, [b"b", b"c"]), PartialOverlap),
        (make_batch(1, [b"x" * 200_000]), MessageTooLarge),
    ],
)
async def test_refused_batches(client: RawClient, batch: bytes, expected: type[Exception]) -> None:
    (ack,) = await client.produce(batch)
    assert ack.status == broker_pb2.PRODUCE_STATUS_FAILED
    error = from_detail(ack.error)
    assert type(error) is expected, error


def trim_of(key: QueueKey, start: int) -> broker_pb2.TrimQueuesRequest:
    trim = broker_pb2.QueueTrim(queue=queue_ref(key), log_start_offset=start)
    return broker_pb2.TrimQueuesRequest(trims=[trim])


def lying(body: bytes, codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    """The batch that would come next, with another body and right checksums."""
    packed = body
    if codec is not Codec.NONE:
        packed = pack(body, codec)
    header = dataclasses.replace(
        check_batch(GOOD),
        codec=codec,
        body_length=len(packed),
        uncompressed_length=len(body),
        body_crc=int(google_crc32c.value(packed)),
        **fields,
    )
    return header.encode() + packed


BODY = GOOD[HEADER_BYTES:]
FAR = struct.pack("<i", 1 << 20)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    ("body", "fields", "expected"),
    [
        (BODY[:16] + FAR + BODY[20:], {}, CorruptBatch),
        (bytes(len(BODY)), {}, CorruptBatch),
        (BODY, {"flags": int(BatchFlags.KEY)}, CorruptBatch),
        (BODY, {"flags": int(BatchFlags.NULL_VALUES)}, CorruptBatch),
        (bytes(64 << 10), {}, CorruptBatch),
    ],
    ids=["an offset", "zeros", "no keys", "no bitmap", "a bomb"],
)
async def test_a_batch_that_nobody_could_read_is_not_stored(
    client: RawClient, codec: Codec, body: bytes, fields: Any, expected: type[Exception]
) -> None:
    """Its checksums are right. Stored, it would stop every reader of the queue for ever."""
    (ack,) = await client.produce(lying(body, codec, **fields))
    error = from_detail(ack.error)
    assert type(error) is expected, error


async def test_unless_it_is_looked_into_such_a_batch_stops_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: a broker that trusts checksums."""
    monkeypatch.setattr(produce, "_refusal", lambda batch, header: None)
    async with (
        BrokerGroup(tmp_path, nodes=1) as group,
        RawClient((await group.master()).address) as client,
    ):
        await client.create_queue()
        await client.fence(1)
        await client.produce(make_batch(-1, [b"a", b"b"]))
        (ack,) = await client.produce(lying(bytes(len(BODY))))
        assert ack.status == COMMITTED
        with pytest.raises(CorruptBatch):
            await client.values()


async def test_compressed_batches_keep_their_order(client: RawClient) -> None:
    """Those that have to be unpacked do not let later ones overtake them."""
    await client.fence(1, producer=8)
    batches = [
        encode_batch(
            Columns.from_arrow([b"x" * 5_000]),
            topic_id=TOPIC,
            queue_id=0,
            producer_id=8,
            epoch=1,
            session=1,
            previous_sequence=number - 1,
            base_sequence=number,
            last_sequence=number,
            timestamp_us=1,
            codec=Codec(number % 3),
        )
        for number in range(30)
    ]
    acks = await client.produce(*batches)
    assert {ack.status for ack in acks} == {COMMITTED}
    offsets = [ack.base_offset for ack in sorted(acks, key=lambda ack: ack.base_sequence)]
    assert offsets == sorted(offsets)


async def test_a_batch_whose_predecessor_never_comes(client: RawClient) -> None:
    (ack,) = await client.produce(make_batch(10, [b"x"]))
    error = from_detail(ack.error)
    assert isinstance(error, OutOfOrderSequence)
    assert error.last_sequence == 1


async def test_a_client_that_disconnects_in_mid_batch(client: RawClient) -> None:
    for _ in range(20):
        stream = client.produce_stream()
        await stream.write(encode_ping(1))
        stream.cancel()


async def test_fetches_out_of_range_and_of_unknown_queues(client: RawClient) -> None:
    header, _ = await client.fetch(offset=3)
    error = from_detail(header.results[0].error)
    assert isinstance(error, OffsetOutOfRange)
    assert (error.log_start_offset, error.log_end_offset) == (0, 2)
    header, _ = await client.fetch(offset=-1)
    assert isinstance(from_detail(header.results[0].error), OffsetOutOfRange)
    header, _ = await client.fetch(key=QueueKey(TOPIC, QueueId(9)))
    assert isinstance(from_detail(header.results[0].error), UnknownQueue)
    header, _ = await client.fetch(group="g", token=3)
    assert isinstance(from_detail(header.results[0].error), LockLost)


async def test_memory_that_is_not_the_clients_is_not_written_to(client: RawClient) -> None:
    """Its batches are sent then; a place outside of what was offered is an error of its own."""
    region = Region(1 << 16, 1)
    offer, at = region.offer(), MEMORY_HEAD_BYTES
    before = os.pread(offer.descriptor, 1 << 17, 0)
    guessed = broker_pb2.SharedMemory(
        pid=offer.pid, descriptor=offer.descriptor, secret=bytes(MEMORY_SECRET_BYTES)
    )
    for wrong in (broker_pb2.SharedMemory(), guessed, broker_pb2.SharedMemory(pid=1)):
        header, parts = await client.fetch(memory=wrong, memory_at=at, memory_bytes=1 << 16)
        assert not header.in_memory
        assert parts
    for place, size in ((0, 8), (at, (1 << 16) + 1), (2**64 - 1, 2**32 - 1)):
        header, _ = await client.fetch(memory=offer, memory_at=place, memory_bytes=size)
        assert isinstance(from_detail(header.error), InvalidRequest)
    header, sent = await client.fetch(memory=offer, memory_at=at, memory_bytes=8)  # too small
    assert not header.in_memory
    assert sent == parts
    assert os.pread(offer.descriptor, 1 << 17, 0) == before


async def test_a_malformed_fetch_ends_its_stream_only(client: RawClient) -> None:
    stream: Any = client.channel.stream_stream(FETCH_METHOD)()
    await stream.write(b"\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        ("FenceProducer", broker_pb2.FenceProducerRequest(producer_id=0), InvalidRequest),
        (
            "FenceProducer",
            broker_pb2.FenceProducerRequest(
                producer_id=1, epoch=1, queues=[common_pb2.QueueRef(topic_id=1)]
            ),
            UnknownQueue,
        ),
        (
            "FenceProducer",
            broker_pb2.FenceProducerRequest(
                producer_id=1, queues=[queue_ref(QUEUE), queue_ref(QUEUE)]
            ),
            InvalidRequest,
        ),
        (
            "GetProduceOutcome",
            broker_pb2.ProduceOutcomeRequest(producer_id=1, queue=common_pb2.QueueRef()),
            UnknownQueue,
        ),
        ("AcquireLocks", broker_pb2.AcquireLocksRequest(group=""), InvalidRequest),
        (
            "AcquireLocks",
            broker_pb2.AcquireLocksRequest(group="g", member_id="m", lock_ms=0, session_ms=1),
            InvalidRequest,
        ),
        ("Commit", broker_pb2.CommitRequest(group="x" * 300), InvalidRequest),
        (
            "ResetOffsets",
            broker_pb2.ResetOffsetsRequest(
                group="g", offsets=[control_pb2.QueueCommit(queue=queue_ref(QUEUE), offset=99)]
            ),
            OffsetOutOfRange,
        ),
        ("TrimQueues", trim_of(QUEUE, 99), OffsetOutOfRange),
        ("TrimQueues", trim_of(QUEUE, -1), OffsetOutOfRange),
        ("TrimQueues", trim_of(QueueKey(TOPIC, QueueId(9)), 0), UnknownQueue),
        ("ApplyQueues", broker_pb2.ApplyQueuesRequest(cluster_id="another"), InvalidRequest),
        (
            "ApplyQueues",
            broker_pb2.ApplyQueuesRequest(
                cluster_id=CLUSTER,
                records=[control_pb2.ControlRecord(trim=control_pb2.Trim(queue=queue_ref(QUEUE)))],
            ),
            InvalidRequest,
        ),
        (
            "ApplyQueues",
            broker_pb2.ApplyQueuesRequest(
                cluster_id=CLUSTER,
                records=[
                    control_pb2.ControlRecord(
                        create_queue=control_pb2.CreateQueue(
                            queue=common_pb2.QueueRef(topic_id=3), slot_start=9, slot_end=9
                        )
                    )
                ],
            ),
            InvalidRequest,
        ),
    ],
)
async def test_refused_calls(
    client: RawClient, method: str, request_: Any, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        await client.call(method, request_)


HUGE = "x" * (31 << 19)
"""15.5 MiB: fits a message of gRPC and no entry of the log."""
LONG = "x" * 250
FULL_METADATA = [
    control_pb2.QueueCommit(queue=queue_ref(QUEUE), token=1, metadata=bytes(64 << 10))
] * 240


def oversized_calls(name: str) -> list[tuple[str, Any]]:
    """A request of each kind that becomes a control record, with `name` for each name in it."""
    queues = [queue_ref(QUEUE)]
    lock: dict[str, Any] = {"queues": queues, "lock_ms": 300, "session_ms": 300}
    offsets = [control_pb2.QueueCommit(queue=queue_ref(QUEUE))]
    create = control_pb2.CreateQueue(
        queue=common_pb2.QueueRef(topic_id=9), topic=name, slot_end=65_536
    )
    move = control_pb2.MoveQueue(queue=create.queue, job=1, group_id=2, create=create)
    move.step = control_pb2.MOVE_STEP_BEGIN
    records = [
        control_pb2.ControlRecord(create_queue=create),
        control_pb2.ControlRecord(move_queue=move),
    ]
    return [
        (
            "FenceProducer",
            broker_pb2.FenceProducerRequest(producer_id=6, epoch=1, queues=queues, name=name),
        ),
        ("AcquireLocks", broker_pb2.AcquireLocksRequest(group=name, member_id="m", **lock)),
        ("AcquireLocks", broker_pb2.AcquireLocksRequest(group="g", member_id=name, **lock)),
        ("Commit", broker_pb2.CommitRequest(group=name, commits=offsets)),
        ("ResetOffsets", broker_pb2.ResetOffsetsRequest(group=name, offsets=offsets)),
        ("DeleteGroup", broker_pb2.DeleteGroupRequest(group=name)),
        *(
            ("ApplyQueues", broker_pb2.ApplyQueuesRequest(cluster_id=CLUSTER, records=[record]))
            for record in records
        ),
    ]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        *oversized_calls(LONG),
        *oversized_calls(HUGE),
        ("Commit", broker_pb2.CommitRequest(group="g", commits=FULL_METADATA)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.ByteSize():,} bytes",
)
async def test_what_no_entry_can_hold_is_refused_before_it_is_admitted(
    client: RawClient, method: str, request_: Any
) -> None:
    """Else the master would end, and the next one with the client's retry."""
    with pytest.raises(InvalidRequest, match=r"249|are the most"):
        await client.call(method, request_)


async def commit(client: RawClient, token: int, offset: int) -> Any:
    commits = [control_pb2.QueueCommit(queue=queue_ref(QUEUE), token=token, offset=offset)]
    reply = await client.call("Commit", broker_pb2.CommitRequest(group="g", commits=commits))
    detail = reply.outcomes[0].error
    return from_detail(detail) if detail.code else None


async def test_a_lock_has_one_owner_and_its_old_token_is_refused(client: RawClient) -> None:
    first = await acquire(client, "one")
    assert first.token
    assert first.committed_offset == -1
    assert isinstance(from_detail((await acquire(client, "two")).error), QueueLocked)
    _, parts = await client.fetch(group="g", token=first.token)
    assert parts
    # delivered and not committed for lock_ms: the lock ends by itself
    while not (second := await acquire(client, "two")).token:
        await asyncio.sleep(0.05)
    assert second.token > first.token
    assert second.committed_offset == -1, "nothing was committed: everything is delivered again"
    assert isinstance(await commit(client, first.token, 2), LockLost)
    assert await commit(client, second.token, 2) is None
    assert isinstance(await commit(client, second.token, 3), OffsetOutOfRange)
    assert isinstance(await commit(client, second.token, 1), InvalidRequest)


async def test_one_consumer_group_too_many_is_refused(tmp_path: Path) -> None:
    async with (
        BrokerGroup(tmp_path, nodes=1, consumer_groups_max=1) as group,
        RawClient((await group.master()).address) as client,
    ):
        await client.create_queue()
        first = await acquire(client, "one")
        assert first.token
        lock = broker_pb2.AcquireLocksRequest(
            group="another", member_id="m", queues=[queue_ref(QUEUE)], lock_ms=300, session_ms=300
        )
        reset = broker_pb2.ResetOffsetsRequest(
            group="another", offsets=[control_pb2.QueueCommit(queue=queue_ref(QUEUE))]
        )
        for method, request in (("AcquireLocks", lock), ("ResetOffsets", reset)):
            with pytest.raises(InvalidRequest, match="--consumer-groups-max"):
                await client.call(method, request)
        assert await commit(client, first.token, 0) is None
        await client.call("DeleteGroup", broker_pb2.DeleteGroupRequest(group="g"))
        await client.call("AcquireLocks", lock)


async def test_a_silent_member_loses_its_lock(client: RawClient) -> None:
    first = await acquire(client, "one", session_ms=200)
    while not (second := await acquire(client, "two")).token:
        await asyncio.sleep(0.05)
    lock = broker_pb2.LockRef(queue=queue_ref(QUEUE), token=first.token)
    renewed = await client.call(
        "RenewLocks", broker_pb2.RenewLocksRequest(group="g", member_id="one", locks=[lock])
    )
    assert renewed.lost == [lock]
    assert second.token > first.token


async def test_a_slave_sends_clients_to_the_master(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path) as group:
        master = await group.master()
        slave = next(node for node in group.running.values() if node is not master)
        async with RawClient(slave.address) as client:
            while slave.replica.core.master_id is None:
                await slave.replica.role_change()
            error = from_detail(await client.produce_raw(FRAME))
            assert isinstance(error, NotMaster)
            assert error.master_address == master.address
            header, _ = await client.fetch()
            assert isinstance(from_detail(header.error), NotMaster)
            with pytest.raises(NotMaster):
                await client.call("ListOffsets", broker_pb2.ListOffsetsRequest())


async def test_a_directory_in_use_or_of_another_node_is_refused(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, nodes=1) as group:
        with pytest.raises(DataDirectoryError):
            await BrokerNode(group.config(1)).__aenter__()
    (tmp_path / "1").rename(tmp_path / "2")
    other = BrokerGroup(tmp_path, nodes=3)
    with pytest.raises(DataDirectoryError, match="node 1"):
        await other.start(2)


async def test_a_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path / "a", nodes=1) as group:
        other = BrokerGroup(tmp_path / "b", nodes=1)
        other.addresses = group.addresses
        with pytest.raises(Unavailable, match="in use; choose another one with --listen"):
            await other.start(1)
