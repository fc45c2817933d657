"""The encoding of a Raft message: one fixed envelope, followed by a snapshot's mark, if any.

Format (little-endian; docs/formats/raft-messages.md has the table, and a test compares them)

    0  u8 version = 1 | 1 u8 kind | 2 u8 flags | 3 u8 zero | 4 u32 source | 8 u32 target
    12 u32 entry_count | 16 u64 term | 24 u64 log_index | 32 u64 log_term | 40 u64 commit_index
    48 u64 hint_index | 56 u64 hint_term | 64 u64 context | 72 u32 snapshot_length
    76 u32 crc32c of bytes [0, 76) and then of the snapshot section
    80 snapshot section: u64 index | u64 term | u32 voters | u32 learners | u32 node ids, rising,
       voters first

An APPEND is followed by its entries' frames, whole and in order. Their metas are not encoded: the
receiver finds the frames at `envelope_length`, reads their headers, and passes the metas to
`decode_message`. No bytes may follow a message of another kind.

Invariants
1. `decode_message` raises InvalidRequest for bytes that `encode_message` cannot have made.
2. A decoded APPEND has entries that are consecutive from log_index + 1. Their terms never fall, and
   are neither below log_term nor above the message's term.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import google_crc32c

from semel.broker.raft.membership_history import Membership
from semel.broker.raft.messages import EntryMeta, Message, MessageKind, SnapshotMark
from semel.protos.errors import InvalidRequest
from semel.protos.ids import NodeId

VERSION: Final = 1
ENVELOPE: Final = Struct("<BBBBIIIQQQQQQQII")
SNAPSHOT: Final = Struct("<QQII")
ENVELOPE_BYTES: Final = ENVELOPE.size
ENTRIES_MAX: Final = 1 << 20
"""More entries in one message, or more nodes in one group, count as damage."""

FLAG_REJECTED: Final = 1
FLAG_FORCE: Final = 2
FLAG_SNAPSHOT: Final = 4
FLAG_NON_COUNTING: Final = 8
_FLAGS: Final = FLAG_REJECTED | FLAG_FORCE | FLAG_SNAPSHOT | FLAG_NON_COUNTING
_UNCHECKED: Final = Struct("<BBBBIIIQQQQQQQI")
_CRC: Final = Struct("<I")
_LENGTH_AT: Final = 72
_CRC_AT: Final = 76
_KINDS: Final = {kind.value: kind for kind in MessageKind}


def encode_message(message: Message) -> bytes:
    """The envelope and the snapshot section; the caller sends an APPEND's frames after it."""
    mark = message.snapshot
    section = b"" if mark is None else _encode_mark(mark)
    flags = (
        (FLAG_REJECTED if message.rejected else 0)
        | (FLAG_FORCE if message.force else 0)
        | (FLAG_SNAPSHOT if mark is not None else 0)
        | (FLAG_NON_COUNTING if message.non_counting else 0)
    )
    head = _UNCHECKED.pack(
        VERSION,
        message.kind,
        flags,
        0,
        message.source,
        message.target,
        len(message.entries),
        message.term,
        message.log_index,
        message.log_term,
        message.commit_index,
        message.hint_index,
        message.hint_term,
        message.context,
        len(section),
    )
    crc = google_crc32c.value(head)
    if section:
        crc = google_crc32c.extend(crc, section)
    return head + _CRC.pack(crc) + section


def envelope_length(data: bytes | memoryview) -> int:
    """Length of the envelope and its snapshot section in bytes, where an APPEND's frames begin.

    Only the bounds are checked; `decode_message` checks the rest. Raises InvalidRequest.
    """
    if len(data) < ENVELOPE_BYTES:
        raise InvalidRequest(f"a Raft message has {ENVELOPE_BYTES} bytes or more, not {len(data)}")
    (section,) = _CRC.unpack_from(data, _LENGTH_AT)
    length: int = ENVELOPE_BYTES + section
    if length > len(data):
        raise InvalidRequest(f"Raft message cut short: {len(data)} of {length} bytes")
    return length


