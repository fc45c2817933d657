"""Shared parts of the larger benchmarks' command lines: help, output files, one-line errors.

Not here: options that all benchmarks have (`harness.arguments`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from benchmarks.harness import decimal
from benchmarks.peer import PeerError
from benchmarks.workloads import ClientError
from semel.protos.errors import SemelError

STOPS_THE_RUN = (PeerError, ClientError, SemelError, OSError, RuntimeError)
"""Errors from outside, reported in one line; bugs of our own keep their traceback."""


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and leaves the examples unwrapped."""


def add_peer_silence(parser: argparse.ArgumentParser) -> None:
    """Adds the option of benchmarks that run a peer."""
    parser.add_argument(
        "--peer-silence",
        type=decimal(0.1, 86_400),
        default=900.0,
        metavar="SECONDS",
        help="a peer that prints nothing for so long is ended",
    )


def check_files(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends with one line when a file of `--json` or `--picture` cannot be written."""
    if options.picture is not None and options.picture.suffix != ".svg":
        parser.error(
            f"--picture {options.picture}: pictures are SVG, name a file that ends in .svg"
        )
    for name in ("json", "picture"):
        path = getattr(options, name)
        if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            parser.error(f"--{name} {path}: {path.parent} is no directory that can be written to")


def some_of(kind: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """An argparse type: names separated by commas, returned in the order of `known`."""

    def parse_names(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(
                f"there is no {kind} {unknown[0]!r}; there are {', '.join(known)}"
            )
        return [name for name in known if name in names]

    return parse_names


def strict_json(document: Mapping[str, Any]) -> str:
    """The text of a JSON file; missing figures (NaN) are null."""
    return json.dumps(_without_nan(document), indent=1, allow_nan=False) + "\n"


def _without_nan(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: _without_nan(each) for key, each in part.items()}
    if isinstance(part, list | tuple):
        return [_without_nan(each) for each in part]
    return None if isinstance(part, float) and not math.isfinite(part) else part


def guarded(run: Callable[[], int]) -> int:
    """Calls `run`; turns an error from outside into one line and an exit status."""
    try:
        return run()
    except KeyboardInterrupt:
        print("\nerror: interrupted; nothing is left running", file=sys.stderr)
        return 130
    except (*STOPS_THE_RUN, subprocess.SubprocessError) as error:
        first = (str(error).splitlines() or [""])[0] or type(error).__name__
        print(f"\nerror: {first}", file=sys.stderr)
        return 1
