"""How cost grows: curves of rate, latency, memory, snapshot and restart over what a cluster holds.

How it works. A curve is one thing that grows in a cluster of real processes (three brokers, one
controller, real disk): messages stored, queues, producers, consumers; or that a client chooses: the
size of messages, batches in flight, readers. At each point all figures are measured, `--rounds`
times, in turn with a small cluster beside it that has nothing of what grows. Printed are medians
with their spread, the complexity that the code promises, and whether the curve keeps it.

    rate       messages/s of 1 KiB in bulk to four queues, a snapshot in the midst; readers read for
               `--seconds` and count MB/s of all together
    latency    50th and 99th percentile of one awaited message while nothing else runs
    memory     resident, all nodes and the master
    snapshot   bytes and seconds of the master's, and how long nobody was served
    restart    SIGKILL of all nodes to the first message stored; once at a point with the log that
               has come since the broker wrote a snapshot by itself, then from fresh ones

    ./run bench growth
    ./run bench growth --curves messages,producers --points 3 --rounds 1 --scale 0.1
    ./run bench growth --figures rate,snapshot --json out.json --picture out.svg --check

Give it the machine alone; all of it takes about 15 minutes on two cores.

Not here: points and promises (`curves.py`), what grows (`growers.py`), what is measured
(`growth_points.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.commands import Help, check_files, guarded, some_of, strict_json
from benchmarks.curve_picture import draw
from benchmarks.curves import CURVES, FIGURES, Curve, judge, render
from benchmarks.growers import GROWERS, PRODUCER_QUEUES, SHAPES, Grower
from benchmarks.growth_points import LOAD_BYTES, Figures, Site, site
from benchmarks.harness import (
    Comparison,
    arguments,
    decimal,
    machine,
    number,
    progress,
    require_disk,
    temporary_directory,
)

FIXED_BYTES = 4 << 30
"""Preallocated segments of two clusters, and data that is not cleaned yet."""
STORED_BYTES = 3 * 20
"""Bytes of one small message on three nodes."""


class Measured(NamedTuple):
    """A curve with the measured points that were asked for."""

    curve: Curve
    points: tuple[int, ...]
    table: Comparison


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line; ends with one line when it is invalid."""
    parser = arguments(__doc__.partition("\nNot here")[0], rounds=3)
    parser.formatter_class = Help
    parser.add_argument(
        "--curves",
        type=some_of("curve", CURVES),
        default=[*CURVES],
        metavar="NAME,NAME",
        help=f"some of {', '.join(CURVES)}",
    )
    parser.add_argument(
        "--figures",
        type=some_of("figure", FIGURES),
        default=[*FIGURES],
        metavar="NAME,NAME",
        help=f"some of {', '.join(FIGURES)}",
    )
    parser.add_argument(
        "--points",
        type=number(2, 100),
        default=100,
        metavar="N",
        help="the N smallest points of each curve",
    )
    parser.add_argument(
        "--scale",
        type=decimal(0.0001, 10),
        default=1.0,
        help="factor on counts of messages of a figure; points stay as they are",
    )
    parser.add_argument(
        "--rows-each",
        type=int,
        choices=[each for each in range(1, PRODUCER_QUEUES + 1) if not PRODUCER_QUEUES % each],
        default=PRODUCER_QUEUES,
        help="queues to which each idle producer wrote; 1 makes a producer of every row, and takes "
        "minutes longer",
    )
    parser.add_argument("--picture", type=Path, default=None, help="draw curves to this .svg file")
    options = parser.parse_args(argv)
    check_files(parser, options)
    require_disk(parser, options.data, disk_bytes(options.curves, options.points, options.scale))
    return options


def disk_bytes(curves: Collection[str], points: int, scale: float) -> int:
    """Disk space that a run may need at most."""
    stored = max(CURVES["messages"].points[:points]) if "messages" in curves else 0
    loads = 2 * 3 * 4 * int(LOAD_BYTES * scale)  # two clusters, three nodes, not cleaned at once
    return FIXED_BYTES + loads + stored * STORED_BYTES


def measure(options: argparse.Namespace) -> dict[str, Measured]:
    """Measures all curves. Raises `commands.STOPS_THE_RUN`."""
    found: dict[str, Measured] = {}
    with temporary_directory(options.data) as data, site(data / "beside", options.scale) as beside:
        _warm_up(beside, options)
        for name in options.curves:
            curve = CURVES[name]
            points = curve.points[: options.points]
            rounds: dict[str, list[Mapping[str, float]]] = {}
            measured = (
                grown(name, points, beside, data / name, options)
                if name in GROWERS
                else shaped(name, points, beside, options)
            )
            for label, figures in measured:
                rounds.setdefault(label, []).append(figures)
            found[name] = Measured(curve, points, judge(curve, points, rounds))
    progress("")
    return found


