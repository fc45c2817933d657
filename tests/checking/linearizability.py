"""The second checker: looks for one real-time order that explains the answers of all operations.

How it works. It asks two questions, and neither knows a rule of the broker's code.

*Offsets.* A queue's end only grows, and each message's offset is its place in the order of all
appends. So the order is forced: append 0, reads that saw 1, append 1, ... A history is linearizable
exactly if no operation had ended before one began that comes earlier in that order; one pass over
the order decides it (`check_offsets`).

*Locks and commits.* Here the order is not known. `linearize` searches for one, after Wing and Gong
with Lowe's and Porcupine's pruning: an operation may come next if none that is still to come ended
before it began; the same rest with the same state is not tried again; an answer that fits and
changes nothing is taken at once; of unanswered operations that ask for the same, the oldest goes
first, and a place is not tried again with fewer of them left. An operation without an
answer may happen at any time after its start, or never.

The sessions of locks end by time, so the model lets a lock end whenever that explains an answer;
`check_early` checks separately that none ended before its time.

Not here: the content of the logs (`exactly_once.py`), the questions (`tests/faults/prober.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import le
from typing import Any, Final, Generic, Protocol, TypeVar

FOREVER: Final = float("inf")
STEPS_MAX: Final = 2_000_000
"""Limit of the states of one search; more is an error and never a pass."""

S = TypeVar("S", bound=Hashable)


class NotLinearizable(AssertionError):
    """No order explains the answers; the message shows how far the best one came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of one client on one object."""

    client: str
    what: str
    """Names the operation and the kind of its answer."""
    began_s: float
    ended_s: float = FOREVER
    """FOREVER: never answered."""
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        return self.ended_s < FOREVER

    def __str__(self) -> str:
        said = " ".join(f"{name}={value}" for name, value in self.fields.items())
        until = f"{self.ended_s:.4f}" if self.answered else "?"
        return f"[{self.began_s:.4f}, {until}] {self.client}: {self.what} {said}"


class Model(Protocol[S]):
    """A sequential object."""

    initial: S

    def step(self, state: S, operation: Operation) -> Iterable[S]:
        """States after the operation; none when its answer does not fit."""
        ...

    def too_late(self, state: S, operation: Operation) -> bool:
        """Whether the operation's answer fits neither this state nor any that can follow."""
        ...


def linearize(model: Model[S], operations: Sequence[Operation]) -> None:
    """Raises NotLinearizable; RuntimeError when the search grows beyond STEPS_MAX."""
    answered = sorted((one for one in operations if one.answered), key=lambda one: one.began_s)
    alike: dict[Hashable, list[Operation]] = {}
    for one in sorted(operations, key=lambda one: one.began_s):
        if not one.answered:
            kind = (one.client, one.what, *sorted(one.fields.items()))
            alike.setdefault(kind, []).append(one)
    unanswered = list(alike.values())
    best: tuple[int, S] = (0, model.initial)
    seen: dict[tuple[int, frozenset[int], S], list[tuple[int, ...]]] = {}
    steps = 0
    stack = [_Place(0, frozenset(), (0,) * len(unanswered), model.initial)]
    while stack:
        place = stack.pop()
        tried = seen.setdefault((place.first, place.done, place.state), [])
        if any(all(map(le, used, place.used)) for used in tried):
            continue  # whatever can follow here could follow there, where more is left
        tried.append(place.used)
        steps += 1
        if steps > STEPS_MAX:
            raise RuntimeError(f"{len(operations)} operations: more than {STEPS_MAX} states")
        if place.first == len(answered):
            return
        if place.first > best[0]:
            best = (place.first, place.state)
        stack += _following(model, answered, unanswered, place)
    first, state = best
    shown = "\n".join(f"  {one}" for one in answered[max(0, first - 8) : first + 4])
    raise NotLinearizable(
        f"no order of {len(operations)} operations explains the answers; from state {state} on"
        f" nothing fits {answered[first]}; around it:\n{shown}"
    )


def _following(
    model: Model[S],
    answered: Sequence[Operation],
    unanswered: Sequence[Sequence[Operation]],
    place: _Place[S],
) -> list[_Place[S]]:
    """Places after one more operation, the most promising last."""
    state = place.state
    horizon = FOREVER
    after: list[_Place[S]] = []
    for at in range(place.first, len(answered)):
        one = answered[at]
        if one.began_s > horizon:
            break
        if at in place.done:
            continue
        horizon = min(horizon, one.ended_s)
        if model.too_late(state, one):
            return []
        states = list(model.step(state, one))
        taken = [place.after(at, each) for each in states]
        if states == [state]:
            return taken
        after += taken
    late: list[_Place[S]] = []
    for kind, some in enumerate(unanswered):
        used = place.used[kind]
        if used < len(some) and some[used].began_s <= horizon:
            counts = (*place.used[:kind], used + 1, *place.used[kind + 1 :])
            late += [
                _Place(place.first, place.done, counts, each)
                for each in model.step(state, some[used])
            ]
    return [*late, *reversed(after)]


@dataclass(frozen=True, slots=True)
class _Place(Generic[S]):
    """What has happened so far, and the state that it led to."""

    first: int
    """All answered operations before this one have happened, this one has not."""
    done: frozenset[int]
    """Answered operations behind `first` that have happened."""
    used: tuple[int, ...]
    """Number of unanswered operations of each kind that have happened."""
    state: S

    def after(self, at: int, state: S) -> _Place[S]:
        """The place after the answered operation `at`."""
        first, done = self.first, self.done | {at}
        while first in done:
            done -= {first}
            first += 1
        return _Place(first, done, self.used, state)


