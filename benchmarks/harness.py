"""Runs workloads in turn (A B A B …), reports medians, spread and ratios, and writes JSON.

How it works. Machines drift, so a figure alone says little: contenders are run in turn within one
process, each round gives one figure of each, and a ratio is the median of the rounds' ratios.
The first `warm_ups` rounds are run but not counted. Spread is (largest − smallest) / median.

A `Target` is a promise about one figure, absolute or as a ratio to another contender. Targets are
always printed; with `--check` a missed one makes the exit status 1.

Not here: the workloads (`produce.py`, `latency.py`, …), the bare prototype (`floor.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MESSAGE_BYTES_MAX = 1 << 20
BATCH_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A workload that can be run again and again and returns the same named figures each time."""

    name: str
    run: Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A promise: a contender's figure, or its ratio to another's, has a bound."""

    contender: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    of: str | None = None
    """Contender whose figure is the ratio's denominator; None for an absolute figure."""
    of_metric: str | None = None
    """The other contender's metric; None for the same."""

    def __post_init__(self) -> None:
        assert (self.at_least is None) != (self.at_most is None), "one bound, not none or two"

    def holds(self, value: float) -> bool:
        """Whether `value` keeps the promise; NaN never does."""
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None
        return value <= self.at_most

    def describe(self) -> str:
        """The promise in words."""
        bound = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        subject = f"{self.contender} {self.metric}"
        if self.of is None:
            return f"{subject} {bound}"
        return f"{subject} {bound} × {self.of} {self.of_metric or self.metric}"


@dataclass(slots=True, kw_only=True)
class Comparison:
    """All rounds of all contenders."""

    title: str
    rounds: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    targets: Sequence[Target] = ()

    def values(self, contender: str, metric: str) -> list[float]:
        """The figure in each round; rounds without it are left out."""
        return [each[metric] for each in self.rounds.get(contender, ()) if metric in each]

    def median(self, contender: str, metric: str) -> float:
        """The median over the rounds; NaN when there is no such figure."""
        values = self.values(contender, metric)
        return statistics.median(values) if values else math.nan

    def spread(self, contender: str, metric: str) -> float:
        """(largest − smallest) / median; NaN when there is no such figure."""
        values = self.values(contender, metric)
        middle = self.median(contender, metric)
        return (max(values) - min(values)) / middle if values and middle else math.nan

    def ratio(
        self, contender: str, metric: str, other: str, other_metric: str | None = None
    ) -> float:
        """Median over the rounds of `contender`'s figure divided by `other`'s in the same round."""
        pairs = zip(
            self.values(contender, metric),
            self.values(other, other_metric or metric),
            strict=False,
        )
        ratios = [mine / theirs for mine, theirs in pairs if theirs]
        return statistics.median(ratios) if ratios else math.nan

    def judged(self) -> list[tuple[Target, float, bool]]:
        """Each target with its measured value and whether it holds."""
        found = []
        for target in self.targets:
            value = (
                self.median(target.contender, target.metric)
                if target.of is None
                else self.ratio(target.contender, target.metric, target.of, target.of_metric)
            )
            found.append((target, value, target.holds(value)))
        return found

    def as_json(self) -> dict[str, Any]:
        """All figures and targets, for JSON."""
        return {
            "title": self.title,
            "machine": machine(),
            "contenders": {
                name: {
                    metric: {
                        "median": self.median(name, metric),
                        "spread": self.spread(name, metric),
                        "runs": self.values(name, metric),
                    }
                    for metric in rounds[0]
                }
                for name, rounds in self.rounds.items()
                if rounds
            },
            "targets": [
                {**asdict(target), "text": target.describe(), "value": value, "holds": holds}
                for target, value, holds in self.judged()
            ],
        }

    def render(self) -> str:
        """A table of medians with their spread, then the targets."""
        lines = [self.title]
        for name, rounds in self.rounds.items():
            for metric in rounds[0] if rounds else ():
                lines.append(
                    f"  {name:<26} {metric:<22} {self.median(name, metric):>12,.2f}"
                    f"   spread {self.spread(name, metric):>4.0%}   {len(rounds)} rounds"
                )
        for target, value, holds in self.judged():
            lines.append(f"  {'kept  ' if holds else 'MISSED'} {target.describe()}: {value:.2f}")
        return "\n".join(lines)


