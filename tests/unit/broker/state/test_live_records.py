"""Tables of live records have the same ones that the state yields one by one."""

from __future__ import annotations

import random

import pytest

from semel.broker.state.apply import delayed_queue
from semel.broker.state.apply.extents import CHUNK, Extents
from tests.kit.state_log import Group, header
from tests.unit.broker.state.delaying import delaying_group, late


def busy_group() -> Group:
    """Plain and delayed batches of one queue, some of which are released."""
    group = delaying_group()
    for number in range(60):
        previous = number - 1 if number else -1
        group.produce(late(previous, 5 + number % 7) if number % 3 else header(previous))
    group.now_us += 8_000_000
    assert group.release(batches_max=15) is not None
    return group


@pytest.mark.parametrize("lo", [0, 1, 20, 61])
@pytest.mark.parametrize("length", [0, 1, 25, 1_000])
def test_a_table_is_what_the_state_yields(
    lo: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_queue, "BLOCK_ROWS", 8)
    state = busy_group().state
    expected = sorted(state.live_records(lo, lo + length))
    found = state.live_table(lo, lo + length)
    assert list(found) == expected
    assert len(found) == len(expected)
    assert list(found.between(10, 30)) == [each for each in expected if 10 <= each[0] < 30]
    for index, position, _ in expected:
        assert found.holds(index, position)
        assert not found.holds(index, position + 4)
    assert not found.holds(lo + length, 48)


def test_records_of_extents_are_found_in_every_chunk() -> None:
    rng, extents = random.Random(3), Extents()
    offset = entry = 0
    for _ in range(2 * CHUNK + 300):
        entry += rng.random() < 0.3
        position = 48 + 200 * rng.randrange(4)
        for _ in range(rng.choice([1, 1, 1, 2])):
            extents.append(offset, 0, entry, position, 150, offset)
            offset += 1
    for first in (0, 7, CHUNK, CHUNK + 9, 2 * CHUNK + 5, extents.total - 1, extents.total):
        extents.trim(first)
        for lo, hi in ((0, entry + 1), (5, 6), (entry // 3, entry // 2), (entry, entry + 1)):
            indexes, places = extents.live_places(lo, hi)
            columns = (indexes.tolist(), (places >> 32).tolist(), (places & 0xFFFFFFFF).tolist())
            assert list(zip(*columns, strict=True)) == list(extents.records(lo, hi))
