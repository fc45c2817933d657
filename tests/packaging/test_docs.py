"""Pages point at pages that exist, wrap at 100 columns, and are indexed where there is an index.

Not here: what they say about the sources (`test_docs_references.py`).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.source_tree import ROOT, tracked

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]*`")
MARKER = re.compile(r"\s*(?:[-*+]|\d+\.)?\s*")
COLUMNS_MAX = 100
DECISIONS = ROOT / "docs" / "decisions"
STATUS = re.compile(
    r"^Date: \d{4}-\d\d-\d\d\. Status: (?:accepted|superseded by \[[^\]]+\]\(([^)]+)\))\.", re.M
)


def prose_lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines of a page that are neither code nor part of a table."""
    found = []
    fenced = in_list = code = False
    blank = True
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip():
            indent = len(line) - len(line.lstrip())
            if not indent:
                in_list = bool(re.match(r"[-*+] |\d+\. ", line))
            # Code begins behind an empty line, and goes on until something stands further left.
            code = (code or blank) and indent >= (6 if in_list else 4)
            if not code and not line.lstrip().startswith("|"):
                found.append((number, line))
        blank = not line.strip()
    return found


def too_long(text: str) -> list[int]:
    """Numbers of the prose lines that could have been broken and were not. Where links lead does
    not count: a page is read as it is rendered."""
    long = []
    for number, line in prose_lines(text):
        shown = LINK.sub("]", line)
        breakable = " " in CODE.sub("code", MARKER.sub("", shown, count=1)).strip()
        if len(shown) > COLUMNS_MAX and breakable:
            long.append(number)
    return long


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`: the page's headings, as GitHub spells them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if "://" not in link and not (
            target.exists() and (not anchor or anchor in anchors(target))
        ):
            broken.append(link)
    return broken


def test_every_link_leads_somewhere() -> None:
    pages = tracked("*.md")
    assert ROOT / "README.md" in pages
    found = {str(page.relative_to(ROOT)): broken_links(page) for page in pages}
    assert {page: links for page, links in found.items() if links} == {}


def test_a_planted_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# It's here\n[a](page.md#its-here), [b](https://example.org/x#y), [c](nowhere.md), [d](#a)"
    )
    assert broken_links(page) == ["nowhere.md", "#a"]


def test_the_changelog_knows_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


@pytest.mark.parametrize(
    "command", ["demo", "test", "semel", "check", "docs", "bench", "soak", "env"]
)
def test_the_manual_of_run_is_complete(command: str) -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    assert f"./run {command}" in text


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


def test_prose_wraps() -> None:
    pages = {page.relative_to(ROOT).as_posix(): page for page in tracked("*.md")}
    found = {name: too_long(page.read_text(encoding="utf-8")) for name, page in pages.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_planted_long_lines_are_found() -> None:
    words = "word " * 22
    page = [
        words,  # 1
        f"| {words} |",
        f"[{'w' * 90} w](https://example.org/{'x' * 50})",
        f"- `{words}`",
        f"- `{words}` and more",  # 5
        "",
        f"      {words}",
        "",
        "text",
        "",
        f"    {words}",
        "```",
        words,
        "```",
        f"- item\n  {words}",  # 15 and 16
    ]
    assert too_long("\n".join(page)) == [1, 5, 16]


def broken_decisions(folder: Path) -> list[str]:
    """Pages without date and status, and differences between the folder and its index."""
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    rows = [
        row for row in (folder / "README.md").read_text("utf-8").splitlines() if row[:3] == "| ["
    ]
    indexed = [LINK.findall(row)[0] for row in rows]
    wrong = sorted(pages.symmetric_difference(indexed))
    wrong += sorted(name for name in set(indexed) if indexed.count(name) > 1)
    for name in sorted(pages):
        title, _, rest = (folder / name).read_text(encoding="utf-8").partition("\n\n")
        status = STATUS.match(rest)
        if not title.startswith("# ") or status is None:
            wrong.append(f"{name}: no date and status below the title")
        elif (successor := status.group(1)) and not (folder / successor).exists():
            wrong.append(f"{name}: superseded by {successor}, which is not there")
    return wrong


def test_every_decision_has_a_date_and_is_indexed() -> None:
    assert broken_decisions(DECISIONS) == []


def test_planted_decisions_that_break_the_rules_are_found(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("| [a.md](a.md) | a |\n| [gone.md](gone.md) | g |\n")
    (tmp_path / "a.md").write_text("# A\n\nDate: 2026-01-02. Status: accepted.\n\nText\n")
    (tmp_path / "b.md").write_text(
        "# B\n\nDate: 2026-01-02. Status: superseded by [c](c.md).\n\nText\n"
    )
    (tmp_path / "d.md").write_text("# D\n\nText\n")
    assert broken_decisions(tmp_path) == [
        "b.md",
        "d.md",
        "gone.md",
        "b.md: superseded by c.md, which is not there",
        "d.md: no date and status below the title",
    ]
