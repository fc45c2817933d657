"""Wheel and sdist of one commit, by hatchling and without a network.

How it works. The commit's files are unpacked elsewhere (`git archive`), so nothing of the working
tree gets in. Their time is the commit's, so the same commit gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.source_tree import ROOT

SUMS: Final = "SHA256SUMS"
DIST: Final = ROOT / "dist"


class BuildFailed(Exception):
    """A step of the build failed; the message has the end of its output."""


@contextmanager
def commit_tree(commit: str) -> Iterator[Path]:
    """The files of a commit in a directory of their own, as long as the block runs."""
    packed = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tempfile.TemporaryDirectory(prefix="semel-commit-") as name:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(name, filter="data") if hasattr(
                tarfile, "data_filter"
            ) else archive.extractall(name)
        yield Path(name)


def commit_time(commit: str) -> str:
    """When a commit was made, in seconds since the epoch."""
    return subprocess.run(
        ["git", "show", "-s", "--format=%ct", commit],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def hatch(source: Path, kind: str, target: Path, epoch: str) -> Path:
    """Builds one `kind` (wheel, sdist) of a source tree. Raises BuildFailed."""
    target.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
    )
    if done.returncode:
        raise BuildFailed(f"hatchling cannot build the {kind}: {done.stderr.strip()[-2_000:]}")
    [made] = target.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[kind])
    return made


def build(commit: str, target: Path) -> list[Path]:
    """Builds wheel and sdist of a commit into an empty directory. Raises BuildFailed, also when the
    sdist gives another wheel."""
    epoch = commit_time(commit)
    with commit_tree(commit) as source:
        wheel = hatch(source, "wheel", target, epoch)
        sdist = hatch(source, "sdist", target, epoch)
    with tempfile.TemporaryDirectory(prefix="semel-sdist-") as name:
        with tarfile.open(sdist) as archive:
            archive.extractall(name)
        [unpacked] = Path(name).iterdir()
        again = hatch(unpacked, "wheel", Path(name) / "again", epoch)
        if again.read_bytes() != wheel.read_bytes():
            raise BuildFailed(f"{sdist.name} gives another wheel than the commit does")
    write_sums(target)
    return [wheel, sdist]


def write_sums(directory: Path) -> None:
    """Writes the checksums of all files of a directory into it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
        if path.name != SUMS
    ]
    (directory / SUMS).write_text("".join(lines), encoding="utf-8")
