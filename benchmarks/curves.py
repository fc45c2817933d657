"""The curves of `growth`: what grows, at which points, what the code promises, and the verdict.

How it works. A curve is measured at a few points, each for some rounds. A round gives figures; a
point is a contender of the curve's one `Comparison`, and so is the small cluster *beside* it, which
has nothing of what grows and is measured in turn with it (A B A B …), so that the machine's drift
does not decide. A promise concerns the largest point that was measured, as a `harness.Target`:

    absolute      the figure itself
    of "beside"   its ratio to the small cluster's, median of the rounds' ratios
    of "first"    its ratio to the smallest point's
    of a point    its ratio to that point's; no promise where it was not measured
    …_each        the cost of one more: the growth from the smallest point on, by what grew

Not here: how a point is measured (`growth_points.py`), the picture (`curve_picture.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.figures import table_lines
from benchmarks.harness import Comparison, Target

MIB = 1 << 20
EACH: Mapping[str, tuple[str, float]] = {
    "snapshot_bytes_each": ("snapshot_bytes", 1.0),
    "master_bytes_each": ("master_mib", float(MIB)),
    "restart_us_each": ("restart_s", 1e6),
}
"""The cost of one more: the figure that grows, and its unit in units of the cost."""
HEADS: Mapping[str, str] = {
    "msg_s": "messages/s",
    "mb_s": "MB/s",
    "read_mb_s": "read, MB/s",
    "spread_msg_s": "spread, messages/s",
    "p99_ms": "awaited, p99 ms",
    "rss_mib": "all nodes, MiB",
    "master_mib": "master, MiB",
    "snapshot_bytes": "snapshot, bytes",
    "snapshot_s": "snapshot, s",
    "snapshot_pause_s": "its pause, s",
    "restart_s": "restart, s",
    "replayed_restart_s": "replayed restart, s",
}
"""The figures of a point, in the order in which they are shown."""
FIGURES: Mapping[str, frozenset[str]] = {
    "rate": frozenset({"msg_s", "mb_s", "read_mb_s", "spread_msg_s"}),
    "latency": frozenset({"p50_ms", "p99_ms"}),
    "memory": frozenset({"rss_mib", "master_mib"}),
    "snapshot": frozenset({"snapshot_bytes", "snapshot_s", "snapshot_pause_s"}),
    "restart": frozenset({"restart_s", "replayed_restart_s"}),
}
"""The groups of figures that can be asked for, with their metrics; each adds `elections`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A bound on one figure of the largest point, and the code's reason for it."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    of: Literal["", "beside", "first"] | int = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve: the thing that grows, the points, and the cost that the code promises."""

    title: str
    unit: str
    """The plural of what is counted."""
    points: tuple[int, ...]
    complexity: tuple[str, ...]
    """The code's promises in words."""
    promises: tuple[Promise, ...]
    beside: bool = True
    """True when a small cluster is measured in turn with it."""

    def label(self, point: int) -> str:
        """A point's name as a contender."""
        return f"{point:,} {self.unit}"

    def label_beside(self, point: int) -> str:
        """The small cluster's name, as measured in turn with that point."""
        return f"{self.label(point)}: beside"


