"""Whether Arrow is installed, which the client can do without."""

from __future__ import annotations

import importlib.util
from typing import Final

INSTALLED: Final = importlib.util.find_spec("pyarrow") is not None
"""False where `pyarrow` is not installed. Asked once, so that a process has arrays of one kind."""
