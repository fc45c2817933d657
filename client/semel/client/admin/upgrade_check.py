"""What an upgrade of a cluster would meet: who runs what, what is in its way, what it would allow.

How it works. One inspection of the cluster is turned into the present levels, the level to which
`upgrade` would raise them, and a list of obstacles. An obstacle that *stops* must be dealt with
before nodes are restarted or the level is raised; any other one is told so that the operator can
wait for it. Pure.

Not here: raising the level (`admin/upgrade.py`), asking all nodes (`admin/inspection.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from semel.client.admin.descriptions import Described
from semel.client.admin.inspection import Inspection, NodeReport
from semel.client.admin.upgrade import WAITING, GroupLevel
from semel.protos.levels import feature_texts

ObstacleKind = Literal[
    "silent",
    "no-master",
    "under-replicated",
    "too-old",
    "one-node",
    "move",
    "unfinished-topic",
    "memory",
    "versions",
]
MOVING: Final = "moving queue "
"""The step of a topic begins so while a queue of it moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLevels(Described):
    """One broker node or controller, as it answered."""

    subject: str
    """`broker 2` or `controller HOST:PORT`."""
    group: int | None
    """Broker group; None for a controller."""
    address: str
    version: str
    """Empty when it did not say."""
    level_max: int
    """The highest feature level that it knows; 0 when it did not answer."""
    reason: str
    """Why it did not answer; empty when it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle(Described):
    """Something in the way of an upgrade, or worth knowing before it."""

    kind: ObstacleKind
    subject: str
    text: str
    """What was found."""
    advice: str
    stops: bool
    """It must be dealt with first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeCheck(Described):
    """What an upgrade would meet."""

    level: int
    """The level to which `upgrade` would raise everything."""
    metadata: int
    """The level of the controllers' metadata now; 0 when no controller said it."""
    groups: list[GroupLevel]
    """The level of each broker group now; groups without a master are left out."""
    programs: list[ProgramLevels]
    obstacles: list[Obstacle]
    allows: list[str]
    """What the raise would allow."""

    @property
    def ready(self) -> bool:
        """Nothing is in the way: nodes may be restarted one by one, and the level be raised."""
        return not any(each.stops for each in self.obstacles)

    @property
    def changes(self) -> bool:
        """A broker group or the metadata is below the level."""
        levels = [self.metadata, *(each.level for each in self.groups)]
        return any(each < self.level for each in levels)


def check_upgrade(found: Inspection, *, level: int | None = None) -> UpgradeCheck:
    """Returns what raising everything to `level` would meet, by default the highest level that all
    who answer know. Raises nothing. Pure."""
    members = [node for node in found.nodes if node.role not in WAITING]
    programs = [
        ProgramLevels(
            subject=f"controller {each.address}",
            group=None,
            address=each.address,
            version=each.version,
            level_max=each.level_max,
            reason=each.reason,
        )
        for each in found.controllers
    ]
    programs += [
        ProgramLevels(
            subject=f"broker {node.node}",
            group=node.group,
            address=node.address,
            version=node.version,
            level_max=node.level_max,
            reason=node.reason,
        )
        for node in members
    ]
    known = [each.level_max for each in programs if not each.reason]
    wanted = min(known, default=0) if level is None else level
    groups = [
        GroupLevel(group=group.id, level=master.level)
        for group in found.status.groups
        if (master := found.master(group.id)) is not None
    ]
    metadata = max((each.level for each in found.controllers), default=0)
    active = [each.level for each in groups] + ([metadata] if metadata else [])
    needed = max(known, default=0) if level is None else level
    return UpgradeCheck(
        level=wanted,
        metadata=metadata,
        groups=groups,
        programs=programs,
        obstacles=[
            *_programs(programs, needed),
            *_groups(found, members),
            *_topics(found),
        ],
        allows=feature_texts(min(active, default=wanted), wanted),
    )


def _programs(programs: list[ProgramLevels], needed: int) -> Iterator[Obstacle]:
    """Finds programs that do not answer, are too old, or differ in version."""
    for each in programs:
        if each.reason:
            yield Obstacle(
                kind="silent",
                subject=each.subject,
                text=f"does not answer at {each.address}: {each.reason}",
                advice="start it, or take it out of the cluster: a level is raised only once"
                " every node and controller answers",
                stops=True,
            )
        elif each.level_max < needed:
            yield Obstacle(
                kind="too-old",
                subject=each.subject,
                text=f"{_runs(each)} and knows feature levels up to {each.level_max}, not {needed}",
                advice="upgrade it first",
                stops=True,
            )
    counts = Counter(each.version for each in programs if not each.reason)
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        for each in programs:
            if not each.reason and each.version != usual:
                yield Obstacle(
                    kind="versions",
                    subject=each.subject,
                    text=f"{_runs(each)}, most others run {usual or 'an unknown version'}",
                    advice="bring all to one version before the level is raised",
                    stops=False,
                )


def _runs(program: ProgramLevels) -> str:
    return f"runs {program.version or 'a version that it does not tell'}"


def _groups(found: Inspection, members: list[NodeReport]) -> Iterator[Obstacle]:
    """Finds broker groups that could not lose a node now, as a rolling restart makes them."""
    for group in found.status.groups:
        subject = f"broker group {group.id}"
        inside = [node for node in members if node.group == group.id]
        if found.master(group.id) is None:
            yield Obstacle(
                kind="no-master",
                subject=subject,
                text="has no master that its quorum confirms",
                advice="see `semel doctor`",
                stops=True,
            )
        silent = {node.node for node in inside if node.reason}
        late = [node for node in found.under_replicated(group.id) if node not in silent]
        if late:
            yield Obstacle(
                kind="under-replicated",
                subject=subject,
                text=f"does not have everything on node {', '.join(map(str, late))}",
                advice="wait until it has caught up, or see `semel doctor`",
                stops=True,
            )
        if len(inside) == 1:
            yield Obstacle(
                kind="one-node",
                subject=subject,
                text="has one node: while that restarts, nobody serves the group's queues",
                advice="clients wait and go on; to have no gap: semel cluster grow",
                stops=False,
            )
    for node in members:
        if node.memory_pulling:
            yield Obstacle(
                kind="memory",
                subject=f"broker {node.node}",
                text="still pulls messages of topics in memory",
                advice="wait: a node that has them is drained only then",
                stops=False,
            )


def _topics(found: Inspection) -> Iterator[Obstacle]:
    """Finds topics with steps under way. They go on across restarts, and later than without."""
    for topic in found.status.unfinished:
        moves = topic.step.startswith(MOVING)
        yield Obstacle(
            kind="move" if moves else "unfinished-topic",
            subject=f"topic {topic.name}",
            text=f"{'is ' if moves else 'has steps left: '}{topic.step}"
            + (f" ({topic.reason})" if topic.reason else ""),
            advice="it goes on across restarts; waiting for its end is quicker",
            stops=False,
        )
