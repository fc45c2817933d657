"""The modules that stand on arrays, twice in one process: over Arrow, and over numpy alone.

How it works. The modules are imported a second time while Arrow seems not to be installed. Those
that do not depend on arrays, with the errors and the types of ids, are shared.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, Final

_FRESH: Final = (
    *("arrow", "arrays", "codecs", "body", "columns", "few_rows", "column_checks", "slots"),
    *("client.core.message_ids", "client.core.batch_context", "client.core.batching"),
    *(
        "client.core.encoding",
        "client.core.dues",
        "client.core.splitting",
        "client.core.dropped_rows",
        "client.message",
    ),
    *("client.producer.intake", "client.reading.pulling", "console.lines"),
)


def _full(name: str) -> str:
    return f"semel.{name}" if "." in name else f"semel.protos.{name}"


@contextmanager
def _without_arrow() -> Iterator[None]:
    """Hides Arrow, and the modules that have chosen it; puts all back at the end."""
    hidden = {_full(name): importlib.import_module(_full(name)) for name in _FRESH}
    arrow: Any = sys.modules["pyarrow"]
    for name in hidden:
        del sys.modules[name]
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules["pyarrow"] = arrow
        for name, module in hidden.items():
            sys.modules[name] = module
            package, _, last = name.rpartition(".")
            setattr(sys.modules[package], last, module)


def _loaded() -> SimpleNamespace:
    found: dict[str, ModuleType] = {
        name.rpartition(".")[2]: importlib.import_module(_full(name)) for name in _FRESH
    }
    return SimpleNamespace(**found)


@cache
def over_arrow() -> Any:
    """The modules as they are where Arrow is installed, by the last part of their names."""
    found = _loaded()
    assert found.arrow.INSTALLED
    return found


@cache
def over_numpy() -> Any:
    """The same modules as they are where it is not."""
    over_arrow()
    with _without_arrow():
        found = _loaded()
    assert not found.arrow.INSTALLED
    assert found.columns.Columns is not over_arrow().columns.Columns
    return found