def decode_message(data: bytes | memoryview, metas: Sequence[EntryMeta] = ()) -> Message:
    """The message in `data`; `metas` are those of the frames after an APPEND's envelope.

    Raises InvalidRequest when the bytes are damaged or do not match the metas.
    """
    length = envelope_length(data)
    (
        version,
        kind_number,
        flags,
        zero,
        source,
        target,
        entry_count,
        term,
        log_index,
        log_term,
        commit_index,
        hint_index,
        hint_term,
        context,
        _,
        crc,
    ) = ENVELOPE.unpack_from(data)
    found = google_crc32c.value(bytes(data[:_CRC_AT]))
    if length > ENVELOPE_BYTES:
        found = google_crc32c.extend(found, bytes(data[ENVELOPE_BYTES:length]))
    if found != crc:
        raise InvalidRequest("Raft message with a wrong checksum")
    kind = _KINDS.get(kind_number)
    if version != VERSION or kind is None or flags & ~_FLAGS or zero or not source or not target:
        raise InvalidRequest(
            f"Raft message of unknown version {version}, kind {kind_number} or flags {flags}, "
            f"from node {source} to {target}"
        )
    if kind is MessageKind.APPEND:
        _check_entries(metas, entry_count, term, log_index, log_term)
    elif entry_count or metas or length != len(data):
        raise InvalidRequest(f"{kind.name} does not carry entries")
    has_mark = bool(flags & FLAG_SNAPSHOT)
    if has_mark != (length > ENVELOPE_BYTES) or has_mark != (kind is MessageKind.SNAPSHOT_OFFER):
        raise InvalidRequest(f"{kind.name} with a snapshot section of {length - ENVELOPE_BYTES}")
    return Message(  # Keyword arguments would take three times as long.
        kind,
        source,
        target,
        term,
        log_index,
        log_term,
        commit_index,
        tuple(metas),
        flags & FLAG_REJECTED != 0,
        hint_index,
        hint_term,
        context,
        _decode_mark(bytes(data[ENVELOPE_BYTES:length])) if has_mark else None,
        flags & FLAG_FORCE != 0,
        flags & FLAG_NON_COUNTING != 0,
    )


def _check_entries(
    metas: Sequence[EntryMeta], count: int, term: int, log_index: int, log_term: int
) -> None:
    if count != len(metas) or count > ENTRIES_MAX:
        raise InvalidRequest(f"APPEND of {count} entries with {len(metas)} frames behind it")
    last_term = log_term
    for index, meta in enumerate(metas, log_index + 1):
        if meta.index != index or not last_term <= meta.term <= term:
            raise InvalidRequest(
                f"APPEND after ({log_index}, term {log_term}) in term {term} has an entry "
                f"({meta.index}, term {meta.term}) in place of {index}"
            )
        last_term = meta.term
    if last_term > term:
        raise InvalidRequest(f"APPEND of term {term} after an entry of term {log_term}")


def _encode_mark(mark: SnapshotMark) -> bytes:
    voters = sorted(mark.membership.voters)
    learners = sorted(mark.membership.learners)
    head = SNAPSHOT.pack(mark.index, mark.term, len(voters), len(learners))
    ids = voters + learners
    return head + Struct(f"<{len(ids)}I").pack(*ids)


def _decode_mark(section: bytes) -> SnapshotMark:
    if len(section) < SNAPSHOT.size:
        raise InvalidRequest(f"snapshot mark of {len(section)} bytes is cut short")
    index, term, voter_count, learner_count = SNAPSHOT.unpack_from(section)
    count = voter_count + learner_count
    if count > ENTRIES_MAX or len(section) != SNAPSHOT.size + 4 * count:
        raise InvalidRequest(f"snapshot mark of {count} nodes in {len(section)} bytes")
    ids = [NodeId(node) for node in Struct(f"<{count}I").unpack_from(section, SNAPSHOT.size)]
    voters, learners = ids[:voter_count], ids[voter_count:]
    if voters != sorted(set(voters)) or learners != sorted(set(learners)):
        raise InvalidRequest("snapshot mark whose nodes do not rise")
    membership = Membership(voters=frozenset(voters), learners=frozenset(learners))
    return SnapshotMark(index=index, term=term, membership=membership)
