"""Many seeds, on demand: `./run soak sim --seeds 0:20000 --jobs 2`.

Prints progress; of each failing seed its error, and of the first ones what is left of it when it is
shrunk, with the trace; and at the end how often everything rare has happened. Exits with status 1
when a seed failed. `--seeds N:N+1 --trace` shows one run in full.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from multiprocessing import get_context
from random import Random
from typing import Any, Final

from tests.world.finders import finder_first
from tests.world.parts.rights import is_secured
from tests.world.plan import THEMES, Plan, make_plan
from tests.world.planted import Plant
from tests.world.registry import all_parts, with_parts
from tests.world.run import run_plan
from tests.world.shrink import describe, shrink

ANY: Final = "any"
ALONE: Final = "alone"
THIRD: Final = "third"
FURTHER_SEEDS: Final = range(1000, 1150)
"""For a planted bug that none of the seeds of its test finds. What a seed takes: a second."""
_STRIDE = 5
_SHRINK_S: Final = 300.0
"""Shrinking ends then: a world that does not come to rest takes long each time."""
_TRACE_LINES = 80


def run_seeds(
    seeds: Iterable[int], *, theme: str | None = None, more: tuple[str, ...] = ()
) -> tuple[Counter[str], list[tuple[int, str]], dict[int, str]]:
    """Runs seeds. Returns what was seen, the failed seeds with their errors, and the fingerprints
    of the others."""
    seen: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    fingerprints: dict[int, str] = {}
    for seed in seeds:
        result, error, _ = run_plan(_plan(seed, theme=theme, more=more))
        if result is None:
            failures.append((seed, error))
            continue
        seen += result.seen
        seen["event of the loop"] += result.steps
        seen["message acknowledged"] += result.report.ok
        seen["unknown message stored"] += result.report.unknown_stored
        seen["message delivered"] += result.report.deliveries
        seen["commit refused"] += result.report.commits_refused
        seen["at rest"] += 1
        fingerprints[seed] = result.fingerprint
    return seen, failures, fingerprints


_unraisable: list[str] = []
"""Errors that Python could only print, as those of generators that nobody closed."""


def run_chunk(
    seeds: range, *, theme: str | None = None, more: tuple[str, ...] = ()
) -> tuple[Counter[str], list[tuple[int, str]], dict[int, str]]:
    """`run_seeds` in a process of its own, where such an error fails the last seed: pytest does the
    same in its processes."""
    found = run_seeds(seeds, theme=theme, more=more)
    gc.collect()
    found[1].extend((seeds[-1], error) for error in _unraisable)
    _unraisable.clear()
    return found


def watch_unraisable() -> None:
    """From now on such an error is kept for `run_chunk`."""
    sys.unraisablehook = _note_unraisable


def _note_unraisable(error: Any) -> None:
    lines = traceback.format_exception(error.exc_type, error.exc_value, error.exc_traceback)
    _unraisable.append(f"ignored in {error.object!r}, in this seed or before: {''.join(lines)}")


def run_until_seen(
    seeds: Iterable[int],
    wanted: Mapping[str, int],
    *,
    theme: str | None = None,
    more: tuple[str, ...] = (),
) -> Counter[str]:
    """Runs seeds in order until all of `wanted` has happened at least so often, and returns what
    was seen, as `run_seeds` does. Raises AssertionError when a seed fails, and when the seeds end
    before."""
    seen: Counter[str] = Counter()
    tried = 0
    for seed in seeds:
        found, failures, _ = run_seeds([seed], theme=theme, more=more)
        assert not failures, f"seed {seed}: {failures[0][1]}"
        seen += found
        tried += 1
        if not Counter(wanted) - seen:
            return seen
    missing = Counter(wanted) - seen
    raise AssertionError(f"too rare in {tried} seeds, by so many: {dict(missing)}")


def run_chunks(
    first: int, end: int, jobs: int, *, theme: str | None = None, more: tuple[str, ...] = ()
) -> Iterator[tuple[int, Counter[str], list[tuple[int, str]], dict[int, str]]]:
    """Runs seeds [first, end) in `jobs` processes; yields how many are done, and the results of
    `run_seeds` for the newest ones."""
    chunks = [range(start, min(start + _STRIDE, end)) for start in range(first, end, _STRIDE)]
    context = get_context("spawn")
    with context.Pool(jobs, _prepare, (context.Value("i", 0),)) as pool:
        run = partial(run_chunk, theme=theme, more=more)
        for number, found in enumerate(pool.imap(run, chunks)):
            yield (chunks[number].stop - first, *found)


def _prepare(started: Any) -> None:
    """Prepares a process. It is pinned to a core of its own: simulated threads hand over to each
    other all the time, and waking another core for it makes that half as dear again."""
    watch_unraisable()
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    with started.get_lock():
        number = started.value
        started.value += 1
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def _plan(seed: int, *, theme: str | None = None, more: tuple[str, ...]) -> Plan:
    """`ANY` among `more`: the seed draws further parts. `ALONE`: only the parts have programs.
    `THIRD`: the worlds of one third of the seeds are secured."""
    plan, names = make_plan(seed, theme), set(more) - {ANY, ALONE, THIRD}
    if ANY in more:
        others = all_parts().keys() - {"rights"}
        names |= {one for one in others if Random(f"{seed} has {one}").random() < 0.4}
    if THIRD in more and is_secured(seed):
        names.add("rights")
    return with_parts(replace(plan, clients=()) if ALONE in more else plan, names)


def first_failure(
    seeds: Iterable[int],
    plant: Plant,
    *,
    match: str = "",
    theme: str | None = None,
    more: tuple[str, ...] = (),
) -> None:
    """Runs seeds with the planted bug until one fails with an error in which the pattern `match` is
    found: a bug may show in several ways. The one that found it before is the first. When none of
    these seeds finds it, others follow: each change of the product gives every seed another
    schedule, and a bug that one seed in twenty meets is not met by any of ten now and then. Raises
    AssertionError if none of all finds it."""
    others: list[str] = []
    tried = 0
    for seed in chain(finder_first(seeds, plant.__name__), FURTHER_SEEDS):
        tried += 1
        result, error, _ = run_plan(_plan(seed, theme=theme, more=more), plant=plant())
        if result is None:
            assert "the simulator itself" not in error, error
            if re.search(match, error):
                return
            others.append(f"seed {seed}: {error.splitlines()[0]}")
    raise AssertionError("\n".join([f"{plant.__name__} survived {tried} seeds", *others]))


def explain(seed: int, *, theme: str | None = None, more: tuple[str, ...] = ()) -> str:
    """The shrunk plan of a failing seed, with its trace."""
    plan = _plan(seed, theme=theme, more=more)
    _, first, _ = run_plan(plan)
    end_s = time.monotonic() + _SHRINK_S

    def fails(plan: Plan) -> bool:
        return time.monotonic() < end_s and _kind(run_plan(plan)[1]) == _kind(first)

    small = shrink(plan, fails)
    _, error, trace = run_plan(small, traced=True)
    return "\n".join([describe(small), *trace[-_TRACE_LINES:], error])


def _kind(error: str) -> str:
    """The kind of a failure: a smaller plan must fail in the same way."""
    return error[:12]


def main(arguments: list[str] | None = None, *, name: str = "sim") -> int:
    """Command line. `name` is the name of the soak: others call this with options of their own."""
    parser = argparse.ArgumentParser(prog=f"./run soak {name}", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", metavar="A:B", help="half-open range")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--trace", action="store_true", help="one seed only: the whole trace")
    for part in all_parts().values():
        option = f"--{part.name.replace('_', '-')}"
        parser.add_argument(option, action="store_true", help=part.help)
    parser.add_argument(
        "--alone", action="store_true", help="without the seed's own programs: those of its parts"
    )
    parser.add_argument("--all", action="store_true", help="all of these")
    parser.add_argument("--any", action="store_true", help="each seed draws which of these it has")
    parser.add_argument(
        "--theme", choices=sorted(THEMES), help="faults in a row, which chance seldom brings about"
    )
    parser.add_argument(
        "--shrink",
        type=int,
        default=3,
        metavar="N",
        help="shrink so many failures, each for up to 5 minutes [3]",
    )
    parser.add_argument("--fingerprints", action="store_true", help="one line a seed")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)) or options.jobs < 1:
        parser.error(f"want --seeds A:B with A < B and --jobs of 1 or more, not {options.seeds!r}")
    named = vars(options)
    more = tuple(name for name in all_parts() if options.all or named[name]) + (ANY,) * options.any
    if options.alone and not more:
        parser.error("--alone leaves no programs: name parts, or give --all or --any")
    more += (ALONE,) * options.alone + (THIRD,)
    theme = options.theme
    if options.trace:
        plan = _plan(int(first), theme=theme, more=more)
        _, error, trace = run_plan(plan, traced=True)
        print("\n".join([describe(plan), *trace, error or "no failure"]))
        return 1 if error else 0
    seen: Counter[str] = Counter()
    failed = 0
    started = time.monotonic()
    for done, counters, failures, fingerprints in run_chunks(
        int(first), int(end), options.jobs, theme=theme, more=more
    ):
        seen += counters
        for seed, error in failures:
            failed += 1
            print(f"\nseed {seed} failed: {error}", flush=True)
            if failed <= options.shrink:
                print(explain(seed, theme=theme, more=more), flush=True)
        for seed, fingerprint in fingerprints.items():
            if options.fingerprints:
                print(seed, fingerprint)
        if not options.fingerprints:
            seconds = time.monotonic() - started
            print(f"\r{done} seeds, {failed} failed, {seconds:.0f} s ", end="", flush=True)
    print()
    if not options.fingerprints:
        for name, times in sorted(seen.items()):
            print(f"{times:>12,}  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
