"""The files of the source tree, for checks of the whole of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PORTIONS = (
    *("protos", "tier", "client", "broker", "controller"),
    *("spark_connector", "web", "gateway", "contrib"),
)


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository, as git or (in an unpacked archive) the directory tells."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--", *patterns],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return [path for name in listed.split("\0") if name and (path := ROOT / name).exists()]
    return [path for pattern in patterns for path in ROOT.rglob(pattern)]
