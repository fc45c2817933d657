"""Which packages an installation of Semel brings, and an environment that has no others.

How it works. The packages of this environment are followed from each to those that it asks for.
Their files, which pip has listed, are linked into another environment; so nothing is downloaded.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Collection
from pathlib import Path

from packaging.requirements import Requirement

from tools.source_tree import ROOT


def needed(extras: Collection[str]) -> set[str]:
    """Names of all packages that `semel[EXTRAS]` brings on this machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    found: set[str] = set()
    todo: list[tuple[str, frozenset[str]]] = [("", frozenset())]
    seen = set(todo)
    while todo:
        name, wanted = todo.pop()
        for text in (importlib.metadata.distribution(name).requires or ()) if name else asked:
            each = Requirement(text)
            environments: list[dict[str, str]] = [{"extra": extra} for extra in ("", *wanted)]
            if each.marker is not None and not any(map(each.marker.evaluate, environments)):
                continue
            one = (re.sub(r"[-_.]+", "-", each.name).lower(), frozenset(each.extras))
            found.add(one[0])
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return found


def link(names: Collection[str], target: Path) -> int:
    """Links all files of these packages into a folder for packages; returns their bytes."""
    size = 0
    for name in names:
        for file in importlib.metadata.distribution(name).files or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or not source.exists():
                continue
            place = target / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(source)
            size += source.stat().st_size
    return size
