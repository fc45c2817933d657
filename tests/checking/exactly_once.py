"""The first checker: compares a history of clients with the raw logs of all nodes.

How it works. `check` overlays and applies the nodes' logs (`raw_log.py`), then looks at every note
of the history. It knows nothing of how the run was made, so the simulator and real processes share
it. All logs of a broker group together must reach from index 1 to its highest commit.

What is checked, beside what `raw_log.py` checks
1. OK ⇒ exactly one row, at that offset, with that digest; FAIL ⇒ none; UNKNOWN ⇒ none or one.
2. Nothing invented: every row was sent by somebody.
3. One queue holds a client's messages in the order in which it sent them, behind those in the
   queues that were split to make it; delayed ones come when they are due.
4. Real time: of two OK messages of a queue, the one that ended before the other began comes first;
   so, too, across splits; delayed ones aside.
5. A confirmed end is never below what had been acknowledged before it was asked for.
6. Deliveries equal the log, are dense and rise under each token from the committed offset on.
7. Tokens have one owner; a stale owner's commit is refused; accepted commits stand in the log and
   rise; what lies below a group's commit was delivered to somebody of the group.
8. One master a term, one vote a node and term.
9. "Committed" names the row's place; "not committed" comes neither after a better answer nor, told
   by a fence, before the message is stored; "too old" only where a row has ended.

`require_evidence` says whether the run was worth anything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.checking.history import (
    Answer,
    Asked,
    Commit,
    Delivered,
    EndRead,
    Granted,
    History,
    Mastered,
    Outcome,
    Send,
    Voted,
)
from tests.checking.moves import Job
from tests.checking.raw_log import (
    Fold,
    Luggage,
    NodeLog,
    fold,
    fold_groups,
    merged,
    overlay,
)
from tests.checking.states import check_states
from tests.checking.stored import Queue, Row, Stored

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a cluster has of a lost one, or of the source of its mirror."""

    rows: Sequence[Row] = ()
    """Messages that came from there."""
    luggage: Mapping[Job, Luggage] = field(default_factory=dict)
    topics: Mapping[int, str] = field(default_factory=dict)
    """Names by topic id."""
    batches: Mapping[tuple[Queue, int], Stored] = field(default_factory=dict)
    """Batches there, by queue and base offset, of which copies came."""


class Violation(AssertionError):
    """The promise is broken; the message lists the first problems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Sums of what was checked."""

    fold: Fold
    """The content of the logs."""

    ok: int
    failed: int
    unknown: int
    unknown_stored: int
    """Number of the unknown sends that stand in the log."""
    rows: int
    entries: int
    deliveries: int
    commits_accepted: int
    commits_refused: int
    end_reads: int
    answers: int
    """Checks of single messages."""


def check(
    history: History,
    logs: Sequence[NodeLog],
    *,
    others: Collection[str] = (),
    restored: Restored | None = None,
) -> Report:
    """Raises Violation with everything that is wrong.

    `restored` is what the cluster has of a lost one, whose messages the history must have, too.
    `others` are topics whose messages are made by the code under test, as copies for example, and
    not sent by the programs that write the history. Only their logs and reads are checked.
    """
    problems: list[str] = []
    folded = _fold(logs, problems, restored)
    sent = replace(
        folded, rows=[row for row in folded.rows if folded.topics.get(row.queue[0]) not in others]
    )
    sends: list[Send] = history.of(Send)
    _check_sends(sends, sent, problems)
    _check_transactions(sends, sent, problems)
    _check_order(sends, sent, problems)
    _check_ends(sends, history.of(EndRead), sent, problems)
    _check_answers(sends, history.of(Asked), folded, problems)
    deliveries: list[Delivered] = history.of(Delivered)
    grants: list[Granted] = history.of(Granted)
    commits: list[Commit] = history.of(Commit)
    _check_deliveries(deliveries, grants, folded, problems)
    _check_commits(commits, grants, folded, problems)
    _check_coverage(commits, deliveries, folded, problems)
    _check_terms(history, problems)
    if problems:
        more = f"\n... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise Violation("\n".join(problems[:_SHOWN]) + more)
    outcomes = Counter(send.outcome for send in sends)
    stored = {row.digest for row in folded.rows}
    return Report(
        fold=folded,
        ok=outcomes[Outcome.OK],
        failed=outcomes[Outcome.FAIL],
        unknown=outcomes[Outcome.UNKNOWN],
        unknown_stored=sum(
            send.outcome is Outcome.UNKNOWN and send.digest in stored for send in sends
        ),
        rows=len(folded.rows),
        entries=folded.last_index,
        deliveries=len(deliveries),
        commits_accepted=sum(commit.accepted is True for commit in commits),
        commits_refused=sum(commit.accepted is False for commit in commits),
        end_reads=sum(read.ended_s is not None for read in history.of(EndRead)),
        answers=sum(asked.answer is not None for asked in history.of(Asked)),
    )


