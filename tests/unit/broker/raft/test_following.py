"""A follower under every order of a master's APPENDs: repeated, late, shortened, out of order."""

from __future__ import annotations

from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from semel.broker.raft import (
    EntryMeta,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftConfig,
    RaftCore,
)
from semel.protos.ids import NodeId
from tests.sim.disk import SimDisk, SimEntry

ME, MASTER = NodeId(1), NodeId(2)
GROUP = Membership(voters=frozenset({ME, MASTER, NodeId(3)}))
TERM = 9


class Follower:
    """A core on a disk; every entry's payload is its term, so that logs can be compared."""

    def __init__(self, terms: list[int], core_class: type[RaftCore] = RaftCore) -> None:
        self.disk = SimDisk(GROUP)
        self.disk.durable.entries.extend(_entry(i, term) for i, term in enumerate(terms, 1))
        self.disk.view = self.disk.durable.copy()
        self.core = core_class(
            RaftConfig(),
            node_id=ME,
            hard_state=HardState(term=TERM),
            membership=GROUP,
            log=self.disk,
            applied_index=0,
            random=Random(0),
            now_ms=0,
        )
        self.truncations: list[int] = []
        self.replies: list[Message] = []

    @property
    def terms(self) -> list[int]:
        return [entry.meta.term for entry in self.disk.view.entries]

    def take(self, message: Message) -> None:
        self.core.step(message, 10)
        ready = self.core.ready()
        if ready.truncate_from is not None:
            assert ready.truncate_from > ready.commit_index or ready.append
            self.truncations.append(ready.truncate_from)
            self.disk.truncate(ready.truncate_from)
        if ready.append:
            assert ready.append[0].index == self.disk.last_index + 1
            self.disk.write(tuple(_entry(meta.index, meta.term) for meta in ready.append))
        self.replies += ready.messages

    def sync(self) -> None:
        index, term = self.disk.start_flush()
        self.disk.end_flush()
        self.core.on_synced(index, term, 10)
        self.replies += self.core.ready().messages


def _entry(index: int, term: int) -> SimEntry:
    return SimEntry(EntryMeta(index=index, term=term, size=100), term)


def _append(terms: list[int], previous: int, count: int, commit: int) -> Message:
    """Entries behind `previous` of a master's log with these terms."""
    entries = tuple(
        EntryMeta(index=index, term=terms[index - 1], size=100)
        for index in range(previous + 1, min(previous + count, len(terms)) + 1)
    )
    return Message(
        kind=MessageKind.APPEND,
        source=MASTER,
        target=ME,
        term=TERM,
        log_index=previous,
        log_term=terms[previous - 1] if previous else 0,
        commit_index=commit,
        entries=entries,
    )


_WINDOWS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 12), st.booleans()),
    max_size=25,
)


@given(
    master=st.lists(st.integers(1, TERM), min_size=12, max_size=12).map(sorted),
    common=st.integers(0, 12),
    tail=st.lists(st.integers(1, TERM - 1), max_size=5).map(sorted),
    windows=_WINDOWS,
)
def test_any_appends_in_any_order_lead_to_the_masters_log_and_cut_only_conflicts(
    master: list[int], common: int, tail: list[int], windows: list[tuple[int, int, int, bool]]
) -> None:
    own = master[:common] + [max(term, *master[:common], 0) for term in tail]
    agreed = 0
    while agreed < min(len(own), len(master)) and own[agreed] == master[agreed]:
        agreed += 1
    pairs = zip(own[agreed:], master[agreed:], strict=False)
    assume(all(mine != its for mine, its in pairs))  # log matching: once apart, apart for good
    follower = Follower(own)
    safe = 0  # what the master may have committed: the follower has acknowledged so much
    for previous, count, commit, sync in windows:
        before = follower.terms
        follower.take(_append(master, previous, count, min(commit, len(master))))
        cut = len(before) < len(own) or follower.terms[: len(before)] != before
        assert not cut or follower.truncations
        if sync:
            follower.sync()
        for reply in follower.replies:
            if not reply.rejected:
                safe = max(safe, reply.log_index)
        assert follower.disk.true_synced_index >= safe
        assert follower.terms[:safe] == master[:safe]
        assert follower.core.commit_index <= len(follower.terms)
        assert follower.terms[: follower.core.commit_index] == master[: follower.core.commit_index]
    assert len(follower.truncations) <= 1, "one conflict, one cut"
    assert follower.truncations in ([], [agreed + 1])
    follower.take(_append(master, 0, len(master), len(master)))
    assert follower.terms[: len(master)] == master
    assert follower.core.commit_index == len(master)


@given(st.lists(st.integers(1, TERM), min_size=1, max_size=12).map(sorted), _WINDOWS)
def test_without_a_conflict_nothing_is_ever_truncated(
    master: list[int], windows: list[tuple[int, int, int, bool]]
) -> None:
    follower = Follower(master)
    for previous, count, commit, _ in windows:
        bounded = min(previous, len(master))
        follower.take(_append(master, bounded, count, min(commit, len(master))))
    assert follower.truncations == []
    assert follower.terms == master
