"""What must be true after every event, whatever the faults.

How it works. The nodes report what they do; the checker keeps what the whole group has ever said
or stored, and compares. All checks are incremental, so they run after every event.

Invariants
1. Election safety: one master per term.
2. Log matching: an (index, term) has one payload and one predecessor, everywhere and for ever.
3. Leader completeness: a new master has all that was committed in earlier terms.
4. State-machine safety: one entry per committed index, and one digest of the state there.
5. A committed entry is durable on a quorum when the first node calls it committed.
6. A committed entry is truncated nowhere.
7. One vote per (node, term), durable before it is told, over all incarnations.
8. Nothing is said in a term that is not durable; an acknowledged index is durable.
9. A read sees everything that was committed before it was asked for.
10. A snapshot replaces nothing that was acknowledged in the current term, or is committed.
11. The membership in force is the newest in the log, also after a truncation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from semel.broker.raft import HardState, Membership, Message, MessageKind
from semel.protos.ids import NodeId
from tests.sim.disk import Image, SimDisk, SimEntry

_ACKNOWLEDGES = frozenset(
    {MessageKind.APPEND_REPLY, MessageKind.HEARTBEAT_REPLY, MessageKind.SNAPSHOT_REPLY}
)
_PROMISES_NOTHING = frozenset({MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_REPLY})


class InvariantError(AssertionError):
    """The group as a whole is wrong, though no single core noticed."""


def require(truth: bool, message: str) -> None:
    if not truth:
        raise InvariantError(message)


class Checker:
    """The memory of the whole group, and the events that were seen."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.committed_index = 0
        self._masters: dict[int, NodeId] = {}
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}
        self._committed: dict[int, tuple[int, int, int]] = {}
        self._digests: dict[int, int] = {}
        self._durable_votes: dict[tuple[NodeId, int], NodeId] = {}
        self._durable_terms: Counter[NodeId] = Counter()
        self._told_votes: dict[tuple[NodeId, int], NodeId] = {}
        self._reads: dict[int, int] = {}
        self._lost: dict[NodeId, Image] = {}
        self._acknowledged: Counter[tuple[NodeId, int]] = Counter()

    def on_master(self, node: NodeId, term: int, disk: SimDisk) -> None:
        if self._masters.get(term) == node:
            return
        require(term not in self._masters, f"two masters in term {term}")
        self._masters[term] = node
        self.seen["election"] += 1
        for index in range(self.committed_index, 0, -1):
            entry_term, _, commit_term = self._committed[index]
            if commit_term < term:
                found = disk.term_at(index)
                require(
                    found == entry_term or index < disk.first_index,
                    f"master {node} of term {term} has term {found} at {index}, "
                    f"where term {entry_term} was committed in term {commit_term}",
                )
                break

    def on_append(self, entries: Iterable[SimEntry], previous_term: int | None) -> None:
        require(previous_term is not None, "an append behind a hole")
        assert previous_term is not None
        for meta, payload in entries:
            known = self._entries.setdefault((meta.index, meta.term), (payload, previous_term))
            require(
                known == (payload, previous_term),
                f"entry ({meta.index}, term {meta.term}) is {(payload, previous_term)} here and "
                f"{known} there",
            )
            previous_term = meta.term

    def on_truncate(self, node: NodeId, entries: Iterable[SimEntry]) -> None:
        self.seen["truncation"] += 1
        for meta, _ in entries:
            committed = self._committed.get(meta.index)
            require(
                committed is None or committed[0] != meta.term,
                f"node {node} truncates committed entry {meta.index} of term {meta.term}",
            )

    def on_commit(
        self,
        entry: SimEntry,
        *,
        term: int,
        digest: int,
        voters: Iterable[NodeId],
        disks: Mapping[NodeId, SimDisk],
    ) -> None:
        """A node that is in `term`, with `voters`, calls an entry committed and applies it."""
        index, entry_term = entry.meta.index, entry.meta.term
        known = self._committed.get(index)
        if known is not None:
            require(
                known[:2] == (entry_term, entry.payload),
                f"index {index} is committed as {(entry_term, entry.payload)} and as {known[:2]}",
            )
        else:
            require(index == self.committed_index + 1, f"index {index} committed behind a hole")
            durable = [
                node
                for node in voters
                if self._has(disks[node].durable, index, entry_term)
                or (node in self._lost and self._has(self._lost[node], index, entry_term))
            ]
            quorum = len(list(voters)) // 2 + 1
            require(
                len(durable) >= quorum,
                f"entry {index} is committed with durable copies only on {durable}",
            )
            self._committed[index] = (entry_term, entry.payload, term)
            self.committed_index = index
            if entry_term < term:
                self.seen["prior-term entry committed"] += 1
        self.on_digest(index, digest)

    @staticmethod
    def _has(durable: Image, index: int, term: int) -> bool:
        return durable.term_at(index) == term or index < durable.first_index

    def on_digest(self, index: int, digest: int) -> None:
        known = self._digests.setdefault(index, digest)
        require(known == digest, f"two states at index {index}")

    def on_hard_state(self, node: NodeId, hard_state: HardState) -> None:
        """A hard state has become durable (or was found after a crash)."""
        term, vote = hard_state.term, hard_state.voted_for
        require(term >= self._durable_terms[node], f"node {node} falls back to term {term}")
        self._durable_terms[node] = term
        if vote is not None:
            known = self._durable_votes.setdefault((node, term), vote)
            require(known == vote, f"node {node} votes for {known} and {vote} in term {term}")

    def on_disk_lost(self, node: NodeId, durable: Image) -> None:
        """The node starts empty; `durable` is what it had, and may have acknowledged.

        It does not know its votes any more: two in one term are no fault of the core, but two
        masters would still be one.
        """
        self.seen["disk lost"] += 1
        self._lost[node] = durable
        del self._durable_terms[node]
        for kept in (self._durable_votes, self._told_votes, self._acknowledged):
            for key in [key for key in kept if key[0] == node]:
                del kept[key]

    def on_send(self, message: Message, disk: SimDisk) -> None:
        node, term = message.source, message.term
        if message.kind in _PROMISES_NOTHING:
            return
        require(
            term <= max(self._durable_terms[node], disk.hard_state.term),
            f"node {node} says {message.kind.name} in term {term} before that is durable",
        )
        if message.rejected:
            return
        if message.kind is MessageKind.VOTE_REPLY:
            known = self._told_votes.setdefault((node, term), message.target)
            require(known == message.target, f"node {node} told two votes in term {term}")
            durable = self._durable_votes.get((node, term))
            require(
                durable == message.target,
                f"node {node} told a vote in term {term} that is not durable",
            )
        elif message.kind is MessageKind.VOTE:
            require(
                self._told_votes.setdefault((node, term), node) == node
                and self._durable_votes.get((node, term)) == node,
                f"node {node} stands in term {term} without a durable vote for itself",
            )
        elif message.kind in _ACKNOWLEDGES:
            require(
                message.log_index <= disk.true_synced_index,
                f"node {node} acknowledges {message.log_index}, and only "
                f"{disk.true_synced_index} is durable",
            )
            told = self._acknowledged[node, term]
            self._acknowledged[node, term] = max(told, message.log_index)

    def on_install(self, node: NodeId, term: int, index: int, lost: Iterable[SimEntry]) -> None:
        """A snapshot at `index` replaces the log of a node, `lost` behind it included."""
        self.seen["snapshot installed"] += 1
        told = self._acknowledged[node, term]
        require(told <= index, f"node {node} installs {index} over {told}, which it acknowledged")
        for meta, _ in lost:
            committed = self._committed.get(meta.index)
            require(
                committed is None or committed[0] != meta.term,
                f"node {node} installs {index} over committed entry {meta.index}",
            )

    def on_standing(self, node: NodeId, membership: Membership, newest: Membership) -> None:
        require(membership == newest, f"node {node} is in {membership}, and its log in {newest}")

    def on_read_asked(self, context: int) -> None:
        self._reads[context] = self.committed_index

    def on_read_served(self, context: int, index: int) -> None:
        self.seen["read"] += 1
        floor = self._reads.pop(context)
        require(index >= floor, f"a read at {index} misses what was committed at {floor}")

    def on_membership(self, membership: Membership) -> None:
        self.seen["membership change"] += 1
        if membership.learners:
            self.seen["membership change with a learner"] += 1
