"""The recorded figures of long runs, and the pictures of them in the documents.

How it works. `recorded.json` holds figures that benchmarks gave once, each part with the day, the
commands and the source of its figures. This program draws docs/pictures from them:

    ./run bench recorded                     docs/pictures, anew
    ./run bench recorded --directory DIR     the same pictures elsewhere

`beside.svg` is the README's: at most `BARS_MAX` ratios that a stranger reads in ten seconds.
`side-by-side.svg` and `growth.svg` are whole runs of `side_by_side` and `growth`. After a new run
that is to be kept, change `recorded.json` and docs/performance.md together, then draw.

Not here: measuring (`side_by_side.py`, `growth.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from benchmarks import curve_picture, picture
from benchmarks.curves import CURVES, Curve
from benchmarks.drawing import BETTER, WORSE, style, svg, times_axis
from benchmarks.goals import Ratio
from benchmarks.harness import Comparison

FIGURES: Final = Path(__file__).with_suffix(".json")
PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
BARS_MAX: Final = 10
TITLE: Final = "Semel beside Kafka: how many times better it is"


def recorded() -> dict[str, Any]:
    """The parts of `recorded.json` by their names."""
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def drawn() -> dict[str, str]:
    """All pictures by their file names, as SVG documents."""
    parts = recorded()
    with style():
        beside = svg(short(parts["beside"]))
    whole, growth = parts["side_by_side"], parts["growth"]
    return {
        "beside.svg": beside,
        "side-by-side.svg": picture.draw("Semel beside others", _subtitle(whole), _groups(whole)),
        "growth.svg": curve_picture.draw("How cost grows", _subtitle(growth), _curves(growth)),
    }


def short(part: Mapping[str, Any]) -> Figure:
    """The README's picture: for each ratio its name, a bar, the factor, and both figures."""
    bars: Sequence[Mapping[str, Any]] = part["bars"]
    assert len(bars) <= BARS_MAX, "a stranger reads no more in ten seconds"
    figure = Figure(figsize=(10.5, 0.36 * len(bars) + 1.45))
    height = figure.get_figheight()
    figure.text(
        0.015, 1 - 0.28 / height, "Semel beside Kafka: how many times better it is", size=15
    )
    figure.text(0.015, 1 - 0.55 / height, part["subtitle"], size=9.5)
    axes = figure.add_axes((0.315, 0.35 / height, 0.39, (height - 1.3) / height))
    times_axis(axes, least=2**-1.5, most=2**8, every=1)
    axes.set_xticks([0.5, 1, 2, 4, 8, 16, 32, 64, 128])
    axes.xaxis.tick_top()
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar["what"] for bar in bars], size=10)
    for row, bar in enumerate(bars):
        better = bar["better"]
        axes.barh(row, better - 1, left=1, height=0.66, color=BETTER if better >= 1 else WORSE)
        axes.annotate(
            f"{better:g} ×" if better >= 1 else f"{1 / better:.2f} × worse",
            (max(better, 1), row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            size=10,
            weight="bold",
        )
        axes.annotate(
            f"{bar['semel']}, {bar.get('against', 'Kafka')} {bar['peer']}",
            (1.02, row),
            xycoords=("axes fraction", "data"),
            va="center",
            size=9.5,
        )
    figure.text(0.015, 0.12 / height, f"{part['measured']}: {part['commands'][0]}", size=8)
    return figure


def _subtitle(part: Mapping[str, Any]) -> str:
    return f"{part['measured']}, {part['subtitle']}"


def _groups(part: Mapping[str, Any]) -> list[tuple[str, list[Ratio]]]:
    return [
        (
            group["title"],
            [
                Ratio(
                    workload=group["title"].partition(":")[0],
                    metric=ratio["metric"],
                    contender=ratio["contender"],
                    of=ratio["of"],
                    times=tuple(ratio["times"]),
                )
                for ratio in group["ratios"]
            ],
        )
        for group in part["groups"]
    ]


def _curves(part: Mapping[str, Any]) -> list[tuple[Curve, Sequence[int], Comparison]]:
    found: list[tuple[Curve, Sequence[int], Comparison]] = []
    for name, metrics in part["curves"].items():
        curve = CURVES[name]
        table = Comparison(title=curve.title)
        for metric, contenders in metrics.items():
            for contender, points in contenders.items():
                label = curve.label if contender == "curve" else curve.label_beside
                for point, values in points.items():
                    rounds = table.rounds.setdefault(label(int(point)), [{}, {}, {}])
                    table.rounds[label(int(point))] = [
                        {**one, metric: value} for one, value in zip(rounds, values, strict=True)
                    ]
        found.append((curve, curve.points, table))
    return found


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\nNot here")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--directory", type=Path, default=PICTURES, help="where they are written")
    options = parser.parse_args(argv)
    for name, document in drawn().items():
        (options.directory / name).write_text(document, encoding="utf-8")
        print(options.directory / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