_HOT = (
    Promise(metric="msg_s", at_least=0.7, of="beside"),
    Promise(metric="p99_ms", at_most=2, of="beside"),
    Promise(metric="elections", at_most=0),
    Promise(metric="snapshot_pause_s", at_most=0.3),
    Promise(metric="restart_s", at_most=5),
    Promise(metric="replayed_restart_s", at_most=5),
)
_RESTART = (
    "restart: the newest snapshot is read, the log since then replayed: at most 50,000 entries, "
    "and 512 MiB or 32 times the snapshot"
)
CURVES: Mapping[str, Curve] = {
    "messages": Curve(
        title="messages stored, 10 B each",
        unit="messages",
        points=(10_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
        complexity=(
            "rate, latency: independent of messages stored, no message is an object or a row",
            "memory, snapshot: 36 bytes a stored batch, whatever is in it",
            _RESTART,
        ),
        promises=(
            *_HOT,
            Promise(metric="snapshot_bytes_each", at_most=0.01),
            Promise(metric="master_mib", at_most=250),
        ),
    ),
    "queues": Curve(
        title="queues of a broker group, idle but for four",
        unit="queues",
        points=(1, 10, 100, 1_000, 10_000),
        complexity=(
            "rate, latency: independent of other queues, which are rows of a table",
            "rate spread over all queues without keys: a batch goes to one queue, the first one of "
            "each costs a fence",
            "memory: linear, ≤ 4 KiB each at the master; snapshot: linear, ≤ 200 bytes each",
            _RESTART,
        ),
        promises=(
            *_HOT,
            Promise(metric="snapshot_bytes_each", at_most=200),
            Promise(metric="master_bytes_each", at_most=4 << 10),
        ),
    ),
    "producers": Curve(
        title="idle producers: rows of the sequence table, one message stored for each",
        unit="producer rows",
        points=(1, 1_000, 10_000, 100_000, 1_000_000),
        complexity=(
            "rate, latency: independent of idle producers: two look-ups in tables a batch",
            "memory: linear, ≤ 600 bytes each at the master; snapshot: linear, ≤ 100 bytes each, "
            "written beside serving",
            _RESTART + "; ≤ 10 µs for each row of the snapshot",
        ),
        promises=(
            Promise(metric="msg_s", at_least=0.95, of="beside"),
            *_HOT[1:4],
            Promise(metric="snapshot_bytes_each", at_most=100),
            Promise(metric="master_bytes_each", at_most=600),
            Promise(metric="restart_us_each", at_most=10),
            Promise(metric="replayed_restart_s", at_most=15),
        ),
    ),
    "consumers": Curve(
        title="idle consumers of groups of ten, and as many idle producers, attached",
        unit="consumers",
        points=(5, 50, 200, 1_000),
        complexity=(
            "rate, latency: independent of who is attached and idle",
            "memory: linear, ≤ 100 KiB for a consumer and a producer: their streams; snapshot: "
            "linear, ≤ 300 bytes for both rows",
            _RESTART,
        ),
        promises=(
            *_HOT[:5],
            Promise(metric="snapshot_bytes_each", at_most=300),
            Promise(metric="master_bytes_each", at_most=100 << 10),
        ),
    ),
    "sizes": Curve(
        title="size of a message",
        unit="B",
        points=(10, 100, 1_024, 16_384, 131_072, 1_048_576),
        complexity=(
            "rate: a fixed cost a batch of 1 MiB, none a message at the brokers: MB/s rises with "
            "the size, then stands",
            "latency: a fixed cost, and 1 MiB through three nodes",
        ),
        promises=(
            Promise(metric="mb_s", at_least=0.7, of=1_024),
            Promise(metric="p99_ms", at_most=20, of="first"),
            Promise(metric="elections", at_most=0),
        ),
        beside=False,
    ),
    "in-flight": Curve(
        title="batches of 64 KiB in flight, one queue",
        unit="in flight",
        points=(1, 4, 16, 64),
        complexity=(
            "rate: rises until disk and CPU are busy, and never falls again: the window of a row "
            "is searched by bisection",
        ),
        promises=(
            Promise(metric="msg_s", at_least=1, of="first"),
            Promise(metric="msg_s", at_least=0.8, of=16),
            Promise(metric="elections", at_most=0),
        ),
        beside=False,
    ),
    "readers": Curve(
        title="readers of one queue",
        unit="readers",
        points=(1, 10, 50, 200),
        complexity=(
            "aggregate read rate: independent of readers, replies come from the same cache; they "
            "get smaller as more of them wait",
            "latency with all of them waiting for the message: linear, ≤ 2 ms for each",
            "memory: bounded by the buffer of replies, 256 MiB",
        ),
        promises=(
            Promise(metric="read_mb_s", at_least=0.7, of="first"),
            Promise(metric="elections", at_most=0),
            Promise(metric="p99_ms", at_most=400),
            Promise(metric="master_mib", at_most=500),
        ),
        beside=False,
    ),
}


def judge(
    curve: Curve, points: Sequence[int], rounds: Mapping[str, list[Mapping[str, float]]]
) -> Comparison:
    """The comparison of the measured points, with the cost of one more and promises as targets.

    `rounds` are figures by contender. A promise about a figure that nobody asked for is left out.
    A promise counts as missed when its figure is missing although others of its kind are there.
    """
    table = Comparison(title=curve.title, rounds=_with_costs(curve, points, rounds))
    asked = {metric for some in table.rounds.values() for each in some for metric in each}
    targets = []
    for promise in curve.promises:
        source = EACH[promise.metric][0] if promise.metric in EACH else promise.metric
        other = _other(curve, points, promise)
        if source not in asked or other is None:
            continue
        targets.append(
            Target(
                contender=curve.label(points[-1]),
                metric=promise.metric,
                at_least=promise.at_least,
                at_most=promise.at_most,
                of=other or None,
            )
        )
    table.targets = targets
    return table


def _other(curve: Curve, points: Sequence[int], promise: Promise) -> str | None:
    """The contender of a promise's ratio, "" for none; None when it was not measured."""
    if isinstance(promise.of, int):
        measured = promise.of in points and promise.of != points[-1]
        return curve.label(promise.of) if measured else None
    if promise.of == "first":
        return curve.label(points[0])
    return curve.label_beside(points[-1]) if promise.of == "beside" else ""


def _with_costs(
    curve: Curve, points: Sequence[int], rounds: Mapping[str, list[Mapping[str, float]]]
) -> dict[str, list[Mapping[str, float]]]:
    """The rounds, with the cost of one more in those of the largest point."""
    found = dict(rounds)
    first, last = rounds[curve.label(points[0])], rounds[curve.label(points[-1])]
    grown = points[-1] - points[0]
    if not grown:
        return found
    found[curve.label(points[-1])] = [
        {
            **most,
            **{
                name: (most[metric] - least[metric]) * unit / grown
                for name, (metric, unit) in EACH.items()
                if metric in least and metric in most
            },
        }
        for least, most in zip(first, last, strict=True)
    ]
    return found


def render(curve: Curve, table: Comparison) -> str:
    """One line per point, the code's promises, and whether the curve keeps them."""
    shown = [
        metric
        for metric in HEADS
        if any(table.values(contender, metric) for contender in table.rounds)
    ]
    lines = [table.title, *table_lines(table, shown, HEADS, wide=20)]
    lines += [f"  promised: {text}" for text in curve.complexity]
    for target, value, holds in table.judged():
        lines.append(f"  {'kept  ' if holds else 'MISSED'} {target.describe()}: {value:.4g}")
    return "\n".join(lines)