def _fold(logs: Sequence[NodeLog], problems: list[str], restored: Restored | None = None) -> Fold:
    """Applies all groups' logs, and compares each node's state with its own group's."""
    by_group: dict[int, list[NodeLog]] = {}
    for log in logs:
        by_group.setdefault(log.group, []).append(log)
    frames = {group: overlay(some, problems) for group, some in by_group.items()}
    tables_at = {group: {log.applied_index for log in some} for group, some in by_group.items()}
    if len(by_group) == 1 and restored is None:
        (group,) = by_group
        folds = {group: fold(frames[group], tables_at[group])}
        folded = folds[group]
    else:
        frames_of = {group: (frames[group], tables_at[group]) for group in by_group}
        folds = fold_groups(frames_of, None if restored is None else restored.luggage)
        if restored is not None:
            first = next(iter(folds.values()))
            first.rows += restored.rows
            first.topics |= restored.topics
            first.batches |= restored.batches
        folded = merged(folds)
    problems += folded.problems
    if not problems:
        for group, some in by_group.items():
            problems += check_states(frames[group], some, folds[group])
    return folded


def require_evidence(history: History, *, faults: Collection[str], ok: int) -> None:
    """Raises AssertionError unless every fault has bitten and enough sends were acknowledged."""
    silent = sorted(set(faults) - history.faults.keys())
    assert not silent, f"faults that never bit: {silent}; a run without them shows nothing"
    found = sum(send.outcome is Outcome.OK for send in history.of(Send))
    assert found >= ok, f"only {found} messages were acknowledged, wanted {ok}"


def _check_sends(sends: Sequence[Send], folded: Fold, problems: list[str]) -> None:
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in folded.rows:
        rows[row.digest].append(row)
    known: set[str] = set()
    for send in sends:
        if send.digest in known:
            problems.append(f"{send.digest} was sent twice: messages must be unique")
        known.add(send.digest)
        found = rows.get(send.digest, [])
        where = [(row.queue, row.offset) for row in found]
        what = f"message {send.number} of {send.client} ({send.digest})"
        if len(found) > 1:
            problems.append(f"duplicate: {what} is stored at {where}")
        elif send.outcome is Outcome.OK and not found:
            problems.append(f"loss: {what} was acknowledged and is not in the log")
        elif send.outcome is Outcome.OK:
            row = found[0]
            if (
                send.queue not in (None, row.queue)
                or send.offset not in (-1, row.offset)
                or send.sequence not in (-1, row.sequence)
            ):
                problems.append(
                    f"{what} was acknowledged at {send.queue} offset {send.offset} sequence "
                    f"{send.sequence}, and is stored as {row}"
                )
        elif send.outcome is Outcome.FAIL and found:
            problems.append(f"{what} failed for certain, and is stored at {where}")
    problems += [
        f"invented: {found[0]} was sent by nobody"
        for digest, found in rows.items()
        if digest not in known
    ]


def _check_transactions(sends: Sequence[Send], folded: Fold, problems: list[str]) -> None:
    stored = {row.digest for row in folded.rows}
    whole: dict[str, list[bool]] = defaultdict(list)
    for send in sends:
        if send.transaction:
            whole[send.transaction].append(send.digest in stored)
    problems += [
        f"torn: of transaction {name} {sum(found)} of {len(found)} messages are stored"
        for name, found in whole.items()
        if any(found) and not all(found)
    ]


