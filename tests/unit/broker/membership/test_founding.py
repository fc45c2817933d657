"""The rule by which an empty node founds its group or waits: each case, and a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from semel.broker.identity import BEFORE_FOUNDINGS
from semel.broker.membership.founding import ControllersSay, Decision, MemberSays, Step, decide
from semel.protos.ids import NodeId

ALL = frozenset(map(NodeId, (1, 2, 3)))
GRANT = ControllersSay(founding="x", founded=False)
FOUNDED = ControllersSay(founding="x", founded=True)


def says(**fields: Any) -> MemberSays:
    return MemberSays(**{"members": ALL, **fields})


def step(
    *others: MemberSays | None,
    prepared: str = "",
    controllers: ControllersSay | None = GRANT,
    callers: frozenset[str] = frozenset(),
) -> tuple[Step, str]:
    """The decision of node 1, by what nodes 2 and 3 say; None for silence."""
    heard = {NodeId(node): one for node, one in enumerate(others, 2) if one is not None}
    found = decide(
        own=NodeId(1),
        prepared=prepared,
        members=ALL,
        heard=heard,
        controllers=controllers,
        callers=callers,
    )
    return found.step, found.founding


EMPTY, READY, IN = says(), says(prepared="x"), says(founding="x")


@pytest.mark.parametrize(
    ("others", "more", "wanted"),
    [
        # All are empty, and nobody knows of a founding: all promise, then all count.
        ((EMPTY, EMPTY), {}, (Step.PREPARE, "x")),
        ((READY, EMPTY), {"prepared": "x"}, (Step.WAIT, "")),
        ((READY, READY), {"prepared": "x"}, (Step.COMPLETE, "x")),
        # Silence says nothing, whoever it is.
        ((EMPTY, None), {}, (Step.WAIT, "")),
        ((None, None), {}, (Step.WAIT, "")),
        ((EMPTY, EMPTY), {"controllers": None}, (Step.WAIT, "")),
        ((READY, READY), {"prepared": "x", "controllers": None}, (Step.WAIT, "")),
        # A group that is founded feeds who is empty, whoever else is.
        ((EMPTY, IN), {}, (Step.BE_FED, "x")),
        ((None, IN), {"controllers": None}, (Step.BE_FED, "x")),
        ((EMPTY, EMPTY), {"controllers": FOUNDED}, (Step.BE_FED, "x")),
        ((None, None), {"controllers": FOUNDED}, (Step.BE_FED, "x")),
        ((None, says(has_history=True)), {}, (Step.BE_FED, BEFORE_FOUNDINGS)),
        ((EMPTY, EMPTY), {"callers": frozenset({"y"})}, (Step.BE_FED, "y")),
        (
            (None, None),
            {"controllers": ControllersSay(founding="", founded=True)},
            (Step.WAIT, ""),
        ),
        # Who has promised was there before anybody counted.
        ((None, IN), {"prepared": "x"}, (Step.COMPLETE, "x")),
        ((None, None), {"prepared": "x", "controllers": FOUNDED}, (Step.COMPLETE, "x")),
        ((None, says(founding="y")), {"prepared": "x"}, (Step.BE_FED, "y")),
        # A promise for a grant that was replaced is given anew.
        ((READY, READY), {"prepared": "old"}, (Step.PREPARE, "x")),
        # Who was told of other members, or is of an older program, founds nothing.
        ((EMPTY, says(members=frozenset(map(NodeId, (1, 3, 4))))), {}, (Step.WAIT, "")),
        ((EMPTY, says(knows_foundings=False)), {}, (Step.WAIT, "")),
        ((IN, says(founding="y")), {}, (Step.WAIT, "")),
    ],
)
def test_what_an_empty_node_does(others: Any, more: Any, wanted: tuple[Step, str]) -> None:
    assert step(*others, **more) == wanted


def test_a_group_of_one_asks_the_controllers_only() -> None:
    for controllers, prepared, wanted in [
        (None, "", Step.WAIT),
        (GRANT, "", Step.PREPARE),
        (GRANT, "x", Step.COMPLETE),
        (FOUNDED, "", Step.BE_FED),
    ]:
        found = decide(
            own=NodeId(1),
            prepared=prepared,
            members=frozenset({NodeId(1)}),
            heard={},
            controllers=controllers,
        )
        assert found.step is wanted


@dataclass
class Node:
    """A disk, and what the process on it has in mind."""

    founding: str = ""
    prepared: str = ""
    counts: bool = False
    heard: dict[NodeId, MemberSays] = field(default_factory=dict)
    word: ControllersSay | None = None
    up: bool = True


class Model:
    """Founding members and a controller; what anybody was told may be old when it is used.

    A founding begins to serve when a majority counts in it. From then on its data is lost only with
    the disks of a majority that has counted.
    """

    def __init__(self, size: int, random: Random, rule: Callable[..., Decision] = decide) -> None:
        self.random = random
        self.rule = rule
        self.nodes = {NodeId(number): Node() for number in range(1, size + 1)}
        self.record: tuple[str, bool] | None = None
        self.grants = 0
        self.served: set[str] = set()
        self.forgetful: set[tuple[NodeId, str]] = set()
        """Nodes that have counted in a founding and lost the disk that knew it."""
        self.records_lost = 0

    @property
    def members(self) -> frozenset[NodeId]:
        return frozenset(self.nodes)

    def grant(self, complete: str = "") -> ControllersSay:
        if self.record is None:
            self.grants += 1
            self.record = f"x{self.grants}", False
        name, founded = self.record
        if complete == name and not founded:
            self.record = name, True
        return ControllersSay(founding=name, founded=self.record[1])

    def ask(self, number: NodeId) -> None:
        """One of the questions of a round is answered, or is not."""
        node, random = self.nodes[number], self.random
        other = random.choice(sorted(self.members))
        if other == number:
            node.word = self.grant() if random.random() < 0.8 else None
        elif self.nodes[other].up:
            peer = self.nodes[other]
            node.heard[other] = MemberSays(
                founding=peer.founding, prepared=peer.prepared, members=self.members
            )

    def act(self, number: NodeId) -> None:
        node = self.nodes[number]
        if node.founding:
            self.report(node)
            return
        found = self.rule(
            own=number,
            prepared=node.prepared,
            members=self.members,
            heard=node.heard,
            controllers=node.word,
        )
        # Every round asks anew; nothing of the last one is believed.
        node.heard, node.word = {}, None
        match found.step:
            case Step.PREPARE:
                node.prepared = found.founding
            case Step.COMPLETE:
                said = self.grant(found.founding)
                if (said.founding, said.founded) == (found.founding, True):
                    node.founding, node.prepared, node.counts = found.founding, "", True
            case Step.BE_FED:
                node.founding, node.prepared = found.founding, ""

    def report(self, node: Node) -> None:
        if self.record is None or not self.record[1]:
            self.record = node.founding, True

    def strike(self) -> None:
        random = self.random
        number = random.choice(sorted(self.members))
        node = self.nodes[number]
        match random.randrange(6):
            case 0 | 1:
                node.up = not node.up
            case 2 | 3:  # a process starts again on its disk
                node.heard, node.word = {}, None
            case 4 if len(self.nodes) == 1 or len(self.forgetful) + 1 < len(self.nodes):
                if node.counts:
                    self.forgetful.add((number, node.founding))
                self.nodes[number] = Node()
            case 5 if not self.records_lost and len(self.nodes) > 1:
                self.record = None
                self.records_lost += 1

    def check(self) -> None:
        quorum = len(self.nodes) // 2 + 1
        names = {node.founding for node in self.nodes.values() if node.counts}
        for name in names:
            counted = [n for n, node in self.nodes.items() if node.counts and node.founding == name]
            for number in counted:
                assert (number, name) not in self.forgetful, f"{number} counts, and forgot {name}"
            if len(counted) >= quorum:
                self.served.add(name)
        assert len(self.served) <= 1, f"two foundings have served: {self.served}"


def explore(size: int, rule: Callable[..., Decision] = decide) -> int:
    """In how many of the runs a group came to serve."""
    served = 0
    for seed in range(300):
        model = Model(size, Random(seed), rule)
        for _ in range(400):
            if model.random.random() < 0.05:
                model.strike()
            number = model.random.choice(sorted(model.members))
            if model.nodes[number].up:
                for _ in range(2 * size):
                    model.ask(number)
                model.act(number)
            model.check()
        served += bool(model.served)
    return served


@pytest.mark.parametrize("size", [1, 3, 5])
def test_no_group_is_founded_twice_whatever_fails(size: int) -> None:
    """Not all disks are lost together with the controllers' metadata, but each of them may be."""
    assert explore(size) > 200


