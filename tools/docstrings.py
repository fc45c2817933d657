"""Checks how docstrings begin: `python -m tools.docstrings` lists those that have no subject.

A docstring that begins with "Of", "Who", "What is" or "So many" makes its reader look for the
subject of the sentence. This program reads all tracked Python files but generated ones, and fails
if the docstring of a module, class, function or field begins with one of `WORDS`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import Final

from tools.source_tree import ROOT, tracked

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
    found = 0
    for path in tracked("*.py"):
        if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        for line, text in findings(path.read_text(encoding="utf-8")):
            print(f"{path.relative_to(ROOT)}:{line}: {text}")
            found += 1
    if found:
        print(f"{found} docstrings begin without a subject: say who does what, subject first")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