@dataclass(frozen=True, slots=True)
class Lock:
    """One group's place in one queue."""

    token: int = 0
    owner: str = ""
    committed: int = -1


class LockModel:
    """acquire, refused, release, commit, lost, behind, renewed, unrenewed, describe."""

    initial = Lock()

    def step(self, state: Lock, operation: Operation) -> Iterable[Lock]:
        said = operation.fields
        match operation.what:
            case "acquire":
                # Granted to the owner again, or after a release, or after the session has ended.
                after = Lock(state.token + 1, operation.client, state.committed)
                fits = not operation.answered or (
                    (said["token"], said["committed"]) == (after.token, state.committed)
                )
                return (after,) if fits else ()
            case "refused":
                return (state,) if state.owner and state.owner == said["owner"] else ()
            case "release":
                held = state.owner and state.token == said["token"]
                if held:
                    return (Lock(state.token, "", state.committed),)
                return (state,) if operation.answered else ()
            case "commit":
                held = state.owner and state.token == said["token"]
                if held and said["offset"] >= state.committed:
                    return (Lock(state.token, state.owner, said["offset"]),)
                return ()
            case "renewed":
                held = state.owner == operation.client and state.token == said["token"]
                return (state,) if held else ()
            case "lost" | "unrenewed":
                if state.token != said["token"] or not state.owner:
                    return (state,)
                return (Lock(state.token, "", state.committed),)
            case "behind":
                held = state.owner and state.token == said["token"]
                return (state,) if held and said["offset"] < state.committed else ()
            case "describe":
                if (said["token"], said["committed"]) != (state.token, state.committed):
                    return ()
                if said["owner"] == state.owner:
                    return (state,)
                return () if said["owner"] else (Lock(state.token, "", state.committed),)
        raise AssertionError(f"unknown operation {operation.what!r}")

    def too_late(self, state: Lock, operation: Operation) -> bool:
        token = operation.fields.get("token", 0)
        if operation.what == "acquire":
            return bool(token <= state.token)
        return operation.what in ("commit", "behind", "describe", "renewed") and token < state.token


def check_early(operations: Sequence[Operation], session_s: float) -> None:
    """Checks that no lock went to another member before its session was over or it was given back.

    Raises NotLinearizable. A session is counted from the request for a grant, commit or renewal,
    which is earlier than any moment from which the broker can count.
    """
    grants = sorted(
        (one for one in operations if one.what == "acquire" and one.answered),
        key=lambda one: int(one.fields["token"]),
    )
    alive: dict[int, float] = {int(one.fields["token"]): one.began_s for one in grants}
    freed: dict[int, float] = {}
    for one in operations:
        token = one.fields.get("token")
        if one.what in ("commit", "renewed") and one.answered and token in alive:
            alive[token] = max(alive[token], one.began_s)
        elif one.what == "release" and token is not None:
            freed[token] = min(freed.get(token, FOREVER), one.began_s)
    for older, newer in pairwise(grants):
        token = int(older.fields["token"])
        if newer.client == older.client or int(newer.fields["token"]) != token + 1:
            continue
        over = min(alive[token] + session_s, freed.get(token, FOREVER))
        if newer.ended_s < over:
            raise NotLinearizable(
                f"two owners: {newer} was answered {over - newer.ended_s:.3f} s before the lock of"
                f" {older} could be over"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A message that stands in the log."""

    offset: int
    began_s: float
    ended_s: float = FOREVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Saw:
    """An answer that a queue ends at `end` (exact), or a delivery of message `end` - 1."""

    end: int
    began_s: float
    ended_s: float
    exact: bool = True


def check_offsets(appends: Sequence[Append], saw: Sequence[Saw]) -> None:
    """Checks one queue's appends and the reads of its end. Raises NotLinearizable.

    Offsets must be those of the log, 0 and up without a gap.
    """
    chain = sorted(appends, key=lambda one: one.offset)
    if [one.offset for one in chain] != list(range(len(chain))):
        raise NotLinearizable("offsets of the appends are not dense from 0 on")
    reads = sorted((one for one in saw if one.exact), key=lambda one: one.end)
    latest: list[float] = []
    # Invariant: latest[n] is the latest start of all that comes before append n and reads of n.
    reached, at = -FOREVER, 0
    for tier in range(len(chain) + 1):
        if tier:
            one = chain[tier - 1]
            if one.ended_s < reached:
                raise NotLinearizable(
                    f"message {one.offset} was acknowledged at {one.ended_s:.4f}, but what comes"
                    f" before it in the queue began at {reached:.4f}"
                )
            reached = max(reached, one.began_s)
        latest.append(reached)
        began = reached
        while at < len(reads) and reads[at].end == tier:
            if reads[at].ended_s < latest[tier]:
                raise NotLinearizable(f"{reads[at]} saw messages that nobody had sent yet")
            began = max(began, reads[at].began_s)
            at += 1
        reached = began
    if at < len(reads):
        raise NotLinearizable(f"{reads[at]} is beyond the end of the log, {len(chain)}")
    for given in saw:
        if not given.exact and (given.end > len(chain) or given.ended_s < latest[given.end]):
            raise NotLinearizable(f"{given} was given before it was sent")