def _check_order(sends: Sequence[Send], folded: Fold, problems: list[str]) -> None:
    by_digest = {send.digest: send for send in sends}
    held: dict[Queue, list[Send]] = defaultdict(list)
    for row in folded.rows:  # in the order of offsets, queue by queue
        send = by_digest.get(row.digest)
        if send is not None and not send.due_us:  # what is delayed comes when it is due
            held[row.queue].append(send)
    queues: dict[Queue, list[Send]] = {}
    for queue in held:
        newest: dict[str, int] = {}
        queues[queue] = []
        for each in folded.lineage(queue):
            for send in held.get(each, ()):
                before = newest.get(send.client, -1)
                if send.number < before:
                    problems.append(
                        f"queue {each}, read for {queue}, holds message {send.number} of"
                        f" {send.client} behind {before}"
                    )
                newest[send.client] = send.number
                if send.outcome is Outcome.OK:
                    queues[queue].append(send)
    for queue, stored in queues.items():
        earliest = float("inf")
        for send in reversed(stored):
            if earliest < send.began_s:
                problems.append(
                    f"queue {queue}: a message behind {send.digest} was acknowledged at "
                    f"{earliest}, before that one was sent at {send.began_s}"
                )
            assert send.ended_s is not None
            earliest = min(earliest, send.ended_s)


def _check_ends(
    sends: Sequence[Send], reads: Sequence[EndRead], folded: Fold, problems: list[str]
) -> None:
    where = {row.digest: row for row in folded.rows}
    acknowledged: dict[Queue, list[tuple[float, int]]] = defaultdict(list)
    for send in sends:
        row = where.get(send.digest)
        if send.due_us:
            continue
        if send.outcome is Outcome.OK and send.ended_s is not None and row is not None:
            acknowledged[row.queue].append((send.ended_s, row.offset + 1))
    for read in reads:
        if read.ended_s is None:
            continue
        floor = max((end for at, end in acknowledged[read.queue] if at < read.began_s), default=0)
        if read.end_offset < floor:
            problems.append(
                f"stale read: queue {read.queue} was said to end at {read.end_offset}, "
                f"{floor} had been acknowledged"
            )
        if read.end_offset > folded.end_offsets.get(read.queue, 0):
            problems.append(f"{read} is beyond the end of the log")


def _check_answers(
    sends: Sequence[Send], answers: Sequence[Asked], folded: Fold, problems: list[str]
) -> None:
    rows = {(row.queue, row.digest): row for row in folded.rows}
    known: dict[tuple[Queue, str], float] = {}
    """The time at which somebody was first told that a message is stored."""
    told = [(send.ended_s, (send.queue, send.digest)) for send in sends if send.outcome == "ok"]
    told += [(one.ended_s, (one.queue, one.digest)) for one in answers if one.answer == "committed"]
    for at_s, place in told:
        if place[0] is not None and at_s is not None:
            known[place] = min(at_s, known.get(place, at_s))  # type: ignore[index,arg-type]
    for one in answers:
        row = rows.get((one.queue, one.digest))
        sent = (one.producer_id, one.epoch, one.session, one.sequence)
        match one.answer:
            case Answer.COMMITTED:
                if row is None or one.offset not in (-1, row.offset):
                    problems.append(f"{one} was told of what is stored as {row}")
                elif (row.producer_id, row.sequence) != (one.producer_id, one.sequence):
                    problems.append(f"{one} was told of another message: {row}")
            case Answer.NOT_COMMITTED:
                if known.get((one.queue, one.digest), one.began_s) < one.began_s:
                    problems.append(f"stale answer: {one}, and it had been called stored before")
                stored = row and (row.producer_id, row.epoch, row.session, row.sequence)
                if one.final and stored == sent:
                    problems.append(f"{one} was final, and the message is stored as {row}")
            case Answer.TOO_OLD:
                if (one.queue, one.producer_id) not in folded.expired:
                    problems.append(f"{one}, and no row of the producer has ended there")


