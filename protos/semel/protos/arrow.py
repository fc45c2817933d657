"""Whether Arrow is installed, which the client can do without."""

from __future__ import annotations

import importlib.util
from typing import Final

from semel.protos.errors import InvalidRequest

INSTALLED: Final = importlib.util.find_spec("pyarrow") is not None
"""False where `pyarrow` is not installed. Asked once, so that a process has arrays of one kind."""


def missing(what: str) -> InvalidRequest:
    """Returns the error of a call that needs Arrow, where it is not installed."""
    return InvalidRequest(
        f"{what} needs pyarrow, which is not installed: pip install 'semel[arrow]'"
    )
