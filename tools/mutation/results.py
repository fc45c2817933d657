"""Keeps the fate of each mutant in a file, and makes the account at the end.

How it works. One JSON line per mutant is appended when its fate is known, so that a run can be
ended at any time and resumed; the last line of a key counts. Mutants that no test can notice
because they change nothing are listed in `docs/testing.md`, each with its reason:

    - `FILE` `FUNCTION`: `BEFORE` → `AFTER`: why it is the same program

An entry may be wrapped: lines that begin with a space continue it. Entries are matched by these
four texts. An entry whose mutant no longer exists is reported, so the list stays true.

Not here: running the mutants (`workbench.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.mutation.mutants import Mutant

KILLED: Final = "killed"
TIMEOUT: Final = "timeout"
"""Counts as killed: a test ran far longer than without the change."""
SURVIVED: Final = "survived"
UNPLANTABLE: Final = "unplantable"
_EQUIVALENT: Final = re.compile(r"^- `([^`]+)` `([^`]+)`: `([^`]*)` → `([^`]*)`: \S")


@dataclass(frozen=True, slots=True)
class Fate:
    """The outcome of one mutant."""

    key: str
    outcome: str
    test: str
    """The test that noticed; empty for a survivor."""
    tests_run: int


class Results:
    """The fates known so far. A line that was cut off when a run ended is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fates: dict[str, Fate] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    fate = Fate(**json.loads(line))
                except (json.JSONDecodeError, TypeError):
                    continue
                self.fates[fate.key] = fate

    def add(self, fate: Fate) -> None:
        self.fates[fate.key] = fate
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            fields = {name: getattr(fate, name) for name in Fate.__slots__}
            file.write(json.dumps(fields) + "\n")


Place = tuple[str, str, str, str]
"""File, function, before, after."""


def place_of(mutant: Mutant) -> Place:
    return mutant.file, mutant.function, mutant.before, mutant.after


def read_equivalents(document: Path) -> set[Place]:
    """The mutants that the document explains."""
    found = set()
    for entry in _joined(document.read_text(encoding="utf-8").splitlines()):
        if match := _EQUIVALENT.match(entry):
            file, function, before, after = match.groups()
            found.add((file, function, before, after))
    return found


def _joined(lines: Iterable[str]) -> list[str]:
    """The lines, each with those that continue it."""
    entries: list[str] = []
    for line in lines:
        if entries and entries[-1] and line.startswith(" "):
            entries[-1] += " " + line.strip()
        else:
            entries.append(line.rstrip())
    return entries


@dataclass(frozen=True, slots=True)
class Account:
    """The sum of a run over some mutants."""

    killed: int
    equivalent: int
    survivors: list[Mutant]
    unknown: int
    """Number of mutants that were not run yet."""
    unplantable: int
    stale: list[Place]
    """Explained in the document, but no longer a mutant of these files."""
    wrong: list[Mutant]
    """Explained as equivalent, but killed."""

    @property
    def score(self) -> float:
        """Share of killed mutants among those that were run and are not equivalent."""
        known = self.killed + len(self.survivors)
        return self.killed / known if known else 0.0


def settle(
    mutants: Iterable[Mutant], results: Results, equivalents: set[Place], files: set[str]
) -> Account:
    """The account of `mutants`; only explanations of `files` can be stale."""
    count: Counter[str] = Counter()
    survivors, wrong = [], []
    places = set()
    for mutant in mutants:
        place = place_of(mutant)
        places.add(place)
        fate = results.fates.get(mutant.key)
        if fate is None:
            count["unknown"] += 1
        elif fate.outcome == UNPLANTABLE:
            count["unplantable"] += 1
        elif fate.outcome == SURVIVED:
            if place in equivalents:
                count["equivalent"] += 1
            else:
                survivors.append(mutant)
        else:
            count["killed"] += 1
            if place in equivalents:
                wrong.append(mutant)
    return Account(
        killed=count["killed"],
        equivalent=count["equivalent"],
        survivors=survivors,
        unknown=count["unknown"],
        unplantable=count["unplantable"],
        stale=sorted(one for one in equivalents if one[0] in files and one not in places),
        wrong=wrong,
    )
