"""`./run docs` makes the site without a warning, and no page of it asks for anything elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.source_tree import ROOT

LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:)?//[^\"'> ]+")


def build(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            *("--site-dir", str(directory), *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
def test_the_site_is_whole_and_self_contained(tmp_path: Path) -> None:
    built = build(tmp_path / "site")
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {page.relative_to(tmp_path / "site").as_posix() for page in tmp_path.rglob("*.html")}
    assert {"index.html", "api.html", "errors.html", "decisions/tiers.html"} <= pages
    for name in pages:
        text = (tmp_path / "site" / name).read_text(encoding="utf-8")
        assert not [
            found.group() for found in LOADED.finditer(text) if "canonical" not in found.group()
        ]
    assert "send_many" in (tmp_path / "site" / "api.html").read_text(encoding="utf-8")


def test_a_planted_dead_link_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[there](there.md) and [up](#nowhere)\n")
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: x\ndocs_dir: docs\nplugins: []\ntheme: {name: material, font: false}\n"
        "validation: {unrecognized_links: warn, anchors: warn}\n"
    )
    built = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert built.returncode != 0
    assert "there.md" in built.stderr
    assert "nowhere" in built.stderr
