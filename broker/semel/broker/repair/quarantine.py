"""Quarantine for a log or a vote that is damaged beyond what the node can repair itself.

How it works. Most damage is repaired entry by entry (`repair/repair.py`). But the log or the vote
is unusable if both copies of a segment's header, all checkpoints or all copies of the vote are bad.
A node that has peers then behaves like one with an empty disk: it moves the unusable part away and
comes back as a *non-counting member* (`membership/status.py`) until the others have given it
everything again. A node that is alone in its group refuses to start and names the file.

Nothing is deleted: the part is moved to `damaged-N/` in the node's directory, where an operator may
look at it and delete it. If this happens on a majority at once, no master can be elected, but no
data is lost: the operator can put the directories back.

Invariants
1. The mark that keeps the node non-counting is durable before anything is moved.
2. A node with something in quarantine never takes its group for a new one
   (`membership/status.py`).

Not here: what counts as damage (`log/`).
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

from semel.broker.log import FileLayer
from semel.broker.log.files import replace_file

logger = logging.getLogger(__name__)

MARK_NAME: Final = "CATCHING_UP"
MARK_DAMAGED: Final = b"This node's data was damaged and is in quarantine: nobody counts it yet.\n"
_PREFIX: Final = "damaged-"


def quarantine(files: FileLayer, data: Path, part: str, reason: Exception) -> None:
    """BLOCKING. Moves `part` of the data directory away and marks this node as non-counting."""
    replace_file(files, data / MARK_NAME, [MARK_DAMAGED])
    move_away(files, data, part, reason)


def move_away(files: FileLayer, data: Path, part: str, reason: Exception) -> None:
    """BLOCKING. Moves `part` of the data directory into a new directory beside it."""
    taken = [name.removeprefix(_PREFIX) for name in files.names(data) if name.startswith(_PREFIX)]
    number = 1 + max((int(name) for name in taken if name.isdecimal()), default=0)
    target = data / f"{_PREFIX}{number}"
    files.make_directory(target)
    with contextlib.suppress(FileNotFoundError):
        files.rename(data / part, target / part)
    files.sync_directory(data)
    files.sync_directory(target)
    logger.error(
        "IN QUARANTINE: damaged beyond repair; delete it when this node has caught up "
        "part=%s to=%s reason=%s",
        part,
        target,
        reason,
    )
