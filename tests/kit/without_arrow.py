"""A plugin for pytest, `-p tests.kit.without_arrow`: Semel runs as where Arrow is not installed.

The tests themselves may use Arrow. Those that give arrays of Arrow to Semel, or ask it for some,
cannot pass.
"""

from __future__ import annotations

import sys

from semel.protos import arrow

assert "semel.protos.arrays" not in sys.modules, "it has chosen its arrays already"
arrow.INSTALLED = False  # type: ignore[misc]
