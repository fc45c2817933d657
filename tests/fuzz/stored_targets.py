"""What lies in files and object stores: of brokers, controllers, clients and the tier.

How it works. Files with right checksums and wrong content are not promised to be survived: only who
may write a node's directory can make them. They must end in one clear error all the same.

Not here: whole logs with damaged segments (`tests/unit/broker/log`, `./run soak damage`).
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import google_crc32c
from google.protobuf.message import DecodeError

from semel.broker.dedup.moved_ids import unpack
from semel.broker.log import checkpoint, directory_identity, hard_state, kept, segment
from semel.broker.state import State
from semel.client.transport import routes_file
from semel.controller.archive import archive
from semel.controller.store.embedded import dump, identity, messages
from semel.controller.store.embedded import hard_state as vote
from semel.controller.store.embedded.journal import COMMAND, NO_OP, Entry
from semel.protos.ids import NodeId
from semel.protos.levels import LEVEL_MAX
from semel.protos.v1.controller_pb2 import Routes
from semel.protos.v1.metadata_store_pb2 import (
    AppendEntries,
    DumpedResult,
    DumpedSession,
    DumpedValue,
    ForwardCommand,
    GroupEntry,
    GroupMessage,
    StoreDump,
)
from semel.tier import CorruptTier, FileEntry, Wanted, layout
from semel.tier import rows_of as tier_rows_of
from semel.tier.documents import sha256_of
from semel.tier.files import FileFooter, decode_whole, encode
from semel.tier.manifest import decode, decode_page, decode_pointer, encode_page, pointer_to
from tests.fuzz.targets import Target
from tests.kit.state_log import KEY, Group, header
from tests.kit.tier_rows import QUEUE, random_rows
from tests.unit.tier.entries import entry, manifest_of

_HERE: Final = Path("stored")


class _File:
    """`log.files.File` over bytes, for what reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, length: int, offset: int) -> bytes:
        assert length >= 0, "a length below 0 reads everything"
        assert offset >= 0, "an offset below 0 is an OSError"
        return self.data[offset : offset + length]

    def size(self) -> int:
        return len(self.data)


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def crc_behind(size: int = 0) -> Callable[[bytes, random.Random], bytes]:
    """A seal: the CRC of the first `size` bytes, of all if 0, stands in the last four of them."""

    def seal(data: bytes, _: random.Random) -> bytes:
        end = size or len(data)
        if len(data) < max(end, 4):
            return data
        return data[: end - 4] + struct.pack("<I", _crc(data[: end - 4])) + data[end:]

    return seal


# --- brokers ------------------------------------------------------------------------------------


def _states() -> list[bytes]:
    group = Group()
    group.fence(producer=3, keys=(KEY,), name="quelle")
    found = [b"".join(State().to_parts())]
    for sequence in range(3):
        group.produce(header(sequence - 1, producer=3))
    found.append(b"".join(group.state.to_parts()))
    for level in range(1, LEVEL_MAX + 1):
        group.raise_level(level)
        found.append(b"".join(group.state.to_parts()))
    return found


def _kept_files() -> list[bytes]:
    payloads = [b"one record", b"another one, longer"]
    parts = [kept._with_crc(kept.HEADER_STRUCT, kept.MAGIC, kept.VERSION, *[0] * 8)]
    entries = []
    at = len(parts[0])
    for index, payload in enumerate(payloads, 1):
        crc = _crc(payload)
        parts += [
            kept._with_crc(kept.RECORD_STRUCT, index, 48, len(payload), crc, 0, 0),
            payload + bytes(-len(payload) % 8),
        ]
        offset = at + kept.RECORD_BYTES
        entries.append(kept.ENTRY_STRUCT.pack(index, 48, len(payload), offset, crc, 0))
        at = offset + len(parts[-1])
    table = b"".join(entries)
    trailer = kept._with_crc(
        kept.TRAILER_STRUCT, kept.TRAILER_MAGIC, len(entries), at, _crc(table), 0, 0
    )
    return [b"".join((*parts, table, trailer))]


