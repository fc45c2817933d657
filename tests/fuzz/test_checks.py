"""Each check at the end of an assault notices the fault that it is for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fuzz.careless_node import make_careless
from tests.fuzz.facts import GUARDED, OPEN, differences
from tests.fuzz.liar import Tally
from tests.fuzz.messages import FILES, calls_of
from tests.fuzz.siege import Siege
from tests.fuzz.strangers import Strangers, is_plain_answer
from tests.fuzz.witness import grown, problems_of, resident
from tests.kit.cluster import Cluster
from tests.kit.declared_calls import METHODS, path_of
from tests.kit.ruled_cluster import METRICS, RuledCluster


def test_a_poisoned_topic_an_error_a_dead_node_and_its_memory_are_noticed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, brokers=1, broker_flags=METRICS)
    make_careless(cluster, "columns", "errors")
    with cluster:
        # So many that each of some hundred calls is surely made, `WhoAmI` as well.
        report = Siege(cluster, seed=1, growth_bytes_max=0).plain(2_000)
        found = "\n".join(report.found)
        assert "topic victim cannot be read: CorruptBatch" in found
        assert "AssertionError: planted" in found, "in a log"
        assert "WhoAmI: " in found, "in an answer"
        assert "MiB more" in found
        before = resident(cluster)
        assert grown(cluster, before, 1 << 30) == []
        cluster.kill(cluster.brokers[0])
        assert "broker 1 has ended" in problems_of(cluster)


def test_effects_and_answers_of_those_who_may_not_have_them_are_noticed(tmp_path: Path) -> None:
    cluster = RuledCluster(tmp_path, brokers=1)
    make_careless(cluster, "rights", "passwords", "pages")
    with cluster:
        siege = Siege(cluster, seed=1)
        found = "\n".join(siege.ruled(800).found)
        assert "a stranger has logged in" in found
        assert "LogIn lets a stranger in" in found
        changed = [line for line in found.splitlines() if " became " in line]
        assert any(line.startswith(("topic", "rules:", "users:")) for line in changed)
        tally = Tally()
        asyncio.run(Strangers(cluster, 2, {GUARDED: 1, OPEN: 2}, tally).run(2_500))
        assert any("answers a stranger" in bug for bug in tally.bugs)


def test_a_port_that_speaks_without_tls_is_told_from_a_refusal() -> None:
    assert is_plain_answer(bytes.fromhex("00000c0400000000000003"))
    assert is_plain_answer(b"HTTP/1.0 200 OK\r\n")
    assert not is_plain_answer(b"HTTP/1.0 400 Bad Request\r\n")
    assert not is_plain_answer(bytes.fromhex("15030300020246"))
    assert not is_plain_answer(b"")


def test_every_call_of_every_service_is_made() -> None:
    made = {call.path for files in FILES.values() for call in calls_of(files)}
    assert made == {path_of(method) for method in METHODS}


def test_what_somebody_may_have_done_is_no_difference() -> None:
    before = {"consumer groups": ["a"], "members": {1: [(1, "x")]}}
    after = {"consumer groups": ["a", "few-group"], "members": {1: [(1, "x")]}}
    assert differences(before, after, own="few-") == []
    after = {"consumer groups": ["a", "b"], "members": {1: [(1, "y")]}}
    assert differences(before, after, own="few-") == [
        "consumer groups: ['a'] became ['a', 'b']",
        "members: 1: [(1, 'x')] became [(1, 'y')]",
    ]
