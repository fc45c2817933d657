"""The order of the steps of a change of membership, whatever was done before."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from semel.client.admin.nodes import MemberProgress, MembershipStatus, MembershipWork, next_step
from semel.protos.errors import InvalidRequest, Throttled, TimedOut
from semel.protos.v1 import broker_pb2, common_pb2, controller_pb2

LEARNER, VOTER, REMOVED = MembershipStatus.LEARNER, MembershipStatus.VOTER, MembershipStatus.REMOVED


class FakeCluster:
    """Group 1 of a cluster whose master does what it is told; `busy` calls are throttled first."""

    def __init__(
        self, members: dict[int, MembershipStatus], *, joining: tuple[int, ...] = ()
    ) -> None:
        self.members = members
        self.joining = joining
        self.behind = 0
        self.busy = 0
        self.calls: list[tuple[int, MembershipStatus]] = []
        self.routes = SimpleNamespace(cluster_id="c")
        self.hosts: dict[int, str] = {}
        """Where a node is, if not on a machine of its own."""

    def address(self, node: int) -> str:
        return f"{self.hosts.get(node, f'h{node}')}:{node if node in self.hosts else 1}"

    async def controller(self, method: str, request: Any) -> Any:
        assert method == "GetClusterStatus"
        nodes = [
            controller_pb2.NodeStatus(
                node_id=node,
                address=self.address(node),
                role="joining" if node in self.joining else "slave",
                alive=True,
            )
            for node in (*self.members, *self.joining)
        ]
        group = controller_pb2.GroupStatus(group_id=1, nodes=nodes)
        return controller_pb2.ClusterStatusReply(groups=[group])

    async def call_master(
        self, group: int, method: str, request: Any, timeout_s: float, service: Any = None
    ) -> Any:
        assert group == 1
        if method == "GetNodeStatus":
            return self.status()
        assert method == "ChangeMember"
        if self.busy:
            self.busy -= 1
            raise Throttled("not yet")
        node, membership = request.node.node_id, MembershipStatus(request.membership)
        self.calls.append((node, membership))
        if membership is REMOVED:
            del self.members[node]
        else:
            assert membership is VOTER or request.node.address == self.address(node)
            self.members[node] = membership
        return broker_pb2.ChangeMemberReply()

    def status(self) -> broker_pb2.NodeStatusReply:
        return broker_pb2.NodeStatusReply(
            log_end_index=1_000,
            members=[
                broker_pb2.MemberStatus(
                    node=common_pb2.NodeAddress(node_id=node, address=self.address(node)),
                    membership=membership,  # type: ignore[arg-type]
                )
                for node, membership in self.members.items()
            ],
            peers=[
                broker_pb2.PeerStatus(
                    node_id=node, match_index=1_000 - self.behind, active=True, counts=True
                )
                for node in self.members
            ],
        )


def three() -> dict[int, MembershipStatus]:
    return {1: VOTER, 2: VOTER, 3: VOTER}


def work(cluster: FakeCluster, news: list[MemberProgress] | None = None) -> MembershipWork:
    return MembershipWork(cluster, None if news is None else news.append)  # type: ignore[arg-type]


async def test_a_busy_master_is_asked_again() -> None:
    cluster = FakeCluster(three(), joining=(4,))
    cluster.busy = 2
    news: list[MemberProgress] = []
    result = await work(cluster, news).replace(2, 4, "", 60)
    assert cluster.calls == [(4, LEARNER), (4, VOTER), (2, REMOVED)]
    assert result.changed
    assert result.voters == {1: "h1:1", 3: "h3:1", 4: "h4:1"}
    assert [each.step for each in news] == ["add", "promote", "remove"]
    assert not (await work(cluster).replace(2, 4, "", 60)).changed


async def test_a_node_stays_while_the_master_says_that_messages_in_memory_could_be_lost() -> None:
    cluster = FakeCluster(three() | {4: VOTER})
    cluster.busy = 3
    news: list[MemberProgress] = []
    await work(cluster, news).remove(4, False, 60)
    assert [(each.step, each.reason) for each in news] == [("remove", ""), ("wait", "not yet")]
    assert cluster.calls == [(4, REMOVED)]
    cluster = FakeCluster(three() | {4: VOTER})
    cluster.busy = 3
    with pytest.raises(Throttled, match="not yet"):
        await work(cluster).remove(4, False, 0.0)
    assert 4 in cluster.members


async def test_a_drain_and_a_transfer_wait_for_messages_in_memory_for_so_long() -> None:
    news: list[MemberProgress] = []
    early = Throttled("node 2 still pulls", retry_after_ms=1)
    refusals = [early, early, early]

    class Broker(FakeCluster):
        asked: ClassVar[list[Any]] = []

        @property
        def connections(self) -> Any:
            return SimpleNamespace(call=self.answer)

        async def answer(self, target: Any, *arguments: Any, **named: Any) -> Any:
            self.asked.extend(each for each in arguments if hasattr(each, "ignore_memory"))
            if refusals:
                raise refusals.pop()
            return SimpleNamespace(master_id=3, was_master=True)

        async def call_master(
            self, group: int, method: str, request: Any, timeout_s: float, service: Any = None
        ) -> Any:
            return await self.answer(group, request)

    cluster = Broker(three())
    assert (await work(cluster, news).drain(1, 60_000, 60)).master == 3
    assert [(each.step, each.node, each.reason) for each in news] == [
        ("wait", 1, "node 2 still pulls")
    ]
    refusals += [early, early]
    assert await work(cluster).transfer(1, 3, 60) == 3
    refusals += [early, early]
    with pytest.raises(Throttled, match="still pulls"):
        await work(cluster).drain(1, 60_000, 0.0)
    assert not any(each.ignore_memory for each in Broker.asked)
    forced = MembershipWork(cluster, ignore_memory=True)  # type: ignore[arg-type]
    refusals.clear()
    await forced.drain(1, 60_000, 0.0)
    assert Broker.asked[-1].ignore_memory


async def test_a_learner_that_does_not_catch_up_stays_one() -> None:
    cluster = FakeCluster(three(), joining=(4,))
    cluster.behind = 900
    with pytest.raises(TimedOut, match="900 entries behind"):
        await work(cluster).replace(2, 4, "", 0.0)
    assert cluster.members == three() | {4: LEARNER}


async def test_a_group_grows_by_those_who_wait() -> None:
    cluster = FakeCluster({1: VOTER}, joining=(7, 5))
    result = await work(cluster).grow(1, 3, {}, 60)
    assert sorted(result.voters) == [1, 5, 7]
    with pytest.raises(InvalidRequest, match="for 5 start 2 more"):
        await work(cluster).grow(1, 5, {}, 60)
    with pytest.raises(InvalidRequest, match="1, 3 or 5 voters, not 4"):
        await work(cluster).grow(1, 4, {}, 60)
    with pytest.raises(InvalidRequest, match="more than 1"):
        await work(cluster).grow(1, 1, {}, 60)


async def test_a_group_is_not_left_even_by_accident() -> None:
    cluster = FakeCluster(three() | {4: LEARNER, 5: VOTER})
    await work(cluster).remove(4, False, 60)
    await work(cluster).remove(5, False, 60)
    with pytest.raises(InvalidRequest, match="left with 2 voters"):
        await work(cluster).remove(3, False, 60)
    assert cluster.members == three()
    await work(cluster).remove(3, True, 60)
    assert cluster.members == {1: VOTER, 2: VOTER}


async def test_what_cannot_be_meant_is_refused() -> None:
    cluster = FakeCluster(three(), joining=(4,))
    with pytest.raises(InvalidRequest, match="cannot replace itself"):
        await work(cluster).replace(2, 2, "", 60)
    with pytest.raises(InvalidRequest, match="does not report to the controllers"):
        await work(cluster).replace(2, 9, "", 60)
    with pytest.raises(InvalidRequest, match="neither node 8 nor node 9"):
        await work(cluster).replace(8, 9, "", 60)
    with pytest.raises(InvalidRequest, match="node 9 is not known"):
        await work(cluster).remove(9, False, 60)
    assert not cluster.calls


def walk(
    members: dict[int, MembershipStatus], wanted: dict[int, MembershipStatus]
) -> list[tuple[int, MembershipStatus]]:
    """All steps, each taken as the broker takes it."""
    steps = []
    while (step := next_step(members, wanted)) is not None:
        steps.append(step)
        node, membership = step
        if membership is REMOVED:
            del members[node]
        else:
            assert membership is LEARNER or members[node] is LEARNER, "a voter joins as a learner"
            members[node] = membership
        assert len(steps) < 10
    return steps


def test_a_replacement_adds_before_it_removes() -> None:
    members = {1: VOTER, 2: VOTER, 3: VOTER}
    assert walk(members, {4: VOTER, 2: REMOVED}) == [(4, LEARNER), (4, VOTER), (2, REMOVED)]
    assert members == {1: VOTER, 3: VOTER, 4: VOTER}


def test_all_who_join_catch_up_before_the_first_is_promoted() -> None:
    assert walk({1: VOTER}, {2: VOTER, 3: VOTER}) == [
        (2, LEARNER),
        (3, LEARNER),
        (2, VOTER),
        (3, VOTER),
    ]


@pytest.mark.parametrize(
    ("new", "old"), list(product((None, LEARNER, VOTER), (None, LEARNER, VOTER)))
)
def test_from_wherever_it_stopped_it_comes_to_the_same_end(
    new: MembershipStatus | None, old: MembershipStatus | None
) -> None:
    members = {1: VOTER, 3: VOTER}
    members |= {4: new} if new is not None else {}
    members |= {2: old} if old is not None else {}
    wanted = {4: VOTER, 2: REMOVED}
    walk(members, wanted)
    assert members == {1: VOTER, 3: VOTER, 4: VOTER}
    assert next_step(members, wanted) is None


async def test_a_node_does_not_join_on_a_voters_machine_unless_it_is_allowed_to() -> None:
    cluster = FakeCluster(three(), joining=(4,))
    cluster.hosts = {4: "h2"}
    with pytest.raises(InvalidRequest, match="node 4 would share the machine h2 with node 2"):
        await MembershipWork(cluster).replace(3, 4, "", 5)  # type: ignore[arg-type]
    assert not cluster.calls
    work = MembershipWork(cluster, allow_same_machine=True)  # type: ignore[arg-type]
    assert (await work.replace(3, 4, "", 5)).changed


async def test_who_leaves_makes_room_on_its_machine_and_loopback_is_no_machine() -> None:
    cluster = FakeCluster(three(), joining=(4,))
    cluster.hosts = {4: "h2"}
    assert (await MembershipWork(cluster).replace(2, 4, "", 5)).changed  # type: ignore[arg-type]
    cluster = FakeCluster(three(), joining=(4, 5))
    cluster.hosts = dict.fromkeys((1, 2, 3, 4, 5), "127.0.0.1")
    assert (await MembershipWork(cluster).grow(1, 5, {}, 5)).changed  # type: ignore[arg-type]
    cluster = FakeCluster(three(), joining=(4, 5))
    cluster.hosts = {4: "new", 5: "new"}
    with pytest.raises(InvalidRequest, match="node 5 would share the machine new with node 4"):
        await MembershipWork(cluster).grow(1, 5, {}, 5)  # type: ignore[arg-type]
