"""Starting a node's program anew, in the process in which it runs.

How it works. The process executes its program again, with the arguments it was started with: it
keeps its number, its parent and what a supervisor has set up for it, so that systemd, a container's
runtime, `semel up` and a shell all go on as if nothing had happened. A program that was exchanged
on the disk meanwhile runs in its newer version, and a settings file is read again. If the new start
fails, the process ends with an exit status, and whoever supervises it sees that as ever.

Not here: ending the node in order before that (its `__main__`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

DESCRIPTORS = Path("/proc/self/fd")


def start_anew(module: str) -> NoReturn:
    """Executes `python -m MODULE` with this process's arguments, in its place. Main thread only."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    keep_to_itself()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *sys.argv[1:]])


def keep_to_itself() -> None:
    """Has all descriptors but the standard ones closed at the execution: a socket that a library
    would hand on holds its port."""
    if not DESCRIPTORS.is_dir():
        return  # no Linux: Python's own are not handed on anyway
    for descriptor in [int(path.name) for path in DESCRIPTORS.iterdir()]:
        with contextlib.suppress(OSError):  # the one of the listing has gone
            if descriptor > 2:
                os.set_inheritable(descriptor, False)
