"""Cores with one known bug each; the simulator must catch every one.

Most are bugs that a Raft implementation has really had (see `docs/` on faults). A core here
overrides the one rule that it breaks and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.broker.raft import EntryMeta, Membership, Message, RaftCore
from semel.broker.raft.membership_history import check_step
from semel.broker.raft.progress import Progress
from semel.protos.errors import InvalidRequest
from semel.protos.ids import NodeId


def assert_caught(bug: type[RaftCore], run: Callable[..., object], seeds: int) -> None:
    """Runs seed after seed with `bug` as `core_class`. Raises AssertionError if all are clean."""
    for seed in range(seeds):
        try:
            run(seed, core_class=bug)
        except AssertionError:
            return
    raise AssertionError(f"{bug.__name__} survived {seeds} seeds")


class CommitsBeforeOwnSync(RaftCore):
    """The master counts its own entries before its disk has them."""

    def _maybe_commit(self) -> None:
        synced_index, self.synced_index = self.synced_index, self.log.last_index
        super()._maybe_commit()
        self.synced_index = synced_index


class AcknowledgesBeforeSync(RaftCore):
    """A slave acknowledges what is only in memory."""

    @property
    def _durable_match(self) -> int:
        return max(self.matched_index, self.commit_index)


class TellsVoteBeforeSync(RaftCore):
    """Messages do not wait for the hard state."""

    def _set_hard_state(self, term: int, voted_for: NodeId | None) -> None:
        super()._set_hard_state(term, voted_for)
        self._hard_state_durable = True


class VotesTwice(RaftCore):
    """A vote is given to whoever asks."""

    def _on_vote(self, message: Message) -> None:
        if self.voted_for != self.node_id:
            self.voted_for = None
        super()._on_vote(message)


class VotesForOldLogs(RaftCore):
    """Nobody compares logs."""

    def _is_new_enough(self, message: Message) -> bool:
        return True


class ComparesLogsByLength(RaftCore):
    """The longer log wins, whatever its last term."""

    def _is_new_enough(self, message: Message) -> bool:
        return message.log_index >= self.log.last_index


class CommitsPriorTermsByCounting(RaftCore):
    """Figure 8 of the Raft paper."""

    def _may_count(self, index: int) -> bool:
        return True


class TruncatesWithoutConflict(RaftCore):
    """An APPEND replaces whatever follows its predecessor."""

    def _take(self, entries: tuple[EntryMeta, ...]) -> bool:
        if entries[0].index <= self.log.last_index:
            self._truncate_from = entries[0].index
            self.synced_index = min(self.synced_index, entries[0].index - 1)
            self._history.truncate(entries[0].index)
        self._append = entries
        for entry in entries:
            if entry.membership is not None:
                self._history.append(entry.index, entry.membership)
        return True


class NeverTruncates(RaftCore):
    """Entries that stand at an index are taken for the master's."""

    def _take(self, entries: tuple[EntryMeta, ...]) -> bool:
        self._append = tuple(entry for entry in entries if entry.index > self.log.last_index)
        return True


class CommitsBeyondMatched(RaftCore):
    """A slave believes the master's commit index over its own divergent tail."""

    def _on_append(self, message: Message) -> None:
        super()._on_append(message)
        if not self._append and not self._installing:
            self._commit_to(min(message.commit_index, self.log.last_index))


class MatchesWithoutLooking(RaftCore):
    """The entry before is not compared."""

    def _on_append(self, message: Message) -> None:
        if message.log_index <= self.log.last_index:
            object.__setattr__(message, "log_term", self.log.term_at(message.log_index))
        super()._on_append(message)


class TrustsEveryCompletion(RaftCore):
    """A completed write counts, even when its entries have been replaced since."""

    def on_synced(self, index: int, term: int, now_ms: int) -> None:
        index = min(index, self.log.last_index)
        super().on_synced(index, self.log.term_at(index) or 0, now_ms)


class ReadsWithoutAsking(RaftCore):
    """A master answers reads without hearing a quorum."""

    def read_index(self, context: int, now_ms: int) -> None:
        super().read_index(context, now_ms)
        self._read_states += self._reads.take(self._reads.round + 1)


class ReadsBeforeOwnCommit(RaftCore):
    """A new master reads at its old commit index."""

    def _become_master(self) -> None:
        super()._become_master()
        self._term_start = 0


class ChangesMembersTooEarly(RaftCore):
    """Changes of membership wait for nothing: neither own-term commits nor each other."""

    def _check_change(self, membership: Membership) -> None:
        check_step(self.membership, membership)
        if self.node_id in membership.learners:
            raise InvalidRequest("a master that is a learner is beyond this bug")


class KeepsTruncatedMembership(RaftCore):
    """Truncating a change of membership does not bring the old one back."""

    def _truncate(self, from_index: int) -> None:
        membership = self.membership
        super()._truncate(from_index)
        if self.membership != membership:
            self._history.append(max(self._history.index + 1, from_index - 1), membership)


class TakesEntriesWhileInstalling(RaftCore):
    """Entries acknowledged during the switch to a snapshot vanish with the old log."""

    def _on_append(self, message: Message) -> None:
        installing, self._installing = self._installing, False
        super()._on_append(message)
        self._installing = installing

    def _acknowledge_synced(self) -> None:
        installing, self._installing = self._installing, False
        super()._acknowledge_synced()
        self._installing = installing


class NeverLooksForLosses(RaftCore):
    """A lost APPEND is never noticed: no liveness."""

    def _poke(self, node: NodeId, progress: Progress) -> None:
        pass


class MasterForever(RaftCore):
    """Without check-quorum a master that hears nobody goes on for ever."""

    def _hears_quorum(self) -> bool:
        return True
