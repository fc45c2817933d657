"""Term and vote of this node: they are saved at once, and nothing that needs them leaves before.

How it works. Writing and syncing term and vote BLOCKS the event loop: elections are rare, and no
message of a new term may leave before its term is durable. While the disk has no room for them, the
messages that depend on them wait here, and each tick tries to save them again.

Invariants
1. `on_saved` is called once for each save, after the sync, with the messages that waited for it.
2. Each further try writes the whole record again instead of only syncing it: after a failed sync
   the kernel considers the pages clean, and a second sync would write nothing.

Not here: the file (`log/hard_state.py`), when a term or vote changes (`raft/`), what the node does
meanwhile (`replica/driver.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from semel.broker.log import HardStateFile
from semel.broker.raft import HardState, Message
from semel.protos.errors import DiskFull
from semel.protos.ids import NodeId

logger = logging.getLogger(__name__)


class TermAndVote:
    """Saves term and vote, and holds back the messages that depend on them."""

    def __init__(self, file: HardStateFile) -> None:
        self._file = file
        self.unsaved: tuple[HardState, Sequence[Message]] | None = None
        """Term and vote that the disk has no room for, and the messages that wait for them."""
        self._told = False
        """Whether a log line has already said that the disk has no room for them."""
        self.on_saved: Callable[[HardState, Sequence[Message]], None] = lambda *_: None

    def load(self) -> HardState:
        """BLOCKING. The newest term and vote that were saved; term 0 if there are none."""
        saved = self._file.load()
        term, voted_for = saved if saved is not None else (0, None)
        return HardState(term=term, voted_for=None if voted_for is None else NodeId(voted_for))

    def save(self, hard_state: HardState, messages: Sequence[Message]) -> None:
        """BLOCKING. Saves them and gives `messages` to `on_saved`; on a full disk both wait."""
        self.unsaved = hard_state, messages
        self.try_again()

    def try_again(self) -> bool:
        """BLOCKING. Saves the unsaved term and vote; False while the disk has no room for them."""
        assert self.unsaved is not None
        saved, messages = self.unsaved
        try:
            self._file.save(saved.term, saved.voted_for)
        except DiskFull as error:
            if not self._told:
                logger.error(
                    "no room for term and vote: this node takes no part in its group until there "
                    "is some term=%d error=%s",
                    saved.term,
                    error,
                )
            self._told = True
            return False
        self.unsaved = None
        if self._told:
            logger.info("term and vote are saved again term=%d", saved.term)
        self._told = False
        self.on_saved(saved, messages)
        return True

    def repair(self) -> None:
        """BLOCKING. Writes a damaged copy of term and vote anew: 16 KiB, and rarely."""
        try:
            repaired = self._file.repair()
        except DiskFull as error:
            logger.error("a copy of term and vote is damaged, the other counts error=%s", error)
        else:
            if repaired:
                logger.error("a copy of term and vote was damaged and is written anew")
