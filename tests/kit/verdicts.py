"""What judges of the Kafka gateway found: a line for each of their tests, and a table of all.

A judge's own outcomes are taken as they are. A test that did not pass needs a reason that is known;
one without makes the run fail, and so does a reason for a test that passes: the list of reasons
says what is so.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple


class Outcome(Enum):
    """What became of a test."""

    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"


class Verdict(NamedTuple):
    """One test of one judge."""

    judge: str
    test: str
    outcome: Outcome
    said: str = ""
    """The last line of a failure, or why it was left out."""


def verdict_of(judge: str, test: str, call: Callable[[], object]) -> Verdict:
    """Calls a test, which raises what is wrong, and returns what became of it."""
    try:
        call()
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        return Verdict(judge, test, Outcome.FAILED, f"{type(error).__name__}: {lines[0]}")
    return Verdict(judge, test, Outcome.PASSED)


class Verdicts:
    """All that was found in a run."""

    def __init__(self) -> None:
        self.found: list[Verdict] = []

    def add(self, verdict: Verdict) -> None:
        """Takes a verdict in, and prints it."""
        self.found.append(verdict)
        said = f": {verdict.said}" if verdict.said else ""
        print(f"{verdict.outcome.value:8} {verdict.judge}: {verdict.test}{said}", flush=True)

    @property
    def failed(self) -> bool:
        """Whether any test failed."""
        return any(each.outcome is Outcome.FAILED for each in self.found)

    def surprises(self, reasons: Mapping[str, str]) -> list[str]:
        """Tests that did not pass and have no reason, and reasons that no longer are any. Reasons
        are by `JUDGE: TEST`, where * stands for anything."""
        found = []
        used: Counter[str] = Counter()
        judges = {verdict.judge for verdict in self.found}
        for verdict in self.found:
            pattern = pattern_of(verdict, reasons)
            if verdict.outcome is Outcome.PASSED:
                if pattern is not None and "*" not in pattern:
                    found.append(f"{pattern} passes, and has a reason why not")
            elif pattern is None:
                found.append(f"{verdict.judge}: {verdict.test} {verdict.outcome.value}, no reason")
            if pattern is not None and verdict.outcome is not Outcome.PASSED:
                used[pattern] += 1
        for pattern in reasons:
            if pattern.partition(": ")[0] in judges and not used[pattern]:
                found.append(f"the reason for {pattern} is of no use")
        return sorted(set(found))

    def table(self, reasons: Mapping[str, str]) -> str:
        """In Markdown: the number of tests by judge, then those that did not pass, by reason."""
        lines = [_HEAD]
        for judge in dict.fromkeys(verdict.judge for verdict in self.found):
            counts = Counter(each.outcome for each in self.found if each.judge == judge)
            cells = " | ".join(str(counts[outcome]) for outcome in Outcome)
            lines.append(f"| {judge} | {cells} |")
        lines.append(_REST_HEAD)
        for verdict in self.found:
            if verdict.outcome is not Outcome.PASSED:
                pattern = pattern_of(verdict, reasons)
                reason = reasons[pattern] if pattern is not None else "?"
                lines.append(
                    f"| {verdict.judge} | `{verdict.test}` | {verdict.outcome.value} | {reason} |"
                )
        return "\n".join(lines)


def pattern_of(verdict: Verdict, reasons: Mapping[str, str]) -> str | None:
    """The reason's key that fits a verdict; one without * comes first."""
    name = f"{verdict.judge}: {verdict.test}"
    if name in reasons:
        return name
    # Brackets name the parameters of a test: they mean themselves.
    fitting = (each for each in reasons if fnmatchcase(name, each.replace("[", "[[]")))
    return next(fitting, None)


_HEAD: Final = "| judge | passed | failed | left out |\n|---|---|---|---|"
_REST_HEAD: Final = "\n| judge | test | outcome | why |\n|---|---|---|---|"
