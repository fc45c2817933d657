"""Mutants are what they say, are planted where they belong, and are killed by tests that look."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tools.mutation.changed import lines_since
from tools.mutation.mutants import Mutant, Source
from tools.mutation.planting import live_functions, plant
from tools.mutation.results import (
    KILLED,
    SURVIVED,
    TIMEOUT,
    Fate,
    Results,
    read_equivalents,
    settle,
)
from tools.mutation.targets import LEFT_OUT, ROOT, TARGETS

SAMPLE = '''
"""A module."""

LIMIT = 3


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def full(self) -> bool:
        """A docstring is no code."""
        return self.count >= LIMIT

    @staticmethod
    def twice(number: int) -> int:
        assert number > 0, "an assertion is left alone"
        return number * 2

    def add(self, number: int) -> None:
        if number < 0 or not number:
            raise ValueError(f"cannot add {number + 1}")
        self.count += number


def spare(number: int) -> int:
    return number + 1


def climb(limit: int) -> int:
    number = 0
    while number < limit:
        number += 1
    return number
'''

TESTS = """
import sample

def test_full():
    counter = sample.Counter()
    counter.add(2)
    assert not counter.full
    counter.add(1)
    assert counter.full

def test_twice():
    assert sample.Counter.twice(3) == 6

def test_climb():
    assert sample.climb(2) == 2
"""


@pytest.fixture
def source(tmp_path: Path) -> Source:
    path = tmp_path / "sample.py"
    path.write_text(SAMPLE, encoding="utf-8")
    return Source(path, tmp_path)


def load(source: Source) -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample", source.path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find(source: Source, before: str, after: str) -> Mutant:
    (found,) = [one for one in source.mutants if (one.before, one.after) == (before, after)]
    return found


def test_mutants_are_made_of_code_alone(source: Source) -> None:
    changes = {(one.function, one.before, one.after) for one in source.mutants}
    assert changes == {
        ("Counter.__init__", "self.count = 0", "pass"),
        ("Counter.__init__", "self.count = 0", "self.count = 1"),
        ("Counter.__init__", "self.count = 0", "self.count = -1"),
        ("Counter.full", "return self.count >= LIMIT", "return None"),
        ("Counter.full", "return self.count >= LIMIT", "return self.count > LIMIT"),
        ("Counter.full", "return self.count >= LIMIT", "return self.count < LIMIT"),
        ("Counter.twice", "return number * 2", "return None"),
        ("Counter.twice", "return number * 2", "return number // 2"),
        ("Counter.twice", "return number * 2", "return number * 3"),
        ("Counter.twice", "return number * 2", "return number * 1"),
        ("Counter.add", "if number < 0 or not number:", "if number < 0 and (not number):"),
        ("Counter.add", "if number < 0 or not number:", "if number <= 0 or not number:"),
        ("Counter.add", "if number < 0 or not number:", "if number >= 0 or not number:"),
        ("Counter.add", "if number < 0 or not number:", "if number < 1 or not number:"),
        ("Counter.add", "if number < 0 or not number:", "if number < -1 or not number:"),
        ("Counter.add", "if number < 0 or not number:", "if number < 0 or number:"),
        ("Counter.add", "if number < 0 or not number:", "if not (number < 0 or not number):"),
        ("Counter.add", "raise ValueError(f'cannot add {number + 1}')", "pass"),
        ("Counter.add", "self.count += number", "self.count -= number"),
        ("Counter.add", "self.count += number", "pass"),
        ("spare", "return number + 1", "return None"),
        ("spare", "return number + 1", "return number - 1"),
        ("spare", "return number + 1", "return number + 2"),
        ("spare", "return number + 1", "return number + 0"),
        ("climb", "number = 0", "number = 1"),
        ("climb", "number = 0", "number = -1"),
        ("climb", "while number < limit:", "while number <= limit:"),
        ("climb", "while number < limit:", "while number >= limit:"),
        ("climb", "number += 1", "number -= 1"),
        ("climb", "number += 1", "number += 2"),
        ("climb", "number += 1", "number += 0"),
        ("climb", "number += 1", "pass"),
        ("climb", "return number", "return None"),
    }


def test_calls_are_deleted_awaited_or_not(tmp_path: Path) -> None:
    path = tmp_path / "awaiting.py"
    path.write_text("async def both(one):\n    one.tell()\n    await one.store()\n")
    found = {(mutant.before, mutant.after) for mutant in Source(path, tmp_path).mutants}
    assert found == {("one.tell()", "pass"), ("await one.store()", "pass")}


def test_the_same_source_has_the_same_mutants(source: Source, tmp_path: Path) -> None:
    again = Source(source.path, tmp_path)
    assert again.mutants == source.mutants
    assert len({one.key for one in source.mutants}) == len(source.mutants)


def test_a_change_elsewhere_keeps_the_key(source: Source, tmp_path: Path) -> None:
    before = {one.key for one in source.mutants if one.function == "spare"}
    source.path.write_text(SAMPLE.replace("* 2", "* 4"), encoding="utf-8")
    changed = Source(source.path, tmp_path).mutants
    assert {one.key for one in changed if one.function == "spare"} == before
    assert not {one.key for one in changed if one.function == "Counter.twice"} & before


def test_a_planted_mutant_acts_and_the_others_do_not(source: Source) -> None:
    module = load(source)
    imported_before = module.spare
    for before, after in [
        ("return self.count >= LIMIT", "return self.count < LIMIT"),
        ("return number * 2", "return number // 2"),
        ("return number + 1", "return number - 1"),
    ]:
        mutant = find(source, before, after)
        plant(mutant, module, source.code_of(mutant))
    counter = module.Counter()
    assert counter.full
    assert module.Counter.twice(8) == 4
    assert imported_before(5) == 4
    counter.add(1)
    assert counter.count == 1


def test_all_functions_of_the_targets_can_be_reached() -> None:
    for target in TARGETS.values():
        for path in target.paths():
            source = Source(path, ROOT)
            module = importlib.import_module(source.module)
            codes = [function.__code__ for function in live_functions(module)]
            live = {(code.co_qualname, code.co_firstlineno) for code in codes}
            assert {(one.function, one.first_line) for one in source.mutants} <= live


def test_each_module_beside_those_of_the_targets_is_in_one_or_left_out_by_name() -> None:
    """A part of a module that moves to a file of its own would be mutated no more, unnoticed."""
    named = {path for target in TARGETS.values() for path in target.paths()}
    left_out = {ROOT / name for name in LEFT_OUT}
    rooms = {path.parent for path in named}
    found = {path for room in rooms for path in room.glob("*.py") if path.name != "__init__.py"}
    assert not named & left_out
    assert found == named | left_out


def test_what_is_looked_at_is_killed_and_what_is_not_survives(source: Source) -> None:
    """In a process of its own, with pytest and forks, as `./run soak mutants` does it."""
    source.path.with_name("test_sample.py").write_text(TESTS, encoding="utf-8")
    program = """
