"""Java runtimes that only tell their version, and an environment that has no other Java."""

from __future__ import annotations

from pathlib import Path

import pytest


def fake_java(directory: Path, version: str, status: int = 0) -> Path:
    """A program that says it is that Java, and otherwise prints its arguments."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        'for a; do case "$a" in -version) '
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2; exit {status};; esac; done\n"
        "for a; do printf '[%s]\\n' \"$a\"; done\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with a home of its own and nothing on the PATH but a shell."""
    tools = tmp_path / "tools"
    tools.mkdir()
    return {"HOME": str(tmp_path / "home"), "PATH": str(tools)}
