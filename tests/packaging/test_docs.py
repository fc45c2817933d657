"""Pages point at pages that exist, and the changelog at the version that is built."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.packaging.tree import ROOT, tracked

LINK = re.compile(r"\]\(([^)\s]+)\)")


def broken_links(page: Path) -> list[str]:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [target for target in targets if target and "://" not in target]
    return [target for target in local if not (page.parent / target).exists()]


def test_every_link_leads_somewhere() -> None:
    pages = tracked("*.md")
    assert ROOT / "README.md" in pages
    found = {str(page.relative_to(ROOT)): broken_links(page) for page in pages}
    assert {page: links for page, links in found.items() if links} == {}


def test_a_planted_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](page.md#here), [b](https://example.org/x), [c](nowhere.md)")
    assert broken_links(page) == ["nowhere.md"]


def test_the_changelog_knows_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


@pytest.mark.parametrize("command", ["demo", "test", "semel", "check", "bench", "soak", "env"])
def test_the_manual_of_run_is_complete(command: str) -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    assert f"./run {command}" in text
