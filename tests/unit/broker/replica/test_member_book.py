"""Members with addresses go through the same history as the core's membership."""

from __future__ import annotations

from semel.broker.raft import Membership
from semel.broker.replica.member_book import MemberBook, Members
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import NodeId

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
FOUNDING = Members(voters={ONE: "h:1"})
WITH_LEARNER = Members(voters={ONE: "h:1"}, learners={TWO: "h:2"})
PAIR = Members(voters={ONE: "h:1", TWO: "h:2"})


def test_a_change_keeps_known_addresses_and_adds_the_new_one() -> None:
    joined = FOUNDING.with_membership(WITH_LEARNER.membership, {TWO: "h:2"})
    assert joined == WITH_LEARNER
    assert joined.with_membership(PAIR.membership, {}) == PAIR
    left = PAIR.with_membership(Membership(voters=frozenset({TWO})), {})
    assert left.addresses == {TWO: "h:2"}


def test_members_come_back_from_their_frame() -> None:
    frame, _ = build_frame(7, 1, 0, [(RecordKind.MEMBERSHIP, (WITH_LEARNER.encode(),))])
    assert Members.of_frame(frame) == WITH_LEARNER


def test_truncation_brings_the_members_before_back() -> None:
    book = MemberBook(FOUNDING, 0, {})
    book.append(5, WITH_LEARNER)
    book.append(8, PAIR)
    assert (book.current, book.index) == (PAIR, 8)
    assert book.truncate(8)
    assert (book.current, book.index) == (WITH_LEARNER, 5)
    assert not book.truncate(6)
    assert book.truncate(1)
    assert (book.current, book.index) == (FOUNDING, 0)


def test_what_is_committed_stays() -> None:
    book = MemberBook(FOUNDING, 0, {5: WITH_LEARNER, 8: PAIR})
    book.commit(6)
    assert book.truncate(1)
    assert (book.current, book.index) == (WITH_LEARNER, 5)
    book.commit(9)
    assert (book.current, book.index) == (WITH_LEARNER, 5)


def test_a_snapshot_takes_the_place_of_all_of_it() -> None:
    book = MemberBook(FOUNDING, 0, {5: WITH_LEARNER})
    book.reset(PAIR, 40)
    assert (book.current, book.index) == (PAIR, 40)
    assert not book.truncate(1)


def test_who_is_heard_of_is_reachable_until_the_log_knows_better() -> None:
    book = MemberBook(FOUNDING, 0, {})
    assert book.reachable == {ONE: "h:1"}
    assert book.hear(8, {ONE: "h:10", TWO: "h:2"})
    assert book.reachable == {ONE: "h:10", TWO: "h:2"}
    assert book.current == FOUNDING, "nobody is counted by hearsay"
    assert not book.hear(8, {THREE: "h:3"}), "no news"
    assert not book.hear(7, {THREE: "h:3"})
    book.append(5, WITH_LEARNER)
    assert book.reachable == {ONE: "h:10", TWO: "h:2"}, "its own log is not there yet"
    book.append(8, PAIR)
    assert book.reachable == PAIR.addresses
    assert not book.hear(8, {THREE: "h:3"}), "the log has it"
