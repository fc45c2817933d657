"""The source tree is one namespace in several portions, and knows nothing of its machine."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from tools.source_tree import PORTIONS, ROOT, tracked

FILE_LINES_MAX = 600


def stray_inits(root: Path) -> list[Path]:
    return [path for part in PORTIONS if (path := root / part / "semel" / "__init__.py").exists()]


def test_no_portion_claims_the_namespace() -> None:
    assert stray_inits(ROOT) == []


def test_a_planted_init_is_found(tmp_path: Path) -> None:
    (tmp_path / "broker" / "semel").mkdir(parents=True)
    planted = tmp_path / "broker" / "semel" / "__init__.py"
    planted.touch()
    assert stray_inits(tmp_path) == [planted]


def test_every_portion_is_typed() -> None:
    packages = [path for part in PORTIONS for path in (ROOT / part / "semel").iterdir()]
    packages = [path for path in packages if (path / "__init__.py").exists()]
    assert packages
    assert [path.name for path in packages if not (path / "py.typed").exists()] == []


def shared_names(part: Path) -> dict[str, list[str]]:
    """Names of several modules or rooms of a part; a room may name its main module."""
    found: dict[str, list[str]] = {}
    for path in sorted(part.rglob("*.py")):
        own = path.parent if path.name == "__init__.py" else path.with_suffix("")
        if own != part and (path.name == "__init__.py" or own.name != path.parent.name):
            found.setdefault(own.name, []).append(str(own.relative_to(part)))
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_two_modules_of_a_part_share_a_name() -> None:
    parts = [path for portion in PORTIONS for path in (ROOT / portion / "semel").iterdir()]
    assert len(parts) > 4
    assert {part.name: shared for part in parts if (shared := shared_names(part))} == {}


def test_a_planted_second_module_is_found(tmp_path: Path) -> None:
    for name in ("log/__init__.py", "log/log.py", "log/config.py", "config.py", "raft/log.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert shared_names(tmp_path) == {
        "config": ["config", "log/config"],
        "log": ["log", "raft/log"],
    }


def test_generated_stubs_are_not_ignored_by_git() -> None:
    stubs = sorted((ROOT / "protos" / "semel" / "protos" / "v1").glob("*_pb2*.py*"))
    assert stubs
    known = set(tracked("protos/semel/protos/v1"))
    assert [stub.name for stub in stubs if stub not in known] == []


@pytest.mark.parametrize("script", ["run", ".ci/run"])
def test_scripts_are_executable(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111 == 0o111


def test_continuous_integration_runs_exactly_the_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-1] == "exec ./run test"


def test_long_files_say_why() -> None:
    silent = []
    for path in tracked("*.py"):
        if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        lines = path.read_text().splitlines()
        head = "\n".join(lines[:40]).lower()
        if len(lines) > FILE_LINES_MAX and "one file" not in head:
            silent.append(f"{path.relative_to(ROOT)}: {len(lines)} lines")
    assert silent == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    here = str(ROOT).encode()
    names = [path for path in tracked("*") if path.is_file() and here in path.read_bytes()]
    assert names == []


def test_every_dependency_is_pinned_with_its_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[^A-Za-z0-9._-]", line)[0] for line in wanted}
    pins = (ROOT / "requirements" / "dev.txt").read_text().replace("\\\n", " ").splitlines()
    assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []
    assert names - {pin.split("==")[0] for pin in pins} == set()


def raised_anew(source: str) -> list[int]:
    """Lines in an `except*` block where another exception, such as a cancellation, can begin."""
    return [
        node.lineno
        for block in ast.walk(ast.parse(source))
        if isinstance(block, ast.TryStar)
        for handler in block.handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor | ast.Yield)
        or (isinstance(node, ast.Raise) and node.exc is not None)
    ]


def test_nothing_new_is_raised_where_a_group_of_exceptions_is_handled() -> None:
    """Python before 3.11.4 wraps it in a group: a cancelled task would end as one that failed."""
    found = {
        str(path.relative_to(ROOT)): lines
        for path in tracked("*.py")
        if (lines := raised_anew(path.read_text()))
    }
    assert found == {}


def test_parts_are_written_by_the_one_who_knows_the_loops() -> None:
    """`writelines` of some of asyncio's transports never pauses the writer."""
    found = [
        str(path.relative_to(ROOT))
        for part in PORTIONS
        for path in tracked(f"{part}/*.py")
        if ".writelines" in path.read_text()
    ]
    assert found == ["protos/semel/protos/compat.py"]


def test_a_planted_await_in_such_a_block_is_found() -> None:
    planted = "async def f():\n try:\n  pass\n except* OSError:\n  await g()\n"
    assert raised_anew(planted) == [5]
