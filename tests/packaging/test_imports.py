"""Whatever is shared stands in a module of its own: nobody imports a test to get at its helpers.

A test module that others import cannot be renamed, split or deleted without them, and a whole suite
is collected for the sake of one helper. Helpers live in `tests/kit`, or beside the tests of the one
folder that uses them, in a module whose name does not begin with `test_`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tools.source_tree import ROOT, tracked


def imported(source: str) -> Iterator[str]:
    """Dotted names of modules and of what is taken from them, as that may be a module too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = ".".join(filter(None, ("tests" if level else "", module)))
                yield from (f"{base}.{name.name}" for name in names)


def is_private(name: str) -> bool:
    """Test modules and all of the integration tests are nobody else's."""
    root, *inside = name.split(".")
    return root == "tests" and (
        inside[:1] == ["integration"] or any(part.startswith("test_") for part in inside)
    )


def private_imports(source: str) -> list[str]:
    return [name for name in imported(source) if is_private(name)]


def test_nobody_imports_a_test_module() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in tracked("*.py")
        if (names := private_imports(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "planted",
    [
        "from tests.integration.test_splits import Load\n",
        "from tests.integration.conftest import stage\n",
        "from tests.unit.broker.raft import single_core, test_edges\n",
        "from .test_moves import good\n",
        "import tests.contract.test_metadata_store as contract\n",
        "def late() -> None:\n    from tests.checking.test_moves import good\n",
    ],
)
def test_a_planted_import_is_found(planted: str) -> None:
    assert private_imports(planted)


def test_helpers_may_be_imported() -> None:
    allowed = "from tests.kit.waiting import until\nfrom tests.checking import moves\n"
    assert private_imports(allowed) == []
