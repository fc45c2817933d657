"""`./run soak mutants [TARGET…]`: how many small changes of the code do the tests notice?

Without a name all targets are taken. Results are kept in a file outside of the repository: a run
that was ended goes on, a function that has changed is tested anew. A run with --within 5 and then
one with --again are quicker together than one with all tests at once.

Prints progress and at the end the survivors; exits with status 1 when the score is below --goal, or
a mutant that is explained in docs/testing.md was killed, or is no more.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import pytest

from tools.mutation.changed import lines_since
from tools.mutation.mutants import Mutant, Source
from tools.mutation.results import (
    SURVIVED,
    Account,
    Fate,
    Place,
    Results,
    place_of,
    read_equivalents,
    settle,
)
from tools.mutation.targets import ROOT, TARGETS, Target
from tools.mutation.workbench import Workbench

DOCUMENT = ROOT / "docs" / "testing.md"


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run soak mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument(
        "--files",
        default="*",
        metavar="PATTERN",
        help="only files like this, as in '*/admission.py'",
    )
    parser.add_argument(
        "--tests", nargs="+", metavar="PATH", help="these in place of the target's own"
    )
    parser.add_argument(
        "--since", metavar="COMMIT", help="only lines that were added or changed since then"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants chosen by the seed")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--minutes", type=float, default=1e6, metavar="M", help="then stop")
    parser.add_argument(
        "--within", type=float, default=math.inf, metavar="S", help="only tests of S seconds in all"
    )
    parser.add_argument("--again", action="store_true", help="unexplained survivors once more")
    parser.add_argument("--report", action="store_true", help="run nothing, tell what is known")
    parser.add_argument("--goal", type=float, default=95.0, metavar="PERCENT")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(tempfile.gettempdir()) / f"semel-mutants-{os.getuid()}.jsonl",
        metavar="FILE",
        help="default %(default)s",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {unknown[0]}; there are {', '.join(TARGETS)}")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def _chosen(sources: Iterable[Source], options: argparse.Namespace) -> list[Mutant]:
    mutants = [mutant for source in sources for mutant in source.mutants]
    if options.since is not None:
        changed = {source.file: lines_since(options.since, source.path) for source in sources}
        mutants = [one for one in mutants if not changed[one.file].isdisjoint(one.lines)]
    if options.sample is not None and options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    return mutants


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    results = Results(options.results)
    equivalents = read_equivalents(DOCUMENT) if DOCUMENT.exists() else set()
    until = time.monotonic() + options.minutes * 60
    complete = options.sample is None and options.since is None
    failed = False
    for name in options.targets or TARGETS:
        target = TARGETS[name]
        sources = [
            Source(path, ROOT)
            for path in target.paths()
            if fnmatch.fnmatch(path.relative_to(ROOT).as_posix(), options.files)
        ]
        if not sources:
            continue
        try:
            mutants = _chosen(sources, options)
        except ValueError as unknown:
            print(f"error: {unknown}", file=sys.stderr)
            return 2
        if not options.report:
            todo = [one for one in mutants if _wanted(one, results, equivalents, options)]
            error = _run(name, target, sources, todo, results, options, until)
            if error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        account = settle(mutants, results, equivalents, {source.file for source in sources})
        _print(name, account, complete=complete)
        failed |= account.score * 100 < options.goal or bool(account.wrong)
        failed |= complete and bool(account.stale)
    return int(failed)


def _wanted(
    mutant: Mutant, results: Results, equivalents: set[Place], options: argparse.Namespace
) -> bool:
    fate = results.fates.get(mutant.key)
    if fate is None:
        return True
    unexplained = fate.outcome == SURVIVED and place_of(mutant) not in equivalents
    return options.again and unexplained


def _run(
    name: str,
    target: Target,
    sources: list[Source],
    todo: list[Mutant],
    results: Results,
    options: argparse.Namespace,
    until: float,
) -> str | None:
    """Tests these mutants; returns the error if the tests themselves are wrong."""
    if not todo or time.monotonic() >= until:
        return None
    # pytest's own report would drown the progress.
    with os.fdopen(os.dup(1), "w") as screen, Path(os.devnull).open("w") as nowhere:
        sys.stdout.flush()
        progress = _Progress(name, len(todo), results, screen)
        workbench = Workbench(
            sources,
            todo,
            jobs=options.jobs,
            until=until,
            on_fate=progress.on_fate,
            within_s=options.within,
        )
        tests = [
            f"--ignore={ROOT / test[1:]}" if test.startswith("!") else str(ROOT / test)
            for test in options.tests or target.tests
            if (ROOT / test.removeprefix("!")).exists()
        ]
        os.dup2(nowhere.fileno(), 1)
        try:
            pytest.main(
                ["-q", "-s", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *tests], [workbench]
            )
        finally:
            os.dup2(screen.fileno(), 1)
    return workbench.error


class _Progress:
    def __init__(self, name: str, total: int, results: Results, screen: TextIO) -> None:
        self._name = name
        self._total = total
        self._results = results
        self._screen = screen
        self._done = 0
        self._survived = 0
        self._begin = time.monotonic()

    def on_fate(self, mutant: Mutant, fate: Fate) -> None:
        self._results.add(fate)
        self._done += 1
        if fate.outcome == SURVIVED:
            self._survived += 1
            print(f"survived: {mutant}", file=self._screen, flush=True)
        if self._done % 50 == 0 or self._done == self._total:
            seconds = time.monotonic() - self._begin
            print(
                f"{self._name}: {self._done} of {self._total}, {self._survived} survived, "
                f"{seconds:.0f} s",
                file=self._screen,
                flush=True,
            )


def _print(name: str, account: Account, *, complete: bool) -> None:
    for mutant in account.survivors:
        print(f"survivor: {mutant}")
    for mutant in account.wrong:
        print(f"killed, though explained as equivalent: {mutant}")
    if complete:
        for place in account.stale:
            print(f"explained, but no mutant any more: {' '.join(place)}")
    print(
        f"{name}: {account.score:.1%} killed ({account.killed} of "
        f"{account.killed + len(account.survivors)}); {account.equivalent} more change nothing, "
        f"{account.unplantable} cannot be planted, {account.unknown} not run"
    )


if __name__ == "__main__":
    sys.exit(main())
