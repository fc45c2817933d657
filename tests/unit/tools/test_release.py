"""What stops a release, and which Pythons a tree names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tools.release.facts import Tree, number_of, problems, python_problems
from tools.release.trial import constraints
from tools.source_tree import ROOT

PROJECT = """
[project]
version = "0.2.0"
requires-python = ">=3.11,<3.13"
classifiers = [
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
]
"""
READY = Tree(
    pyproject=PROJECT,
    changelog="# Changelog\n\n## 0.2.0 – 2026-12-01\n\n## 0.1.0 – 2026-11-26\n",
    run="oldest=11 # of the supported Pythons\nnewest=12\n",
    recorded=["0.1.0", "0.2.0"],
    changed=[],
    tags={"v0.1.0": "c0ffee", "vanished": "abcdef"},
    released={"v0.1.0": "c0ffee"},
)


def test_a_tree_that_is_ready_has_no_problems() -> None:
    assert problems(READY) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"changed": ["a.py"]}, "a.py is not committed"),
        ({"tags": {"v0.2.0": "c0ffee"}}, "tag v0.2.0 is there"),
        ({"tags": {"v0.10.0": "c0ffee"}}, "tag v0.10.0 is of a later version than 0.2.0"),
        ({"released": {}}, "tag v0.1.0 has commit c0ffee, tests/fixtures/releases.toml has none"),
        ({"released": {"v0.1.0": "bad"}}, "tests/fixtures/releases.toml has bad"),
        ({"changelog": "## 0.2.0 – unreleased\n"}, "no section `## 0.2.0 – DATE`"),
        (
            {"changelog": "## 0.3.0 – 2026-12-02\n## 0.2.0 – 2026-12-01\n"},
            "the first section of CHANGELOG.md is of 0.3.0",
        ),
        ({"recorded": ["0.1.0"]}, "no logs are recorded for 0.2.0"),
        ({"pyproject": PROJECT.replace("0.2.0", "0.2")}, "is not MAJOR.MINOR.PATCH"),
        ({"run": "newest=13\noldest=11\n"}, "requires-python is >=3.11,<3.13"),
        ({"run": "newest=13\noldest=11\n"}, "the classifiers name Python 3.11, 3.12"),
        ({"run": ""}, "./run does not say"),
    ],
)
def test_what_stands_in_the_way_is_told(change: dict[str, Any], text: str) -> None:
    found = problems(dataclasses.replace(READY, **change))
    assert any(text in problem for problem in found), found


def test_only_tags_of_releases_count() -> None:
    assert number_of("v1.20.3") == (1, 20, 3)
    assert [number_of(tag) for tag in ("1.2.3", "v1.2", "v1.2.3-rc1", "kept")] == [None] * 4


def test_this_tree_names_the_pythons_that_are_tested() -> None:
    pyproject, run = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "run")
    )
    assert python_problems(pyproject, run) == []


def test_pins_become_constraints() -> None:
    pins = """\
click==8.3.1 \\
    --hash=sha256:00
uvloop==0.23.0 ; sys_platform != 'win32' \\
    --hash=sha256:11 \\
    --hash=sha256:22
"""
    assert constraints(pins) == "click==8.3.1\nuvloop==0.23.0 ; sys_platform != 'win32'\n"
