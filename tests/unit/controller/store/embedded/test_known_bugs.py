"""Known bugs of Raft implementations, pysyncobj's own first: absent, and noticed when planted.

This is one file because it is one list, which is read beside the list in docs/testing.md.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest

from semel.controller.store import Transaction
from semel.controller.store.embedded import dump as dumps
from semel.controller.store.embedded.dump import Dump
from semel.controller.store.embedded.journal import NO_OP, Entry, JournalFiles
from semel.controller.store.embedded.machine import (
    Machine,
    State,
    transaction_command,
)
from semel.protos.errors import InternalError, SemelError
from semel.protos.v1.metadata_store_pb2 import (
    CONTROLLER_MEMBERSHIP_NON_COUNTING,
    CONTROLLER_MEMBERSHIP_UNFORMED,
    CONTROLLER_MEMBERSHIP_VOTER,
    AppendEntries,
    DumpChunk,
    GrantVote,
    GroupEntry,
    GroupMessage,
    MembershipReply,
    NewerTerm,
    NextIndex,
    PreVote,
    RequestVote,
)
from tests.unit.controller.store.embedded import planted
from tests.unit.controller.store.embedded.disk import Crash, SimDisk
from tests.unit.controller.store.embedded.lone import Lone, lone, replies
from tests.unit.controller.store.embedded.planted import Plant
from tests.unit.controller.store.embedded.storm import storm
from tests.unit.controller.store.embedded.world import Violation, World, running


def holds_but_not_with(plant: Plant, scenario: Callable[[], None]) -> None:
    """The scenario passes as it is, and fails with the bug."""
    scenario()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, Violation, InternalError)):
            scenario()


def test_a_shorter_append_that_comes_late_cuts_nothing() -> None:
    def scenario() -> None:
        for late in ([1], [1, 1], []):
            with lone() as one:
                one.append(1, (1, 0), [1] * 9)
                assert one.said("next")[-1].next.next_index == 11
                one.append(1, (1, 0), late)
                assert one.last_index == 10
                answers = one.said("next")
                assert [answer.next.next_index for answer in answers] == [2 + len(late)]
                assert answers[0].next.success

    holds_but_not_with(planted.cuts_the_log_at_every_append, scenario)


def test_an_acknowledgement_of_another_term_commits_nothing() -> None:
    def scenario() -> None:
        with lone() as one:
            term = one.lead()
            one.hear(2, term - 1, next=NextIndex(next_index=one.last_index + 1, success=True))
            one.pass_time(0.1)
            assert one.node.commit_index == 1
            one.hear(2, term, next=NextIndex(next_index=one.last_index + 1, success=True))
            one.pass_time(0.1)
            assert one.node.commit_index == one.last_index == 2

    holds_but_not_with(planted.counts_acknowledgements_of_any_term, scenario)


def test_an_acknowledgement_beyond_the_log_is_not_believed() -> None:
    with lone() as one:
        term = one.lead()
        for reset in (False, True):
            answer = NextIndex(next_index=99, success=not reset, reset=reset)
            one.hear(2, term, next=answer)
            one.pass_time(0.3)
            assert one.node.commit_index == 1


def test_a_vote_counts_once() -> None:
    def scenario() -> None:
        with lone(5) as one:
            term = one.stand()
            for _ in range(3):
                one.hear(2, term, grant=GrantVote())
            assert not one.node.is_leader
            one.hear(3, term - 1, grant=GrantVote())
            assert not one.node.is_leader
            one.hear(3, term, grant=GrantVote())
            assert one.node.is_leader

    holds_but_not_with(planted.counts_a_vote_each_time, scenario)


def test_entries_of_an_old_term_are_not_committed_by_counting() -> None:
    """Figure 8 of the Raft paper."""

    def scenario() -> None:
        with lone() as one:
            one.append(1, (1, 0), [1])
            term = one.lead()
            assert one.last_index == 3
            one.hear(2, term, next=NextIndex(next_index=3, success=True))
            one.pass_time(0.1)
            assert one.node.commit_index == 1
            one.hear(2, term, next=NextIndex(next_index=4, success=True))
            one.pass_time(0.1)
            assert one.node.commit_index == 3

    holds_but_not_with(planted.commits_entries_of_older_terms_by_counting, scenario)


def test_a_commit_index_counts_only_up_to_what_matches() -> None:
    def scenario() -> None:
        with lone() as one:
            one.append(1, (1, 0), [1, 1, 1])
            one.append(2, (2, 1), commit=4)
            assert one.node.commit_index == 2
            one.append(2, (2, 1), [2, 2], commit=9)
            assert one.node.commit_index == 4
            assert one.member._journal.last.term == 2

    holds_but_not_with(planted.believes_every_commit_index, scenario)


def test_a_conflict_above_the_commit_index_gives_way_and_one_below_halts() -> None:
    with lone() as one:
        one.append(1, (1, 0), [1, 1, 1, 1], commit=3)
        one.append(2, (1, 0), [1, 1, 1, 2])
        assert [entry.term for entry in one.member._journal.entries] == [0, 1, 1, 1, 2]
        with pytest.raises(InternalError, match="entry 3 is committed"):
            one.append(3, (1, 0), [1, 2])


def test_a_long_divergent_tail_gives_way_in_one_step() -> None:
    """pysyncobj goes back one entry a heartbeat: ten seconds for a hundred entries."""
    with lone() as one:
        one.append(1, (1, 0), [1] * 300, commit=50)
        one.said("next")
        one.append(3, (290, 2))
        (answer,) = one.said("next")
        assert (answer.next.next_index, answer.next.reset) == (51, True)
        assert not answer.next.success
        assert one.last_index == 301, "nothing is cut before the conflict is known"
        one.append(3, (50, 1), [1, 2, 2], commit=53)
        assert one.last_index == 53


def test_an_append_from_a_second_master_of_a_term_halts() -> None:
    with lone() as one:
        term = one.lead()
        with pytest.raises(InternalError, match=f"both lead term {term}"):
            one.append(term, (1, 0))


def send_dump(one: Lone, dump: Dump, term: int, *, pieces: int = 2) -> None:
    raw = dumps.encode(dump)
    size = -(-len(raw) // pieces)
    for start in range(0, len(raw), size):
        end = min(start + size, len(raw))
        chunk = DumpChunk(
            commit_index=dump.last.index,
            index=dump.last.index,
            position=start,
            total_bytes=len(raw),
            data=raw[start:end],
        )
        one.hear(2, term, dump=chunk)


def empty_dump(index: int, term: int) -> Dump:
    state = State(revision=7, entries={}, sessions={})
    return Dump(Entry(NO_OP, index, term), Entry(NO_OP, index - 1, term), state)


def test_a_dump_does_not_replace_a_log_that_went_on() -> None:
    def scenario() -> None:
        with lone() as one:
            one.append(1, (1, 0), [1] * 9, commit=3)
            one.member.tick(0)
            one.said("next")
            send_dump(one, empty_dump(5, 1), 1)
            assert one.last_index == 10
            assert one.node.commit_index == 5
            assert one.said("next")[-1].next.next_index == 6

    holds_but_not_with(planted.installs_every_dump, scenario)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_dump_is_installed_whenever_its_taker_crashes(pieces: int) -> None:
    crashes = 0
    for crash_at in range(1, 60):
        with running(World(1)) as clock:
            one = Lone(clock)
            one.append(1, (1, 0), [1, 1, 1], commit=2)
            one.member.tick(0)
            one.disk.crash_at = one.disk.operations + crash_at
            try:
                send_dump(one, empty_dump(20, 2), 2, pieces=pieces)
                one.append(2, (20, 2), [2])
            except Crash:
                crashes += 1
                one.member.close()
                one.disk.crash(random.Random(crash_at))
                one.open()
                assert one.last_index in (4, 20, 21)
                send_dump(one, empty_dump(20, 2), 2)
                one.append(2, (20, 2), [2])
            one.member.tick(0)
            assert one.last_index == 21
            assert one.member._machine.table.revision == 7
            one.member.close()
    assert crashes > 20


def test_a_damaged_dump_changes_nothing() -> None:
    with lone() as one:
        one.append(1, (1, 0), [1, 1, 1])
        raw = bytearray(dumps.encode(empty_dump(20, 2)))
        raw[len(raw) // 2] ^= 1
        chunk = DumpChunk(
            commit_index=20, index=20, position=0, total_bytes=len(raw), data=bytes(raw)
        )
        one.hear(2, 2, dump=chunk)
        assert one.last_index == 4
        assert one.disk.read(dumps.FILE_NAME) is None


def test_entries_behind_a_dump_stay_after_a_crash_before_the_trim() -> None:
    def scenario() -> None:
        with running(World(1)) as clock:
            one = Lone(clock)
            one.append(1, (1, 0), [1] * 9, commit=6)
            one.member.tick(0)
            one.node.compact_soon()
            one.disk.crash_at = one.disk.operations + 9  # the dump stands, the journal is whole
            with pytest.raises(Crash):
                one.pass_time(1.0)
            one.member.close()
            assert one.disk.read(dumps.FILE_NAME) is not None
            one.disk.power_off()
            one.open()
            assert one.last_index == 10
            assert one.member._journal.entries[0].index == 5
            one.member.close()

    holds_but_not_with(planted.clears_a_journal_that_begins_before_its_dump, scenario)


def test_one_vote_a_term_though_it_crashes_at_any_operation() -> None:
    def scenario() -> None:
        granted = 0
        for crash_at in range(1, 40):
            with running(World(1)) as clock:
                one = Lone(clock)
                one.disk.crash_at = one.disk.operations + crash_at
                ask = RequestVote(last_index=9, last_term=4)
                votes = 0
                try:
                    one.hear(2, 5, vote=ask)
                    one.member.tick(0)
                except Crash:
                    pass
                votes += len(one.said("grant"))
                one.member.close()
                one.disk.crash(random.Random(crash_at))
                one.open()
                one.hear(3, 5, vote=ask)
                votes += len(one.said("grant"))
                one.member.close()
                assert votes <= 1, f"two votes after a crash at operation {crash_at}"
                granted += votes
        assert granted > 10

    holds_but_not_with(planted.keeps_its_vote_in_memory, scenario)


def test_whatever_it_says_is_on_its_disk() -> None:
    """Votes and acknowledgements of a slave, entries and heartbeats of a master."""

    def scenario() -> None:
        with lone() as one:

            def on_send(message: GroupMessage) -> None:
                disk = copy.deepcopy(one.disk)
                disk.power_off()
                journal = JournalFiles(disk)
                if message.WhichOneof("kind") == "next" and message.next.success:
                    assert journal.last.index >= message.next.next_index - 1
                if message.WhichOneof("kind") == "append":
                    assert journal.last.index == one.last_index

            one.on_send = on_send
            one.append(1, (1, 0), [1, 1, 1], commit=2)
            one.append(2, (3, 1), [2, 2], commit=3)
            one.pass_time(0.2)
            term = one.lead()
            command = transaction_command(
                Transaction(puts={"/a": b"v"}),
                controller_id=1,
                incarnation=1,
                sequence=1,
                resolved_below=1,
            )
            one.member.submit(1, command)
            one.pass_time(0.2)
            one.hear(2, term, next=NextIndex(next_index=one.last_index + 1, success=True))
            one.pass_time(0.2)
            assert one.node.applied_index == one.last_index

    holds_but_not_with(planted.answers_before_it_has_synced, scenario)


def test_a_failed_sync_is_never_tried_again() -> None:
    with running(World(1)) as clock:
        one = Lone(clock)
        one.disk.fail_at = one.disk.operations
        with pytest.raises(OSError, match="Input/output error"):
            one.append(1, (1, 0), [1])
        assert one.said("next") == []
        one.member.close()


def test_what_is_acknowledged_after_a_restart_is_on_the_disk() -> None:
    """It is killed between a write and its sync, or the sync fails; the next process finds the
    entry, the master sends it again, and the power fails."""

    def scenario() -> None:
        for fails in (False, True):
            with lone() as one:
                one.append(1, (1, 0), [1, 1])
                if fails:
                    one.disk.fail_at = one.disk.operations
                else:
                    one.disk.crash_at = one.disk.operations + 3
                with pytest.raises((Crash, OSError)):
                    one.append(1, (3, 1), [1])
                one.member.close()
                one.disk.kill()
                one.disk.open()
                one.open()
                one.said("next")
                one.append(1, (3, 1), [1])
                assert one.said("next")[-1].next.next_index == 5
                one.member.close()
                one.disk.power_off()
                one.disk.open()
                one.open()
                assert one.last_index == 4

    holds_but_not_with(planted.believes_what_it_finds, scenario)


def test_a_non_counting_controller_is_not_counted() -> None:
    def scenario() -> None:
        with lone() as one:
            term = one.lead()
            one.member.disconnected((2, False))
            one.member.connected((2, True))
            one.pass_time(0.2)
            answer = NextIndex(next_index=one.last_index + 1, success=True)
            one.hear(2, term, non_counting=True, next=answer)
            one.pass_time(0.2)
            assert one.node.commit_index == 1
            one.hear(3, term, next=answer)
            one.pass_time(0.2)
            assert one.node.commit_index == one.last_index

    holds_but_not_with(planted.counts_non_counting_members, scenario)


def test_a_lost_disk_votes_only_after_a_barrier_of_no_older_term() -> None:
    with running(World(1)) as clock:
        one = Lone.__new__(Lone)
        one.clock, one.disk, one.size, one.sent = clock, SimDisk(), 3, []
        one.on_send = lambda message: None
        one.open()
        one.member.learn(replies(0, 3))
        assert one.member.membership == CONTROLLER_MEMBERSHIP_NON_COUNTING
        one.append(2, (1, 0), [1, 2], commit=3)
        one.pass_time(0.1)
        asked = one.said("forward")[-1].forward.command
        barrier = GroupEntry(index=4, term=2, command=asked)
        message = AppendEntries(
            previous_index=3, previous_term=2, entries=[barrier], commit_index=4
        )
        one.hear(2, 2, append=message)
        one.pass_time(0.2)
        assert one.member.membership == CONTROLLER_MEMBERSHIP_NON_COUNTING, (
            "term 2 is older than term 3"
        )
        one.hear(3, 4, vote=RequestVote(last_index=9, last_term=3))
        assert one.said("grant") == []
        one.append(4, (4, 2), [4], commit=5)
        one.pass_time(0.1)
        asked = one.said("forward")[-1].forward.command
        barrier = GroupEntry(index=6, term=4, command=asked)
        message = AppendEntries(
            previous_index=5, previous_term=4, entries=[barrier], commit_index=6
        )
        one.hear(2, 4, append=message)
        one.pass_time(0.1)
        assert one.member.membership == CONTROLLER_MEMBERSHIP_VOTER
        state = one.member._hard_state.state
        assert state is not None
        assert (state.term, state.voted_for) == (4, 2)
        one.member.close()


def test_nobody_stands_before_all_founders_are_voters() -> None:
    """Or the slowest one would find a history and wait for all others, one of whom may be gone."""
    with running(World(1)) as clock:
        one = Lone.__new__(Lone)
        one.clock, one.disk, one.size, one.sent = clock, SimDisk(), 3, []
        one.on_send = lambda message: None
        one.open()
        unformed = MembershipReply(membership=CONTROLLER_MEMBERSHIP_UNFORMED)
        one.member.learn([unformed, *replies(0)])
        assert one.member.membership == CONTROLLER_MEMBERSHIP_VOTER
        one.member.learn([unformed, *replies(0)])
        one.pass_time(3.0)
        assert one.said("pre_vote") == []
        one.member.learn(replies(0, 0))
        one.pass_time(0.2)
        assert one.said("pre_vote") != []
        one.member.close()


def test_a_paused_controller_deposes_nobody() -> None:
    """Pre-vote: who has heard a master lately gives none."""
    with lone() as one:
        one.append(3, (1, 0))
        one.hear(2, 3, pre_vote=PreVote(last_index=9, last_term=3, round=1))
        assert one.said("pre_grant") == []
        one.pass_time(0.6)
        one.sent.clear()
        one.hear(2, 3, pre_vote=PreVote(last_index=9, last_term=3, round=2))
        assert [message.pre_grant.round for message in one.said("pre_grant")] == [2]
        one.hear(2, 3, pre_vote=PreVote(last_index=0, last_term=0, round=3))
        assert one.said("pre_grant") == [], "its log is older"


def test_a_master_hears_of_a_newer_term_and_steps_down_once() -> None:
    with lone() as one:
        term = one.lead()
        one.hear(3, term + 4, newer_term=NewerTerm())
        assert not one.node.is_leader
        assert one.node.term == term + 4
        one.append(term, (1, 0))
        assert [message.term for message in one.said("newer_term")] == [term + 4]


def test_one_cut_link_moves_no_mastership() -> None:
    def scenario() -> None:
        world = World(7, hostile=False)
        with running(world):
            world.start()
            world.run(4.0)
            master = world.master
            assert master is not None
            terms = max(world.masters)
            slave = next(number for number in world.nodes if number != master)
            world.cut = {(master, slave), (slave, master)}
            world.run(15.0)
            assert world.master == master
            assert max(world.masters) == terms
            world.cut.clear()
            world.run(3.0)
            assert max(world.masters) == terms, "and none when it is healed"

    holds_but_not_with(planted.stands_without_being_asked, scenario)


def test_a_master_that_was_stopped_answers_no_read_of_its_past() -> None:
    def scenario() -> None:
        world = World(7, hostile=False)
        with running(world):
            world.start()
            world.run(4.0)
            old = world.master
            assert old is not None
            world.pause(old, 6.0)
            world.run(3.0)
            others = [number for number in world.nodes if number != old]
            for number in others:
                world.write(number)
            world.run(1.0)
            assert world.counts["writes"] == 2
            world.nodes[old].paused_until = 0.0
            world.read(old)
            world.run(3.0)
            assert world.counts["reads"] == 1

    holds_but_not_with(planted.reads_what_it_has, scenario)


def test_a_lost_disk_elects_nobody_who_lacks_what_it_had_acknowledged() -> None:
    def scenario() -> None:
        world = World(7, hostile=False)
        with running(world):
            world.start()
            world.run(4.0)
            master = world.master
            assert master is not None
            slave, late = (number for number in world.nodes if number != master)
            world.isolate(late)
            for _ in range(3):
                world.write(master)
            world.run(1.0)
            assert world.counts["writes"] == 3
            world.crash(master)
            world.lose_disk(slave)
            world.cut.clear()
            world.boot(slave)
            world.run(6.0)
            world.finish()
            assert world.counts["writes"] == 6

    holds_but_not_with(planted.lets_a_forgetful_disk_vote, scenario)


def test_a_master_is_replaced_within_two_seconds() -> None:
    """In the world's time: the election, the pre-vote before it, and the first write after it."""
    for seed in range(6):
        world = World(seed, hostile=False)
        with running(world):
            world.start()
            world.run(4.0)
            old = world.master
            assert old is not None
            world.crash(old)
            killed_at = world.now
            while world.master is None:
                world.run(0.05)
                assert world.now - killed_at < 2.0
            new = world.master
            world.write(new)
            world.run(0.3)
            assert world.counts["writes"] == 1


def test_a_request_that_comes_twice_into_the_log_is_done_once() -> None:
    def scenario() -> None:
        machine = Machine()
        command = transaction_command(
            Transaction(checks={"/a": None}, puts={"/a": b"v"}),
            controller_id=1,
            incarnation=1,
            sequence=1,
            resolved_below=1,
        )
        first, again = machine.apply(command), machine.apply(command)
        assert first.result == again.result

    holds_but_not_with(planted.applies_what_is_asked_twice_twice, scenario)


def caught(seed: int) -> bool:
    """An invariant, or the product's own check, fails."""
    try:
        storm(seed)
    except (AssertionError, SemelError, IndexError):
        return True
    return False


@pytest.mark.parametrize(
    ("plant", "seed"),
    [
        (planted.keeps_its_vote_in_memory, 0),
        (planted.reads_what_it_has, 0),
        (planted.believes_what_it_finds, 0),
    ],
)
def test_the_simulation_notices(plant: Plant, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the given seed, or, when other changes have made that one tame, in one of the next."""
    plant(monkeypatch)
    assert any(caught(one) for one in range(seed, seed + 8))
