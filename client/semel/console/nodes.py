"""`semel broker` and `semel controller`: one node in this process.

These commands replace themselves by the node's own program and pass all arguments on; only that
program knows its options.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click


def _become(module: str, arguments: tuple[str, ...]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


_ALL_ARGUMENTS = {"ignore_unknown_options": True, "help_option_names": []}


@click.command(context_settings=_ALL_ARGUMENTS)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def broker(arguments: tuple[str, ...]) -> None:
    """Runs one broker node; `semel broker --help` lists its options."""
    _become("semel.broker", arguments)


@click.command(context_settings=_ALL_ARGUMENTS)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def controller(arguments: tuple[str, ...]) -> None:
    """Runs one controller, or moves metadata (`export`, `import`); `--help` lists the options."""
    moves = arguments[:1] in (("export",), ("import",))
    _become("semel.controller.archive.commands" if moves else "semel.controller", arguments)
