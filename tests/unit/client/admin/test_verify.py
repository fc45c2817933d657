"""Comparing what nodes recomputed: what is right passes, each thing that is not is seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.admin.descriptions import VerifyResult
from semel.client.admin.verify import Verification, VerifyProgress
from semel.protos.errors import Unavailable
from semel.protos.ids import GroupId, NodeId
from semel.protos.v1 import broker_pb2
from tests.unit.client.chunks import topic

Reports = dict[int, list[broker_pb2.VerifiedQueue]]


def report(queue: int, **changes: Any) -> broker_pb2.VerifiedQueue:
    fields: dict[str, Any] = {
        "log_start_offset": 0,
        "log_end_offset": 5,
        "messages": 5,
        "digest": b"d%d" % queue,
        "table_digest": b"t",
        "table_matches": True,
    }
    found = broker_pb2.VerifiedQueue(**{**fields, **changes})
    found.queue.topic_id = 5
    found.queue.queue_id = queue
    return found


class FakeCluster:
    """Two queues on one group of three nodes that report what they are told to."""

    def __init__(self, reports: Reports) -> None:
        self.reports = reports
        self.behind: dict[int, int] = {}
        self.master = 1
        self.tiers: list[broker_pb2.VerifiedTier] = []
        self.asked_for_tiers: list[int] = []
        self.later: list[Reports] = []
        """What they report when they are asked again."""
        self.dead: set[int] = set()
        self.routes = SimpleNamespace(
            nodes=lambda group: {NodeId(node): str(node) for node in (1, 2, 3)}
        )
        self.connections = SimpleNamespace(stream=self._stream)
        self.config = SimpleNamespace(request_timeout_ms=30_000)
        self.masterless = False

    async def topic(self, name: str, *, refresh: bool) -> Any:
        assert refresh
        return topic(2)

    async def call_master(
        self, group: GroupId, method: str, request: Any, timeout_s: float | None = None
    ) -> Any:
        assert request.confirmed
        if self.masterless:
            raise Unavailable(f"broker group {group} has no master")
        if self.later and self.asked:
            self.reports = self.later.pop(0)
        self.asked = True
        return broker_pb2.NodeStatusReply(commit_index=9)

    asked = False

    async def call_node(self, address: str, method: str, request: Any, timeout_s: float) -> Any:
        node = int(address)
        if node in self.dead:
            raise Unavailable("it is dead")
        late = self.behind.get(node, 0)
        self.behind[node] = max(0, late - 1)
        role = "master" if node == self.master else "slave"
        return broker_pb2.NodeStatusReply(applied_index=8 if late else 9, role=role)

    def _stream(
        self, address: str, service: Any, method: str, request: Any, timeout_s: float
    ) -> AsyncIterator[broker_pb2.VerifyQueuesReply]:
        assert request.index == 9
        if request.tier:
            self.asked_for_tiers.append(int(address))

        async def replies() -> AsyncIterator[broker_pb2.VerifyQueuesReply]:
            yield broker_pb2.VerifyQueuesReply(bytes_read=1, bytes_total=2)
            yield broker_pb2.VerifyQueuesReply(
                bytes_read=2, bytes_total=2, queues=self.reports[int(address)]
            )
            if request.tier:
                yield broker_pb2.VerifyQueuesReply(tiers=self.tiers)

        return replies()


def good() -> Reports:
    return {node: [report(0), report(1)] for node in (1, 2, 3)}


async def verify(cluster: FakeCluster, timeout_s: float = 5) -> VerifyResult:
    return await Verification(cluster, None).run("t", timeout_s)  # type: ignore[arg-type]


async def test_what_is_right_passes() -> None:
    cluster = FakeCluster(good())
    cluster.behind = {2: 1}
    news: list[VerifyProgress] = []
    result = await Verification(cluster, news.append).run("t", 5)  # type: ignore[arg-type]
    assert result.ok
    assert (result.messages, result.nodes_compared, result.problems) == (10, 3, [])
    assert [queue.digest for queue in result.queues] == [b"d0".hex(), b"d1".hex()]
    assert not result.violated
    assert news[-1].bytes_read == news[-1].bytes_total == 6
    assert {each.nodes_total for each in news} == {3}
    assert news[-1].nodes_done == 3


async def test_a_group_without_a_master_raises_the_error_that_is_documented() -> None:
    cluster = FakeCluster(good())
    cluster.masterless = True
    with pytest.raises(Unavailable, match="no master"):
        await verify(cluster)


BAD: list[tuple[str, Callable[[Reports], Any]]] = [
    ("digest", lambda reports: reports[2].__setitem__(1, report(1, digest=b"other"))),
    ("table_digest", lambda reports: reports[3].__setitem__(0, report(0, table_digest=b"x"))),
    ("log_end_offset", lambda reports: reports[1].__setitem__(0, report(0, log_end_offset=4))),
    ("messages", lambda reports: reports[1].__setitem__(0, report(0, messages=4))),
    ("did not report", lambda reports: reports[3].pop()),
    (
        "that the log gives",
        lambda reports: reports[3].__setitem__(1, report(1, table_matches=False)),
    ),
    ("torn", lambda reports: reports[2].__setitem__(0, report(0, problems=["torn"]))),
]


@pytest.mark.parametrize(("problem", "plant"), BAD)
async def test_planted_differences_are_seen(problem: str, plant: Callable[[Reports], Any]) -> None:
    reports = good()
    plant(reports)
    result = await verify(FakeCluster(reports))
    assert not result.ok
    assert result.violated
    assert problem in " ".join(result.problems)


@pytest.mark.parametrize("field", ["duplicates", "missing", "id_duplicates"])
async def test_one_node_that_counts_wrong_is_enough(field: str) -> None:
    reports = good()
    reports[2][0] = report(0, **{field: 1})
    result = await verify(FakeCluster(reports))
    assert not result.ok
    assert result.violated
    assert getattr(result, field) == 1


async def test_a_node_that_cannot_be_asked_is_no_pass_and_no_contradiction() -> None:
    cluster = FakeCluster(good())
    cluster.dead = {3}
    result = await verify(cluster, 0.1)
    assert (result.ok, result.violated, result.problems) == (False, False, [])
    assert result.nodes_compared == 2
    assert "node 3" in result.unread[0]


async def test_a_node_that_stays_behind_is_no_pass_and_no_contradiction() -> None:
    cluster = FakeCluster(good())
    cluster.behind = {1: 1_000}
    result = await verify(cluster, 0.1)
    assert (result.ok, result.violated, result.problems) == (False, False, [])
    assert "behind" in result.unread[0]


async def test_what_no_node_could_read_is_not_proven() -> None:
    cluster = FakeCluster(good())
    cluster.dead = {1, 2, 3}
    result = await verify(cluster, 0.1)
    assert (result.ok, result.violated) == (False, False)
    assert "queue 0 of 't' was read on no node" in result.unread


async def test_a_contradiction_counts_though_another_node_was_not_read() -> None:
    reports = good()
    reports[2][0] = report(0, duplicates=1)
    cluster = FakeCluster(reports)
    cluster.dead = {3}
    result = await verify(cluster, 0.1)
    assert (result.ok, result.violated, len(result.unread)) == (False, True, 1)


def tier(queue: int, **fields: Any) -> broker_pb2.VerifiedTier:
    found = broker_pb2.VerifiedTier(messages=7, compared=3, **fields)
    found.queue.topic_id, found.queue.queue_id = 5, queue
    return found


async def test_the_master_reads_the_object_store_if_that_is_asked_for() -> None:
    cluster = FakeCluster(good())
    cluster.tiers = [tier(0), tier(1)]
    assert (await verify(cluster)).ok
    assert cluster.asked_for_tiers == []

    async def tiered() -> VerifyResult:
        return await Verification(cluster, None, tier=True).run("t", 5)  # type: ignore[arg-type]

    result = await tiered()
    assert result.ok
    assert cluster.asked_for_tiers == [1]
    assert [(each.tiered_messages, each.tiered_compared) for each in result.queues] == [(7, 3)] * 2
    cluster.tiers = [tier(0), tier(1, problems=["it is damaged"], duplicates=2)]
    result = await tiered()
    assert result.violated
    assert result.problems == ["queue 1, object store: it is damaged"]
    assert result.duplicates == 2
    cluster.tiers = [tier(0, unread="it does not answer"), tier(1)]
    result = await tiered()
    assert (result.ok, result.violated) == (False, False)
    assert result.unread == ["queue 0: the object store was not read: it does not answer"]
    cluster.tiers, cluster.master = [], 4
    result = await tiered()
    assert result.unread == ["no master of group 1 read the object store"]


async def test_queues_that_were_trimmed_meanwhile_are_read_again() -> None:
    trimmed = good()
    trimmed[2] = [report(0, log_start_offset=3, messages=2, digest=b"other"), report(1)]
    cluster = FakeCluster(trimmed)
    cluster.later = [good()]
    assert (await verify(cluster)).ok
    cluster = FakeCluster(trimmed)
    result = await verify(cluster)
    assert result.violated
    assert any("nodes differ in log_start_offset" in problem for problem in result.problems)
