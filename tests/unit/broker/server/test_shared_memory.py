"""A broker writes to memory that a client has really offered, inside the place named, and nowhere
else."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.server.shared_memory import ClientMemory, MemoryPool
from semel.client.transport.shared_memory import Region
from semel.protos.errors import InvalidRequest
from semel.protos.streams import MEMORY_HEAD_BYTES, MEMORY_NAME, MEMORY_SECRET_BYTES, padded
from semel.protos.v1.broker_pb2 import FetchRequest, SharedMemory

SLOT_BYTES = 64 << 10


@pytest.fixture
def region() -> Region:
    return Region(SLOT_BYTES, 2)


@pytest.fixture
def pool() -> Iterator[MemoryPool]:
    pool = MemoryPool(1 << 20)
    yield pool
    gc.collect()
    assert pool.bytes == 0, "not given back"


def opened(pool: MemoryPool, region: Region) -> ClientMemory:
    memory = pool.open(region.offer())
    assert memory is not None
    return memory


def whole(region: Region) -> bytes:
    return os.pread(region.offer().descriptor, 1 << 20, 0)


def place(at: int, size: int) -> FetchRequest:
    return FetchRequest(memory_at=at, memory_bytes=size)


@given(st.lists(st.binary(max_size=40), max_size=1_200))
def test_parts_lie_in_their_place_and_nothing_else_changes(parts: list[bytes]) -> None:
    region = Region(SLOT_BYTES, 2)
    memory = opened(MemoryPool(1 << 20), region)
    before = whole(region)
    at = MEMORY_HEAD_BYTES + SLOT_BYTES
    found = memory.place(place(at, SLOT_BYTES))
    assert found is not None
    assert found.put(parts)
    body = b"".join(padded(parts))
    assert whole(region) == before[:at] + body + before[at + len(body) :]


def test_what_does_not_fit_is_to_be_sent(pool: MemoryPool, region: Region) -> None:
    memory = opened(pool, region)
    before = whole(region)
    found = memory.place(place(MEMORY_HEAD_BYTES, 64))
    assert found is not None
    assert not found.put([b"x" * 57, b"y"])
    assert whole(region) == before
    assert found.put([b"x" * 56, b"y"])


def test_a_poll_that_names_no_place_is_sent_its_answer(pool: MemoryPool, region: Region) -> None:
    assert opened(pool, region).place(FetchRequest()) is None


@pytest.mark.parametrize(
    ("at", "size"),
    [
        (0, 8),
        (MEMORY_HEAD_BYTES - 1, 8),
        (MEMORY_HEAD_BYTES, 2 * SLOT_BYTES + 1),
        (MEMORY_HEAD_BYTES + 2 * SLOT_BYTES, 1),
        (2**64 - 1, 2**32 - 1),
    ],
)
def test_places_outside_are_refused(pool: MemoryPool, region: Region, at: int, size: int) -> None:
    memory = opened(pool, region)
    with pytest.raises(InvalidRequest, match="not in the shared memory"):
        memory.place(place(at, size))


def changed(offer: SharedMemory, **fields: int | bytes) -> SharedMemory:
    other = SharedMemory()
    other.CopyFrom(offer)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def test_offers_of_what_is_not_the_clients_are_not_taken(
    pool: MemoryPool, region: Region, tmp_path: Path
) -> None:
    """A client that knows a process's numbers, but not what is in its memory, cannot change it."""
    offer = region.offer()
    secret = offer.secret
    before = whole(region)
    file = tmp_path / MEMORY_NAME
    file.write_bytes(secret + bytes(1 << 16))
    with file.open("r+b") as plain:
        unsealed = os.memfd_create(MEMORY_NAME, os.MFD_ALLOW_SEALING)
        other = os.memfd_create("other")
        try:
            for each in (unsealed, other):
                os.pwrite(each, secret + bytes(1 << 16), 0)
            for wrong in (
                SharedMemory(),
                changed(offer, secret=b""),
                changed(offer, secret=bytes(MEMORY_SECRET_BYTES)),
                changed(offer, secret=secret[:-1]),
                changed(offer, secret=secret + b"x"),
                changed(offer, pid=1),
                changed(offer, pid=2**32 - 1),
                changed(offer, descriptor=2**32 - 1),
                changed(offer, descriptor=0),
                changed(offer, descriptor=plain.fileno()),
                changed(offer, descriptor=unsealed),
                changed(offer, descriptor=other),
            ):
                assert pool.open(wrong) is None, wrong
                assert pool.bytes == 0
        finally:
            os.close(unsealed)
            os.close(other)
    assert whole(region) == before
    assert pool.open(offer) is not None


def test_no_more_is_taken_than_there_may_be(region: Region) -> None:
    size = MEMORY_HEAD_BYTES + 2 * SLOT_BYTES
    pool = MemoryPool(2 * size)
    first, _second = opened(pool, region), opened(pool, Region(SLOT_BYTES, 2))
    third = Region(SLOT_BYTES, 2)
    assert pool.open(third.offer()) is None
    first.close()
    first.close()
    assert pool.bytes == size
    assert pool.open(third.offer()) is not None
    assert MemoryPool(0).open(region.offer()) is None


def test_closed_memory_is_not_written_to(pool: MemoryPool, region: Region) -> None:
    memory = opened(pool, region)
    found = memory.place(place(MEMORY_HEAD_BYTES, 64))
    assert found is not None
    before = whole(region)
    memory.close()
    assert not found.put([b"x"])
    assert whole(region) == before


def test_memory_that_fails_is_given_back(
    pool: MemoryPool, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = opened(pool, region)
    found = memory.place(place(MEMORY_HEAD_BYTES, 64))
    assert found is not None
    monkeypatch.setattr(os, "pwritev", lambda *_: 3)  # the kernel has no page left
    assert not found.put([b"four"])
    assert pool.bytes == 0
    monkeypatch.undo()
    assert not found.put([b"four"])
