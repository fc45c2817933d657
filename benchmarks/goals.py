"""The goals for Semel's figures beside a peer's, and the ratios that a comparison shows.

How it works. A goal names one of Semel's variants, a figure, a bound and the peer's variant that is
the denominator of the ratio; it is checked where a peer of that kind has given that figure.
`ratios` compares every variant of Semel with one of each peer: the one of its goal, or else the
peer's best.

Not here: the rounds (`side_by_side.py`), their picture (`picture.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness import Comparison, Target

SEMEL, FLOOR = "semel", "floor"
MAIN_METRICS = (
    *("msg_s", "p50_ms", "p99_ms"),
    *("ack_p50_ms", "ack_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms"),
    *("longest_gap_s", "first_ack_s"),
    *("cpu_s_per_million", "cpu_s_per_million_no_consumer", "rss_mib"),
)
"""Figures that are printed and compared; all others are only in the JSON."""
MORE_IS_BETTER = ("msg_s", "mb_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One bound on the ratio of a figure of Semel's variant to that of a peer's variant."""

    workload: str
    variant: str
    metric: str
    peer: str
    """The beginning of the peer's name."""
    peer_variant: str
    at_least: float | None = None
    at_most: float | None = None


def _kafka(
    workload: str,
    variants: tuple[str, ...],
    metric: str,
    peer_variant: str,
    at_least: float | None = None,
    at_most: float | None = None,
) -> tuple[Goal, ...]:
    return tuple(
        Goal(
            workload=workload,
            variant=variant,
            metric=metric,
            peer="kafka",
            peer_variant=peer_variant,
            at_least=at_least,
            at_most=at_most,
        )
        for variant in variants
    )


_BULK = ("send_many, list", "send_many, Arrow")
_AWAITED = ("sync", "asyncio")
_LINGER = "python, linger_ms 5"
"""The client's default, and the better of the two."""

GOALS: tuple[Goal, ...] = (
    *_kafka("W1", _BULK, "msg_s", "java tuned", at_least=4),
    *_kafka("W1", ("send()",), "msg_s", "python", at_least=1),
    *_kafka("W1", _BULK, "cpu_s_per_million", "java tuned", at_most=0.3),
    *_kafka("W1", _BULK[:1], "rss_mib", "java tuned", at_most=0.25),
    *_kafka("W2", _BULK, "msg_s", "java tuned", at_least=1.5),
    *_kafka("W2b", _BULK, "msg_s", "java tuned, lz4, log lines", at_least=2),
    *_kafka("W3", _AWAITED, "p50_ms", "python", at_most=1.2),
    *_kafka("W3", _AWAITED, "p99_ms", "python", at_most=1),
    *(
        Goal(
            workload="W3",
            variant=variant,
            metric=metric,
            peer="nats",
            peer_variant="nats-py, fsync",
            at_most=1,
        )
        for variant in _AWAITED
        for metric in ("p50_ms", "p99_ms")
    ),
    *_kafka("W4", ("send()",), "ack_p50_ms", _LINGER, at_most=0.5),
    *_kafka("W4", ("send()",), "ack_p99_ms", _LINGER, at_most=0.25),
    *_kafka("W4", ("send()",), "end_to_end_p50_ms", _LINGER, at_most=0.5),
    *_kafka("W4", ("send()",), "end_to_end_p99_ms", _LINGER, at_most=0.25),
    *_kafka("W5", ("poll_arrow",), "msg_s", "python tuned", at_least=5),
    *_kafka("W5", ("for message in consumer",), "msg_s", "python", at_least=6),
    *_kafka("W6", ("SIGKILL",), "longest_gap_s", "SIGKILL", at_most=0.03),
    *_kafka("W6", ("SIGSTOP",), "longest_gap_s", "SIGSTOP", at_most=0.03),
    *_kafka("W8", ("",), "first_ack_s", "", at_most=0.2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The ratio of a figure of Semel to a peer's, over all rounds."""

    workload: str
    metric: str
    contender: str
    of: str
    times: tuple[float, ...]
    """The ratio in each round."""

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def better(self) -> tuple[float, float, float]:
        """How many times better Semel is: median, least, most; worse when below 1."""
        if self.metric in MORE_IS_BETTER:
            return self.median, min(self.times), max(self.times)
        return 1 / self.median, 1 / max(self.times), 1 / min(self.times)


def set_targets(workload: str, comparison: Comparison) -> None:
    """Gives a workload's comparison the goals that the measured figures can decide."""
    targets = []
    for goal in GOALS:
        mine = _contender(SEMEL, goal.variant)
        if goal.workload != workload or not comparison.values(mine, goal.metric):
            continue
        for theirs in comparison.rounds:
            system, _, variant = theirs.partition(": ")
            if system.startswith(goal.peer) and variant == goal.peer_variant:
                targets.append(
                    Target(
                        contender=mine,
                        metric=goal.metric,
                        of=theirs,
                        at_least=goal.at_least,
                        at_most=goal.at_most,
                    )
                )
    comparison.targets = targets


def ratios(workload: str, comparison: Comparison) -> Iterator[Ratio]:
    """Ratios of each of Semel's variants and main figures to one variant of each other system."""
    others = dict.fromkeys(name.partition(": ")[0] for name in comparison.rounds)
    for mine in comparison.rounds:
        if mine.partition(": ")[0] != SEMEL:
            continue
        for metric in MAIN_METRICS:
            for system in others:
                of = _beside(comparison, system, mine, metric) if system != SEMEL else None
                if of is None:
                    continue
                pairs = zip(
                    comparison.values(mine, metric), comparison.values(of, metric), strict=False
                )
                times = tuple(one / other for one, other in pairs if one and other)
                if times:
                    yield Ratio(
                        workload=workload, metric=metric, contender=mine, of=of, times=times
                    )


def _beside(comparison: Comparison, system: str, mine: str, metric: str) -> str | None:
    """The variant of `system` for the comparison; None when it has no such figure."""
    having = [
        name
        for name in comparison.rounds
        if name.partition(": ")[0] == system and comparison.values(name, metric)
    ]
    if system == FLOOR:  # the others do only a part of the work
        having = [name for name in having if name.partition(": ")[2] == "prototype"]
    for target in comparison.targets:
        if target.contender == mine and target.of in having and target.metric == metric:
            return target.of
    for name in having:  # the same thing done to both, such as the same signal
        if name.partition(": ")[2] == mine.partition(": ")[2]:
            return name
    choose = max if metric in MORE_IS_BETTER else min
    return choose(having, key=lambda name: comparison.median(name, metric), default=None)


def _contender(system: str, variant: str) -> str:
    return f"{system}: {variant}" if variant else system
