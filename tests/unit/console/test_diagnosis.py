"""Every finding of the doctor from an inspection that has its cause, and none from a whole one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from semel.client.admin.certificates import CertificateReport, clients_cas
from semel.client.admin.descriptions import (
    BrokerGroupDescription,
    ClusterStatus,
    ControllerDescription,
    GroupSummary,
    NodeDescription,
    UnfinishedTopic,
)
from semel.client.admin.inspection import (
    ControllerReport,
    IdleProducer,
    Inspection,
    NodeReport,
    PeerReport,
    StuckDelayed,
)
from semel.client.transactions.transaction_info import TransactionInfo, TransactionPart
from semel.console.diagnosis import CHECKS, SEVERITIES, STUCK_MS, diagnose
from semel.console.status import masterless, state, under_replicated

DAY_MS = 86_400_000


def _node(number: int, **fields: Any) -> NodeReport:
    usual: dict[str, Any] = {
        "node": number,
        "group": 1,
        "address": f"h:{number}",
        "reason": "",
        "role": "slave",
        "queues": 4,
        "version": "1.0",
        "level": 6 if number == 1 else 0,
        "level_max": 6,
        "disk_free_bytes": 50,
        "disk_total_bytes": 100,
        "clock_doubt_ms": 1.0,
        "producer_idle_ms": 7 * DAY_MS,
    }
    return NodeReport(**{**usual, **fields})


def _peer(node: int, **fields: Any) -> PeerReport:
    return PeerReport(**{"node": node, "behind": 3, "active": True, "counts": True, **fields})


def _whole() -> Inspection:
    """Three controllers, a group of three: nothing to complain about."""
    nodes = [
        _node(1, role="master", serving=True, peers=[_peer(2), _peer(3)]),
        _node(2),
        _node(3),
    ]
    described = [
        NodeDescription(
            id=node.node,
            address=node.address,
            role=node.role,
            log_end_index=9,
            alive=True,
            silent_ms=10,
            damaged=0,
            lost=0,
            disk_full=False,
        )
        for node in nodes
    ]
    group = BrokerGroupDescription(
        id=1, term=1, master=1, commit_index=9, queues=4, nodes=described
    )
    addresses = ["c:1", "c:2", "c:3"]
    status = ClusterStatus(
        cluster_id="c",
        version="1.0",
        topics=1,
        groups=[group],
        controllers=[
            ControllerDescription(id=number, address=address, role="master")
            for number, address in enumerate(addresses, 1)
        ],
    )
    return Inspection(
        status=status,
        controllers=[
            ControllerReport(
                address=address,
                reason="",
                version="1.0",
                level=6 if address == "c:1" else 0,
                level_max=6,
            )
            for address in addresses
        ],
        nodes=nodes,
        consumers=[
            GroupSummary(group="idle", members=0, topics=["t"], lag=0, locks=0),
            GroupSummary(group="busy", members=2, topics=["t"], lag=9, locks=1),
            GroupSummary(group="spark", members=0, topics=["t"], lag=9, locks=0, joined=False),
            GroupSummary(
                group="semel.redrive", members=0, topics=["d"], lag=9, locks=0, joined=False
            ),
        ],
        producers=[IdleProducer(name="p", queues=1, idle_ms=DAY_MS, expires_ms=6 * DAY_MS)],
    )


def _with_node(found: Inspection, number: int, **fields: Any) -> Inspection:
    nodes = [
        dataclasses.replace(node, **fields) if node.node == number else node for node in found.nodes
    ]
    return dataclasses.replace(found, nodes=nodes)


def _with_status(found: Inspection, **fields: Any) -> Inspection:
    return dataclasses.replace(found, status=dataclasses.replace(found.status, **fields))


def _silent(found: Inspection, number: int) -> Inspection:
    empty = NodeReport(node=number, group=1, address=f"h:{number}", reason="no route")
    return dataclasses.replace(
        found, nodes=[empty if node.node == number else node for node in found.nodes]
    )


def _unfinished(reason: str, step: str = "creating") -> Callable[[Inspection], Inspection]:
    topic = UnfinishedTopic(name="half", topic_id=1, step=step, reason=reason)
    return lambda found: _with_status(found, unfinished=[topic])


def _alone(found: Inspection) -> Inspection:
    group = dataclasses.replace(found.status.groups[0], nodes=found.status.groups[0].nodes[:1])
    node = dataclasses.replace(found.nodes[0], peers=[])
    return dataclasses.replace(_with_status(found, groups=[group]), nodes=[node])


def _producer(idle_ms: int, expires_ms: int) -> Callable[[Inspection], Inspection]:
    one = IdleProducer(name="p", queues=1, idle_ms=idle_ms, expires_ms=expires_ms)
    return lambda found: dataclasses.replace(found, producers=[one])


def _transaction(**fields: Any) -> Callable[[Inspection], Inspection]:
    one = TransactionInfo(transaction_id="t", **{"age_ms": STUCK_MS, "coordinator": 1, **fields})
    return lambda found: dataclasses.replace(found, transactions=[one])


def _controller(index: int, **fields: Any) -> Callable[[Inspection], Inspection]:
    def change(found: Inspection) -> Inspection:
        reports = list(found.controllers)
        reports[index] = dataclasses.replace(reports[index], **fields)
        return dataclasses.replace(found, controllers=reports)

    return change


def _racks(*racks: str) -> Callable[[Inspection], Inspection]:
    def change(found: Inspection) -> Inspection:
        [group] = found.status.groups
        nodes = [
            dataclasses.replace(node, rack=rack)
            for node, rack in zip(group.nodes, racks, strict=True)
        ]
        return _with_status(found, groups=[dataclasses.replace(group, nodes=nodes)])

    return change


def _elsewhere(rack: str, *racks: str) -> Callable[[Inspection], Inspection]:
    """With a second group, all of which is in `rack`."""

    def change(found: Inspection) -> Inspection:
        found = _racks(*racks)(found)
        [group] = found.status.groups
        other = dataclasses.replace(
            group, id=2, queues=4, nodes=[dataclasses.replace(group.nodes[0], rack=rack)]
        )
        master = dataclasses.replace(found.nodes[0], group=2, peers=[])
        found = dataclasses.replace(found, nodes=[*found.nodes, master, _node(9, group=2)])
        return _with_status(found, groups=[group, other])

    return change


def _certificate(left_s: int, subject: str = "broker 2") -> Callable[[Inspection], Inspection]:
    report = CertificateReport(subject=subject, left_s=left_s)
    return lambda found: dataclasses.replace(found, certificates=[report])


CASES: list[tuple[str, str, str, Callable[[Inspection], Inspection]]] = [
    ("error", "controller-unreachable", "controller c:2", _controller(1, reason="refused")),
    (
        *("note", "one-controller", "controller c:1"),
        lambda found: dataclasses.replace(found, controllers=found.controllers[:1]),
    ),
    ("error", "broker-unreachable", "broker 3", lambda found: _silent(found, 3)),
    (
        *("error", "no-master", "group 1"),
        lambda found: _with_node(found, 1, serving=False, role="candidate"),
    ),
    ("warning", "one-node-group", "group 1", _alone),
    ("warning", "level-behind", "broker 2", lambda found: _with_node(found, 2, level_max=5)),
    ("note", "level-not-raised", "group 1", lambda found: _with_node(found, 1, level=5)),
    ("note", "level-not-raised", "the metadata", _controller(0, level=5)),
    ("note", "rack-unknown", "group 1", _racks("a", "b", "")),
    ("warning", "rack-crowded", "group 1", _elsewhere("c", "a", "b", "b")),
    ("error", "queues-missing", "group 1", lambda found: _with_node(found, 1, queues=3)),
    (
        *("warning", "broker-lags", "broker 2"),
        lambda found: _with_node(found, 1, peers=[_peer(2, behind=5_000), _peer(3)]),
    ),
    (
        *("warning", "broker-lags", "broker 2"),
        lambda found: _with_node(found, 1, peers=[_peer(2, active=False), _peer(3)]),
    ),
    ("warning", "broker-muted", "broker 2", lambda found: _with_node(found, 2, non_counting=True)),
    ("note", "broker-drained", "broker 2", lambda found: _with_node(found, 2, electable=False)),
    ("note", "broker-waits", "broker 3", lambda found: _with_node(found, 3, role="joining")),
    ("note", "broker-removed", "broker 3", lambda found: _with_node(found, 3, role="removed")),
    ("warning", "entries-damaged", "broker 2", lambda found: _with_node(found, 2, damaged=1)),
    ("error", "entries-lost", "broker 2", lambda found: _with_node(found, 2, damaged=1, lost=1)),
    ("error", "disk-full", "broker 2", lambda found: _with_node(found, 2, disk_full=True)),
    (
        *("warning", "disk-nearly-full", "broker 2"),
        lambda found: _with_node(found, 2, disk_free_bytes=9),
    ),
    (
        *("error", "disk-nearly-full", "broker 2"),
        lambda found: _with_node(found, 2, disk_free_bytes=2),
    ),
    (
        *("warning", "memory-pulling", "broker 3"),
        lambda found: _with_node(
            _with_node(found, 3, memory_pulling=True, memory_bytes=5), 1, memory_bytes=9
        ),
    ),
    (
        *("error", "delayed-unreadable", "queue orders/3"),
        lambda found: _with_node(
            *(found, 1),
            stuck_delayed=[
                StuckDelayed(
                    topic_id=7,
                    topic="orders",
                    queue=3,
                    due_us=9,
                    messages=2,
                    behind=5,
                    reason="it is gone",
                )
            ],
        ),
    ),
    ("error", "tier-missing", "broker 2", lambda found: _with_node(found, 2, tiered_queues=3)),
    (
        *("error", "tier-unusable", "broker 2"),
        lambda found: _with_node(found, 2, tiered_queues=3, tier="s3://b/p"),
    ),
    (
        *("warning", "tier-late", "broker 1"),
        lambda found: _with_node(
            *(found, 1), tier="s3://b/p", tier_usable=True, tier_overdue_ms=3_600_001
        ),
    ),
    (
        *("warning", "replication-in-plaintext", "broker 2"),
        lambda found: _with_node(found, 2, replication_plaintext_within=("10.0.0.0/8",)),
    ),
    ("warning", "clock-skew", "broker 3", lambda found: _with_node(found, 3, clock_ms=-1_003.0)),
    ("warning", "version-skew", "broker 3", lambda found: _with_node(found, 3, version="0.9")),
    ("warning", "version-skew", "controller c:3", _controller(2, version="1.1")),
    ("error", "topic-unfinished", "topic half", _unfinished("group 2 has no master")),
    ("note", "topic-unfinished", "topic half", _unfinished("")),
    *(
        (severity, "queue-moving", "topic half", _unfinished(reason, "moving queue 3 to group 2"))
        for severity, reason in (("error", "group 2 has no master"), ("note", ""))
    ),
    (
        *("warning", "group-idle", "group g"),
        lambda found: dataclasses.replace(
            found,
            consumers=[GroupSummary(group="g", members=0, topics=["t"], lag=1, locks=0)],
        ),
    ),
    ("warning", "producer-expires", "producer p", _producer(6 * DAY_MS, DAY_MS)),
    ("warning", "producer-expires", "producer p", _producer(8 * DAY_MS, -DAY_MS)),
    (
        "warning",
        "transaction-stuck",
        "transaction t",
        _transaction(last_epoch=3, published=False, unpublished_on=[2]),
    ),
    (
        "warning",
        "transaction-stuck",
        "transaction t",
        _transaction(parts=[TransactionPart(2, "pinned", 3, 10, 100, 1)]),
    ),
    ("warning", "certificate-expires", "broker 2", _certificate(30 * 86_400 - 1)),
    ("error", "certificate-expired", "broker 2", _certificate(0)),
    (
        *("warning", "certificate-expires", "the clients' CA"),
        _certificate(86_400, "the clients' CA"),
    ),
    (
        *("note", "not-looked-at", "group 7"),
        lambda found: dataclasses.replace(found, unseen_groups=[7]),
    ),
    (
        *("note", "producers-not-all-looked-at", "group 7"),
        lambda found: dataclasses.replace(found, crowded_groups=[7]),
    ),
]


def test_a_whole_cluster_gives_no_finding() -> None:
    assert diagnose(_whole()) == []
    assert (masterless(_whole()), under_replicated(_whole())) == ([], [])


@pytest.mark.parametrize("heard", [True, False])
def test_a_group_with_a_silent_node_is_not_whole_though_its_master_has_just_heard_of_it(
    heard: bool,
) -> None:
    found = _with_node(_whole(), 3, reason="connection refused")
    master = found.master(1)
    assert master is not None
    master.peers[:] = [dataclasses.replace(peer, active=heard) for peer in master.peers]
    assert found.under_replicated(1) == ([3] if heard else [2, 3])
    assert under_replicated(found) == [1]


@pytest.mark.parametrize(
    ("severity", "check", "subject", "change"),
    CASES,
    ids=[f"{case[1]}-{place}" for place, case in enumerate(CASES)],
)
def test_each_trouble_is_found_and_nothing_else(
    severity: str, check: str, subject: str, change: Callable[[Inspection], Inspection]
) -> None:
    [finding] = diagnose(change(_whole()))
    assert (finding.severity, finding.check, finding.subject) == (severity, check, subject)
    assert finding.text
    assert finding.advice


@pytest.mark.parametrize(
    ("peer", "said", "advised"),
    [
        (_peer(2, behind=5_000), "is 5,000 entries behind the master", "its disk"),
        (_peer(2, behind=0, active=False), "the master of group 1 does not hear it", "network"),
        (_peer(2, behind=1, active=False), "does not hear it, and it is 1 entry behind", "network"),
        (_peer(2, behind=1, counts=False), "which does not count it yet", "wait until"),
    ],
)
def test_a_slave_that_the_master_does_not_hear_is_not_called_late(
    peer: PeerReport, said: str, advised: str
) -> None:
    [finding] = diagnose(_with_node(_whole(), 1, peers=[peer, _peer(3)]))
    assert (finding.check, finding.subject) == ("broker-lags", "broker 2")
    assert said in finding.text
    assert "0 entries" not in finding.text.replace("5,000 entries", "")
    assert advised in finding.advice


@pytest.mark.parametrize(
    "change",
    [
        _racks("a", "b", "c"),
        _racks("a", "b", "a"),
        _racks("a", "a", "a"),
        _elsewhere("b", "a", "b", "b"),
    ],
)
def test_racks_as_even_as_they_can_be_are_no_finding(
    change: Callable[[Inspection], Inspection],
) -> None:
    assert diagnose(change(_whole())) == []


def test_every_check_has_a_case_and_the_gravest_come_first() -> None:
    for check in CHECKS:
        found = [case for case in CASES if list(check(case[3](_whole())))]
        assert found, f"no case makes {check.__name__} find anything"
    worst = _with_node(_silent(_whole(), 3), 2, damaged=1, electable=False)
    worst = dataclasses.replace(worst, controllers=worst.controllers[:1])
    severities = [finding.severity for finding in diagnose(worst)]
    assert severities == sorted(severities, key=SEVERITIES.index)
    assert set(severities) == set(SEVERITIES)


def test_a_certificate_with_a_month_left_is_no_finding() -> None:
    assert diagnose(_certificate(30 * 86_400)(_whole())) == []


def test_each_ca_is_changed_in_its_own_way() -> None:
    advice = {
        subject: diagnose(_certificate(1, subject)(_whole()))[0].advice
        for subject in ("the CA", "the clients' CA", "the clients' CA of broker 2", "broker 2")
    }
    assert "in three steps" in advice["the CA"]
    assert "renew --logins" in advice["the clients' CA"]
    assert advice["the clients' CA of broker 2"] == advice["the clients' CA"]
    assert len(set(advice.values())) == 3


def test_the_clients_ca_is_one_subject_unless_nodes_differ() -> None:
    same = clients_cas({"controller c:1": 150, "broker 1": 150, "broker 2": 0}, now_s=50)
    assert [(one.subject, one.left_s) for one in same] == [("the clients' CA", 100)]
    differ = clients_cas({"controller c:1": 150, "broker 1": 90}, now_s=50)
    assert [(one.subject, one.left_s) for one in differ] == [
        ("the clients' CA of controller c:1", 100),
        ("the clients' CA of broker 1", 40),
    ]
    assert clients_cas({"broker 1": 0}, now_s=50) == []


def test_a_transaction_that_is_young_or_only_staged_is_not_stuck() -> None:
    young = _transaction(published=False, age_ms=STUCK_MS - 1)(_whole())
    assert diagnose(young) == []
    staged = _transaction(parts=[TransactionPart(2, "staged", 3, 10, 100, 1)])(_whole())
    assert diagnose(staged) == []


def test_a_clock_that_cannot_be_told_so_exactly_is_not_blamed() -> None:
    found = _with_node(_whole(), 3, clock_ms=5_000.0, clock_doubt_ms=4_500.0)
    assert diagnose(found) == []


def test_the_state_of_a_node_is_one_short_word_or_two() -> None:
    found = _whole()
    described = found.status.groups[0].nodes[1]
    assert state(described, found.nodes[1]) == "ok"
    assert state(described, _silent(found, 2).nodes[1]) == "no answer"
    gone = dataclasses.replace(described, alive=False, silent_ms=200_000)
    assert state(gone, _silent(found, 2).nodes[1]) == "for 3 min"
    worn = _with_node(found, 2, damaged=2, non_counting=True, disk_full=True).nodes[1]
    assert state(described, worn) == "disk full, 2 damaged, non-counting"
    assert under_replicated(_silent(found, 1)) == [1]
    assert masterless(_silent(found, 1)) == [1]
