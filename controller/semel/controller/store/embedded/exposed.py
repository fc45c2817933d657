"""pysyncobj's private parts, under plain names, in one place.

How it works. pysyncobj is pinned to `VERSION`, because the names that are used to harden it are
private and may change. All of them are listed in `PRIVATE_NAMES` and used only in this file; a test
compares the list with this folder and with the installed package, and fails on any other version.
`ExposedSyncObj` builds the object over our journal, transport and dumps, and exposes what
`consensus.py` reads and controls; `OwnedJournal` is the journal that it takes.

Not here: how these parts are used (`consensus.py`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final

from semel.controller.store.embedded.dump import Dumps
from semel.controller.store.embedded.library import (
    Journal,
    Node,
    SyncObj,
    SyncObjConf,
    Transport,
    syncobj,
)

VERSION: Final = "0.3.17"
"""The pysyncobj that this file was written for."""
PRIVATE_NAMES: Final = (
    "_SyncObj__connectedToAnyone",
    "_SyncObj__doApplyCommand",
    "_SyncObj__forceLogCompaction",
    "_SyncObj__needLoadDumpFile",
    "_SyncObj__noopIDx",
    "_SyncObj__onMessageReceived",
    "_SyncObj__otherNodes",
    "_SyncObj__pipeNotifier",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftLeader",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftState",
    "_SyncObj__serializer",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "_PipeNotifier__pipeR",
    "_PipeNotifier__pipeW",
    "_RAFT_STATE",
    "_applyCommand",
    "_destroy",
    "_onNodeConnected",
    "_onNodeDisconnected",
    "_onReadonlyNodeConnected",
    "_onReadonlyNodeDisconnected",
)

_RAFT_STATE: Final = syncobj._RAFT_STATE
_CREATING = threading.Lock()


def now() -> float:
    """pysyncobj's clock, in seconds; a simulation replaces it inside pysyncobj."""
    return float(syncobj.monotonicTime())


class OwnedJournal(Journal):  # type: ignore[misc]
    """A journal that stays open when pysyncobj ends, because its creator owns it."""

    def _destroy(self) -> None:
        pass


class ExposedSyncObj(SyncObj, ABC):  # type: ignore[misc]
    """A SyncObj over the given parts, ticked by its owner."""

    def __init__(
        self,
        self_node: Node | None,
        others: Iterable[Node],
        conf: SyncObjConf,
        *,
        journal: Journal,
        transport: Transport,
        dumps: Dumps,
        applied_index: int,
    ) -> None:
        with _CREATING:  # SyncObj has no parameter for the journal
            create = syncobj.createJournal
            syncobj.createJournal = lambda _: journal
            try:
                super().__init__(self_node, others, conf, transport=transport)
            finally:
                syncobj.createJournal = create
        self.transport = transport
        self._SyncObj__serializer = dumps
        self._SyncObj__needLoadDumpFile = False
        self._SyncObj__raftLastApplied = applied_index
        self._wakes = threading.Lock()
        self._awake = True

    def wake(self) -> None:
        """Ends the wait of a tick. Callable from any thread at any time."""
        with self._wakes:
            if self._awake:
                with contextlib.suppress(BlockingIOError):  # with a full pipe it is already awake
                    self._SyncObj__pipeNotifier.notify()

    def end(self) -> None:
        """Closes the descriptors that pysyncobj opened; the journal stays with its owner."""
        with self._wakes:
            self._awake = False
            notifier = self._SyncObj__pipeNotifier
            os.close(notifier._PipeNotifier__pipeR)
            os.close(notifier._PipeNotifier__pipeW)

    def put(self, command: bytes, kind: int) -> None:
        """Passes a command to the leader, if there is one."""
        self._applyCommand(command, None, kind)

    def on_connected(self, peer: Node, *, voter: bool) -> None:
        """Notes that messages can be sent to the peer from now on."""
        if voter:
            self.transport._onNodeConnected(peer)
        else:
            self.transport._onReadonlyNodeConnected(peer)

    def on_disconnected(self, peer: Node, *, voter: bool) -> None:
        """Notes that messages to the peer are lost from now on."""
        if voter:
            self.transport._onNodeDisconnected(peer)
        else:
            self.transport._onReadonlyNodeDisconnected(peer)

    def handle(self, sender: Node, message: dict[str, Any]) -> None:
        """Passes a message to pysyncobj."""
        self._SyncObj__onMessageReceived(sender, message)

    @property
    def term(self) -> int:
        """The current term, durable."""
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        """Index up to which everything is committed, inclusive."""
        return int(self._SyncObj__raftCommitIndex)

    @property
    def applied_index(self) -> int:
        """Index up to which everything is applied, inclusive."""
        return int(self._SyncObj__raftLastApplied)

    @property
    def is_leader(self) -> bool:
        """True while this member believes that it leads the current term."""
        return bool(self._SyncObj__raftState == _RAFT_STATE.LEADER)

    @property
    def is_candidate(self) -> bool:
        """True while this member stands for election in the current term."""
        return bool(self._SyncObj__raftState == _RAFT_STATE.CANDIDATE)

    @property
    def leader(self) -> Node | None:
        """The leader, as far as this member knows."""
        return self._SyncObj__raftLeader

    @property
    def no_op_index(self) -> int:
        """Index of the no-op with which its newest leadership began; 0 before the first."""
        return int(self._SyncObj__noopIDx or 0)

    @property
    def voters(self) -> set[Node]:
        """All voters except this member."""
        return set(self._SyncObj__otherNodes)

    @property
    def followers(self) -> dict[Node, int]:
        """Match index of every node to which it would send entries as leader."""
        return dict(self._SyncObj__raftMatchIndex)

    def follow_term(self, term: int) -> None:
        """Becomes a follower in a newer term, without a leader or a vote."""
        assert term > self.term
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(_RAFT_STATE.FOLLOWER)
        self._SyncObj__raftLeader = None

    def step_down(self, stands_at: float) -> None:
        """Ends the leadership; it stands again at `stands_at` on `now`'s clock, unless a leader is
        heard before."""
        assert self.is_leader
        self._SyncObj__setState(_RAFT_STATE.FOLLOWER)
        self._SyncObj__raftLeader = None
        self._SyncObj__raftElectionDeadline = stands_at

    def stand_soon(self) -> None:
        """Ends the election timeout now instead of waiting for a master."""
        self._SyncObj__raftElectionDeadline = 0.0

    def compact_soon(self) -> None:
        """Has a dump made at the next opportunity, whatever the number of entries."""
        self._SyncObj__forceLogCompaction = True

    # Called by pysyncobj under its own names.

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802
        self.apply_entry(command)

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        return self.may_stand()

    @abstractmethod
    def apply_entry(self, command: bytes) -> None:
        """Applies the committed entry after `applied_index`."""

    @abstractmethod
    def may_stand(self) -> bool:
        """Called in every tick after the election deadline; True lets it become a candidate."""
