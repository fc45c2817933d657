"""The table in `docs/testing.md` and the tests here name each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "testing.md"
SECTIONS = (
    ("Known bugs of Raft implementations", "test_raft.py", 13),
    ("Known holes of exactly-once produce", "test_produce.py", 12),
)


def rows_of(section: str) -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    body = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [line for line in body.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize(("section", "module", "count"), SECTIONS)
def test_every_known_bug_has_a_row_and_every_row_a_test(
    section: str, module: str, count: int
) -> None:
    rows = rows_of(section)
    assert len(rows) == count
    named = [re.findall(r"`(test_\w+)`", row) for row in rows]
    assert all(named)
    tree = ast.parse((HERE / module).read_text(encoding="utf-8"))
    tests = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert {name for names in named for name in names} == tests


def test_every_script_that_is_named_exists() -> None:
    text = "".join(rows_of("Scenarios of the Raft paper and dissertation"))
    scripts = {path.stem for path in (HERE.parent / "scenarios" / "raft").glob("*.txt")}
    named = set(re.findall(r"`(\w+)`", text))
    assert named
    assert named <= scripts
