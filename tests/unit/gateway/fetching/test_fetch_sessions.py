"""A consumer with a session names what has changed, is told what is news, and misses nothing."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from semel.gateway.fetching.fetch_response import Fetched
from semel.gateway.fetching.fetch_sessions import (
    FINAL_EPOCH,
    IDLE_S,
    INITIAL_EPOCH,
    NO_SESSION,
    Ask,
    FetchSession,
    FetchSessions,
    Place,
)

A, B, C = ("orders", 0), ("orders", 1), ("bills", 0)


def sessions(sessions_max: int = 3, partitions_max: int = 100) -> FetchSessions:
    return FetchSessions(
        random.Random(1).randrange, sessions_max=sessions_max, partitions_max=partitions_max
    )


def begun(owner: FetchSessions, *places: Place, now: float = 0.0) -> FetchSession:
    found = owner.begin(NO_SESSION, INITIAL_EPOCH, asks(*places), (), now)
    assert isinstance(found, FetchSession)
    return found


def asks(*places: Place, offset: int = 0) -> list[tuple[Place, Ask]]:
    return [(place, Ask(offset, 1_000)) for place in places]


def answer(place: Place, end: int = 5, data: bytes = b"") -> tuple[str, Fetched]:
    batches = (data,) if data else ()
    return place[0], Fetched(place[1], high_watermark=end, log_start_offset=0, batches=batches)


def test_a_request_changes_what_the_session_has() -> None:
    owner = sessions()
    session = begun(owner, A, B)
    assert session.session_id > 0
    again = owner.begin(session.session_id, 1, asks(B, C, offset=7), [A], 0.0)
    assert again is session
    assert session.asks() == [(B, Ask(7, 1_000)), (C, Ask(7, 1_000))]
    assert owner.partitions == 2
    assert owner.begin(session.session_id, 2, (), (), 0.0) is session


def test_only_news_is_told() -> None:
    session = begun(sessions(), A, B)
    first = [answer(A), answer(B)]
    assert session.news(first) == first
    assert session.news(first) == []
    assert session.news([answer(A), answer(B, 6)]) == [answer(B, 6)]
    assert session.news([answer(A, data=b"x"), answer(B, 6)]) == [answer(A, data=b"x")]
    trimmed = "orders", Fetched(1, high_watermark=6, log_start_offset=2)
    assert session.news([answer(A), trimmed]) == [trimmed]


def test_an_error_is_told_until_it_is_over_and_so_is_its_end() -> None:
    session = begun(sessions(), A)
    session.news([answer(A)])
    error = "orders", Fetched(0, ErrorCode.not_leader_or_follower)
    assert session.news([error]) == [error]
    assert session.news([error]) == [error]
    assert session.news([answer(A)]) == [answer(A)]
    assert session.news([answer(A)]) == []


def test_who_got_records_comes_last_the_next_time() -> None:
    session = begun(sessions(), A, B, C)
    session.news([answer(A, data=b"x"), answer(B), answer(C)])
    assert [place for place, _ in session.asks()] == [B, C, A]


def test_epochs_are_counted_and_wrap_to_one() -> None:
    owner = sessions()
    session = begun(owner, A)
    number = session.session_id
    assert owner.begin(number, 2, (), (), 0.0) is ErrorCode.invalid_fetch_session_epoch
    assert owner.begin(number, 1, (), (), 0.0) is session
    assert owner.begin(number, 1, (), (), 0.0) is ErrorCode.invalid_fetch_session_epoch
    session.next_epoch = (1 << 31) - 1
    assert owner.begin(number, (1 << 31) - 1, (), (), 0.0) is session
    assert owner.begin(number, 1, (), (), 0.0) is session


def test_unknown_sessions_are_refused_and_full_requests_end_them() -> None:
    owner = sessions()
    assert owner.begin(5, 1, asks(A), (), 0.0) is ErrorCode.fetch_session_id_not_found
    assert owner.begin(NO_SESSION, 1, asks(A), (), 0.0) is ErrorCode.fetch_session_id_not_found
    session = begun(owner, A)
    other = owner.begin(session.session_id, INITIAL_EPOCH, asks(B), (), 0.0)
    assert isinstance(other, FetchSession)
    assert other.session_id != session.session_id
    assert len(owner) == 1
    assert owner.begin(other.session_id, FINAL_EPOCH, asks(B), (), 0.0) is None
    assert (len(owner), owner.partitions) == (0, 0)
    assert owner.begin(NO_SESSION, INITIAL_EPOCH, (), (), 0.0) is None


def test_idle_sessions_make_room_and_others_do_not() -> None:
    owner = sessions(sessions_max=2)
    first, second = begun(owner, A), begun(owner, A, now=1.0)
    assert owner.begin(NO_SESSION, INITIAL_EPOCH, asks(A), (), IDLE_S - 1) is None
    assert owner.begin(first.session_id, 1, (), (), IDLE_S) is first
    third = begun(owner, A, now=IDLE_S + 1)
    assert owner.begin(second.session_id, 1, (), (), IDLE_S + 1) is (
        ErrorCode.fetch_session_id_not_found
    )
    assert owner.begin(first.session_id, 2, (), (), IDLE_S + 1) is first
    assert owner.begin(third.session_id, 1, (), (), IDLE_S + 1) is third


def test_a_session_that_grows_beyond_the_room_ends() -> None:
    owner = sessions(partitions_max=2)
    assert owner.begin(NO_SESSION, INITIAL_EPOCH, asks(A, B, C), (), 0.0) is None
    session = begun(owner, A, B)
    assert owner.begin(session.session_id, 1, asks(C), (), 0.0) is (
        ErrorCode.fetch_session_id_not_found
    )
    assert (len(owner), owner.partitions) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=60))
def test_a_consumer_knows_the_newest_end_of_all_that_it_reads(
    steps: list[tuple[int, int, bool]],
) -> None:
    """A model: the queues' ends, and what a consumer knows of them by what it was told."""
    owner = sessions()
    session = begun(owner, A, B)
    ends = dict.fromkeys((A, B, C), 0)
    known: dict[Place, int] = {}
    reads = {A, B}
    for epoch, (number, end, reads_it) in enumerate(steps, 1):
        place = (A, B, C)[number]
        ends[place] = max(ends[place], end)
        new, gone = (asks(place), ()) if reads_it else ((), (place,))
        reads = reads | {place} if reads_it else reads - {place}
        assert owner.begin(session.session_id, epoch, new, gone, 0.0) is session
        answers = [answer(place, ends[place]) for place, _ in session.asks()]
        for topic, each in session.news(answers):
            known[topic, each.partition] = each.high_watermark
        assert {place for place, _ in session.asks()} == reads
        assert {place: known[place] for place in reads} == {place: ends[place] for place in reads}
        assert owner.partitions == len(reads)
