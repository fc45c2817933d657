"""The style of all pictures of benchmarks, and their SVG text.

How it works. A picture is a matplotlib figure that is made and written within `style()`. Texts
remain text in the SVG, so that they can be searched and tests can read them. The same figures give
the same bytes: there is no date in a picture, and its ids come from a fixed salt.

Not here: the content of the pictures (`picture.py`, `curve_picture.py`, `recorded.py`).
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

BETTER: Final = "#2a7f62"
WORSE: Final = "#b5483a"
INK: Final = "#222222"
FAINT: Final = "#cccccc"
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "semel",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
}


def style() -> AbstractContextManager[None]:
    """Sets matplotlib up for a picture, while it is made and written."""
    return mpl.rc_context(_STYLE)


def svg(figure: Figure) -> str:
    """The figure as an SVG document."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def times_axis(axes: Axes, *, least: float, most: float, every: int = 2) -> None:
    """The x axis of bars around 1, from `least` to `most`: a tick at each 2 ** `every`."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(least, most)
    powers = [power for power in range(-60, 61, every) if least <= 2.0**power <= most]
    axes.set_xticks([2.0**power for power in powers])
    axes.xaxis.set_major_formatter(FuncFormatter(_times))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x")
    axes.axvline(1, color=INK, linewidth=1)
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


def _times(value: float, _: object = None) -> str:
    """The label of a factor: 4 is `4×`, a quarter is `1/4`."""
    return f"{value:.0f}×" if value >= 1 else f"1/{1 / value:.0f}"
