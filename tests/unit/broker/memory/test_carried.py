"""Bodies travel behind the frames of an APPEND, and only a record's own body is taken."""

from __future__ import annotations

import pytest

from semel.broker.memory import BodyStore, Carried, carried, pack_bodies, read_bodies
from semel.protos.errors import CorruptBatch, InvalidRequest
from tests.kit.format_tables import fields, struct_format
from tests.kit.memory_log import MemoryGroup


@pytest.fixture
def group() -> MemoryGroup:
    made = MemoryGroup()
    for number in range(4):
        made.send(number - 1)
    return made


def store_of(group: MemoryGroup) -> BodyStore:
    store = BodyStore(len(group.frames))
    for place, stored in group.bodies.items():
        store.put(*place, stored)
    return store


def sent(group: MemoryGroup, store: BodyStore) -> bytes:
    return b"".join(pack_bodies(1, group.frames, store))


def read(group: MemoryGroup, data: bytes, at: int = 0) -> dict[int, list[Carried]]:
    return read_bodies(memoryview(data), at, list(enumerate(group.frames, 1)))


def test_every_body_comes_back_behind_its_header(group: MemoryGroup) -> None:
    found = read(group, b"frames" + sent(group, store_of(group)), 6)
    assert found == {
        index: [Carried(position, stored)] for (index, position), stored in group.bodies.items()
    }


def test_a_body_that_is_not_there_is_told(group: MemoryGroup) -> None:
    store = BodyStore(len(group.frames))
    first, second, *_ = sorted(group.bodies)
    store.put(*second, group.bodies[second])
    found = read(group, sent(group, store))
    assert found[second[0]] == [Carried(second[1], group.bodies[second])]
    assert found[first[0]] == [Carried(first[1], None)]


def test_the_batch_of_another_record_is_not_sent(group: MemoryGroup) -> None:
    store = BodyStore(len(group.frames))
    first, second, *_ = sorted(group.bodies)
    store.put(*first, group.bodies[second])
    assert read(group, sent(group, store))[first[0]] == [Carried(first[1], None)]


def test_frames_without_such_records_have_nothing_behind_them(group: MemoryGroup) -> None:
    before = min(index for index, _ in group.bodies)
    assert pack_bodies(1, group.frames[: before - 1], store_of(group)) == []
    assert pack_bodies(1, group.frames, BodyStore(0)) == [], "all of them were told to the store"


def test_a_damaged_body_is_refused(group: MemoryGroup) -> None:
    data = bytearray(sent(group, store_of(group)))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="arrived damaged"):
        read(group, bytes(data))


def test_a_table_that_is_damaged_or_does_not_fit_is_refused(group: MemoryGroup) -> None:
    data = sent(group, store_of(group))
    for at in range(carried.HEAD.size + 4 * len(group.bodies) + 4):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(InvalidRequest):
            read(group, bytes(broken))
    for length in range(len(data)):
        with pytest.raises(InvalidRequest):
            read(group, data[:length])
    with pytest.raises(InvalidRequest):
        read(group, data + b"x")
    with pytest.raises(InvalidRequest):
        read_bodies(memoryview(data), 0, list(enumerate(group.frames[:-1], 1)))


def test_the_table_has_the_documented_layout() -> None:
    assert struct_format(fields("raft-messages.md", "Bodies", 0)) == carried.HEAD.format
