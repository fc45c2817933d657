"""Real nodes under bad requests, for some seconds; `./run soak fuzz` goes on for longer."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.callers import FEW, MIGHTY
from tests.fuzz.siege import Siege
from tests.kit.cluster import Cluster
from tests.kit.ruled_cluster import METRICS, RuledCluster

INPUTS = 2_000


def test_nodes_serve_others_whatever_comes_in(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1, broker_flags=METRICS) as cluster:
        report = Siege(cluster, seed=1).plain(INPUTS)
        assert report.found == []
        assert report.inputs >= INPUTS
        assert report.tally.stored > INPUTS // 100


def test_strangers_and_those_without_rights_bring_nothing_about(tmp_path: Path) -> None:
    with RuledCluster(tmp_path, brokers=1) as cluster:
        report = Siege(cluster, seed=1).ruled(INPUTS // 2)
        assert report.found == []
        assert report.denials > 0
        assert report.tally.stored > 0
        for name in ("stranger login", "stranger tls", f"{FEW} call", f"{MIGHTY} lie"):
            assert report.tally.sent[name] > 0, name
