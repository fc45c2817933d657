"""The whole state at one index as bytes: on disk, and sent to a member that is too far behind.

How it works. A dump is one protobuf message behind a header with its length and CRC. The file
`dump` is replaced whole and durably; only then does the journal drop the entries that the dump
covers. `Dumps` replaces pysyncobj's serializer, whose file would be unpickled, whose fork is unsafe
beside gRPC's threads, and which continues with an empty state when it cannot read its file. Here a
dump is encoded and written on a thread of its own from a copy of the state, while the log goes on.

Format. `dump`, little-endian: magic "SMDP" | version u16 | zero u16 | length u64 | crc32c u32 of
the body | body (`StoreDump`) | crc32c u32 of the header.

Crash cases. The file holds the old dump or the new one; the journal reaches back to the older of
them until it is trimmed, and `fit` joins the two at the next start without losing an entry behind
the dump.

Invariants
1. A dump holds the last entry that it covers and the one before, because pysyncobj requires its log
   to begin with these two.
2. No part of a dump is used before its CRC and its content were checked.

Not here: when to make one (pysyncobj decides), whether to install one (`consensus.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError

from semel.controller.store.base import Versioned
from semel.controller.store.embedded.files import Files, replace_file
from semel.controller.store.embedded.journal import FIRST, Entry, JournalFiles, check_kind
from semel.controller.store.embedded.library import SERIALIZER_STATE
from semel.controller.store.embedded.machine import Result, Session, State
from semel.protos.errors import DataDirectoryError
from semel.protos.v1.metadata_store_pb2 import (
    DumpedResult,
    DumpedSession,
    DumpedValue,
    GroupEntry,
    StoreDump,
)

FILE_NAME: Final = "dump"
MAGIC: Final = b"SMDP"
VERSION: Final = 1
HEADER_STRUCT: Final = struct.Struct("<4sHHQI")
PIECE_BYTES: Final = 1 << 20
DUMP_BYTES_MAX: Final = 1 << 30
"""No controller holds that much, so a peer that announces more is faulty."""

RunAside = Callable[[Callable[[], None]], None]
"""Runs a function on another thread; tests run it immediately."""


class Dump(NamedTuple):
    """One checked dump."""

    last: Entry
    previous: Entry
    state: State


class Piece(NamedTuple):
    """A part of a dump; pysyncobj looks at the first three fields only."""

    data: bytes
    is_first: bool
    is_last: bool
    index: int  # type: ignore[assignment]  # tuples have a method of that name
    position: int
    total_bytes: int


def encode(dump: Dump) -> bytes:
    """The bytes of a dump, both on disk and on the wire."""
    message = StoreDump(
        last=_to_message(dump.last),
        previous=_to_message(dump.previous),
        revision=dump.state.revision,
        values=[
            DumpedValue(key=key, version=entry.version, value=entry.value)
            for key, entry in sorted(dump.state.entries.items())
        ],
        sessions=[
            DumpedSession(
                controller_id=controller_id,
                incarnation=session.incarnation,
                resolved_below=session.resolved_below,
                results=[
                    DumpedResult(
                        sequence=sequence, revision=result.revision, conflict=result.conflict
                    )
                    for sequence, result in sorted(session.results.items())
                ],
            )
            for controller_id, session in sorted(dump.state.sessions.items())
        ],
    )
    body = message.SerializeToString(deterministic=True)
    header = HEADER_STRUCT.pack(MAGIC, VERSION, 0, len(body), int(google_crc32c.value(body)))
    return header + body + int(google_crc32c.value(header)).to_bytes(4, "little")


def decode(raw: bytes, where: str) -> Dump:
    """The dump in `raw`. Raises DataDirectoryError, naming `where`, when it is damaged or newer."""
    end = len(raw) - 4
    if end < HEADER_STRUCT.size:
        raise _damaged(where, "it is too short")
    header, body = raw[: HEADER_STRUCT.size], raw[HEADER_STRUCT.size : end]
    magic, version, _, length, crc = HEADER_STRUCT.unpack(header)
    if magic != MAGIC or int.from_bytes(raw[end:], "little") != google_crc32c.value(header):
        raise _damaged(where, "its header does not match its checksum")
    if version != VERSION:
        raise DataDirectoryError(
            f"{where} has format version {version}, this program knows {VERSION}; run the newer "
            "program"
        )
    if length != len(body) or crc != google_crc32c.value(body):
        raise _damaged(where, "its content does not match its checksum")
    try:
        return _from_message(StoreDump.FromString(body))
    except (DecodeError, ValueError) as error:
        raise _damaged(where, str(error)) from error


def load(files: Files) -> Dump | None:
    """The dump of a directory; None where none was made yet. Raises DataDirectoryError."""
    raw = files.read(FILE_NAME)
    return None if raw is None else decode(raw, files.where(FILE_NAME))


def fit(journal: JournalFiles, dump: Dump | None, files: Files) -> None:
    """Makes the journal begin with the dump's two entries, whatever a crash left behind.

    Raises DataDirectoryError when entries between dump and journal are missing.
    """
    if dump is None:
        if journal.entries and journal.entries[0] != FIRST:
            raise _damaged(
                files.where(FILE_NAME),
                f"it is missing, entries begin at {journal.entries[0].index}",
            )
        return
    found = journal.at(dump.last.index)
    if found is None and journal.entries and journal.entries[0].index > dump.last.index:
        raise _damaged(
            files.where(FILE_NAME),
            f"it ends at {dump.last.index}, the entries begin at {journal.entries[0].index}",
        )
    if found is None or found.term != dump.last.term:
        # The journal's entries are older than the dump, or were never committed.
        journal.replace([dump.previous, dump.last])
    elif journal.entries[0] != dump.previous:
        behind = journal.entries[dump.last.index - journal.entries[0].index + 1 :]
        journal.replace([dump.previous, dump.last, *behind])


class Dumps:
    """Makes, sends and takes dumps. Replaces pysyncobj's `Serializer` and has its methods."""

    def __init__(self, files: Files, state: Callable[[], State], run_aside: RunAside) -> None:
        self._files = files
        self._state = state
        self._run_aside = run_aside
        self._covers = 0
        self._outcome: int = SERIALIZER_STATE.NOT_SERIALIZING
        self._failure: BaseException | None = None
        self._sending: dict[Hashable, tuple[bytes, int, int]] = {}
        self._taking: tuple[int, int, bytearray] | None = None
        self._taken: Dump | None = None

    @property
    def busy(self) -> bool:
        """A dump is being written."""
        return bool(self._outcome != SERIALIZER_STATE.NOT_SERIALIZING)

    def take(self, piece: Piece) -> bytes | None:
        """Adds one piece of a peer's dump; returns the whole dump after the last piece."""
        if piece.position == 0:
            self._taking = (piece.index, piece.total_bytes, bytearray())
        if self._taking is None or piece.total_bytes > DUMP_BYTES_MAX:
            return None
        index, total_bytes, data = self._taking
        if (piece.index, piece.total_bytes, piece.position) != (index, total_bytes, len(data)):
            self._taking = None  # a piece is missing, or the master has made a newer one
            return None
        data += piece.data
        if len(data) < total_bytes:
            return None
        self._taking = None
        return bytes(data)

    def install(self, raw: bytes, dump: Dump) -> None:
        """Makes a checked dump durable as this controller's own; `deserialize` then returns it."""
        assert not self.busy
        replace_file(self._files, FILE_NAME, raw)
        self._sending.clear()
        self._taken = dump

    # Called by pysyncobj.

    def checkSerializing(self) -> tuple[int, int | None]:  # noqa: N802
        """Progress of the dump; reports SUCCESS once, and pysyncobj then trims the journal."""
        if self._failure is not None:
            raise self._failure
        outcome = self._outcome
        if outcome == SERIALIZER_STATE.SUCCESS:
            self._outcome = SERIALIZER_STATE.NOT_SERIALIZING
            self._sending.clear()
        covers = None if outcome == SERIALIZER_STATE.NOT_SERIALIZING else self._covers
        return outcome, covers

    def serialize(self, data: Any, id: int) -> None:
        """Begins a dump of the present state."""
        if self.busy:
            return
        _, last, previous, _ = data
        dump = Dump(Entry(*last), Entry(*previous), self._state())
        self._covers = id
        self._outcome = SERIALIZER_STATE.SERIALIZING

        def write() -> None:
            try:
                replace_file(self._files, FILE_NAME, encode(dump))
            except BaseException as error:
                self._failure = error
            else:
                self._outcome = SERIALIZER_STATE.SUCCESS

        self._run_aside(write)

    def deserialize(self) -> tuple[None, Entry, Entry, tuple[()]]:
        """The two entries with which the log begins after `install`."""
        assert self._taken is not None
        return None, self._taken.last, self._taken.previous, ()

    def setTransmissionData(self, data: object) -> bool:  # noqa: N802
        """True when a dump was installed and the log must follow it."""
        return data is not None and data is self._taken

    def getTransmissionData(self, transmissionID: Hashable) -> Piece:  # noqa: N802, N803
        """The next piece for a peer, from the newest whole dump, even while another is written.

        Never returns None: pysyncobj would then ask again for 100 ms without a pause, and send a
        heartbeat each time.
        """
        if transmissionID not in self._sending:
            raw = self._files.read(FILE_NAME)
            assert raw is not None, "entries are dropped only after a dump has them"
            dump = decode(raw, self._files.where(FILE_NAME))
            self._sending[transmissionID] = (raw, dump.last.index, 0)
        raw, index, position = self._sending[transmissionID]
        data = raw[position : position + PIECE_BYTES]
        end = position + len(data)
        if end == len(raw):
            del self._sending[transmissionID]
        else:
            self._sending[transmissionID] = (raw, index, end)
        return Piece(data, position == 0, end == len(raw), index, position, len(raw))

    def cancelTransmisstion(self, id: Hashable) -> None:  # noqa: N802 - pysyncobj's spelling
        """Forgets a peer's progress."""
        self._sending.pop(id, None)


