"""The benchmark of the Kafka gateway: its command line, its targets and its gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import kafka_gateway
from benchmarks.kafka_load import longest_gap


def test_a_peer_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        kafka_gateway.main(["--peer", "/nowhere/peer_kafka.py"])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("--peer /nowhere/peer_kafka.py: there is no such file")


def test_every_target_is_of_a_figure(tmp_path: Path) -> None:
    for target in kafka_gateway.TARGETS:
        assert any(target.metric.startswith(name) for name in kafka_gateway.FIGURES), target
    script = tmp_path / "peer.py"
    script.touch()
    options = kafka_gateway.parse(["--peer", str(script), "--only", "consume,java_1k"])
    assert options.only == ["java_1k", "consume"]


def test_the_longest_gap_is_between_neighbours_in_time() -> None:
    assert longest_gap([1.0, 4.0, 2.0, 4.5]) == 2.0
