"""Raft messages keep every field through bytes, and damaged bytes are refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.raft import (
    EntryMeta,
    Membership,
    Message,
    MessageKind,
    SnapshotMark,
    decode_message,
    encode_message,
    envelope_length,
    wire,
)
from semel.protos.errors import InvalidRequest
from semel.protos.ids import NodeId
from tests.kit.format_tables import fields, struct_format, tables

DOCUMENT = "raft-messages.md"
_U64 = st.integers(0, 2**64 - 1)
_NODES = st.integers(1, 2**32 - 1).map(NodeId)


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    voters = draw(st.frozensets(_NODES, min_size=1, max_size=5))
    return Membership(voters=voters, learners=draw(st.frozensets(_NODES, max_size=3)) - voters)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(MessageKind))
    term = draw(st.integers(5, 2**64 - 1))
    log_index = draw(st.integers(0, 2**64 - 20))
    log_term = draw(st.integers(0, 5))
    entries: tuple[EntryMeta, ...] = ()
    if kind is MessageKind.APPEND:
        terms = sorted(draw(st.lists(st.integers(log_term, 5), max_size=4)))
        entries = tuple(
            EntryMeta(index=index, term=entry_term, size=100)
            for index, entry_term in enumerate(terms, log_index + 1)
        )
    mark = None
    if kind is MessageKind.SNAPSHOT_OFFER:
        mark = SnapshotMark(index=draw(_U64), term=draw(_U64), membership=draw(memberships()))
    return Message(
        kind=kind,
        source=draw(_NODES),
        target=draw(_NODES),
        term=term,
        log_index=log_index,
        log_term=log_term,
        commit_index=draw(_U64),
        entries=entries,
        rejected=draw(st.booleans()),
        hint_index=draw(_U64),
        hint_term=draw(_U64),
        context=draw(_U64),
        snapshot=mark,
        force=draw(st.booleans()),
        non_counting=draw(st.booleans()),
    )


OFFER = Message(
    kind=MessageKind.SNAPSHOT_OFFER,
    source=NodeId(1),
    target=NodeId(2),
    term=7,
    commit_index=40,
    snapshot=SnapshotMark(
        index=30,
        term=6,
        membership=Membership(
            voters=frozenset({NodeId(1), NodeId(2)}), learners=frozenset({NodeId(5)})
        ),
    ),
)
APPEND = Message(
    kind=MessageKind.APPEND,
    source=NodeId(1),
    target=NodeId(2),
    term=7,
    log_index=10,
    log_term=5,
    entries=(
        EntryMeta(index=11, term=5, size=100),
        EntryMeta(index=12, term=7, size=100),
    ),
)


@given(messages())
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    data = encode_message(message)
    assert envelope_length(data) == len(data)
    assert decode_message(data, message.entries) == message
    assert decode_message(memoryview(data), message.entries) == message


def test_frames_behind_an_append_are_left_alone() -> None:
    data = encode_message(APPEND)
    assert envelope_length(data + b"frames") == len(data)
    assert decode_message(data + b"frames", APPEND.entries) == APPEND


@pytest.mark.parametrize("message", [OFFER, APPEND])
def test_a_message_cut_anywhere_is_refused(message: Message) -> None:
    data = encode_message(message)
    for length in range(len(data)):
        with pytest.raises(InvalidRequest):
            decode_message(data[:length], message.entries)


@pytest.mark.parametrize("message", [OFFER, APPEND])
def test_a_message_with_any_flipped_bit_is_refused(message: Message) -> None:
    data = encode_message(message)
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(InvalidRequest):
            decode_message(bytes(flipped), message.entries)


@pytest.mark.parametrize(
    "entries",
    [
        (),
        APPEND.entries[:1],
        APPEND.entries[1:],
        APPEND.entries[::-1],
        (*APPEND.entries, EntryMeta(index=13, term=7, size=1)),
        (APPEND.entries[0], EntryMeta(index=12, term=4, size=1)),
        (APPEND.entries[0], EntryMeta(index=12, term=8, size=1)),
        (EntryMeta(index=11, term=4, size=1), APPEND.entries[1]),
    ],
)
def test_frames_that_do_not_fit_the_append_are_refused(entries: tuple[EntryMeta, ...]) -> None:
    with pytest.raises(InvalidRequest):
        decode_message(encode_message(APPEND), entries)


def test_an_append_behind_an_entry_of_a_later_term_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="after an entry of term 9"):
        decode_message(encode_message(replace(APPEND, log_term=9, entries=())))


def _with_crc(data: bytes) -> bytes:
    """Right but for what was changed: the checksum is made to fit."""
    section = data[wire.ENVELOPE_BYTES :]
    crc = google_crc32c.extend(google_crc32c.value(data[:76]), section)
    return data[:76] + struct.pack("<I", crc) + section


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\x02"),
        (1, b"\x00"),
        (1, b"\x07"),
        (1, b"\x0c"),
        (2, b"\x00"),
        (2, b"\x1c"),
        (3, b"\x01"),
        (4, bytes(4)),
        (8, bytes(4)),
        (12, b"\x01"),
        (96, b"\x00"),
        (96, b"\x03"),
        (100, b"\xff\xff\xff\xff"),
        (104, b"\x02"),
    ],
)
def test_a_senseless_field_is_refused_though_the_checksum_fits(at: int, value: bytes) -> None:
    data = encode_message(OFFER)
    with pytest.raises(InvalidRequest):
        decode_message(_with_crc(data[:at] + value + data[at + len(value) :]))


def test_nothing_may_follow_a_message_without_entries() -> None:
    with pytest.raises(InvalidRequest):
        decode_message(encode_message(OFFER) + b"\0")


def test_the_envelope_has_the_documented_layout() -> None:
    described = fields(DOCUMENT, "Envelope")
    assert struct_format(described) == wire.ENVELOPE.format
    assert wire.ENVELOPE.size == wire.ENVELOPE_BYTES == 80


def test_each_field_stands_where_its_name_is_documented() -> None:
    data = encode_message(replace(APPEND, commit_index=21, hint_index=22, hint_term=23, context=24))
    for field in fields(DOCUMENT, "Envelope"):
        (value,) = struct.unpack_from("<" + field.code, data, field.offset)
        known = {"source": 1, "target": 2, "term": 7, "log_index": 10, "log_term": 5}
        known |= {"commit_index": 21, "hint_index": 22, "hint_term": 23, "context": 24}
        known |= {"version": 1, "kind": 5, "flags": 0, "zero": 0, "entry_count": 2}
        known |= {"snapshot_length": 0, "crc": value}
        assert value == known[field.name], field.name


def test_the_snapshot_mark_has_the_documented_layout() -> None:
    assert struct_format(fields(DOCUMENT, "Snapshot mark")) == wire.SNAPSHOT.format
    data = encode_message(OFFER)[wire.ENVELOPE_BYTES :]
    assert struct.unpack("<QQIIIII", data) == (30, 6, 2, 1, 1, 2, 5)


def test_kinds_and_flags_are_the_documented_ones() -> None:
    kinds = {row["name"]: int(row["value"]) for row in tables(DOCUMENT, "Kinds")[0]}
    assert kinds == {kind.name: kind.value for kind in MessageKind}
    flags = {row["name"]: int(row["value"]) for row in tables(DOCUMENT, "Flags")[0]}
    assert flags == {
        "REJECTED": wire.FLAG_REJECTED,
        "FORCE": wire.FLAG_FORCE,
        "SNAPSHOT": wire.FLAG_SNAPSHOT,
        "NON_COUNTING": wire.FLAG_NON_COUNTING,
    }


def test_a_mark_with_voters_and_learners_comes_back() -> None:
    assert decode_message(encode_message(OFFER)) == OFFER


def test_the_length_of_a_cut_message_is_refused() -> None:
    data = encode_message(OFFER)
    assert envelope_length(data) == len(data)
    for length in (0, wire.ENVELOPE_BYTES - 1, wire.ENVELOPE_BYTES, len(data) - 1):
        with pytest.raises(InvalidRequest):
            envelope_length(data[:length])


def test_a_mark_that_is_too_short_is_refused_though_the_checksum_fits() -> None:
    data = encode_message(OFFER)
    for length in (1, wire.SNAPSHOT.size - 1, wire.SNAPSHOT.size):
        head = data[:72] + struct.pack("<I", length) + data[76:80]
        cut = _with_crc(head + data[80 : 80 + length])
        with pytest.raises(InvalidRequest):
            decode_message(cut)


def test_so_many_entries_and_nodes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ENTRIES_MAX", 8)

    def append(count: int) -> Message:
        metas = tuple(EntryMeta(index=11 + at, term=7, size=1) for at in range(count))
        return replace(APPEND, entries=metas)

    def offer(count: int) -> Message:
        assert OFFER.snapshot is not None
        voters = frozenset(NodeId(number + 1) for number in range(count))
        mark = replace(OFFER.snapshot, membership=Membership(voters=voters))
        return replace(OFFER, snapshot=mark)

    for message, larger in (
        (append(wire.ENTRIES_MAX), append(wire.ENTRIES_MAX + 1)),
        (offer(wire.ENTRIES_MAX), offer(wire.ENTRIES_MAX + 1)),
    ):
        assert decode_message(encode_message(message), message.entries) == message
        with pytest.raises(InvalidRequest):
            decode_message(encode_message(larger), larger.entries)
