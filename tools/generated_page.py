"""The command line of what writes one generated page, or with --check compares it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def run(path: Path, page: Callable[[], str], module: str, description: str | None) -> int:
    """Runs the generator `module`, whose text is `page()`; returns the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        path.write_text(page(), encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == page():
        return 0
    print(f"{path.name} is stale: run `python -m {module}`", file=sys.stderr)
    return 1
