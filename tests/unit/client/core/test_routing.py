"""What a client believes about masters and topics."""

from __future__ import annotations

import itertools
from typing import Any

from semel.client.core.retry import Backoff, BackoffPolicy, Looks
from semel.client.core.routing import Master, RouteTable, StreamPlace
from semel.protos.ids import GroupId, NodeId, Term
from semel.protos.v1 import broker_pb2, controller_pb2

GROUP = GroupId(1)


def routes(version: int, master: int = 0, term: int = 0, **fields: Any) -> controller_pb2.Routes:
    message = controller_pb2.Routes(version=version, cluster_id="c", **fields)
    group = message.groups.add(group_id=1, master_id=master, term=term)
    for node in (1, 2, 3):
        group.nodes.add(node_id=node, address=f"h{node}:1")
    return message


def known(table: RouteTable) -> tuple[str, int] | None:
    master = table.master(GROUP)
    return None if master is None else (master.address, master.term)


def status(node: int, role: str, term: int, master: int = 0) -> broker_pb2.NodeStatusReply:
    return broker_pb2.NodeStatusReply(
        group_id=1, node_id=node, role=role, term=term, master_id=master
    )


def test_the_higher_term_wins_whoever_says_it() -> None:
    table = RouteTable()
    table.on_routes(routes(1, master=1, term=4))
    assert known(table) == ("h1:1", 4)
    assert table.on_hint(GROUP, "h2:1", 5, 2)
    table.on_routes(routes(2, master=1, term=4))
    assert known(table) == ("h2:1", 5)
    assert not table.on_hint(GROUP, "h3:1", 5, 3)
    table.on_routes(routes(3, master=3, term=6))
    assert known(table) == ("h3:1", 6)


def test_a_failed_master_is_believed_again_only_from_itself() -> None:
    table = RouteTable()
    table.on_routes(routes(1, master=1, term=4))
    table.on_master_failed(GROUP, Master(address="h1:1", node_id=NodeId(1), term=Term(4)))
    assert known(table) is None
    table.on_routes(routes(2, master=1, term=4))
    assert known(table) is None
    assert not table.on_node_status(GROUP, status(2, "slave", 4, master=1))
    assert known(table) is None
    assert table.on_node_status(GROUP, status(1, "master", 4))
    assert known(table) == ("h1:1", 4)


def test_a_stale_failure_changes_nothing() -> None:
    table = RouteTable()
    table.on_routes(routes(1, master=2, term=5))
    table.on_master_failed(GROUP, Master(address="h1:1", node_id=NodeId(1), term=Term(4)))
    assert known(table) == ("h2:1", 5)


def test_a_slave_names_a_newer_master() -> None:
    table = RouteTable()
    table.on_routes(routes(1, master=1, term=4))
    table.on_master_failed(GROUP, Master(address="h1:1", node_id=NodeId(1), term=Term(4)))
    assert table.on_node_status(GROUP, status(2, "slave", 5, master=3))
    assert known(table) == ("h3:1", 5)


def test_an_old_master_that_wakes_up_is_not_believed() -> None:
    table = RouteTable()
    table.on_routes(routes(1, master=2, term=5))
    assert not table.on_node_status(GROUP, status(1, "master", 4))
    assert known(table) == ("h2:1", 5)


def test_older_routes_are_ignored() -> None:
    table = RouteTable()
    new = routes(5)
    new.topics.add(name="t", topic_id=9).queues.add(queue_id=0, group_id=1, slot_end=65_536)
    table.on_routes(new)
    old = routes(4)
    old.topics.add(name="t", topic_id=8).queues.add(queue_id=0, group_id=1, slot_end=65_536)
    table.on_routes(old)
    topic = table.topic("t")
    assert topic is not None
    assert topic.topic_id == 9
    table.on_topic_gone("t", topic.topic_id)
    assert table.topic("t") is None


def test_after_it_forgot_another_clusters_routes_any_version_is_news() -> None:
    table = RouteTable()
    table.on_routes(routes(9, master=1, term=7))
    table.forget()
    assert table.replicas(GROUP) == []
    assert known(table) is None
    table.on_routes(routes(2, master=3, term=1))
    assert (table.version, table.cluster_id, known(table)) == (2, "c", ("h3:1", 1))


def test_unknown_groups_are_no_error() -> None:
    table = RouteTable()
    assert table.replicas(GROUP) == []
    assert table.master(GROUP) is None
    assert not table.on_hint(GROUP, "h:1", 1, 1)
    assert not table.on_node_status(GROUP, status(1, "master", 1))


def test_backoff_rises_to_its_limit_and_falls_back() -> None:
    backoff = Backoff(BackoffPolicy(initial_ms=10, max_ms=50, jitter=0.5), lambda: 0.0)
    assert [backoff.next_ms() for _ in range(4)] == [10, 20, 40, 50]
    backoff.reset()
    assert backoff.next_ms() == 10
    jittery = Backoff(BackoffPolicy(initial_ms=10, max_ms=50, jitter=0.5), lambda: 0.999)
    assert 5 <= jittery.next_ms() < 10


def test_where_streams_are_asked_for_is_told_with_the_routes() -> None:
    table = RouteTable()
    told = routes(1, master=1, term=4)
    told.groups[0].nodes[1].stream_port = 9
    table.on_routes(told)
    assert table.stream_place("h2:1") == StreamPlace(
        port=9, cluster_id="c", group_id=GROUP, node_id=NodeId(2)
    )
    assert table.stream_place("h1:1") is None  # an older node
    assert table.stream_place("h9:1") is None
    table.on_routes(routes(2, master=1, term=4))
    assert table.stream_place("h2:1") is None


def test_the_suspect_is_the_master_that_failed_last() -> None:
    table = RouteTable()
    assert table.suspect(GROUP) == ""
    table.on_routes(routes(1, master=1, term=4))
    assert table.suspect(GROUP) == ""
    table.on_master_failed(GROUP, Master(address="h1:1", node_id=NodeId(1), term=Term(4)))
    assert table.suspect(GROUP) == "h1:1"
    table.on_routes(routes(2, master=2, term=5))
    assert table.suspect(GROUP) == ""


def looked(*, many: bool, random: float, until_s: int) -> list[float]:
    """When somebody looks for what is lost from 0 on, if every 0.1 s it is asked whether to."""
    looks = Looks(lambda: random)
    return [tick / 10 for tick in range(10 * until_s) if looks.is_due(tick / 10, many)]


def test_what_is_lost_is_looked_for_every_two_seconds() -> None:
    found = looked(many=False, random=0.0, until_s=20)
    assert found[0] == 2.1
    assert all(1.9 < later - earlier < 2.2 for earlier, later in itertools.pairwise(found))


def test_one_of_many_looks_ever_more_seldom() -> None:
    found = looked(many=True, random=0.5, until_s=300)
    pauses = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert pauses[0] < pauses[1] < pauses[2] < 31
    assert len(found) <= 15


def test_one_of_many_looks_later_and_at_another_time_than_the_others() -> None:
    firsts = [looked(many=True, random=at / 10, until_s=20)[0] for at in range(10)]
    assert firsts[0] == 10.1
    assert firsts[-1] < 20.1
    assert firsts == sorted(set(firsts))


def test_what_was_found_and_lost_again_is_looked_for_as_at_first() -> None:
    looks = Looks(lambda: 0.0)
    assert not looks.is_due(2.0, False)
    assert looks.is_due(2.1, False)
    assert not looks.is_due(4.0, False)
    assert not looks.is_due(0.0, False)
    assert not looks.is_due(2.0, False)
    assert looks.is_due(2.1, False)
