"""Side by side: figures by workload, goals, ratios, the picture, refusals."""

from __future__ import annotations

import json
import math
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from benchmarks import side_by_side
from benchmarks.commands import guarded
from benchmarks.figures import WORKLOADS, Cell, Figures, by_workload, flat
from benchmarks.goals import GOALS, Ratio, ratios, set_targets
from benchmarks.harness import Comparison, Contender, compare
from benchmarks.picture import bars, draw
from benchmarks.raw_floors import FILE_BYTES, copies, rate, synced_writes, write_pages
from benchmarks.workloads import LEAST, PRODUCED, WAYS, ClientError, disk_bytes, medians, scaled

KAFKA = "kafka 4.3.1"


def contender(name: str, rounds: list[Figures]) -> Contender:
    left = iter(rounds)
    return Contender(name=name, run=flat(lambda: next(left)))


def tables() -> dict[str, Comparison]:
    """Two rounds in which Semel has 6 and 4 times the rate, and half the latency and worse."""
    mine: list[Figures] = [
        {
            Cell("semel", "W1", "send_many, list"): {"msg_s": 600, "rss_mib": 40},
            Cell("semel", "W3", "sync"): {"p50_ms": 1},
        },
        {
            Cell("semel", "W1", "send_many, list"): {"msg_s": 400, "rss_mib": 60},
            Cell("semel", "W3", "sync"): {"p50_ms": 4},
        },
    ]
    theirs: list[Figures] = [
        {
            Cell(KAFKA, "W1", "java"): {"msg_s": 500},
            Cell(KAFKA, "W1", "java tuned"): {"msg_s": 100, "rss_mib": 100},
            Cell(KAFKA, "W3", "python"): {"p50_ms": 2},
        }
    ] * 2
    floor: list[Figures] = [
        {
            Cell("floor", "W1", "prototype"): {"msg_s": 100},
            Cell("floor", "W1", "memcpy"): {"msg_s": 9_000},
        }
    ] * 2
    everything = compare(
        "test",
        [contender("peer", theirs), contender("semel", mine), contender("floor", floor)],
        rounds=2,
        warm_ups=0,
    )
    found = by_workload(everything)
    for workload, table in found.items():
        set_targets(workload, table)
    return found


def test_rounds_become_a_comparison_for_each_workload() -> None:
    found = tables()
    assert list(found) == ["W1", "W3"]
    assert found["W1"].values("semel: send_many, list", "msg_s") == [600, 400]
    assert found["W1"].values(f"{KAFKA}: java tuned", "rss_mib") == [100, 100]
    assert [*found["W3"].rounds] == [f"{KAFKA}: python", "semel: sync"]


def test_goals_are_judged_by_their_variant_where_the_peer_was_measured() -> None:
    found = tables()
    judged = {
        target.describe(): (value, holds)
        for table in found.values()
        for target, value, holds in table.judged()
    }
    assert judged == {
        f"semel: send_many, list msg_s ≥ 4 × {KAFKA}: java tuned msg_s": (5, True),
        f"semel: send_many, list rss_mib ≤ 0.25 × {KAFKA}: java tuned rss_mib": (0.5, False),
        f"semel: sync p50_ms ≤ 1.2 × {KAFKA}: python p50_ms": (1.25, False),
    }


def test_without_the_peer_of_a_goal_nothing_is_promised() -> None:
    table = tables()["W1"]
    del table.rounds[f"{KAFKA}: java tuned"]
    set_targets("W1", table)
    assert table.targets == []


def test_ratios_are_to_the_goals_variant_else_to_the_peers_best_and_to_the_prototype() -> None:
    table = tables()["W1"]
    found = {(each.of, each.metric): each for each in ratios("W1", table)}
    assert found.keys() == {
        (f"{KAFKA}: java tuned", "msg_s"),
        (f"{KAFKA}: java tuned", "rss_mib"),
        ("floor: prototype", "msg_s"),
    }
    assert found[f"{KAFKA}: java tuned", "msg_s"].times == (6, 4)
    table.targets = []
    best = [each.of for each in ratios("W1", table) if each.metric == "msg_s"]
    assert best == [f"{KAFKA}: java", "floor: prototype"]


def test_better_means_more_messages_and_less_of_anything_else() -> None:
    one: dict[str, Any] = {
        "workload": "W",
        "contender": "semel",
        "of": "other",
        "times": (0.5, 0.25, 2.0),
    }
    assert Ratio(metric="msg_s", **one).better == (0.5, 0.25, 2.0)
    assert Ratio(metric="p99_ms", **one).better == (2.0, 0.5, 4.0)


def test_every_goal_names_a_workload_and_a_variant_that_exist() -> None:
    named = {(goal.workload, goal.variant) for goal in GOALS}
    assert {workload for workload, _ in named} == {*WORKLOADS}
    assert {variant for workload, variant in named if workload == "W1"} == {*WAYS.values()}
    assert all((goal.at_least is None) != (goal.at_most is None) for goal in GOALS)


