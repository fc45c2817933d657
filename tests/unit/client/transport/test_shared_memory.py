"""Memory for answers of a broker on the same machine: what keeps a slot, when it is offered."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from semel.client.transport import shared_memory
from semel.client.transport.shared_memory import (
    BUSY_BYTES,
    QUIET_S,
    REGION_BYTES_MAX,
    Exchange,
    Region,
    Slot,
    StreamMemory,
)
from semel.protos.errors import CorruptBatch
from semel.protos.streams import (
    MEMORY_HEAD_BYTES,
    MEMORY_NAME,
    decode_fetch_header,
    encode_fetch_reply,
    padded,
)
from semel.protos.v1.broker_pb2 import FetchReplyHeader, FetchRequest

SLOT_BYTES = 1 << 20
HELD_BYTES = 2 << 20
LARGE = bytes(range(256)) * (BUSY_BYTES // 256)


def answer(parts: Sequence[bytes], *, in_memory: bool) -> tuple[FetchReplyHeader, memoryview]:
    """A reply as the client finds it."""
    header = FetchReplyHeader(in_memory=in_memory)
    result = header.results.add()
    for part in parts:
        result.batches.add(length=len(part))
    return decode_fetch_header(encode_fetch_reply(header, parts))


def put(request: FetchRequest, region: Region, parts: Sequence[bytes]) -> None:
    """What a broker does."""
    assert request.memory_bytes >= sum(map(len, padded(parts)))
    os.pwritev(region.offer().descriptor, padded(parts), request.memory_at)


def region_of(exchange: Exchange) -> Region:
    region = exchange._memory.region
    assert region is not None
    return region


def lone_exchange(*, allowed: bool = True) -> Exchange:
    """That of the only reader of a stream."""
    return Exchange(StreamMemory(allowed=allowed), SLOT_BYTES, HELD_BYTES)


def busy_exchange(now: float = 100.0) -> tuple[Exchange, FetchRequest, Slot]:
    """One that has offered its memory, and the request that did."""
    exchange = lone_exchange()
    assert exchange.name_place(FetchRequest(), now) is None
    exchange.on_answer(*answer([LARGE], in_memory=False), None, now)
    request = FetchRequest()
    slot = exchange.name_place(request, now)
    assert slot is not None
    return exchange, request, slot


def test_a_region_has_slots_side_by_side_until_none_is_left() -> None:
    region = Region(8192, 3)
    slots = [region.take() for _ in range(3)]
    assert sorted(slot.at for slot in slots if slot) == [
        MEMORY_HEAD_BYTES + n * 8192 for n in range(3)
    ]
    assert region.take() is None
    used = slots.pop()
    assert used is not None
    at = used.at
    del used
    again = region.take()
    assert again is not None
    assert again.at == at


@pytest.mark.parametrize("kind", ["view", "part of a view", "arrow array", "arrow slice"])
def test_what_an_application_keeps_holds_its_slot(kind: str) -> None:
    region = Region(8192, 1)
    slot = region.take()
    assert slot is not None
    os.pwrite(region.offer().descriptor, b"semel once", slot.at)
    kept: Any = slot.view()
    del slot
    assert isinstance(kept, memoryview)
    assert kept.readonly
    if kind == "part of a view":
        kept = kept[:5]
    elif kind.startswith("arrow"):
        kept = pa.Array.from_buffers(pa.uint8(), 10, [None, pa.py_buffer(kept)])
        if kind == "arrow slice":
            kept = kept[:5]
    gc.collect()
    assert region.take() is None
    first = kept[0]
    assert first == ord("s") or first.as_py() == ord("s")
    del kept, first
    assert region.take() is not None


def test_slots_outlive_their_region() -> None:
    region = Region(8192, 1)
    slot = region.take()
    assert slot is not None
    os.pwrite(region.offer().descriptor, b"semel", slot.at)
    view = slot.view()
    del slot, region
    gc.collect()
    assert bytes(view[:5]) == b"semel"


def test_nothing_is_left_open() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(MEMORY_NAME)

    gc.collect()
    before = psutil.Process().num_fds(), mapped()
    region = Region(8192, 1)
    assert psutil.Process().num_fds() > before[0]
    assert mapped() > before[1]
    del region
    gc.collect()
    assert (psutil.Process().num_fds(), mapped()) == before


def test_nobody_can_cut_or_stretch_it() -> None:
    region = Region(8192, 1)
    descriptor = region.offer().descriptor
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_a_fork_gives_up_what_the_child_may_see() -> None:
    code = """
