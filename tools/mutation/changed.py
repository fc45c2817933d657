"""Finds the lines of a file that differ from a commit, to test only the mutants of a change.

`git diff` decides: a line that was added or changed since the commit counts; a removed line has no
mutants.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def lines_since(commit: str, path: Path) -> set[int]:
    """Numbers of the changed lines, from 1. Raises ValueError if git does not know the commit."""
    found = subprocess.run(
        [
            "git",
            "diff",
            "--no-ext-diff",
            "--unified=0",
            "--end-of-options",
            commit,
            "--",
            path.name,
        ],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        raise ValueError(f"git knows no commit {commit!r}: {found.stderr.strip()}")
    lines: set[int] = set()
    for first, count in _HUNK.findall(found.stdout):
        lines.update(range(int(first), int(first) + int(count or 1)))
    return lines
