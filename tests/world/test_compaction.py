"""Whole clusters with a compacted topic: readers end with the newest values, under faults."""

from __future__ import annotations

import pytest

from semel.protos.v1 import control_pb2
from tests.checking.compaction import Purges, judge, judge_reading
from tests.world import planted_compaction as planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

RARE = {
    "at rest": 5,
    "pass of compaction": 100,
    "message removed by compaction": 2_000,
    "tombstones removed": 10,
    "table read": 40,
    "kill of the master": 8,
}


@pytest.mark.timeout(300)
def test_readers_end_with_the_newest_values_under_faults() -> None:
    run_until_seen(range(100, 116), RARE, more=("compaction",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("others", [("splits", "ids"), ("transactions", "delays")], ids=",".join)
def test_compaction_beside(others: tuple[str, ...]) -> None:
    wanted = {"at rest": 2, "message removed by compaction": 20}
    run_until_seen(range(4), wanted, more=(*others, "compaction"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told", "seeds"),
    [
        (planted.keeps_the_oldest, "is gone", range(4)),
        (planted.believes_what_is_not_there, "is gone", range(4)),
        (planted.removes_tombstones_at_once, "tombstone", range(8)),
        (planted.shifts_offsets, "was stored there", range(8)),
    ],
    ids=["oldest", "beyond", "tombstones", "offsets"],
)
def test_a_planted_bug_of_compaction_is_found(plant: Plant, told: str, seeds: range) -> None:
    first_failure(seeds, plant, match=told, more=("compaction",))


SENT = {
    0: (b"a", b"1"),
    1: (None, b"x"),
    2: (b"a", b"2"),
    3: (b"b", b"1"),
    4: (b"b", None),
}


def problems(held: dict[int, tuple[bytes | None, bytes | None]], purged: int = 0) -> list[str]:
    rows = list(held.items())
    return list(judge(SENT, rows, start=0, purged=purged, compacted_to=5))


def test_the_checker_of_queues_tells_each_wrong() -> None:
    good = {at: SENT[at] for at in (1, 2, 4)}
    assert problems(good) == []
    assert problems({1: SENT[1], 2: SENT[2]}, purged=5) == []
    for held, told in (
        ({1: SENT[1], 2: SENT[2]}, "newest message of b'b', at 4, is gone"),
        ({1: SENT[1], 4: SENT[4]}, "newest message of b'a', at 2, is gone"),
        ({2: SENT[2], 4: SENT[4]}, "at 1 is gone, and it has no key"),
        (good | {0: SENT[0]}, "has messages at"),
        (good | {2: (b"a", b"1")}, "offset 2 has"),
        (good | {7: SENT[4]}, "offset 7 has"),
    ):
        found = problems(dict(sorted(held.items())))
        assert any(told in each for each in found), (told, found)
    kept = {1: SENT[1], 2: SENT[2], 3: SENT[3]}
    assert any("before its messages [3]" in each for each in problems(kept, purged=5))
    turned = [(2, SENT[2]), (1, SENT[1]), (4, SENT[4])]
    found = list(judge(SENT, turned, start=0, purged=0, compacted_to=5))
    assert any("do not rise" in each for each in found)


def test_the_checker_of_readings_tells_each_wrong() -> None:
    def wrong(read: dict[bytes, bytes | None], purged: int = 0) -> list[str]:
        return list(judge_reading(SENT, read, start=0, end=5, purged=purged))

    assert wrong({b"a": b"2", b"b": None}) == []
    assert wrong({b"a": b"2"}, purged=5) == []
    assert wrong({b"a": b"2"}) != []
    assert wrong({b"a": b"1", b"b": None}) != []
    assert wrong({b"a": b"2", b"b": b"1"}, purged=5) != [], "the tombstone was missed"
    assert wrong({b"a": b"2", b"b": None, b"c": b"1"}) != []
    assert list(judge_reading(SENT, {b"a": b"2"}, start=0, end=4, purged=0)) == [], "b goes on"


def test_the_checker_of_records_tells_tombstones_that_go_early() -> None:
    purges = Purges(tombstone_us=1_000)
    assert list(purges.on_record(control_pb2.Compact(compacted_to=9), 5_000)) == []
    early = control_pb2.Compact(tombstones_below=9)
    assert list(Purges(1_000, [(9, 5_000)]).on_record(early, 5_999)) != []
    assert list(purges.on_record(early, 6_000)) == []
    assert purges.below == 9
    beyond = control_pb2.Compact(tombstones_below=10)
    assert list(purges.on_record(beyond, 9_000)) != []
