"""Growth: points, promises and their verdicts, the table, the picture, refusals."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.lines import Line2D

from benchmarks import growth
from benchmarks.curve_picture import BESIDE, draw, lines, panels
from benchmarks.curves import CURVES, EACH, FIGURES, HEADS, Curve, Promise, judge, render
from benchmarks.drawing import BETTER
from benchmarks.growers import GROWERS, PRODUCER_QUEUES, SHAPES
from benchmarks.growth_points import figures_of
from benchmarks.harness import Comparison
from semel.broker.config import BrokerConfig

CURVE = Curve(
    title="things of a kind",
    unit="things",
    points=(1, 10, 1_000),
    complexity=("rate: as it was",),
    promises=(
        Promise(metric="msg_s", at_least=0.95, of="beside"),
        Promise(metric="p99_ms", at_most=2, of="first"),
        Promise(metric="msg_s", at_least=0.5, of=10),
        Promise(metric="elections", at_most=0),
        Promise(metric="snapshot_bytes_each", at_most=100),
    ),
)
Rounds = dict[str, list[Mapping[str, float]]]


def rounds(*, each: float = 50, slower: float = 1.0, elections: float = 0) -> Rounds:
    """Three points, two rounds of each; the machine is half as fast in the second one."""
    found: Rounds = {}
    for point in CURVE.points:
        for speed in (1.0, 0.5):
            found.setdefault(CURVE.label(point), []).append(
                {
                    "msg_s": 1_000 * speed / slower,
                    "p99_ms": 3.0,
                    "snapshot_bytes": 7_000 + each * point,
                    "elections": elections,
                }
            )
            found.setdefault(CURVE.label_beside(point), []).append({"msg_s": 1_000 * speed})
    return found


def verdicts(table: Comparison) -> dict[str, bool]:
    return {target.describe(): holds for target, _, holds in table.judged()}


def test_a_curve_that_keeps_its_promises_is_kept_however_the_machine_drifts() -> None:
    found = verdicts(judge(CURVE, CURVE.points, rounds()))
    assert found == {
        "1,000 things msg_s ≥ 0.95 × 1,000 things: beside msg_s": True,
        "1,000 things p99_ms ≤ 2 × 1 things p99_ms": True,
        "1,000 things msg_s ≥ 0.5 × 10 things msg_s": True,
        "1,000 things elections ≤ 0": True,
        "1,000 things snapshot_bytes_each ≤ 100": True,
    }


@pytest.mark.parametrize(
    ("worse", "missed"),
    [
        ({"slower": 1.06}, "1,000 things msg_s ≥ 0.95 × 1,000 things: beside msg_s"),
        ({"each": 100.1}, "1,000 things snapshot_bytes_each ≤ 100"),
        ({"elections": 1}, "1,000 things elections ≤ 0"),
    ],
)
def test_each_promise_that_is_broken_is_missed_alone(worse: dict[str, float], missed: str) -> None:
    found = verdicts(judge(CURVE, CURVE.points, rounds(**worse)))
    assert [text for text, holds in found.items() if not holds] == [missed]


def test_what_one_more_costs_is_the_growth_without_what_was_there_before() -> None:
    table = judge(CURVE, CURVE.points, rounds(each=68))
    assert table.values("1,000 things", "snapshot_bytes_each") == pytest.approx([68, 68])
    assert table.values("10 things", "snapshot_bytes_each") == []


def test_a_point_that_was_not_measured_is_compared_with_by_nobody() -> None:
    some = rounds()
    del some["10 things"]
    assert not [text for text in verdicts(judge(CURVE, (1, 1_000), some)) if "10 things" in text]
    # Nor is the largest point compared with itself.
    found = verdicts(judge(CURVE, (1, 10), rounds()))
    assert "10 things msg_s ≥ 0.5 × 10 things msg_s" not in found
    assert "10 things msg_s ≥ 0.95 × 10 things: beside msg_s" in found


def test_a_figure_that_nobody_asked_for_promises_nothing_and_a_missing_one_is_missed() -> None:
    without: Rounds = {
        label: [{k: v for k, v in each.items() if k != "p99_ms"} for each in some]
        for label, some in rounds().items()
    }
    assert not [text for text in verdicts(judge(CURVE, CURVE.points, without)) if "p99" in text]
    lost = rounds()
    lost["1,000 things"] = [{"msg_s": 1_000.0, "elections": 0} for _ in range(2)]
    table = judge(CURVE, CURVE.points, lost)
    assert not verdicts(table)["1,000 things snapshot_bytes_each ≤ 100"]
    assert not verdicts(table)["1,000 things p99_ms ≤ 2 × 1 things p99_ms"]


def test_a_figure_of_the_first_round_alone_counts() -> None:
    some = rounds()
    first, second = some["1,000 things"]
    some["1,000 things"] = [{**first, "replayed_restart_s": 4.0}, second]
    curve = replace(CURVE, promises=(Promise(metric="replayed_restart_s", at_most=3.9),))
    ((_, value, holds),) = judge(curve, CURVE.points, some).judged()
    assert (value, holds) == (4.0, False)


def test_the_table_has_a_line_a_point_the_promise_in_words_and_the_verdicts() -> None:
    text = render(CURVE, judge(CURVE, CURVE.points, rounds(slower=2)))
    head, first, *_ = text.splitlines()[1:]
    assert first.split() == ["1", "things", "375.00", "±67%", "3.00", "±0%", "7,050", "±0%"]
    assert [name for name in HEADS.values() if name in head] == [
        "messages/s",
        "awaited, p99 ms",
        "snapshot, bytes",
    ]
    assert "  promised: rate: as it was" in text.splitlines()
    assert "  MISSED 1,000 things msg_s ≥ 0.95 × 1,000 things: beside msg_s: 0.5" in text
    assert "  kept   1,000 things snapshot_bytes_each ≤ 100: 50" in text


@pytest.mark.parametrize("name", CURVES)
def test_every_curve_can_be_measured_and_its_promises_are_about_figures_that_exist(
    name: str,
) -> None:
    curve = CURVES[name]
    assert list(curve.points) == sorted(set(curve.points))
    assert len(curve.points) >= 4
    assert (name in GROWERS) == curve.beside != (name in SHAPES)
    known = {metric for some in FIGURES.values() for metric in some} | {"elections"}
    assert known >= HEADS.keys()
    assert curve.complexity
    for promise in curve.promises:
        assert EACH.get(promise.metric, (promise.metric, 1))[0] in known
        assert (promise.at_least is None) != (promise.at_most is None)
        assert promise.of not in ("beside",) or curve.beside
        assert isinstance(promise.of, str) or promise.of in curve.points


def test_no_queue_has_more_producers_than_it_remembers() -> None:
    fields = BrokerConfig.__dataclass_fields__
    largest = CURVES["producers"].points[-1]
    remembered: Any = fields["producers_per_queue_max"].default
    assert largest / PRODUCER_QUEUES <= remembered


def test_a_line_is_drawn_through_the_medians_and_the_small_cluster_in_grey() -> None:
    table = judge(CURVE, CURVE.points, rounds(each=10))
    mine, beside = lines(CURVE, CURVE.points, table, "msg_s")
    assert mine.x == beside.x == [1, 10, 1_000]
    assert mine.y == [(750, 500, 1_000)] * 3
    assert (mine.colour, beside.colour) == (BETTER, BESIDE)
    assert lines(CURVE, CURVE.points, table, "restart_s") == []


def values(line: Line2D) -> list[list[float]]:
    """The x and the y of a line that is drawn."""
    found: list[list[float]] = np.asarray(line.get_data(), dtype=float).tolist()
    return found


def test_the_picture_is_flat_for_what_does_not_grow_and_climbs_for_what_does() -> None:
    table = judge(CURVE, CURVE.points, rounds(each=700_000))
    shown = [(CURVE, CURVE.points, table)]
    rate, latency, snapshot = (
        next(values(line)[1] for line in axes.lines if line.get_color() == BETTER)
        for axes in panels("a <b>", "subtitle", shown).axes
    )
    for flat in (rate, latency):
        assert len({*flat}) == 1
    small, middle, large = snapshot
    assert small < middle < large
    # Two decades between the last two points, one between the first two.
    assert math.log(large / middle) == pytest.approx(2 * math.log(middle / small), rel=0.05)
    for axes in panels("a <b>", "subtitle", shown).axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        (x1, x2), (y1, y2) = values(axes.lines[0])
        assert x2 / x1 == pytest.approx(y2 / y1), "what is linear rises as steeply"
    texts = [each.text for each in ElementTree.fromstring(draw("a <b>", "subtitle", shown)).iter()]
    assert {"a <b>", "things of a kind", "messages/s", "snapshot, bytes"} <= {*texts}
    assert "restart, s" not in texts


def test_figures_of_zero_are_not_drawn() -> None:
    some: Rounds = {CURVE.label(point): [{"rss_mib": 0.0}] for point in CURVE.points}
    table = Comparison(title="t", rounds={**some})
    assert lines(CURVE, CURVE.points, table, "rss_mib") == []
    assert panels("t", "s", [(CURVE, CURVE.points, table)]).axes == []


def test_metrics_are_taken_from_a_page_by_name_and_label() -> None:
    page = (
        "# HELP semel_a_bytes So many.\n"
        'semel_a_bytes{node="1"} 12.0\n'
        'semel_a_seconds_bucket{le="0.5",node="1"} 3.0\n'
        'semel_a_seconds_sum{node="1"} 1.5e-05\n'
        'semel_b{node="1",topic="x"} 7.0\n'
        'semel_b{node="1",topic="x} "} 8.0\n'
        "process_open_fds 3.0\n"
    )
    assert figures_of(page, "semel_a_") == {"bytes": 12, "seconds_sum": 1.5e-05}
    assert figures_of(page, "semel_b", topic="x") == {"": 7}
    assert figures_of(page, "process_") == {}


def measured(**worse: float) -> dict[str, growth.Measured]:
    table = judge(CURVE, CURVE.points, rounds(**worse))
    return {"things": growth.Measured(CURVE, CURVE.points, table)}


def test_what_is_published_is_strict_json_a_picture_and_an_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = growth.parse(
        [
            *("--json", str(tmp_path / "out.json"), "--picture", str(tmp_path / "out.svg")),
            *("--curves", "sizes", "--data", str(tmp_path), "--scale", "0.0001", "--check"),
        ]
    )
    assert growth.publish(measured(), options) == 0
    assert "kept   1,000 things elections" in capsys.readouterr().out

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    written = json.loads(options.json.read_text(), parse_constant=refuse)
    curve = written["curves"]["things"]
    assert [*curve["points"]] == ["1", "10", "1000"]
    mine = curve["contenders"][curve["points"]["1000"]["contender"]]
    beside = curve["contenders"][curve["points"]["1000"]["beside"]]
    assert mine["msg_s"]["runs"] == beside["msg_s"]["runs"] == [1_000, 500]
    assert mine["elections"]["spread"] is None
    assert curve["complexity"] == ["rate: as it was"]
    assert all(target["holds"] for target in curve["targets"])
    assert "<svg" in options.picture.read_text()
    assert growth.publish(measured(slower=2), options) == 1
    options.check = False
    assert growth.publish(measured(slower=2), options) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--curves", "messages,wishes"], "there is no curve 'wishes'; there are messages, queues"),
        (["--curves", ""], "there is no curve ''"),
        (["--figures", "beauty"], "there is no figure 'beauty'; there are rate, latency"),
        (["--points", "1"], "1 is not within 2 and 100"),
        (["--rows-each", "3"], "invalid choice: 3 (choose from 1, 2, 4, 8, 16)"),
        (["--scale", "0"], "0 is not within 0.0001 and 10"),
        (["--rounds", "0"], "0 is not within 1 and 1,000"),
        (["--seconds", "never"], "'never' is not a number"),
        (["--picture", "out.png"], "pictures are SVG"),
        (["--json", "/no/such/out.json"], "/no/such is no directory that can be written to"),
        (["--data", "/no/such"], "--data /no/such is not a directory"),
    ],
)
def test_the_impossible_is_refused_at_once_with_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        growth.parse(given)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_names_are_taken_in_their_own_order_and_help_has_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--curves", "readers, messages", "--data", str(tmp_path), "--points", "2"]
    assert growth.parse(given).curves == ["messages", "readers"]
    with pytest.raises(SystemExit) as caught:
        growth.parse(["--help"])
    assert caught.value.code == 0
    assert "./run bench growth --curves messages,producers" in capsys.readouterr().out


def test_the_disk_must_hold_the_largest_point_that_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    least = growth.disk_bytes(["sizes"], 2, 0.001)
    some = growth.disk_bytes([*CURVES], 2, 0.001)
    most = growth.disk_bytes([*CURVES], 100, 0.001)
    assert least < some < most
    assert most - some == (10**8 - 10**5) * growth.STORED_BYTES
    assert growth.disk_bytes(["sizes"], 2, 1.0) > least
    free = least - 1
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Room", (), {"free": free}))
    with pytest.raises(SystemExit):
        growth.parse(["--curves", "sizes", "--scale", "0.001", "--data", str(tmp_path)])
    assert "MiB free and this run may need" in capsys.readouterr().err.splitlines()[-1]