def test_what_is_published_is_strict_json_and_a_picture_with_every_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, options = side_by_side.parse(
        [
            *("--json", str(tmp_path / "out.json"), "--picture", str(tmp_path / "out.svg")),
            *("--workloads", "W3", "--scale", "0.001", "--data", str(tmp_path), "--check"),
        ]
    )
    found = tables()
    mine: list[Any] = found["W3"].rounds["semel: sync"]
    mine[0]["failed"] = mine[1]["failed"] = 0  # spread of nothing but 0 does not exist
    assert side_by_side.publish(found, options) == 1
    printed = capsys.readouterr().out
    assert "MISSED semel: sync p50_ms" in printed
    assert "kept   semel: send_many, list msg_s" in printed

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    written = json.loads(options.json.read_text(), parse_constant=refuse)
    one = written["workloads"]["W1"]
    assert one["contenders"]["semel: send_many, list"]["msg_s"]["runs"] == [600, 400]
    assert [ratio["median"] for ratio in one["ratios"] if "java" in ratio["of"]] == [5, 0.5]
    assert written["workloads"]["W3"]["contenders"]["semel: sync"]["failed"]["spread"] is None
    texts = [text.text for text in ElementTree.fromstring(options.picture.read_text()).iter()]
    assert f"semel: sync / {KAFKA}: python: p50" in texts
    assert "5.00 × better" in texts
    options.check = False
    assert side_by_side.publish(found, options) == 0


def test_bars_go_right_for_better_and_left_for_worse_and_names_are_escaped() -> None:
    ratio = {"workload": "W1", "metric": "msg_s", "of": "a<b>&c"}
    groups = [
        ("empty", []),
        (
            "W1",
            [
                Ratio(contender="fast", times=(4.0, 4.0, 8.0), **ratio),
                Ratio(contender="slow", times=(0.25, 0.25, 0.25), **ratio),
            ],
        ),
    ]
    (axes,) = bars("title", "subtitle", groups).axes
    fast, slow = [
        (bar.get_x(), bar.get_x() + bar.get_width())
        for bar in axes.patches
        if isinstance(bar, Rectangle)
    ]
    assert fast == (1, 4)
    assert (max(slow), min(slow)) == (1, 0.25)
    assert [np.asarray(line.get_xdata()).tolist() for line in axes.lines[1:]] == [
        [4, 8],
        [0.25, 0.25],
    ]
    texts = [each.text for each in ElementTree.fromstring(draw("title", "sub", groups)).iter()]
    assert "fast / a<b>&c: messages/s" in texts
    assert "empty" not in texts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--workloads", "W1,W9"], "there is no workload 'W9'; there are W1, W2, W2b"),
        (["--workloads", ""], "there is no workload ''"),
        (["--scale", "0"], "0 is not within 0.0001 and 100"),
        (["--rounds", "0"], "0 is not within 1 and 1,000"),
        (["--durability", "none"], "invalid choice: 'none'"),
        (["--peer-silence", "0"], "0 is not within 0.1 and 86400"),
        (["--picture", "out.png"], "pictures are SVG"),
        (["--json", "/no/such/out.json"], "/no/such is no directory that can be written to"),
        (["--data", "/no/such"], "--data /no/such is not a directory"),
    ],
)
def test_the_impossible_is_refused_at_once_with_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        side_by_side.parse(given)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_disk_that_is_too_small_is_refused_and_a_peer_needs_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        side_by_side, "require_disk", lambda parser, place, need: asked.append(need)
    )
    side_by_side.parse(["--workloads", "W1", "--scale", "1"])
    side_by_side.parse(["--workloads", "W1", "--scale", "1", "--peer", "python3 peer.py"])
    monkeypatch.undo()
    assert 6e9 < asked[0] < asked[1]
    with pytest.raises(SystemExit):
        side_by_side.parse(["--scale", "100", "--data", str(tmp_path)])
    assert "MiB free and this run may need" in capsys.readouterr().err.splitlines()[-1]


def test_a_peer_that_is_not_there_ends_the_command_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = side_by_side.main(
        ["--peer", f"{sys.executable} /no/peer.py", "--scale", "0.0001", "--data", str(tmp_path)]
    )
    assert status == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: --peer")
    assert line.endswith("there is no file /no/peer.py")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ClientError("the client of produce failed: x"), "the client of produce failed: x"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (RuntimeError("broker 1 did not start\nits log"), "broker 1 did not start"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_what_goes_wrong_outside_is_one_line(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> int:
        raise error

    assert guarded(run) == 1
    assert capsys.readouterr().err.strip() == f"error: {line}"


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        side_by_side.parse(["--help"])
    assert caught.value.code == 0
    assert (
        "./run bench side_by_side --peer 'python3 peers/peer_kafka.py'" in capsys.readouterr().out
    )


def test_sizes_scale_down_to_a_least_and_the_disk_counts_every_variant() -> None:
    assert scaled("W1", 0.5) == PRODUCED["W1"][0] // 2
    assert scaled("W1", 1e-9) == LEAST
    only = disk_bytes(["W3"], 1.0) - (1 << 30)
    both = disk_bytes(["W3", "W1"], 1.0) - (1 << 30)
    assert only == pytest.approx(6e6 * 100 * 3 * 1.25)  # the warm-up
    assert both - only == pytest.approx(3 * 6e6 * 100 * 3 * 1.25)
    assert medians([{"a": 1}, {"a": 9}, {"a": 2}]) == {"a": 2}


def test_raw_floors_speak_in_messages_of_the_workload(tmp_path: Path) -> None:
    figures = rate(100.0, seconds=2.0, cpu_s=1.0, size=1_000)
    assert figures["msg_s"] == pytest.approx(100_000)
    assert figures["cpu_s_per_million"] == pytest.approx(5.0)
    pages = write_pages(tmp_path / "pages")
    assert pages.stat().st_size == FILE_BYTES
    assert all(taken > 0 for taken in synced_writes(pages, 1 << 10, 0.01))
    assert pages.stat().st_size == FILE_BYTES
    assert pages.read_bytes()[: 1 << 10] != bytes(1 << 10)
    done, seconds = copies(64 << 10, 0.01)
    assert done >= FILE_BYTES // (64 << 10)
    assert math.isfinite(done / seconds)
