"""The benchmark harness: figures, ratios, targets, refusals."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from benchmarks.harness import (
    Comparison,
    Contender,
    Target,
    arguments,
    compare,
    percentile,
    report,
    require_disk,
)


def scripted(name: str, values: list[float], log: list[str]) -> Contender:
    """A contender that gives the next value each time it is run."""
    left = iter(values)

    def run() -> dict[str, float]:
        log.append(name)
        return {"mb_s": next(left)}

    return Contender(name=name, run=run)


def comparison(targets: tuple[Target, ...] = ()) -> tuple[Comparison, list[str]]:
    log: list[str] = []
    contenders = [
        scripted("ours", [1000, 60, 90, 120], log),
        scripted("floor", [1, 100, 100, 200], log),
    ]
    return compare("test", contenders, rounds=3, warm_ups=1, targets=targets), log


def test_contenders_take_turns_and_warm_ups_do_not_count() -> None:
    found, log = comparison()
    assert log == ["ours", "floor"] * 4
    assert found.values("ours", "mb_s") == [60, 90, 120]


def test_medians_spread_and_ratios() -> None:
    found, _ = comparison()
    assert found.median("ours", "mb_s") == 90
    assert found.spread("ours", "mb_s") == pytest.approx(60 / 90)
    # 0.6, 0.9 and 0.6: of the same rounds, not of the medians (0.9).
    assert found.ratio("ours", "mb_s", "floor") == pytest.approx(0.6)
    assert math.isnan(found.median("ours", "other"))
    assert math.isnan(found.ratio("nobody", "mb_s", "floor"))


@pytest.mark.parametrize(
    ("target", "holds"),
    [
        (Target(contender="ours", metric="mb_s", at_least=0.6, of="floor"), True),
        (Target(contender="ours", metric="mb_s", at_least=0.61, of="floor"), False),
        (Target(contender="ours", metric="mb_s", at_most=90), True),
        (Target(contender="ours", metric="mb_s", at_most=89), False),
        (Target(contender="nobody", metric="mb_s", at_least=1), False),
        (Target(contender="nobody", metric="mb_s", at_most=1), False),
    ],
)
def test_a_target_is_judged_and_a_missing_figure_misses_it(
    target: Target, holds: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _ = comparison((target,))
    assert [each for _, _, each in found.judged()] == [holds]
    options = argparse.Namespace(json=tmp_path / "out.json", check=True)
    assert report(found, options) == (0 if holds else 1)
    assert ("kept" if holds else "MISSED") in capsys.readouterr().out
    written = json.loads(options.json.read_text())
    assert written["contenders"]["ours"]["mb_s"]["runs"] == [60, 90, 120]
    assert written["targets"][0]["holds"] is holds
    assert written["machine"]["cpus"] >= 1
    options.check = False
    assert report(found, options) == 0


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3, 1, 2], 50, 2), ([3, 1, 2], 99, 3), ([1, 2, 3, 4], 50, 2), ([5], 1, 5)],
)
def test_percentiles(values: list[int], percent: int, expected: int) -> None:
    assert percentile(values, percent) == expected


def test_no_values_have_no_percentile() -> None:
    assert math.isnan(percentile([], 50))


@pytest.mark.parametrize(
    ("arguments_given", "message"),
    [
        (["--rounds", "0"], "0 is not within 1 and 1,000"),
        (["--rounds", "two"], "'two' is not a whole number"),
        (["--seconds", "0"], "0 is not within 0.1 and 600"),
        (["--seconds", "long"], "'long' is not a number"),
        (["--minutes", "1"], "unrecognized arguments"),
    ],
)
def test_impossible_parameters_are_one_clear_line(
    arguments_given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments("test").parse_args(arguments_given)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_disk_that_is_too_small_or_missing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = arguments("test")
    require_disk(parser, tmp_path, 1)
    with pytest.raises(SystemExit):
        require_disk(parser, tmp_path, 1 << 62)
    assert "MiB free" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        require_disk(parser, tmp_path / "missing", 1)
    assert "is not a directory" in capsys.readouterr().err
