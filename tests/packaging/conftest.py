"""The wheel of this tree, for the tests of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.source_tree import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [built] = target.glob("*.whl")
    return built
