"""The release before this tree, built from its commit: an environment whose Python runs it.

How it works. The newest listed release that is not this tree's version is taken from the history
and built into a wheel by hatchling, without a network. The list has commits, since a clone may have
no tags. An environment of its own gets the wheel, and the libraries of this one by a .pth file,
which leaves this tree out. As long as there is no such release,
`stand_in` builds this tree's own commit, which then runs at a lower feature level: what the harness
does is tested, and no difference of versions.

Not here: what is done with both programs (`tests/integration/test_previous_release.py`).
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semel.protos.levels import LEVEL_MAX
from tests.kit.cluster import Node
from tools.release.artifacts import commit_time, commit_tree, hatch
from tools.release.facts import RELEASES, number_of
from tools.source_tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """A program of before."""

    name: str
    """Its tag, or what stands in for it."""
    python: Path
    flags: Sequence[str]
    """Flags that its brokers and controllers get, and this tree's do not."""

    def takes(self, node: Node) -> None:
        """From its next start on, the node runs this program."""
        assert node.command[0] == sys.executable, "it runs this tree"
        node.command[0] = str(self.python)
        node.command += self.flags

    def gives_back(self, node: Node) -> None:
        """From its next start on, the node runs this tree's program."""
        assert node.command[0] == str(self.python), "it runs the program of before"
        node.command[0] = sys.executable
        if self.flags:
            del node.command[-len(self.flags) :]


def newest_release() -> tuple[str, str] | None:
    """The tag and the commit of the newest release other than this tree's version; None if there is
    none, or the tree is no repository."""
    if not (ROOT / ".git").exists():
        return None
    listed = tomllib.loads((ROOT / RELEASES).read_text(encoding="utf-8"))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    here = number_of(f"v{version['project']['version']}")
    releases = {number: tag for tag in listed if (number := number_of(tag)) not in (None, here)}
    return (tag := releases[max(releases)], listed[tag]) if releases else None


def previous_release(home: Path) -> Previous | None:
    """The release before this tree, in an environment in `home`; None as long as there is none."""
    found = newest_release()
    if found is None:
        return None
    tag, commit = found
    return Previous(name=tag, python=_installed(commit, home), flags=())


def stand_in(home: Path) -> Previous:
    """This tree's commit at a lower feature level, in an environment in `home`."""
    flags = ("--level-max", str(LEVEL_MAX - 1))
    return Previous(name="this commit", python=_installed("HEAD", home), flags=flags)


def _installed(commit: str, home: Path) -> Path:
    with commit_tree(commit) as source:
        wheel = hatch(source, "wheel", home / "wheel", commit_time(commit))
    venv.create(home / "env", symlinks=True, with_pip=False)
    python = home / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    subprocess.run(
        [*pip, "--no-index", "--disable-pip-version-check", "-q", str(wheel)],
        check=True,
        capture_output=True,
    )
    where = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # What is added in this way has none of its own .pth files read: this tree stays out.
    (Path(where) / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
