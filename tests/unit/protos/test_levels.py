"""What two programs make of each other's feature levels."""

from __future__ import annotations

import itertools

import pytest

from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.levels import (
    DELAY_LEVEL,
    LEVEL_MAX,
    LEVEL_MIN,
    LEVELS_KEY,
    UNTOLD_MAX,
    check_levels,
    check_member,
    lacking,
    levels_metadata,
    own_levels,
    told_levels,
    untold_levels,
)
from semel.protos.v1.common_pb2 import Levels

RANGES = [(low, high) for low in range(4) for high in range(low, 4)]


@pytest.mark.parametrize(("own", "other"), list(itertools.product(RANGES, RANGES)))
def test_programs_speak_if_they_have_a_level_in_common(
    own: tuple[int, int], other: tuple[int, int]
) -> None:
    common = set(range(own[0], own[1] + 1)) & set(range(other[0], other[1] + 1))
    told = Levels(min=other[0], max=other[1], version="9")
    mine = Levels(min=own[0], max=own[1], version="1")
    if common:
        check_levels(mine, "this node", told, "the caller")
        return
    with pytest.raises(UnsupportedVersion) as caught:
        check_levels(mine, "this node", told, "the caller")
    text = caught.value.message
    assert f"the caller runs Semel 9 with feature levels {other[0]} to {other[1]}" in text
    assert f"this node runs Semel 1 with feature levels {own[0]} to {own[1]}" in text
    older = "this node" if own[1] < other[0] else "the caller"
    assert text.endswith(f"upgrade {older}")


def test_levels_come_through_metadata() -> None:
    levels = own_levels(active=3)
    metadata: list[tuple[str, str | bytes]] = [("other", "x"), *levels_metadata(levels)]
    assert told_levels(metadata) == levels
    assert (levels.min, levels.max, levels.active) == (LEVEL_MIN, LEVEL_MAX, 3)
    assert levels.version


@pytest.mark.parametrize("metadata", [None, (), (("other-bin", b"\x08\x01"),)])
def test_who_says_nothing_has_told_nothing(metadata: object) -> None:
    assert told_levels(metadata) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"\xff", b"\x08", "\xff"])
def test_what_is_no_levels_message_is_refused(value: str | bytes) -> None:
    with pytest.raises(InvalidRequest, match=LEVELS_KEY):
        told_levels(((LEVELS_KEY, value),))


def test_a_member_must_know_the_level_of_its_log() -> None:
    check_member("node 2", own_levels(4), 4)
    check_member("node 2", untold_levels(), UNTOLD_MAX)
    with pytest.raises(UnsupportedVersion, match=r"levels 0 to 3, .* level 4: upgrade node 2"):
        check_member("node 2", own_levels(3), 4)
    with pytest.raises(UnsupportedVersion, match=r"node 2 is older than .*: upgrade node 2"):
        check_member("node 2", untold_levels(), UNTOLD_MAX + 1)


def test_what_is_lacking_is_named_with_what_to_do() -> None:
    error = lacking(DELAY_LEVEL, 4, "broker group 2")
    assert error.level == DELAY_LEVEL
    assert not error.retriable
    assert error.message == (
        "broker group 2 is at feature level 4, and delayed messages need level 5: upgrade every"
        " node, then say `semel cluster upgrade --finish`"
    )
