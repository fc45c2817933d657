"""Sessions of Fetch (KIP-227): which partitions a consumer reads, so that it need not repeat them.

Pure.

How it works. A consumer asks for a session with a full request, and gets a random id. From then on
a request names only what has changed: partitions that are new or read at another offset, and those
that are forgotten. The answer has only what is news: records, errors, or another end of the log. Of
partitions with records, those that were answered longest ago come first, so that one with many
records does not keep the others from an answer that is full.

    session id   epoch     meaning
    0            0         a full request that begins a session
    any          -1        a full request without a session; one that it names ends
    known        0         a full request that ends this session and begins another one
    known        expected  an incremental request; the next one has the next epoch
    known        another   INVALID_FETCH_SESSION_EPOCH
    unknown      above 0   FETCH_SESSION_ID_NOT_FOUND

A client begins anew after either error, and so does one whose gateway is gone. If there is no room,
a full request is answered without a session: its consumer repeats all partitions each time.

Invariants
1. There are at most `sessions_max` sessions with `partitions_max` partitions together. A session
   that was used within `IDLE_S` is never ended to make room.
2. A partition whose last answer was an error, or was not given, is told with the next answer.

Not here: what partitions are answered (`fetch.py`), in which bytes (`fetch_response.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from semel.gateway.fetching.fetch_response import Fetched

SESSIONS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 200_000
IDLE_S: Final = 120.0
"""Seconds after which a session may be ended to make room for another one."""
NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = (1 << 31) - 1
_ID_SPAN: Final = (1 << 31) - 1

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""


class Ask(NamedTuple):
    """A consumer's wish for one partition."""

    offset: int
    bytes_max: int


class _Partition:
    __slots__ = ("ask", "high_watermark", "log_start_offset")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.high_watermark = -1
        """As last told; -1 if it is to be told with the next answer."""
        self.log_start_offset = -1


class FetchSession:
    """The partitions of one consumer."""

    __slots__ = ("_partitions", "next_epoch", "session_id", "used_at")

    def __init__(self, session_id: int, now: float) -> None:
        self.session_id = session_id
        self.next_epoch = INITIAL_EPOCH + 1
        self.used_at = now
        self._partitions: OrderedDict[Place, _Partition] = OrderedDict()
        """The one that is to be answered first is first."""

    def __len__(self) -> int:
        return len(self._partitions)

    def asks(self) -> list[tuple[Place, Ask]]:
        """Returns all partitions, in the order in which they are answered."""
        return [(place, each.ask) for place, each in self._partitions.items()]

    def update(self, wanted: Iterable[tuple[Place, Ask]], forgotten: Iterable[Place]) -> None:
        """Takes in what a request changes."""
        for place in forgotten:
            self._partitions.pop(place, None)
        for place, ask in wanted:
            known = self._partitions.get(place)
            if known is None:
                self._partitions[place] = _Partition(ask)
            else:
                known.ask = ask

    def news(self, answers: Sequence[tuple[str, Fetched]]) -> list[tuple[str, Fetched]]:
        """Returns the answers that the consumer does not know yet, which are told by that."""
        told = []
        for topic, each in answers:
            place = topic, each.partition
            known = self._partitions.get(place)
            if known is None:
                continue
            marks = each.high_watermark, each.log_start_offset
            if each.error is not ErrorCode.none:
                known.high_watermark = known.log_start_offset = -1
            elif each.batches or marks != (known.high_watermark, known.log_start_offset):
                known.high_watermark, known.log_start_offset = marks
            else:
                continue
            if each.batches:
                self._partitions.move_to_end(place)
            told.append((topic, each))
        return told


class FetchSessions:
    """All sessions of one gateway. Times are seconds on any clock that rises."""

    def __init__(
        self,
        draw: Callable[[int], int],
        *,
        sessions_max: int = SESSIONS_MAX,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        """`draw(n)` returns a random number below n."""
        self.partitions = 0
        """The partitions of all sessions together."""
        self._draw = draw
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """The one that was used longest ago is first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[tuple[Place, Ask]],
        forgotten: Iterable[Place],
        now: float,
    ) -> FetchSession | ErrorCode | None:
        """Returns the session of a request, with what it changes taken in, or why there is none.
        None is a full request that is answered without one."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._end(session_id)
            return self._new(wanted, now) if epoch == INITIAL_EPOCH else None
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.fetch_session_id_not_found
        if epoch != session.next_epoch:
            return ErrorCode.invalid_fetch_session_epoch
        session.next_epoch = epoch + 1 if epoch < _EPOCH_MAX else INITIAL_EPOCH + 1
        before = len(session)
        session.update(wanted, forgotten)
        self.partitions += len(session) - before
        session.used_at = now
        self._sessions.move_to_end(session_id)
        if self.partitions > self._partitions_max and not self._make_room(session, now):
            self._end(session_id)
            return ErrorCode.fetch_session_id_not_found
        return session

    def _new(self, wanted: Sequence[tuple[Place, Ask]], now: float) -> FetchSession | None:
        """Returns a session for a full request, if there is room."""
        if not wanted:
            return None
        session = FetchSession(self._new_id(), now)
        session.update(wanted, ())
        self._sessions[session.session_id] = session
        self.partitions += len(session)
        if self._make_room(session, now):
            return session
        self._end(session.session_id)
        return None

    def _new_id(self) -> int:
        while True:
            number = 1 + self._draw(_ID_SPAN)
            if number not in self._sessions:
                return number

    def _make_room(self, own: FetchSession, now: float) -> bool:
        """Ends idle sessions as far as needed; False if there is too much all the same."""
        while len(self._sessions) > self._sessions_max or self.partitions > self._partitions_max:
            oldest = next(iter(self._sessions.values()))
            if oldest is own or oldest.used_at + IDLE_S > now:
                return False
            self._end(oldest.session_id)
        return True

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session)


def asked(request: Any) -> list[tuple[Place, Ask]]:
    """Returns the partitions that a request names."""
    return [
        ((topic.topic, each.partition), Ask(each.fetch_offset, each.partition_max_bytes))
        for topic in request.topics
        for each in topic.partitions
    ]


def forgotten(request: Any) -> list[Place]:
    """Returns the partitions that a request has done with."""
    return [
        (topic.topic, number)
        for topic in getattr(request, "forgotten_topics_data", ())
        for number in topic.partitions
    ]
