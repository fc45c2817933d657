"""What the command lines of several soaks share."""

from __future__ import annotations

import argparse

from tests.faults.run import RESUME_S


def add_resume(parser: argparse.ArgumentParser) -> None:
    """The option that says how long after healing acknowledged writes must be back."""
    parser.add_argument(
        "--resume",
        type=float,
        default=RESUME_S,
        metavar="SECONDS",
        help="writes are back so long after healing; more where other loads share the machine",
    )
