"""The rule that decides which founding an empty node belongs to.

How it works. A node whose directory is empty is new together with its group, or it lost its disk.
Two sources decide what it may do: the controllers, which keep a record of each group, and *all*
nodes that are to found the group:

    wait       -> prepared   every founding member is empty, and the controllers know of no founding
    prepared   -> counted    every founding member is prepared, and the controllers have recorded
                             that the founding is complete; or another member counts already
    wait       -> fed        a member belongs to a founding, or the controllers know of one
    prepared   -> fed        the same, and it is another founding than the one prepared for

Why it is sound. `prepared` is durable. A founding is complete only once all members are prepared,
so while one of them is not, nobody counts and nothing can be lost. A node that lost its disk after
it counted is not prepared; it finds a member that counts or a record of the founding, and is fed.
It could prepare again only if the record and *every* other member's disk were lost with its own:
then there is nothing left that a new group could contradict. So neither the controllers nor the
members are trusted alone, and silence proves nothing: the node waits for those that do not answer.

Not here: asking (`membership/asking.py`), what is written (`membership/status.py`), beginning anew
(`docs/operations.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from semel.broker.identity import BEFORE_FOUNDINGS
from semel.protos.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSays:
    """The answer of another founding member about itself."""

    founding: str = ""
    """Founding that it belongs to."""
    prepared: str = ""
    """Founding that it has promised to take part in."""
    has_history: bool = False
    """It has entries: its group was founded."""
    knows_foundings: bool = True
    """Its program is not older than foundings."""
    members: frozenset[NodeId] = frozenset()
    """The members that it was told to found the group with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllersSay:
    """The controllers' record of the group."""

    founding: str
    """The name of its founding, past or planned; empty for a group older than such names."""
    founded: bool
    """The founding is complete: an empty node has lost something."""


class Step(Enum):
    """The next step of an empty node."""

    WAIT = auto()
    PREPARE = auto()
    """It promises durably to take part in the founding."""
    COMPLETE = auto()
    """It counts, once the controllers have recorded the founding."""
    BE_FED = auto()
    """It belongs to the founding, and is not counted before it has caught up."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A step, and the reason for it."""

    step: Step
    founding: str = ""
    reason: str = ""


def decide(
    *,
    own: NodeId,
    prepared: str,
    members: frozenset[NodeId],
    heard: Mapping[NodeId, MemberSays],
    controllers: ControllersSay | None,
    callers: frozenset[str] = frozenset(),
) -> Decision:
    """The next step of node `own`, which is empty and belongs to no founding.

    `prepared` is the founding it has promised to take part in; `heard` are the other `members` that
    have answered, each known to be a node of this group; `controllers` is None if none has
    answered; `callers` are the foundings in whose name nodes of this group have called this one.
    """
    foundings = {_founding_of(says) for says in heard.values()} - {""}
    if len(foundings) > 1:
        return Decision(
            Step.WAIT,
            reason=f"members belong to different foundings: {', '.join(sorted(foundings))}",
        )
    if foundings:
        (founding,) = foundings
        return _follow(founding, prepared)
    if len(callers) == 1 and not (controllers and controllers.founded):
        return _follow(next(iter(callers)), prepared)
    if controllers is None:
        return Decision(Step.WAIT, reason="no controller says whether the group was founded")
    if controllers.founded:
        if not controllers.founding:
            return Decision(Step.WAIT, reason="the group is old, and no member of it answers")
        return _follow(controllers.founding, prepared)
    silent = members - heard.keys() - {own}
    if silent:
        return Decision(Step.WAIT, reason=f"nodes {sorted(silent)} do not answer")
    if own not in members:
        return Decision(Step.WAIT, reason="it is to join a group, and no member of it answers")
    old = [node for node, says in heard.items() if not says.knows_foundings]
    if old:
        return Decision(Step.WAIT, reason=f"nodes {sorted(old)} are to be upgraded first")
    others = {node: says.members for node, says in heard.items() if says.members != members}
    if others:
        node, theirs = min(others.items())
        return Decision(
            Step.WAIT,
            reason=f"node {node} was told of members {sorted(theirs)}, this node of "
            f"{sorted(members)}",
        )
    if prepared != controllers.founding:
        return Decision(Step.PREPARE, controllers.founding)
    late = [node for node, says in heard.items() if says.prepared != prepared]
    if late:
        return Decision(Step.WAIT, reason=f"nodes {sorted(late)} are not prepared yet")
    return Decision(Step.COMPLETE, prepared)


def _founding_of(says: MemberSays) -> str:
    return says.founding or (BEFORE_FOUNDINGS if says.has_history else "")


def _follow(founding: str, prepared: str) -> Decision:
    """The step of a node whose group has this founding, or may have it.

    A node that is prepared for it became so before any node counted, and has never counted itself,
    so it need not be fed.
    """
    return Decision(Step.COMPLETE if prepared == founding else Step.BE_FED, founding)
