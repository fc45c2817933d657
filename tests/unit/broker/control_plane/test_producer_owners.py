"""The check of whose a producer is, before somebody fences it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.control_plane.producer_owners import ProducerOwners
from semel.protos.errors import InvalidRequest, NotMaster, PermissionDenied, Unavailable
from semel.protos.security.enforcement import CALLER, Caller, Enforcer, Refusal
from semel.protos.security.rules import Kind, Rule, RuleBook
from semel.protos.v1 import broker_pb2, controller_pb2

LOADER, NOBODY, LATER = 7, 8, 9
"""Ids: of the producer `loader`, of one without a name, and of nobody yet."""
OWNERS = {LOADER: "loader", NOBODY: ""}


class Controllers:
    """One that is active, at c2, and one that is not."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.down = False

    async def call(
        self, address: str, service: object, method: str, request: Any, timeout_s: float
    ) -> controller_pb2.FindProducerOwnerReply:
        assert method == "FindProducerOwner"
        self.asked.append(address)
        if self.down:
            raise Unavailable("nobody is there")
        if address != "c2":
            raise NotMaster("another one is active")
        name = OWNERS.get(request.producer_id)
        return controller_pb2.FindProducerOwnerReply(name=name or "", given=name is not None)


class Node:
    """The check of one broker."""

    def __init__(self) -> None:
        self.controllers = Controllers()
        self.seen: dict[int, str] = {}
        self.refused: list[Refusal] = []
        names = SimpleNamespace(name_of=lambda kind, number: None)
        enforcer = Enforcer(cast("Any", names), self.refused.append)
        rules = ("allow user:alice own-name producer:loader", "allow user:bob own-name producer:b*")
        enforcer.take(RuleBook(map(Rule.parse, rules)))
        self.owners = ProducerOwners(
            lambda: ("c1", "c2"),
            cast("Any", self.controllers),
            lambda: cast("Any", SimpleNamespace(name_of=self.seen.get)),
            enforcer,
        )

    async def fence(self, who: str, producer_id: int, name: str = "") -> None:
        token = CALLER.set(Caller(principal=f"user:{who}"))
        try:
            await self.owners.check(
                broker_pb2.FenceProducerRequest(producer_id=producer_id, name=name)
            )
        finally:
            CALLER.reset(token)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    assert all(one.resource == f"{Kind.PRODUCER.value}:loader" for one in made.refused)


async def test_a_named_producer_is_fenced_by_its_owner_alone(node: Node) -> None:
    await node.fence("alice", LOADER, "loader")
    for name in ("", "bobs", "loader"):
        with pytest.raises(PermissionDenied, match="may not own-name producer:loader"):
            await node.fence("bob", LOADER, name)
    assert len(node.refused) == 3


async def test_the_owner_fences_it_under_its_name(node: Node) -> None:
    with pytest.raises(InvalidRequest, match="fence it under its name"):
        await node.fence("alice", LOADER)


async def test_who_has_no_name_is_fenced_by_whoever_may_write(node: Node) -> None:
    await node.fence("bob", NOBODY)
    await node.fence("bob", NOBODY, "bobs")


async def test_an_id_that_nobody_has_is_not_fenced_in_advance(node: Node) -> None:
    with pytest.raises(InvalidRequest, match="nobody has producer id 9"):
        await node.fence("bob", LATER)


async def test_each_id_is_asked_for_once_of_the_active_controller(node: Node) -> None:
    await node.fence("bob", NOBODY)
    await node.fence("bob", NOBODY)
    assert node.controllers.asked == ["c1", "c2"]
    await node.fence("alice", LOADER, "loader")
    assert node.controllers.asked == ["c1", "c2", "c2"]
    node.controllers.down = True
    with pytest.raises(PermissionDenied):
        await node.fence("bob", LOADER)


async def test_what_the_group_has_seen_is_not_asked_for(node: Node) -> None:
    node.seen[LOADER] = "loader"  # the check of the call has decided about it
    await node.fence("bob", LOADER)
    assert not node.controllers.asked


async def test_new_producers_begin_while_no_controller_answers(node: Node) -> None:
    node.controllers.down = True
    await node.fence("bob", NOBODY)
    node.controllers.down = False
    with pytest.raises(PermissionDenied):
        await node.fence("bob", LOADER)


async def test_without_a_caller_nothing_is_checked(node: Node) -> None:
    await node.owners.check(broker_pb2.FenceProducerRequest(producer_id=LOADER))
    assert not node.controllers.asked