def _check_deliveries(
    deliveries: Sequence[Delivered],
    grants: Sequence[Granted],
    folded: Fold,
    problems: list[str],
) -> None:
    rows = {(row.queue, row.offset): row.digest for row in folded.rows}
    starts = {(one.group, one.queue, one.token): one.committed_offset for one in grants}
    following: dict[tuple[str, str, Queue, int], int] = {}
    for one in deliveries:
        if rows.get((one.queue, one.offset)) != one.digest:
            problems.append(f"{one} is not what the log holds: {rows.get((one.queue, one.offset))}")
        key = (one.client, one.group, one.queue, one.token)
        expected = following.get(key, starts.get(key[1:]) if one.group else None)
        skipped_to = folded.start_offsets.get(one.queue, 0)
        if (
            expected is not None
            and one.offset != expected
            and not (expected < one.offset <= skipped_to)
        ):
            problems.append(f"{one} was delivered where offset {expected} was due")
        following[key] = one.offset + 1


def _check_commits(
    commits: Sequence[Commit], grants: Sequence[Granted], folded: Fold, problems: list[str]
) -> None:
    owners: dict[tuple[str, Queue, int], str] = {}
    granted: dict[tuple[str, Queue], list[Granted]] = defaultdict(list)
    for grant in grants:
        key = (grant.group, grant.queue, grant.token)
        if owners.setdefault(key, grant.client) != grant.client:
            problems.append(f"token {key} belongs to {owners[key]} and to {grant.client}")
        granted[key[:2]].append(grant)
    accepted: dict[tuple[str, Queue], list[Commit]] = defaultdict(list)
    for commit in commits:
        if commit.accepted is not True:
            continue
        place = (commit.group, commit.queue)
        if (*place, commit.token, commit.offset) not in folded.commits:
            problems.append(f"{commit} was accepted and is not in the log")
        owner = owners.get((*place, commit.token))
        if owner is not None and owner != commit.client:
            problems.append(f"{commit} was accepted from another than the owner {owner}")
        for grant in granted[place]:
            if grant.token > commit.token and grant.at_s < commit.began_s:
                problems.append(f"stale owner: {commit} was accepted after {grant}")
        accepted[place].append(commit)
    for place, some in accepted.items():
        if place in folded.resets:
            continue
        some.sort(key=lambda commit: commit.began_s)
        reached: list[tuple[float, int, int]] = sorted(
            (commit.ended_s or 0.0, commit.token, commit.offset) for commit in some
        )
        at = token = offset = 0
        for commit in some:
            while at < len(reached) and reached[at][0] < commit.began_s:
                token, offset = max(token, reached[at][1]), max(offset, reached[at][2])
                at += 1
            if (commit.token, commit.offset) < (token, 0) or commit.offset < offset:
                problems.append(
                    f"progress falls back: {commit} was accepted after token {token}, "
                    f"offset {offset}"
                )


def _check_coverage(
    commits: Sequence[Commit],
    deliveries: Sequence[Delivered],
    folded: Fold,
    problems: list[str],
) -> None:
    """Checks that messages below a group's progress were given to somebody of the group."""
    given: dict[tuple[str, Queue], set[int]] = defaultdict(set)
    for one in deliveries:
        given[one.group, one.queue].add(one.offset)
    for group, queue in {(commit.group, commit.queue) for commit in commits}:
        if (group, queue) in folded.resets:
            continue
        reached = max(
            (
                commit.offset
                for commit in commits
                if (commit.group, commit.queue) == (group, queue) and commit.accepted is True
            ),
            default=0,
        )
        start = folded.start_offsets.get(queue, 0)
        skipped = [at for at in range(start, reached) if at not in given[group, queue]]
        if skipped:
            problems.append(
                f"group {group} committed {reached} in queue {queue} and was never given "
                f"{skipped[:_SHOWN]}"
            )


def _check_terms(history: History, problems: list[str]) -> None:
    masters: dict[tuple[int, int], int] = {}
    for one in history.of(Mastered):
        known = masters.setdefault((one.group, one.term), one.node)
        if known != one.node:
            problems.append(f"term {one.term} has masters {known} and {one.node}")
    votes: dict[tuple[int, int], int] = {}
    for vote in history.of(Voted):
        if votes.setdefault((vote.node, vote.term), vote.vote) != vote.vote:
            problems.append(
                f"node {vote.node} voted for {votes[vote.node, vote.term]} and {vote.vote} in "
                f"term {vote.term}"
            )