def _to_message(entry: Entry) -> GroupEntry:
    return GroupEntry(index=entry.index, term=entry.term, command=entry.command)


def _from_message(message: StoreDump) -> Dump:
    last, previous = (
        Entry(check_kind(entry.command), entry.index, entry.term)
        for entry in (message.last, message.previous)
    )
    if last.index != previous.index + 1 or last.term < previous.term:
        raise ValueError(f"entry {last.index} follows {previous.index}")
    entries = {
        value.key: Versioned(value=value.value, version=value.version) for value in message.values
    }
    if any(not 0 < entry.version <= message.revision for entry in entries.values()):
        raise ValueError("a value is newer than the revision")
    sessions = {
        session.controller_id: Session(
            incarnation=session.incarnation,
            resolved_below=session.resolved_below,
            results={
                result.sequence: Result(revision=result.revision, conflict=result.conflict)
                for result in session.results
            },
        )
        for session in message.sessions
    }
    return Dump(
        last, previous, State(revision=message.revision, entries=entries, sessions=sessions)
    )


def _damaged(where: str, what: str) -> DataDirectoryError:
    return DataDirectoryError(
        f"{where} is damaged: {what}. Empty this controller's directory and start it again: it "
        "gets everything back from the others. A controller that is alone needs a backup"
    )