def compare(
    title: str,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    warm_ups: int = 1,
    targets: Sequence[Target] = (),
) -> Comparison:
    """Run all contenders `rounds` times in turn, after `warm_ups` uncounted rounds."""
    comparison = Comparison(title=title, targets=targets)
    comparison.rounds = {contender.name: [] for contender in contenders}
    for number in range(-warm_ups, rounds):
        for contender in contenders:
            step = f"round {number + 1} of {rounds}" if number >= 0 else "warm-up"
            progress(f"  {step}: {contender.name} …")
            figures = contender.run()
            if number >= 0:
                comparison.rounds[contender.name].append(figures)
    progress("")
    return comparison


def progress(text: str) -> None:
    """Show a line of progress on a terminal; the empty text clears the line."""
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="\r" if not text else "", file=sys.stderr, flush=True)


def report(comparison: Comparison, options: argparse.Namespace) -> int:
    """Print the comparison, write its JSON if asked for, and return the exit status."""
    print(comparison.render(), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(comparison.as_json(), indent=1) + "\n")
    missed = any(not holds for _, _, holds in comparison.judged())
    return 1 if missed and options.check else 0


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of `values` do not exceed; NaN for none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def outage(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles of the time without service, over all rounds."""
    return {
        "p50_s": percentile(seconds, 50),
        "p99_s": percentile(seconds, 99),
        "worst_s": max(seconds),
    }


def machine() -> dict[str, Any]:
    """The machine and the versions on which figures depend besides the code."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        loop = f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        loop = "asyncio"
    import grpc
    import pyarrow

    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "loop": loop,
        "grpcio": grpc.__version__,
        "pyarrow": pyarrow.__version__,
    }


def arguments(
    description: str, *, rounds: int = 5, seconds: float = 3.0
) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=number(1, 1_000), default=rounds, help="counted rounds")
    parser.add_argument("--warm-ups", type=number(0, 100), default=1, help="uncounted rounds")
    parser.add_argument(
        "--seconds", type=decimal(0.1, 600), default=seconds, help="length of one run"
    )
    parser.add_argument("--json", type=Path, default=None, help="write all figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument(
        "--data", type=Path, default=None, help="directory for temporary data; the system's if none"
    )
    return parser


def number(least: int, most: int) -> Callable[[str], int]:
    """An argparse type: a whole number within bounds, with the suffixes k, m (powers of 1024)."""

    def parse(text: str) -> int:
        scale = {"k": 1 << 10, "m": 1 << 20}.get(text[-1:].lower(), 1)
        try:
            value = int(text[:-1] if scale > 1 else text) * scale
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not within {least:,} and {most:,}")
        return value

    return parse


def decimal(least: float, most: float) -> Callable[[str], float]:
    """An argparse type: a number within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not within {least:g} and {most:g}")
        return value

    return parse


def require_disk(parser: argparse.ArgumentParser, base: Path | None, need_bytes: int) -> None:
    """End with one line when the temporary data would not fit."""
    place = base or Path(tempfile.gettempdir())
    if not place.is_dir():
        parser.error(f"--data {place} is not a directory")
    free = shutil.disk_usage(place).free
    if free < need_bytes:
        parser.error(
            f"{place} has {free >> 20:,} MiB free and this run may need {need_bytes >> 20:,} MiB; "
            "use a smaller load or --data on another disk"
        )


@contextmanager
def temporary_directory(base: Path | None) -> Iterator[Path]:
    """A directory that is removed at the end, also after Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(
        prefix="semel-bench-", dir=base, ignore_cleanup_errors=True
    ) as path:
        yield Path(path)


def random_values(count: int, length: int) -> list[bytes]:
    """`count` distinct, incompressible values of `length` bytes each."""
    pool = os.urandom(count * length)
    return [pool[at : at + length] for at in range(0, count * length, length)]
