"""Every problem that the checker knows is planted once, and found; a good run passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.protos.frames import RecordKind, build_frame
from semel.protos.v1 import control_pb2
from tests.checking.exactly_once import Violation, check, require_evidence
from tests.checking.history import (
    Answer,
    Asked,
    Commit,
    Delivered,
    EndRead,
    Fault,
    Granted,
    History,
    Mastered,
    Outcome,
    Send,
    Voted,
    digest_of,
    merge_ends,
)
from tests.checking.raw_log import NodeLog
from tests.checking.small_run import PRODUCER, QUEUE, REF, START_US, Run


def consumed(run: Run) -> None:
    """Two members, one after the other, each reads and commits one message."""
    add = run.history.add
    for token, client, offset in ((1, "c1", 0), (2, "c2", 1)):
        at = 10.0 * token
        add(
            Granted(
                client=client,
                group="g",
                queue=QUEUE,
                token=token,
                committed_offset=offset,
                at_s=at,
            )
        )
        digest = digest_of(f"m{offset}".encode())
        add(
            Delivered(
                client=client,
                at_s=at + 1,
                queue=QUEUE,
                offset=offset,
                digest=digest,
                group="g",
                token=token,
            )
        )
        add(
            Commit(
                client=client,
                group="g",
                queue=QUEUE,
                token=token,
                offset=offset + 1,
                began_s=at + 2,
                ended_s=at + 3,
                accepted=True,
            )
        )
        run.control(
            commit_offsets=control_pb2.CommitOffsets(
                group="g",
                commits=[control_pb2.QueueCommit(queue=REF, token=token, offset=offset + 1)],
            )
        )


def asked(run: Run, number: int, answer: Answer, **changes: object) -> None:
    """About message `number`, which had that sequence."""
    note = Asked(
        client="a",
        queue=QUEUE,
        digest=digest_of(f"m{number}".encode()),
        producer_id=PRODUCER,
        epoch=1,
        session=1,
        sequence=number,
        final=False,
        began_s=5,
        ended_s=6,
        answer=answer,
    )
    for name, change in changes.items():
        setattr(note, name, change)
    run.history.add(note)


def good() -> Run:
    run = Run()
    run.both(0)
    run.both(1)
    run.both(2, outcome=Outcome.UNKNOWN, ended_s=None, offset=-1)
    run.send(3, outcome=Outcome.FAIL, offset=-1)
    run.send(4, outcome=Outcome.UNKNOWN, ended_s=None, offset=-1)
    run.history.add(EndRead(client="a", queue=QUEUE, began_s=2, ended_s=3, end_offset=2))
    run.history.add(Mastered(node=1, term=1, at_s=0))
    run.history.add(Voted(node=2, term=1, vote=1))
    asked(run, 1, Answer.NOT_COMMITTED, began_s=0.2)  # on its way
    asked(run, 1, Answer.COMMITTED, offset=1)
    asked(run, 3, Answer.NOT_COMMITTED, final=True)
    consumed(run)
    return run


def test_a_good_run_passes_and_is_counted() -> None:
    report = good().check()
    assert (report.ok, report.failed, report.unknown, report.unknown_stored) == (2, 1, 2, 1)
    assert (report.rows, report.deliveries, report.commits_accepted) == (3, 2, 2)
    assert report.answers == 3


def test_a_history_survives_its_lines() -> None:
    run = good()
    lines = list(run.history.lines())
    again = History.from_lines(lines[:4], [*lines[4:], '{"kind": "send", "clie'])
    assert again.notes == run.history.notes


def test_the_ended_one_of_two_lines_counts() -> None:
    run = Run()
    begun = run.send(0, outcome=Outcome.UNKNOWN, ended_s=None)
    ended = run.send(0)
    assert merge_ends([begun, ended]) == merge_ends([ended, begun]) == [ended]


def _lose(run: Run) -> None:
    run.send(9, offset=3)


def _store_twice(run: Run) -> None:
    run.store(b"m0")


def _fail_but_store(run: Run) -> None:
    run.both(3, outcome=Outcome.FAIL)
    run.history.notes = [note for note in run.history.notes if getattr(note, "number", 0) != 4]


def _invent(run: Run) -> None:
    run.store(b"nobody sent this")


def _misplace(run: Run) -> None:
    run.history.of(Send)[0].offset = 1


def _wrong_queue(run: Run) -> None:
    run.history.of(Send)[0].queue = (7, 1)


def _skip_offset(run: Run) -> None:
    run.end += 1
    run.both(5)


def _break_chain(run: Run) -> None:
    run.last += 3
    run.both(5, offset=3)


def _zombie(run: Run) -> None:
    run.fence(4)
    run.both(5, offset=3)


def _disorder(run: Run) -> None:
    run.both(5, offset=3).number = 0


def _time_travel(run: Run) -> None:
    run.both(5, offset=3, began_s=0.0, ended_s=0.1, client="b")
    run.history.of(Send)[1].began_s = 0.2


def _stale_end(run: Run) -> None:
    run.history.add(EndRead(client="a", queue=QUEUE, began_s=8, ended_s=9, end_offset=1))


def _end_beyond(run: Run) -> None:
    run.history.add(EndRead(client="a", queue=QUEUE, began_s=8, ended_s=9, end_offset=9))


def _wrong_delivery(run: Run) -> None:
    run.history.of(Delivered)[0].digest = digest_of(b"m1")


def _skip_delivery(run: Run) -> None:
    run.history.of(Granted)[1].committed_offset = 0


def _two_owners(run: Run) -> None:
    first = run.history.of(Granted)[0]
    run.history.add(
        Granted(
            client="thief",
            group=first.group,
            queue=first.queue,
            token=first.token,
            committed_offset=0,
            at_s=5,
        )
    )


def _stale_commit(run: Run) -> None:
    run.history.of(Commit)[0].began_s = 25


def _commit_not_logged(run: Run) -> None:
    run.history.of(Commit)[1].offset = 3


def _fall_back(run: Run) -> None:
    run.control(
        commit_offsets=control_pb2.CommitOffsets(
            group="g", commits=[control_pb2.QueueCommit(queue=REF, token=2, offset=1)]
        )
    )
    run.history.add(
        Commit(
            client="c2",
            group="g",
            queue=QUEUE,
            token=2,
            offset=1,
            began_s=30,
            ended_s=31,
            accepted=True,
        )
    )


def _never_delivered(run: Run) -> None:
    run.history.notes.remove(run.history.of(Delivered)[0])


def _said_stored_and_is_not(run: Run) -> None:
    asked(run, 3, Answer.COMMITTED)


def _said_stored_elsewhere(run: Run) -> None:
    asked(run, 1, Answer.COMMITTED, offset=2)


def _said_stored_by_another(run: Run) -> None:
    asked(run, 1, Answer.COMMITTED, producer_id=PRODUCER + 1)


def _not_stored_any_more(run: Run) -> None:
    asked(run, 1, Answer.NOT_COMMITTED, began_s=7)


def _final_and_stored(run: Run) -> None:
    asked(run, 2, Answer.NOT_COMMITTED, final=True)


def _too_old_without_expiry(run: Run) -> None:
    asked(run, 1, Answer.TOO_OLD)


def _two_masters(run: Run) -> None:
    run.history.add(Mastered(node=3, term=1, at_s=0))


def _two_votes(run: Run) -> None:
    run.history.add(Voted(node=2, term=1, vote=3))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_lose, "loss"),
        (_store_twice, "duplicate"),
        (_fail_but_store, "failed for certain"),
        (_invent, "invented"),
        (_misplace, "acknowledged at"),
        (_wrong_queue, "acknowledged at"),
        (_skip_offset, "base offset 4, not 3"),
        (_break_chain, "the queue has 2"),
        (_zombie, "after a fence of"),
        (_disorder, "behind 2"),
        (_time_travel, "before that one was sent"),
        (_stale_end, "stale read"),
        (_end_beyond, "beyond the end"),
        (_wrong_delivery, "not what the log holds"),
        (_skip_delivery, "offset 0 was due"),
        (_two_owners, "belongs to"),
        (_stale_commit, "stale owner"),
        (_commit_not_logged, "not in the log"),
        (_fall_back, "progress falls back"),
        (_never_delivered, "never given"),
        (_said_stored_and_is_not, "stored as None"),
        (_said_stored_elsewhere, "was told of what is stored as"),
        (_said_stored_by_another, "told of another message"),
        (_not_stored_any_more, "stale answer"),
        (_final_and_stored, "was final"),
        (_too_old_without_expiry, "no row of the producer has ended"),
        (_two_masters, "has masters 1 and 3"),
        (_two_votes, "voted for 1 and 3"),
    ],
)
def test_a_planted_problem_is_found(plant: Callable[[Run], None], words: str) -> None:
    run = good()
    plant(run)
    with pytest.raises(Violation, match=words):
        run.check()


def test_logs_that_differ_are_found() -> None:
    run, other = good(), good()
    other.frames[3] = build_frame(4, 1, START_US + 4, [(RecordKind.NOOP, ())])[0]
    with pytest.raises(Violation, match="entry 4 is committed with other bytes on node 2"):
        check(run.history, [run.logs()[0], other.logs()[1]])


def test_an_entry_on_no_node_is_found() -> None:
    run = good()
    frames = dict(enumerate(run.frames, 1))
    del frames[2]
    with pytest.raises(Violation, match="entry 2 is on no node"):
        check(run.history, [NodeLog(node=1, frames=frames, commit_index=len(run.frames))])


def test_a_table_that_is_not_the_fold_is_found() -> None:
    run, other = good(), good()
    other.store(b"m4")
    spoilt = other.logs()[0]
    log = run.logs()[0]
    wrong = NodeLog(
        node=1,
        frames=log.frames,
        commit_index=log.commit_index,
        applied_index=log.applied_index,
        state=spoilt.state,
    )
    with pytest.raises(Violation, match="not the fold of the log"):
        check(run.history, [wrong])


def test_evidence_is_required() -> None:
    run = good()
    run.history.add(Fault(name="kill", at_s=1))
    require_evidence(run.history, faults=["kill"], ok=2)
    with pytest.raises(AssertionError, match="never bit: \\['pause'\\]"):
        require_evidence(run.history, faults=["kill", "pause"], ok=2)
    with pytest.raises(AssertionError, match="only 2 messages"):
        require_evidence(run.history, faults=["kill"], ok=3)


def split_run() -> Run:
    """Two messages in the parent, two in a child."""
    run = Run()
    run.both(0)
    run.both(1)
    run.split()
    for number in (2, 3):
        run.store(b"m%d" % number, queue=1, offset=number - 2)
        run.send(number, queue=(7, 1), offset=number - 2)
    return run


def test_a_good_run_with_a_split_passes() -> None:
    assert split_run().check().ok == 4


def test_a_message_that_is_in_parent_and_child_is_found() -> None:
    run = split_run()
    run.store(b"m1", queue=1, offset=2)
    with pytest.raises(Violation, match="duplicate: message 1"):
        run.check()


def test_a_child_that_begins_anew_is_found() -> None:
    run = split_run()
    run.store(b"m4", queue=2, offset=0, previous=-1)
    run.send(4, queue=(7, 2), offset=0)
    with pytest.raises(Violation, match="behind -1, the queue has 1"):
        run.check()


def test_a_parent_that_goes_on_is_found() -> None:
    run = split_run()
    run.store(b"m4", offset=2, previous=1)
    run.send(4, offset=2)
    with pytest.raises(Violation, match="after the queue was split"):
        run.check()


def test_a_message_that_was_acknowledged_in_the_child_first_is_found() -> None:
    run = split_run()
    run.history.of(Send)[1].began_s = 9.0
    run.history.of(Send)[1].ended_s = 9.5
    with pytest.raises(Violation, match="was acknowledged at"):
        run.check()


def test_disorder_across_a_split_is_found() -> None:
    run = split_run()
    run.history.of(Send)[0].number = 3
    run.history.of(Send)[3].number = 0
    with pytest.raises(Violation, match="read for \\(7, 1\\), holds message"):
        run.check()
