"""What pages say about the sources is true: files and folders exist, and so do functions."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tools.source_tree import PORTIONS, ROOT, tracked

TOUR = ROOT / "docs" / "tour.md"
TOUR_LINES_MAX = 120

FENCED = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
CODE = re.compile(r"`([^`]+)`")
NAMED = re.compile(r"\[`([^`]+\.py):([\w.]+)`\]\(([^)\s]+)\)")
"""In the tour: a link to a file whose text is its end, a colon, and a name that it defines."""
SOURCE = re.compile(r"[\w./-]*\w\.(?:py|pyi|proto)")
FOLDER = re.compile(r"(?:[\w.-]+/)+")
PAGE = re.compile(r"docs/[\w/-]+\.md")
NODE_FOLDERS = frozenset({"broker-1/", "controller-1/", "damaged-N/"})
"""Folders of a data directory; they are not in the repository."""


@cache
def endings() -> frozenset[str]:
    """Every end of every path in the repository that begins at a folder or a file name; folders
    with a slash behind."""
    found = set()
    for path in tracked("*"):
        parts = path.relative_to(ROOT).parts
        for end in range(1, len(parts) + 1):
            slash = "/" if end < len(parts) else ""
            found |= {"/".join(parts[begin:end]) + slash for begin in range(end)}
    return frozenset(found)


def missing_paths(text: str) -> list[str]:
    """Code spans that look like a source file, or a folder, and are nothing in the repository."""
    spans = (span.strip() for span in CODE.findall(FENCED.sub("", text)))
    looked_for = [one for one in spans if SOURCE.fullmatch(one) or FOLDER.fullmatch(one)]
    return [one for one in looked_for if one not in endings() and one not in NODE_FOLDERS]


def defined_names(source: str) -> set[str]:
    """Functions and classes, those within classes with the class in front."""
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(source), "")
    return found


def wrong_names(page: Path) -> list[str]:
    """What a page names as `file.py:name` without being right; every one must be a link."""
    text = " ".join(page.read_text(encoding="utf-8").split())
    wrong = []
    linked = NAMED.findall(text)
    for file, name, target in linked:
        path = page.parent / target
        if not target.endswith("/" + file) or not path.is_file():
            wrong.append(f"{file}:{name} -> {target}")
        elif name not in defined_names(path.read_text(encoding="utf-8")):
            wrong.append(f"{file}:{name}")
    loose = [span for span in CODE.findall(NAMED.sub("", text)) if ".py:" in span]
    return wrong + loose


@cache
def spoken() -> str:
    """Every string of the product's sources; a zero byte stands where a value is filled in."""
    found = []
    for folder in PORTIONS:
        for path in tracked(f"{folder}/*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (getattr(part, "value", "") for part in node.values)
                    found.append("\0".join(part for part in parts if isinstance(part, str)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\0".join(found)


def unspoken(table: str) -> list[str]:
    """Quotations in the first column of a table that no program says; an ellipsis stands for what
    is filled in."""
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ")]
    quoted = [span for cell in cells for span in CODE.findall(cell)]
    return [
        span for span in quoted if not all(part.strip() in spoken() for part in span.split("…"))
    ]


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in tracked("*.md")])
def test_files_and_folders_that_a_page_names_exist(page: str) -> None:
    assert missing_paths((ROOT / page).read_text(encoding="utf-8")) == []


def missing_pages(text: str) -> list[str]:
    """Pages that a source names and that are not there."""
    return [name for name in PAGE.findall(text) if not (ROOT / name).exists()]


def test_pages_that_sources_name_exist() -> None:
    sources = [
        path for path in tracked("*.py", "*.proto", "*.toml", "run") if path != Path(__file__)
    ]
    found = {path: missing_pages(path.read_text(encoding="utf-8")) for path in sources}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_planted_page_that_is_nowhere_is_found() -> None:
    assert missing_pages("# see docs/tour.md, docs/formats/none.md.") == ["docs/formats/none.md"]


def test_a_planted_path_that_is_nowhere_is_found() -> None:
    text = (
        "`raft/core.py`, `core.py`, `broker/semel/broker/raft/`, `raft/cores.py`, `rafts/`, `a.b`"
    )
    assert missing_paths(text) == ["raft/cores.py", "rafts/"]


def test_programs_say_what_the_operations_page_quotes() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("\n## When something is wrong\n")[2].partition("\n## ")[0]
    assert unspoken(table) == []
    assert len(table.splitlines()) > 20


def test_a_planted_text_that_no_program_says_is_found() -> None:
    table = "| `no longer master: nobody gives …` | x |\n| `nobody says … this` or `up` | y |"
    assert unspoken(table) == ["nobody says … this"]


def test_the_tour_names_what_exists() -> None:
    assert wrong_names(TOUR) == []
    assert len(NAMED.findall(TOUR.read_text(encoding="utf-8"))) > 30


def test_the_tour_is_short() -> None:
    assert len(TOUR.read_text(encoding="utf-8").splitlines()) <= TOUR_LINES_MAX


def test_planted_wrong_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("class A:\n    def f(self): ...\ndef g(): ...\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[`code.py:A.f`](./code.py) [`code.py:g`](./code.py) [`code.py:A.g`](./code.py)\n"
        "[`other.py:g`](./code.py) [`code.py:g`](./nowhere/code.py) `code.py:A`\n"
    )
    assert wrong_names(page) == [
        "code.py:A.g",
        "other.py:g -> ./code.py",
        "code.py:g -> ./nowhere/code.py",
        "code.py:A",
    ]
