"""What to do about an entry that is damaged here: decided from what every member says it has.

How it works. A damaged entry is known by index and term. Each member of the group is asked what it
has of it; `judge` draws the conclusion. Why the rule for cutting is safe stands in
docs/decisions/torn-entries.md.

Invariants
1. An entry is cut only when *every* member has answered and none has it whole or had it whole once;
   the own copy must be a possible torn write, and one member at most may have forgotten it.
2. An entry is called lost only when every member has answered and none has it or may have had it.

Not here: asking (`repair.py`), truncating (`raft/following.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final

from semel.protos.ids import NodeId
from semel.protos.v1.raft_pb2 import (
    ENTRY_STANDING_ABSENT,
    ENTRY_STANDING_DAMAGED,
    ENTRY_STANDING_TORN,
    ENTRY_STANDING_UNKNOWN,
    EntryStanding,
)

_FORGETFUL_MAX: Final = 1
"""A commit needs two copies at least: beside the one that a lost disk took, another that was whole
and rotted would have to look like a torn write."""


class Verdict(Enum):
    """On one damaged entry."""

    WAIT = auto()
    """Somebody has it, or may have it and was not heard: ask again."""
    CUT = auto()
    """Nobody ever acknowledged it: the log ends before it."""
    LOST = auto()
    """Every copy is damaged: it is refused by name, and the rest is served."""


def judge(
    members: Collection[NodeId],
    standings: Mapping[NodeId, EntryStanding],
    *,
    torn: bool,
) -> Verdict:
    """`members`: all others of the group, learners too; `torn`: so may the own copy be."""
    if any(node not in standings for node in members):
        return Verdict.WAIT
    said = {standings[node] for node in members}
    forgetful = sum(standings[node] == ENTRY_STANDING_UNKNOWN for node in members)
    never_whole = {ENTRY_STANDING_ABSENT, ENTRY_STANDING_TORN, ENTRY_STANDING_UNKNOWN}
    if torn and said <= never_whole and forgetful <= _FORGETFUL_MAX:
        return Verdict.CUT
    if said <= {ENTRY_STANDING_ABSENT, ENTRY_STANDING_TORN, ENTRY_STANDING_DAMAGED}:
        return Verdict.LOST
    return Verdict.WAIT
