"""Raft cores with one known bug each, beside those of the simulator (`tests/sim/planted.py`)."""

from __future__ import annotations

from semel.broker.raft import Message, MessageKind, RaftCore, SnapshotMark


class StandsWithoutAsking(RaftCore):
    """No pre-vote: whoever misses its master raises its term at once."""

    def _on_election_timeout(self) -> None:
        if self._may_stand:
            self._stand(force=False)
        else:
            super()._on_election_timeout()


class LetsItsMasterDown(RaftCore):
    """A slave that hears its master would vote for another all the same."""

    @property
    def _in_lease(self) -> bool:
        return False


class BeatsWithAHangingDisk(RaftCore):
    """Heartbeats do not depend on the log's progress."""

    def on_log_stalled(self, oldest_unsynced_age_ms: int) -> None:
        pass


class TakesAnOfferForTheSnapshot(RaftCore):
    """An offer counts as if the snapshot were installed, and is forgotten."""

    def _on_snapshot_offer(self, message: Message) -> None:
        mark = message.snapshot
        assert mark is not None
        self.matched_index = max(self.matched_index, mark.index)
        self._reply(message, MessageKind.SNAPSHOT_REPLY, log_index=mark.index)


class InstallsEverySnapshot(RaftCore):
    """A late snapshot replaces a log that has gone on since."""

    def begin_snapshot(self, mark: SnapshotMark) -> bool:
        super().begin_snapshot(mark)
        self._installing = True
        return True

    def on_snapshot_installed(self, mark: SnapshotMark, now_ms: int) -> None:
        self.commit_index = min(self.commit_index, mark.index - 1)
        super().on_snapshot_installed(mark, now_ms)
