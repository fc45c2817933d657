"""Formatting, lint, types, layers and generated files are part of the test run."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as c; c()"


def run(arguments: Sequence[str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["-m", "ruff", "format", "--check", "."], id="format"),
        pytest.param(["-m", "ruff", "check", "."], id="lint"),
        pytest.param(["-m", "mypy"], id="types"),
        pytest.param(["-c", LINT_IMPORTS, "--no-cache"], id="layers"),
        pytest.param(["protos/generate.py", "--check"], id="stubs"),
        pytest.param(["-m", "tools.reference", "--check"], id="reference"),
        pytest.param(["tools/unasync.py", "--check"], id="sync API"),
        pytest.param(["-m", "tools.docstrings"], id="docstrings"),
    ],
)
def test_the_tree_is_clean(arguments: Sequence[str]) -> None:
    result = run(arguments)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_planted_import_across_the_layers_is_caught(tmp_path: Path) -> None:
    config = (ROOT / "pyproject.toml").read_text()
    start, end = config.index("[tool.importlinter]"), config.index("[tool.pytest")
    (tmp_path / "pyproject.toml").write_text(config[start:end])
    parts = ["protos", "tier", "client", "console", "broker", "controller"]
    parts += ["spark_connector", "web", "gateway", "contrib"]
    for part in ("protos", "tier", "broker", "client", "web", "gateway", "contrib"):
        modules = [path for path in (ROOT / part / "semel" / part).iterdir() if is_module(path)]
        parts += [f"{part}/{path.stem}" for path in modules]
    parts += [f"broker/state/{room}" for room in ("apply", "admission", "verify")]
    transport = (ROOT / "contrib/semel/contrib/kombu").iterdir()
    parts += [f"contrib/kombu/{path.stem}" for path in transport if is_module(path)]
    principals = (ROOT / "gateway/semel/gateway/principals").iterdir()
    parts += [f"gateway/principals/{path.stem}" for path in principals if is_module(path)]
    for part in parts:
        (tmp_path / "semel" / part).mkdir(parents=True)
        (tmp_path / "semel" / part / "__init__.py").touch()
    (tmp_path / "pyspark_semel").mkdir()
    (tmp_path / "pyspark_semel" / "__init__.py").touch()
    assert lint_layers(tmp_path).returncode == 0
    planted = {
        "protos": "import semel.client",
        "tier": "import semel.client",
        "tier/manifest": "import semel.tier.store",
        "tier/planning": "import time",
        "client": "import semel.broker",
        "console": "import semel.controller",
        "broker": "from semel import client",
        "controller": "from semel import tier",
        "spark_connector": "import semel.controller",
        "broker/control_plane": "import semel.broker.server",
        "broker/repair": "from semel.broker import node",
        "broker/raft": "import asyncio",
        "broker/dedup": "import time",
        "broker/state": "import semel.broker.raft",
        "broker/state/apply": "import semel.broker.state.admission",
        "broker/state/admission": "from semel.broker.state import verify",
        "broker/state/verify": "import semel.broker.state.admission",
        "client/core": "from threading import Lock",
        "client/transport": "import semel.client.producer",
        "client/reading": "from semel.client import admin",
        "web": "import semel.broker",
        "web/pages": "from semel.web import screens",
        "web/expression": "import time",
        "gateway": "import semel.controller",
        "gateway/records": "import socket",
        "contrib": "import semel.gateway",
        "contrib/kombu/envelope": "import time",
        "contrib/kombu/names": "from semel.contrib.kombu import transport",
    }
    for part, line in planted.items():
        path = tmp_path / "semel" / part / "__init__.py"
        path.write_text(line + "\n")
        result = lint_layers(tmp_path)
        assert result.returncode == 1, f"{line} in {part} was not caught:\n{result.stdout}"
        path.write_text("")


def is_module(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").exists()
    return path.suffix == ".py" and path.stem != "__init__"


def lint_layers(directory: Path) -> subprocess.CompletedProcess[str]:
    """Checks the layers of a tree apart from this one: no .pth file is read."""
    paths = [str(directory), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    code = f"import sys; sys.path += {paths!r}; {LINT_IMPORTS}"
    return run(["-I", "-S", "-c", code, "--no-cache"], directory)