def _warm_up(one: Site, options: argparse.Namespace) -> None:
    for turn in range(options.warm_ups):
        progress(f"  warm-up {turn + 1} of {options.warm_ups} …")
        one.hot(options.figures)


def grown(
    name: str, points: tuple[int, ...], beside: Site, data: Path, options: argparse.Namespace
) -> Iterator[tuple[str, Figures]]:
    """Measures a curve that grows in its own cluster, and the small cluster beside it."""
    curve = CURVES[name]
    with site(data, options.scale) as one, ExitStack() as held:
        _warm_up(one, options)
        grower = GROWERS[name](one, held, options.rows_each)
        for point in points:
            progress(f"  {name}: on the way to {curve.label(point)} …")
            rounds = _at_point(grower, curve, point, beside, options)
            if not grower.survives and point == points[-1]:
                held.close()
            if "restart" in options.figures and (grower.survives or point == points[-1]):
                for mine, _ in rounds:
                    progress(f"  {curve.label(point)}: restart …")
                    mine["restart_s"] = one.restart()
            for mine, other in rounds:
                yield curve.label(point), mine
                yield curve.label_beside(point), other


def _at_point(
    grower: Grower, curve: Curve, point: int, beside: Site, options: argparse.Namespace
) -> list[tuple[Figures, Figures]]:
    """Grows to a point and measures it; returns each round's figures of both clusters."""
    one, figures = grower.site, options.figures
    since = one.term()
    grower.reach(point)
    first: Figures = {"elections": one.term() - since}
    if "restart" in figures and grower.survives:
        first["replayed_restart_s"] = one.restart()
        _warm_up(one, options)  # the small cluster was not just started either
    rounds = []
    for turn in range(options.rounds):
        progress(f"  {curve.label(point)}: round {turn + 1} of {options.rounds} …")
        since = one.term()
        mine = one.hot(figures) | (grower.rates() if "rate" in figures else {})
        other = beside.hot(figures)
        mine |= one.weight(figures)
        mine["elections"] = one.term() - since
        rounds.append((mine, other))
    rounds[0][0]["elections"] += first.pop("elections")
    rounds[0][0].update(first)
    return rounds


def shaped(
    name: str, points: tuple[int, ...], one: Site, options: argparse.Namespace
) -> Iterator[tuple[str, Figures]]:
    """Measures a curve whose points can be measured in turn, on the small cluster."""
    curve = CURVES[name]
    for turn in range(options.rounds):
        for point in points:
            progress(f"  {curve.label(point)}: round {turn + 1} of {options.rounds} …")
            since = one.term()
            found = one.weight(options.figures)
            found |= SHAPES[name](one, point, options.figures, options.seconds)
            found["elections"] = one.term() - since
            if "restart" in options.figures and not turn:  # nothing has grown
                found["restart_s"] = one.restart()
            yield curve.label(point), found


def as_json(measured: Mapping[str, Measured], options: argparse.Namespace) -> str:
    """All figures, for machines; missing figures are null."""
    return strict_json(
        {
            "title": "Growth",
            "machine": machine(),
            "rounds": options.rounds,
            "scale": options.scale,
            "rows_each": options.rows_each,
            "curves": {
                name: {
                    **{key: part for key, part in table.as_json().items() if key != "machine"},
                    "points": {
                        point: {"contender": curve.label(point)}
                        | ({"beside": curve.label_beside(point)} if curve.beside else {})
                        for point in points
                    },
                    "complexity": curve.complexity,
                }
                for name, (curve, points, table) in measured.items()
            },
        }
    )


def publish(measured: Mapping[str, Measured], options: argparse.Namespace) -> int:
    """Prints, writes the files that were asked for, and returns the exit status."""
    for curve, _, table in measured.values():
        print(render(curve, table), flush=True)
    if options.json is not None:
        options.json.write_text(as_json(measured, options))
    if options.picture is not None:
        subtitle = (
            f"{options.rounds} rounds, scale {options.scale:g}; medians, and from the least to the "
            "most; grey: the small cluster beside; dotted: linear"
        )
        options.picture.write_text(draw("How cost grows", subtitle, [*measured.values()]))
    missed = any(not holds for each in measured.values() for _, _, holds in each.table.judged())
    return 1 if missed and options.check else 0


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    options = parse(argv)
    return guarded(lambda: publish(measure(options), options))


if __name__ == "__main__":
    sys.exit(main())