import json, sys, time
from pathlib import Path
import pytest
from tools.mutation.changed import lines_since
from tools.mutation.mutants import Source
from tools.mutation.workbench import Workbench
source = Source(Path("sample.py").resolve(), Path.cwd())
fates = {}
bench = Workbench([source], source.mutants, jobs=4, grace_s=0.5, until=time.monotonic() + 60,
                  on_fate=lambda mutant, fate: fates.update({mutant.key: fate.outcome}))
sys.path.insert(0, ".")
pytest.main(["-q", "-s", "-p", "no:cacheprovider", "test_sample.py"], [bench])
print(json.dumps([bench.error, fates]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=source.path.parent,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    error, fates = json.loads(done.stdout.splitlines()[-1])
    assert error is None
    endless = {one.after for one in source.mutants if fates[one.key] == TIMEOUT}
    assert endless == {"number -= 1", "number += 0", "pass"}
    survivors = {one.after for one in source.mutants if fates[one.key] == SURVIVED}
    assert survivors == {
        # nobody calls spare, nor adds nothing, nor a fraction; and 2 is reached from 1 and -1, too
        "number = 1",
        "number = -1",
        "number += 2",
        "return None",
        "return number - 1",
        "return number + 2",
        "return number + 0",
        "if number < 0 and (not number):",
        "if number <= 0 or not number:",
        "if number < 1 or not number:",
        "if number < -1 or not number:",
        "pass",
    }
    assert sum(fate == SURVIVED for fate in fates.values()) == len(survivors)


def test_the_account_counts_what_is_explained(source: Source, tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    *rest, one, other = source.mutants
    for mutant in rest:
        results.add(Fate(mutant.key, KILLED, "test", 1))
    results.add(Fate(one.key, SURVIVED, "", 3))
    results.add(Fate(other.key, SURVIVED, "", 3))
    document = tmp_path / "testing.md"
    document.write_text(
        f"- `sample.py` `{one.function}`: `{one.before}` → `{one.after}`: nobody asks\n"
        f"- `sample.py` `{rest[0].function}`: `{rest[0].before}` → `{rest[0].after}`: wrong\n"
        "- `sample.py` `gone`: `a` → `b`: long ago\n"
        "- `other.py` `gone`: `a` → `b`: of a file that is not looked at\n"
        f"- `sample.py` `{other.function}`: `{other.before}` → `{other.after}`: \n",
        encoding="utf-8",
    )
    again = Results(tmp_path / "results.jsonl")
    assert again.fates == results.fates
    account = settle(source.mutants, again, read_equivalents(document), {"sample.py"})
    assert (account.killed, account.equivalent, account.unknown) == (len(rest), 1, 0)
    assert account.survivors == [other]
    assert account.wrong == [rest[0]]
    assert account.stale == [("sample.py", "gone", "a", "b")]
    assert account.score == len(rest) / (len(rest) + 1)


def test_an_explanation_may_be_wrapped(tmp_path: Path) -> None:
    document = tmp_path / "testing.md"
    document.write_text(
        "- `one.py` `f`: `a < 1` →\n  `a < 2`: nobody\n  asks\n"
        "- `two.py` `g`:\n  `b`\n  → `c`:\n  it is the same\n\nNo entry `x`: `y` → `z`: w\n",
        encoding="utf-8",
    )
    expected = {("one.py", "f", "a < 1", "a < 2"), ("two.py", "g", "b", "c")}
    assert read_equivalents(document) == expected


def test_a_run_that_was_ended_in_the_middle_of_a_line_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path).add(Fate("a", KILLED, "test", 1))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"key": "b", "outc')
    assert set(Results(path).fates) == {"a"}


def test_lines_that_changed_since_a_commit_are_known(source: Source) -> None:
    def git(*arguments: str) -> None:
        names = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(
            ["git", *names, *arguments], cwd=source.path.parent, check=True, capture_output=True
        )

    git("init")
    git("add", "sample.py")
    git("commit", "-m", "first")
    assert lines_since("HEAD", source.path) == set()
    text = source.path.read_text(encoding="utf-8")
    source.path.write_text(text.replace("LIMIT = 3\n", "LIMIT = 4\n\nMORE = 5\n"), "utf-8")
    first = text[: text.index("LIMIT")].count("\n") + 1
    assert lines_since("HEAD", source.path) == {first, first + 1, first + 2}
    with pytest.raises(ValueError, match="knows no commit 'gone'"):
        lines_since("gone", source.path)