def asks_a_majority_only(**known: Any) -> Decision:
    """A node that is not heard is taken for one that has nothing."""
    heard = {node: replace(one, members=ALL) for node, one in known["heard"].items()}
    if 2 * len(heard) + 2 > len(known["members"]):
        known = {**known, "heard": heard, "members": ALL & {known["own"], *heard}}
        known["heard"] = {n: replace(one, members=known["members"]) for n, one in heard.items()}
    return decide(**known)


def trusts_the_members_alone(**known: Any) -> Decision:
    """The record of the controllers is not looked at."""
    word = known["controllers"]
    return decide(**{**known, "controllers": word and replace(word, founded=False)})


def counts_without_a_promise(**known: Any) -> Decision:
    found = decide(**known)
    return Decision(Step.COMPLETE, found.founding) if found.step is Step.PREPARE else found


def takes_a_promise_for_what_it_is_not(**known: Any) -> Decision:
    """A node that finds a member that counts takes itself to count as well."""
    found = decide(**known)
    return Decision(Step.COMPLETE, found.founding) if found.step is Step.BE_FED else found


@pytest.mark.parametrize(
    ("size", "rule"),
    [
        (3, asks_a_majority_only),
        (1, trusts_the_members_alone),
        (3, takes_a_promise_for_what_it_is_not),
    ],
)
def test_the_model_notices_a_weaker_rule(size: int, rule: Callable[..., Decision]) -> None:
    with pytest.raises(AssertionError, match=r"forgot|two foundings"):
        explore(size, rule)


def test_without_promises_the_first_to_count_stays_alone() -> None:
    """The others find it and wait to be fed, and it has no quorum."""
    assert explore(3, counts_without_a_promise) == 0