import os
from semel.client.transport.shared_memory import Region
region = Region(8192, 2)
assert region.take() is not None
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
assert region.given_up and region.take() is None
assert Region(8192, 2).take() is not None
print("given up")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "given up\n"


def test_a_stream_offers_once_it_is_busy() -> None:
    exchange = lone_exchange()
    small = answer([b"x" * 100], in_memory=False)
    assert exchange.on_answer(*small, None, 1.0) == [b"x" * 100]
    request = FetchRequest()
    assert exchange.name_place(request, 1.0) is None
    assert request == FetchRequest()
    assert exchange.on_answer(*answer([LARGE], in_memory=False), None, 2.0) == [LARGE]
    slot = exchange.name_place(request, 2.0)
    assert slot is not None
    assert request.memory == region_of(exchange).offer()
    assert (request.memory_at, request.memory_bytes) == (slot.at, len(slot))
    assert request.memory_bytes >= SLOT_BYTES
    later = FetchRequest()
    other = exchange.name_place(later, 2.0)
    assert other is not None
    assert other.at != slot.at
    assert not later.HasField("memory")


def test_batches_in_memory_are_found_there() -> None:
    exchange, request, slot = busy_exchange()
    parts = [b"abc", b"", LARGE, b"0123456789"]
    put(request, region_of(exchange), parts)
    header, rest = answer(parts, in_memory=True)
    assert not len(rest)
    found = exchange.on_answer(header, rest, slot, 100.0)
    assert found == parts


