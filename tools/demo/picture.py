"""The proof of the demo as a picture for the README."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final

from rich.console import Console

from tools.demo.proof import Line, table

COLUMNS: Final = 104
_ELSEWHERE: Final = re.compile(r"\s*@font-face \{[^}]*\}|\s*<!--.*?-->", re.S)
"""rich names a font that browsers would fetch from elsewhere; any monospaced one will do."""


def draw(lines: list[Line], path: Path) -> None:
    """Writes the table as SVG. Raises OSError."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(table(lines))
    path.write_text(_ELSEWHERE.sub("", console.export_svg(title="./run demo")), encoding="utf-8")