class _Parts:
    """Takes what a writer writes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, parts: Any, offset: int) -> None:
        joined = b"".join(parts)
        self.data[offset : offset + len(joined)] = joined

    def sync(self) -> None:
        """It is memory."""


def _checkpoint() -> bytes:
    file: Any = _Parts()
    file.data = bytearray(checkpoint.HEADER_BYTES)
    checkpoint._write(file, 7, 3, [b"state ", b"of a group"])
    return bytes(file.data)


def _seal_checkpoint(data: bytes, rng: random.Random) -> bytes:
    return crc_behind(checkpoint.HEADER_BYTES)(data, rng)


def _run_checkpoint(data: bytes) -> None:
    file: Any = _File(data)
    checkpoint._read(file, _HERE)


def _run_kept(data: bytes) -> None:
    file: Any = _File(data)
    for place in kept._load(file, _HERE):
        assert place is not None


def _run_segment(data: bytes) -> None:
    """None, a version, or the thing: damage is an answer here, not an error."""
    segment.decode_header(data)
    segment.decode_seal(data, 5)
    segment.decode_id(data, 1, 5)


def _segments() -> list[bytes]:
    made = segment.SegmentHeader(
        sequence=1, generation=2, first_index=3, previous_term=1, id_capacity=64, boot=9
    )
    seal = segment.Seal(count=2, end=9000, last_term=3, ids_crc=7)
    page = made.encode()[: segment.SEAL_AT] + segment.encode_seal(seal, 5)
    return [page, segment.encode_id(1, 1, 8192, 80, 0, 5) * 2]


def _run_vote(data: bytes) -> None:
    file = hard_state.HardStateFile.__new__(hard_state.HardStateFile)
    file._path = _HERE
    file._decode(data[: hard_state.RECORD_STRUCT.size])


def _seal_lines(data: bytes, _: random.Random) -> bytes:
    """A text file whose last line has the CRC of the others."""
    content = data.rpartition(b"crc32c=")[0]
    return content + f"crc32c={_crc(content):08x}\n".encode()


# --- the tier -----------------------------------------------------------------------------------


def _files() -> list[tuple[FileEntry, bytes]]:
    made = [
        encode(QUEUE, tier_rows_of(random_rows(seed, 12)), row_group_bytes=2_000) for seed in (1, 2)
    ]
    return [(each, data.to_pybytes()) for each, data in made]


_FILES: Final = _files()


def _run_file(data: bytes) -> None:
    """The object store gives other bytes than were stored: what is taken has the right rows."""
    for known, good in _FILES:
        for read in (_by_footer, _whole):
            try:
                found = read(known, data)
            except CorruptTier:
                continue
            assert found == read(known, good), "other rows were taken for the file's"
            return
    raise CorruptTier("nobody takes it")


def _whole(known: FileEntry, data: bytes) -> list[object]:
    return [decode_whole("file", known, data).to_pylist()]


def _by_footer(known: FileEntry, data: bytes) -> list[object]:
    footer = FileFooter("file", known, data[known.length - known.footer_length :])
    wanted = Wanted(start=known.start, end=known.end)
    found: list[object] = []
    for group in footer.groups(wanted):
        places = footer.places(group, ["offset", "value"])
        pieces = {each.start: data[each.start : each.start + each.length] for each in places}
        found.append(footer.decode(group, ["offset", "value"], pieces, wanted).to_pylist())
    return found


def _manifests() -> list[bytes]:
    return [manifest_of(files)[0].encode() for files in (1, 3, 70)]


_PAGE, _PAGE_DATA = encode_page([entry(at, at + 10) for at in (0, 10, 20)], "0" * 16)


def _run_page(data: bytes) -> None:
    """A page that its manifest names, with whatever is in it."""
    named = replace(_PAGE, length=len(data), sha256=sha256_of(data))
    decode_page("page", named, data)


_LIES: Final[tuple[Any, ...]] = (
    -1, 0, 1, 1 << 63, 10**30, 1.5, float("inf"), "", "x" * 70, "\0", None, [], {}, [1], [{}], True
)  # fmt: skip


def json_lies(corpus: list[bytes]) -> Callable[[bytes, random.Random], bytes]:
    """A seal: most inputs become a good document with one value changed, somewhere in it."""

    def seal(data: bytes, rng: random.Random) -> bytes:
        chance = rng.random()
        if chance < 0.2:
            return data
        if chance < 0.21:
            return b'{"a":' * 100_000
        found = json.loads(rng.choice(corpus))
        if chance < 0.9:
            place: Any = found
            while True:
                keys = range(len(place)) if isinstance(place, list) else sorted(place)
                key = rng.choice(keys)
                inner = place[key]
                if not (isinstance(inner, list | dict) and inner) or rng.random() < 0.1:
                    break
                place = inner
            near = (inner + 1, inner - 1) if type(inner) is int else ()
            place[key] = rng.choice((*_LIES, *near, *near, *near))
        return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()

    return seal


# --- controllers and clients --------------------------------------------------------------------


def _dumps() -> list[bytes]:
    previous, last = Entry(NO_OP, 4, 1), Entry(COMMAND + b"set", 5, 2)
    message = StoreDump(
        last=GroupEntry(index=5, term=2, command=last.command),
        previous=GroupEntry(index=4, term=1, command=previous.command),
        revision=9,
        values=[DumpedValue(key="topics/a", version=3, value=b"v")],
        sessions=[DumpedSession(controller_id=1, results=[DumpedResult(sequence=4, revision=5)])],
    )
    return [dump.encode(dump._from_message(message))]


def _seal_dump(data: bytes, _: random.Random) -> bytes:
    size = dump.HEADER_STRUCT.size
    if len(data) < size + 4:
        return data
    body = data[size:-4]
    head = data[: size - 12] + struct.pack("<QI", len(body), _crc(body))
    return head + body + struct.pack("<I", _crc(head))


def _messages() -> list[bytes]:
    entries = [GroupEntry(index=6, term=2, command=COMMAND + b"x")]
    append = AppendEntries(previous_index=5, previous_term=2, entries=entries)
    return [
        GroupMessage(term=2, append=append).SerializeToString(),
        GroupMessage(term=2, forward=ForwardCommand(command=COMMAND)).SerializeToString(),
    ]


def _run_message(data: bytes) -> None:
    message = messages.check(GroupMessage.FromString(data))
    if message.WhichOneof("kind") == "append":
        messages.entries_of(message.append)


def _archives() -> list[bytes]:
    made = archive.Archive(cluster_id="c", revision=7, entries={"a": b"1", "b/c": b""})
    return [archive.dump(made)]


def _seal_archive(data: bytes, _: random.Random) -> bytes:
    content = data[: data.rfind(b"\n", 0, -1) + 1]
    return content + archive._line({"crc32c": archive._crc(content)})


def _seal_routes(data: bytes, _: random.Random) -> bytes:
    payload = data[len(routes_file.MAGIC) + 4 :]
    return routes_file.MAGIC + struct.pack("<I", _crc(payload)) + payload


def _run_routes(data: bytes) -> None:
    class _Path:
        def read_bytes(self) -> bytes:
            return data

    path: Any = _Path()
    found = routes_file._read(path)
    assert found is None or found.SerializeToString() is not None


def stored_targets() -> list[Target]:
    """All targets of this module."""
    votes = [hard_state._encode((7, 3, NodeId(2))), hard_state._encode((8, 4, None))]
    names = {"cluster": "c", "group": "1", "node": "2"}
    members = identity.Identity(cluster_id="c", controller_id=1, members=(1, 2, 3))
    manifests = _manifests()
    pointer = pointer_to(manifest_of(3)[0])[0].encode()
    vote_state = vote.HardState(term=3, voted_for=2, voter=True, incarnation=4)
    routes = routes_file.MAGIC + bytes(4) + Routes(controllers=["h:1"]).SerializeToString()
    ids = [struct.pack("<5Q", 1, 2, 3, 4, 5), bytes(40), struct.pack("<10Q", *range(10))]
    return [
        Target(name="state", corpus=_states(), run=State.from_bytes, seal=crc_behind()),
        Target(
            name="checkpoint", corpus=[_checkpoint()], run=_run_checkpoint, seal=_seal_checkpoint
        ),
        Target(name="kept file", corpus=_kept_files(), run=_run_kept, seal=_seal_kept),
        Target(name="segment", corpus=_segments(), run=_run_segment, seal=crc_behind(64)),
        Target(name="hard state", corpus=votes, run=_run_vote, seal=crc_behind()),
        Target(
            name="identity",
            corpus=[directory_identity._encode(names)],
            run=directory_identity._decode,
            seal=_seal_lines,
        ),
        Target(name="moved ids", corpus=ids, run=_run_ids),
        Target(name="tier file", corpus=[data for _, data in _FILES], run=_run_file),
        Target(name="manifest", corpus=manifests, run=_run_manifest, seal=json_lies(manifests)),
        Target(name="pointer", corpus=[pointer], run=_run_pointer, seal=json_lies([pointer])),
        Target(
            name="page",
            corpus=[_PAGE_DATA],
            run=_run_page,
            seal=json_lies([_PAGE_DATA]),
        ),
        Target(name="object name", corpus=_names(), run=_run_name),
        Target(
            name="controller's vote",
            corpus=[vote._encode(vote_state)],
            run=lambda data: vote._decode(data, "vote"),
            seal=crc_behind(),
        ),
        Target(
            name="controller's identity",
            corpus=[identity._encode(members)],
            run=lambda data: identity._decode(data, "identity"),
            seal=_seal_lines,
        ),
        Target(
            name="controller's dump",
            corpus=_dumps(),
            run=lambda data: dump.decode(data, "dump"),
            seal=_seal_dump,
        ),
        Target(
            name="controller's message",
            corpus=_messages(),
            run=_run_message,
            refusals=(ValueError, DecodeError),
        ),
        Target(
            name="archive",
            corpus=_archives(),
            run=lambda data: archive.load(data, "archive"),
            seal=_seal_archive,
        ),
        Target(name="routes file", corpus=[routes], run=_run_routes, seal=_seal_routes),
    ]


def _seal_kept(data: bytes, rng: random.Random) -> bytes:
    """The trailer's CRC and the table's."""
    size = kept.TRAILER_BYTES
    if len(data) < size or rng.random() < 0.3:
        return data
    magic, count, at, _, *zeros, _ = kept.TRAILER_STRUCT.unpack(data[-size:])
    table = data[at : at + count * kept.ENTRY_STRUCT.size]
    return data[:-size] + kept._with_crc(kept.TRAILER_STRUCT, magic, count, at, _crc(table), *zeros)


def _run_ids(data: bytes) -> None:
    unpack(data, 1 << 40)


def _run_manifest(data: bytes) -> None:
    decode("m", data)


def _run_pointer(data: bytes) -> None:
    decode_pointer("p", data)


def _names() -> list[bytes]:
    digest = "0" * 64
    found = [
        layout.manifest_name("c", QUEUE, 3, digest),
        layout.data_name("c", QUEUE, 3, 9, digest),
        layout.pointer_name("c", QUEUE, 3),
        layout.topic_name("c", QUEUE.topic_id),
        layout.temporary_name(layout.pointer_name("c", QUEUE, 3), "0" * 16),
    ]
    return [each.encode() for each in found]


def _run_name(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    layout.parse("c", text)
    layout.parse_topic("c", text)
