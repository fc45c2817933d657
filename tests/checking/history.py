"""The history of a run: clients note every operation before it is sent and when it is answered.

How it works. A client calls `begin_*` before an operation leaves and `end_*` when its answer is
here; an operation that was never ended counts as unknown. Times are one monotonic clock for the
whole history (simulated seconds, or CLOCK_MONOTONIC of one machine), so that "a ended before b
began" means something. A history of several processes is written as lines of JSON and read back
merged.

Every message that is sent must be unique in its topic: its digest is its name.

Invariants
1. Outcomes: OK is certain, FAIL is certainly absent, UNKNOWN is zero or one copies.
2. A note, once ended, never changes.

Shared by the simulated clusters (`tests/world`) and the runs with real processes (`tests/faults`).
Not here: the check (`exactly_once.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from semel.protos.ids import QueueId, QueueKey, TopicId


class Outcome(StrEnum):
    """What a client knows of a message it sent."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Answer(StrEnum):
    """What a producer was told of one sequence."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    TOO_OLD = "too old"


def digest_of(value: bytes | None, key: bytes | None = None) -> str:
    """The name of a message: 16 hex digits over key and value."""
    person = b"null" if value is None else b""
    body = hashlib.blake2b(value or b"", digest_size=8, key=(key or b"")[:64], person=person)
    return body.hexdigest()


@dataclass(slots=True, kw_only=True)
class Send:
    """One message."""

    client: str
    """One life of one client: a restart is another name."""
    number: int
    """Order of the sends of this client, rising."""
    digest: str
    began_s: float
    topic: str = ""
    producer: str = ""
    """Durable name; empty for an anonymous producer."""
    ended_s: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    queue: tuple[int, int] | None = None
    """(topic id, queue id), when known."""
    offset: int = -1
    """-1 when not known."""
    sequence: int = -1
    error: str = ""
    """Kind of the error, for people."""
    transaction: str = ""
    """Transaction of the message: all messages of one are stored, or none."""
    due_us: int = 0
    """Time before which it must not be delivered, by the machines' clock; 0: at once."""

    kind: ClassVar[str] = "send"


@dataclass(slots=True, kw_only=True)
class Delivered:
    """One message that a consumer or a reader was given."""

    client: str
    at_s: float
    queue: tuple[int, int]
    offset: int
    digest: str
    group: str = ""
    """Empty for a reader without a group."""
    token: int = 0

    kind: ClassVar[str] = "delivered"


@dataclass(slots=True, kw_only=True)
class Granted:
    """A lock that a member was told to hold."""

    client: str
    group: str
    queue: tuple[int, int]
    token: int
    committed_offset: int
    at_s: float
    """Time of the answer."""

    kind: ClassVar[str] = "granted"


@dataclass(slots=True, kw_only=True)
class Commit:
    """One commit of one queue: `offset` is the next one to read."""

    client: str
    group: str
    queue: tuple[int, int]
    token: int
    offset: int
    began_s: float
    ended_s: float | None = None
    accepted: bool | None = None
    """None when nobody knows."""

    kind: ClassVar[str] = "commit"


@dataclass(slots=True, kw_only=True)
class EndRead:
    """A confirmed read of a queue's end (log_end_offset)."""

    client: str
    queue: tuple[int, int]
    began_s: float
    ended_s: float | None = None
    end_offset: int = -1

    kind: ClassVar[str] = "end_read"


@dataclass(slots=True, kw_only=True)
class Asked:
    """A producer asked for the fate of one message: by a confirmed read, or by a fence."""

    client: str
    queue: tuple[int, int]
    digest: str
    producer_id: int
    epoch: int
    session: int
    """`producer_id`, `epoch` and `session` are of the incarnation that sent the message."""
    sequence: int
    final: bool
    """Asked by a fence of a higher incarnation: "not committed" will be true for ever."""
    began_s: float
    ended_s: float | None = None
    answer: Answer | None = None
    offset: int = -1
    """-1 when not told."""

    kind: ClassVar[str] = "asked"


