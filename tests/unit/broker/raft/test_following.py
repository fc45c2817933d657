"""A slave under every order of a master's APPENDs: repeated, late, shortened, out of order."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.kit.slave import TERM, Slave, append

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
    slave = Slave(own)
    safe = 0  # what the master may have committed: the slave has acknowledged so much
    for previous, count, commit, sync in windows:
        before = slave.terms
        slave.take(append(master, previous, count, min(commit, len(master))))
        cut = len(before) < len(own) or slave.terms[: len(before)] != before
        assert not cut or slave.truncations
        if sync:
            slave.sync()
        for reply in slave.replies:
            if not reply.rejected:
                safe = max(safe, reply.log_index)
        assert slave.disk.true_synced_index >= safe
        assert slave.terms[:safe] == master[:safe]
        assert slave.core.commit_index <= len(slave.terms)
        assert slave.terms[: slave.core.commit_index] == master[: slave.core.commit_index]
    assert len(slave.truncations) <= 1, "one conflict, one cut"
    assert slave.truncations in ([], [agreed + 1])
    slave.take(append(master, 0, len(master), len(master)))
    assert slave.terms[: len(master)] == master
    assert slave.core.commit_index == len(master)


@given(st.lists(st.integers(1, TERM), min_size=1, max_size=12).map(sorted), _WINDOWS)
def test_without_a_conflict_nothing_is_ever_truncated(
    master: list[int], windows: list[tuple[int, int, int, bool]]
) -> None:
    slave = Slave(master)
    for previous, count, commit, _ in windows:
        bounded = min(previous, len(master))
        slave.take(append(master, bounded, count, min(commit, len(master))))
    assert slave.truncations == []
    assert slave.terms == master
