"""The rule that decides about a damaged entry from what every member of the group has of it.

How it works. A damaged entry is known by index and term. Each member of the group is asked what it
has of that entry, and `decide` draws the conclusion. docs/decisions/torn-entries.md says why the
rule for cutting is safe.

Invariants
1. An entry is cut only if *every* member has answered and none has it whole or ever had it whole;
   the own copy must be a possible torn write, and one member at most may have forgotten it.
2. An entry is called lost only if every member has answered, none has it whole, and none may have
   forgotten it.

Not here: asking (`repair/repair.py`), truncating (`raft/following.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final

from semel.protos.ids import NodeId
from semel.protos.v1.raft_pb2 import (
    ENTRY_STATE_ABSENT,
    ENTRY_STATE_DAMAGED,
    ENTRY_STATE_TORN,
    ENTRY_STATE_UNKNOWN,
    EntryState,
)

_FORGETFUL_MAX: Final = 1
"""A commit needs at least two copies. If a lost disk took one of them, the other one would have to
have rotted so that it looks like a torn write."""


class Verdict(Enum):
    """The conclusion about one damaged entry."""

    WAIT = auto()
    """A member has it, or was not heard and may have it: ask again."""
    CUT = auto()
    """No member ever acknowledged it: the log ends before it."""
    LOST = auto()
    """Every copy is damaged: the entry is refused by name, and the rest is served."""


def decide(
    members: Collection[NodeId],
    states: Mapping[NodeId, EntryState],
    *,
    torn: bool,
) -> Verdict:
    """The verdict about one entry.

    `members` are all other members of the group, learners too; `states` holds what those that
    were heard have of the entry; `torn` says that the own copy may be a torn write.
    """
    if any(node not in states for node in members):
        return Verdict.WAIT
    said = {states[node] for node in members}
    forgetful = sum(states[node] == ENTRY_STATE_UNKNOWN for node in members)
    never_whole = {ENTRY_STATE_ABSENT, ENTRY_STATE_TORN, ENTRY_STATE_UNKNOWN}
    if torn and said <= never_whole and forgetful <= _FORGETFUL_MAX:
        return Verdict.CUT
    if said <= {ENTRY_STATE_ABSENT, ENTRY_STATE_TORN, ENTRY_STATE_DAMAGED}:
        return Verdict.LOST
    return Verdict.WAIT
