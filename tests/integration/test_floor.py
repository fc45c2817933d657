"""The floor really moves and stores bytes on three nodes, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from benchmarks.floor import Floor


def test_floor_figures_and_clean_end(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with Floor(tmp_path) as floor:
        assert len(set(psutil.Process().children()) - before) == 3
        assert floor.append(64 << 10, 0.2)["mb_s"] > 1
        assert 0 < floor.round_trip(1 << 10, 0.2)["p50_ms"] < 1_000
        paced = floor.paced(1 << 10, 0.2, rate=500)
        assert paced["messages"] == 100
        assert 0 < paced["p50_ms"] <= paced["p99_ms"]
        read = floor.paced_and_read(1 << 10, 0.2, rate=500)
        assert read["messages"] == 100
        assert 0 < read["tail_p50_ms"] <= read["tail_p99_ms"] < 10_000
        assert floor.read(256 << 10, 0.2)["mb_s"] > 1
        for name in ("master", "slave-1", "slave-2"):
            log = tmp_path / name / "floor.log"
            assert log.read_bytes()[: 64 << 10] != bytes(64 << 10)
            assert log.stat().st_size == 64 << 20
    assert set(psutil.Process().children()) <= before


def test_a_floor_that_cannot_start_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slave-1").mkdir()
    with pytest.raises(FileExistsError), Floor(tmp_path):
        pass
    assert not capfd.readouterr().out
