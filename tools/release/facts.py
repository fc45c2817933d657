"""What would stop a release of a tree. Pure.

Not here: reading the tree and git (`__main__.py`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

RELEASES: Final = "tests/fixtures/releases.toml"
"""Lists the commit of each release, for clones without tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A tree that is to be released."""

    pyproject: str
    changelog: str
    run: str
    """The script `./run`, which knows the Pythons that are tested."""
    recorded: Collection[str]
    """Versions whose logs of the state machine are recorded."""
    changed: Collection[str]
    """Files that differ from the commit."""
    tags: Mapping[str, str]
    """The commit of each tag."""
    released: Mapping[str, str]
    """The commits that the list of releases has, by tag."""

    @property
    def version(self) -> str:
        """The version in pyproject.toml."""
        return str(tomllib.loads(self.pyproject)["project"]["version"])


def problems(tree: Tree) -> list[str]:
    """Returns what stands in the way, in the order in which one would mend it."""
    found = [f"{name} is not committed" for name in sorted(tree.changed)]
    version = tree.version
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"version {version} in pyproject.toml is not MAJOR.MINOR.PATCH")
        return found
    if f"v{version}" in tree.tags:
        found.append(f"tag v{version} is there: choose the next version")
    later = [tag for tag in tree.tags if (other := number_of(tag)) and other > _numbers(version)]
    if later:
        found.append(f"tag {sorted(later)[-1]} is of a later version than {version}")
    found += [
        f"tag {tag} has commit {commit}, {RELEASES} has {tree.released.get(tag, 'none')}"
        for tag, commit in sorted(tree.tags.items())
        if number_of(tag) is not None and tree.released.get(tag) != commit
    ]
    if not re.search(rf"^## {re.escape(version)} – \d{{4}}-\d\d-\d\d$", tree.changelog, re.M):
        found.append(f"CHANGELOG.md has no section `## {version} – DATE`")
    first = re.search(r"^## (\S+)", tree.changelog, re.M)
    if first is not None and first[1] != version:
        found.append(f"the first section of CHANGELOG.md is of {first[1]}")
    if version not in tree.recorded:
        found.append(f"no logs are recorded for {version}: run `python -m tools.recorded_logs`")
    return found + python_problems(tree.pyproject, tree.run)


def number_of(tag: str) -> tuple[int, ...] | None:
    """The version in a release's tag, such as `v0.1.0`; None for any other tag."""
    return _numbers(tag[1:]) if re.fullmatch(r"v\d+\.\d+\.\d+", tag) else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def python_problems(pyproject: str, run: str) -> list[str]:
    """Returns where `requires-python`, classifiers and `./run` name different Pythons."""
    project = tomllib.loads(pyproject)["project"]
    bounds = [re.search(rf"^{name}=(\d+)", run, re.M) for name in ("oldest", "newest")]
    if not all(bounds):
        return ["./run does not say which Pythons are supported (oldest=, newest=)"]
    oldest, newest = (int(bound[1]) for bound in bounds if bound is not None)
    found = []
    wanted = f">=3.{oldest},<3.{newest + 1}"
    if project["requires-python"] != wanted:
        found.append(f"requires-python is {project['requires-python']}, ./run has {wanted}")
    named = re.findall(r"Python :: 3\.(\d+)$", "\n".join(project["classifiers"]), re.M)
    if list(map(int, named)) != list(range(oldest, newest + 1)):
        found.append(f"the classifiers name Python 3.{', 3.'.join(named)}, ./run has {wanted}")
    return found