def test_what_is_read_does_not_change_while_others_come() -> None:
    """The application keeps every second answer."""
    exchange, request, named = busy_exchange()
    slot: Slot | None = named
    del named
    kept: list[tuple[bytes, memoryview]] = []
    for number in range(40):
        body = number.to_bytes(2, "big") * (BUSY_BYTES // 2)
        in_memory = request.memory_bytes > 0
        if in_memory:
            put(request, region_of(exchange), [body])
        (found,) = exchange.on_answer(*answer([body], in_memory=in_memory), slot, 100.0)
        assert found == body
        if number % 2:
            kept.append((body, found))
        del found
        slot = None
        request = FetchRequest()
        slot = exchange.name_place(request, 100.0)
    assert slot is None, "all slots are kept, and yet there was one"
    assert all(view == body for body, view in kept)
    kept.clear()
    assert exchange.name_place(FetchRequest(), 100.0) is not None


@pytest.mark.parametrize("reason", ["another machine", "not allowed", "no such memory"])
def test_nothing_is_offered_where_it_is_no_use(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "no such memory":
        monkeypatch.delattr(os, "memfd_create")
    exchange = lone_exchange(allowed=reason != "not allowed")
    exchange.on_answer(*answer([LARGE], in_memory=False), None, 1.0)
    slot = exchange.name_place(FetchRequest(), 1.0)
    assert (slot is not None) == (reason == "another machine")
    assert exchange.on_answer(*answer([LARGE], in_memory=False), slot, 1.0) == [LARGE]
    request = FetchRequest()
    assert exchange.name_place(request, 1.0) is None
    assert request == FetchRequest()


def test_an_answer_that_fits_no_slot_says_nothing_about_the_broker() -> None:
    exchange, _, slot = busy_exchange()
    long = b"x" * (len(slot) + 1)
    assert exchange.on_answer(*answer([long], in_memory=False), slot, 100.0) == [long]
    assert exchange.name_place(FetchRequest(), 100.0) is not None


def test_a_quiet_stream_takes_its_memory_back_and_offers_again() -> None:
    exchange, _, slot = busy_exchange(100.0)
    exchange.on_answer(*answer([b"small"], in_memory=False), None, 100.0)
    del slot
    first = region_of(exchange)
    request = FetchRequest()
    assert exchange.name_place(request, 100.1 + QUIET_S) is None
    assert request.HasField("memory")
    assert not request.memory.secret
    request = FetchRequest()
    assert exchange.name_place(request, 100.2 + QUIET_S) is None
    assert request == FetchRequest()
    exchange.on_answer(*answer([LARGE], in_memory=False), None, 200.0)
    assert exchange.name_place(request, 200.0) is not None
    assert request.memory != first.offer()


def test_an_answer_of_an_older_offer_says_nothing_about_the_newer() -> None:
    exchange, _, slot = busy_exchange()
    shared_memory._on_fork()
    request = FetchRequest()
    newer = exchange.name_place(request, 100.0)
    assert newer is not None
    assert request.HasField("memory")
    assert newer.region is not slot.region
    exchange.on_answer(*answer([LARGE], in_memory=False), slot, 100.0)
    assert exchange.name_place(FetchRequest(), 100.0) is not None


def test_an_answer_about_memory_that_was_not_named_is_refused() -> None:
    exchange = lone_exchange()
    with pytest.raises(CorruptBatch, match="in shared memory"):
        exchange.on_answer(*answer([LARGE], in_memory=True), None, 1.0)
    exchange, _, slot = busy_exchange()
    header, _ = answer([b"x" * 8], in_memory=True)
    with pytest.raises(CorruptBatch, match="8 bytes behind its header"):
        exchange.on_answer(header, memoryview(b"x" * 8), slot, 1.0)
    too_long, rest = answer([b"x" * (len(slot) + 8)], in_memory=True)
    with pytest.raises(CorruptBatch, match="claims"):
        exchange.on_answer(too_long, rest, slot, 1.0)


def name_places(exchange: Exchange, now: float, count: int) -> list[Slot]:
    """The caller gets as many slots as there are, up to a count."""
    slots = (exchange.name_place(FetchRequest(), now) for _ in range(count))
    return [slot for slot in slots if slot is not None]


def make_busy(exchange: Exchange, now: float) -> None:
    exchange.on_answer(*answer([LARGE], in_memory=False), None, now)


def test_readers_of_a_stream_share_one_region_which_grows_for_them() -> None:
    memory = StreamMemory(allowed=True)
    readers = [Exchange(memory, SLOT_BYTES, HELD_BYTES) for _ in range(50)]
    make_busy(readers[0], 1.0)
    kept = name_places(readers[0], 1.0, 100)
    assert len(kept) == 6, "what it buffers, and four"
    first = memory.region
    offers = 0
    for reader in readers:
        make_busy(reader, 1.0)
        request = FetchRequest()
        slot = reader.name_place(request, 1.0)
        offers += request.HasField("memory")
        if slot is not None:
            kept.append(slot)
            assert slot.region is memory.region
    assert memory.region is not first
    assert 1 <= offers < 10
    assert memory.region is not None
    size = memory.region.slots * memory.region.slot_bytes
    assert REGION_BYTES_MAX / 2 < size <= REGION_BYTES_MAX


def test_a_reader_that_keeps_all_leaves_room_for_the_others() -> None:
    memory = StreamMemory(allowed=True)
    greedy, other = (Exchange(memory, SLOT_BYTES, HELD_BYTES) for _ in range(2))
    make_busy(greedy, 1.0)
    make_busy(other, 1.0)
    kept = name_places(greedy, 1.0, 100)
    assert len(kept) == 6, "half of twelve"
    for _ in range(100):
        assert name_places(other, 1.0, 1)
    memory.forget(other)
    assert len(kept + name_places(greedy, 1.0, 100)) == 12, "alone it may have everything"


def test_a_reader_with_larger_answers_gets_a_region_for_them() -> None:
    memory = StreamMemory(allowed=True)
    small, large = (Exchange(memory, size, HELD_BYTES) for size in (SLOT_BYTES, 4 * SLOT_BYTES))
    make_busy(small, 1.0)
    (first,) = name_places(small, 1.0, 1)
    make_busy(large, 1.0)
    request = FetchRequest()
    second = large.name_place(request, 1.0)
    assert second is not None
    assert request.HasField("memory")
    assert len(second) > 4 * SLOT_BYTES > len(first)
    (third,) = name_places(small, 1.0, 1)
    assert third.region is second.region


def test_a_small_reader_beside_a_busy_one_names_no_place() -> None:
    """Its polls stand, instead."""
    memory = StreamMemory(allowed=True)
    busy, idle = (Exchange(memory, SLOT_BYTES, HELD_BYTES) for _ in range(2))
    make_busy(busy, 1.0)
    assert name_places(busy, 1.0, 1)
    request = FetchRequest()
    assert idle.name_place(request, 1.0) is None
    assert request == FetchRequest()
    assert idle.name_place(request, 1.1 + QUIET_S) is None
    assert request.HasField("memory"), "all are quiet: the memory is given back"
    assert memory.region is None


def test_a_broker_that_sends_what_would_fit_is_offered_nothing_by_any_reader() -> None:
    memory = StreamMemory(allowed=True)
    first, second = (Exchange(memory, SLOT_BYTES, HELD_BYTES) for _ in range(2))
    make_busy(first, 1.0)
    make_busy(second, 1.0)
    (slot,) = name_places(first, 1.0, 1)
    first.on_answer(*answer([LARGE], in_memory=False), slot, 1.0)
    assert name_places(second, 1.0, 1) == []