@dataclass(slots=True, kw_only=True)
class Mastered:
    """A node said that it is the master of a term."""

    node: int
    term: int
    at_s: float
    group: int = 1
    """The broker group whose term it is."""

    kind: ClassVar[str] = "mastered"


@dataclass(slots=True, kw_only=True)
class Voted:
    """A node's durable vote, or one that it told."""

    node: int
    term: int
    vote: int

    kind: ClassVar[str] = "voted"


@dataclass(slots=True, kw_only=True)
class Fault:
    """An injected fault, noted only when it is shown to have bitten."""

    name: str
    at_s: float

    kind: ClassVar[str] = "fault"


Note: TypeAlias = Send | Delivered | Granted | Commit | EndRead | Asked | Mastered | Voted | Fault
_KINDS: dict[str, type[Any]] = {
    one.kind: one
    for one in (Send, Delivered, Granted, Commit, EndRead, Asked, Mastered, Voted, Fault)
}


class History:
    """All notes of a run. Appending is safe from several threads; ending a note is its owner's."""

    def __init__(self, notes: Iterable[Note] = ()) -> None:
        self.notes: list[Note] = list(notes)

    def add(self, note: Note) -> None:
        self.notes.append(note)

    def begin_send(self, send: Send) -> Send:
        """Before the message leaves; end it with `end_send`, or it stays unknown."""
        self.notes.append(send)
        return send

    @staticmethod
    def end_send(
        send: Send,
        outcome: Outcome,
        at_s: float,
        *,
        queue: QueueKey | None = None,
        offset: int = -1,
        sequence: int = -1,
        error: str = "",
    ) -> None:
        assert send.ended_s is None, f"{send} ends twice"
        send.outcome, send.ended_s, send.error = outcome, at_s, error
        send.queue = (queue.topic_id, queue.queue_id) if queue is not None else None
        send.offset, send.sequence = offset, sequence

    def of(self, kind: type[Any]) -> list[Any]:
        """The notes of one kind, in the order of their beginning."""
        return [note for note in self.notes if isinstance(note, kind)]

    @property
    def faults(self) -> Counter[str]:
        """Number of bites of each fault."""
        return Counter(fault.name for fault in self.of(Fault))

    def lines(self) -> Iterator[str]:
        """One JSON object for each note."""
        for note in self.notes:
            yield json.dumps({"kind": note.kind, **asdict(note)}, sort_keys=True)

    @classmethod
    def from_lines(cls, *sources: Iterable[str]) -> History:
        """The merged history of several recorders; a torn last line (a killed one) is left out."""
        notes: list[Note] = []
        for source in sources:
            for line in source:
                try:
                    raw = json.loads(line)
                except json.JSONDecodeError:
                    continue
                notes.append(_decode(raw))
        return cls(notes)


def merge_ends(notes: Iterable[Send]) -> list[Send]:
    """The notes of recorders that write a line before and one after; the ended one of two
    counts."""
    found: dict[tuple[str, int], Send] = {}
    for send in notes:
        known = found.get((send.client, send.number))
        if known is None or known.ended_s is None:
            found[send.client, send.number] = send
    return list(found.values())


def queue_key(queue: tuple[int, int]) -> QueueKey:
    return QueueKey(TopicId(queue[0]), QueueId(queue[1]))


def _decode(raw: dict[str, Any]) -> Note:
    cls = _KINDS[raw.pop("kind")]
    names = {one.name for one in fields(cls)}
    values = {name: value for name, value in raw.items() if name in names}
    if values.get("queue") is not None:
        values["queue"] = tuple(values["queue"])
    if values.get("answer") is not None:
        values["answer"] = Answer(values["answer"])
    if "outcome" in values:
        values["outcome"] = Outcome(values["outcome"])
    note: Note = cls(**values)
    return note
