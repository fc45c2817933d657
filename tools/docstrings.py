"""Checks how docstrings begin: `python -m tools.docstrings` lists those that have no subject.

A docstring that begins with "Of", "Who", "What is" or "So many" makes its reader look for the
subject of the sentence. This program reads all tracked Python files but generated ones, and fails
if the docstring of a module, class, function or field begins with one of `WORDS`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
WORDS: Final = ("Of", "Who", "Whoever", "Whose", "What is", "So many", "So much", "As many")
_BEGINS: Final = re.compile(rf"\s*(?:{'|'.join(WORDS)})\b")


def findings(source: str) -> Iterator[tuple[int, str]]:
    """Line and beginning of each docstring that has no subject."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            and _BEGINS.match(node.value.value)
        ):
            yield node.lineno, node.value.value.strip().partition("\n")[0]


def main() -> int:
    """Command line. Returns 1 if there is any."""
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = 0
    for name in tracked.stdout.splitlines():
        if name.endswith(("_pb2.py", "_pb2_grpc.py")) or not (ROOT / name).exists():
            continue
        for line, text in findings((ROOT / name).read_text(encoding="utf-8")):
            print(f"{name}:{line}: {text}")
            found += 1
    if found:
        print(f"{found} docstrings begin without a subject: say who does what, subject first")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
