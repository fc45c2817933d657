"""The manifest of a queue: which files hold which of its offsets. And the pointer to it.

How it works. A manifest names the newest files itself (its *tail*), and older ones by *pages* of
`PAGE_FILES` each. Both are written once. A change writes a new manifest, and a page only when the
tail is full; all older pages are named again. So a change costs the same for ten files as for
100,000, and a reader gets the manifest and the pages that it needs.

Which manifest counts is decided in the log of the queue's broker group, by compare-and-set of a
pointer: the number goes up by one. Manifests that lost, or that a crash left, are never named by a
pointer.

Format. `docs/formats/tier.md`, "Manifests"; a test compares the tables with these classes.

Invariants (of every Manifest that `decode` returns or a change makes)
1. Pages, then files of the tail, follow each other without a gap or an overlap, and end at `end`.
2. `start` lies in the first page or file; without any it is `end`.
3. Append times never fall from file to file.

Not here: changes of a manifest (`changes.py`), reading and writing objects (`queue_reader.py`,
`queue_writer.py`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import documents, layout
from semel.tier.documents import Fields
from semel.tier.errors import CorruptTier

PAGE_FILES: Final = 256
"""Files of a page, and the most that a tail has."""
NO_DIGEST: Final = ""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of rows, and all that must be known to read parts of it and be sure of them."""

    start: int
    end: int
    """Its rows are all that the queue has of offsets `[start, end)`."""
    rows: int
    """Fewer than `end - start` if there are gaps."""
    length: int
    """Bytes of the object."""
    sha256: str
    """The digest of all bytes."""
    rows_sha256: str
    """The digest of the rows (`digest.py`)."""
    row_bytes: int
    """About what the rows take before compression."""
    footer_length: int
    """Bytes at the end that hold Parquet's metadata, its length and magic."""
    footer_crc: int
    """CRC32C of these bytes."""
    chunk_crcs: str
    """CRC32C of each column chunk, eight hexadecimal digits each: by row group, then by column."""
    min_timestamp_us: int
    max_timestamp_us: int
    first_append_us: int
    last_append_us: int

    def name(self, cluster_id: str, queue: QueueKey) -> str:
        """The object's name."""
        return layout.data_name(cluster_id, queue, self.start, self.end, self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEntry:
    """A page: the entries of consecutive files."""

    start: int
    end: int
    files: int
    rows: int
    length: int
    """Bytes of the page."""
    sha256: str
    file_bytes: int
    """Sum of the lengths of its files."""
    min_timestamp_us: int
    max_timestamp_us: int
    first_append_us: int
    last_append_us: int

    def name(self, cluster_id: str, queue: QueueKey) -> str:
        """The object's name."""
        return layout.page_name(cluster_id, queue, self.start, self.end, self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of one queue at one moment."""

    cluster_id: str
    topic: str
    topic_id: TopicId
    queue_id: QueueId
    number: int
    """1 for the first; 0 is the manifest of a queue without one, and is never written."""
    previous_sha256: str
    """The digest of the manifest before; empty for number 1."""
    start: int
    """The first offset that readers get; older rows of the first page or file are given up."""
    end: int
    pages: tuple[PageEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    """The tail: files that no page has yet."""
    nonce: str = ""
    """Makes its name unlike those of all other attempts to write this manifest."""

    @property
    def queue(self) -> QueueKey:
        return QueueKey(self.topic_id, self.queue_id)

    @property
    def dense(self) -> bool:
        """Every offset has a row."""
        parts: list[PageEntry | FileEntry] = [*self.pages, *self.files]
        return all(part.rows == part.end - part.start for part in parts)

    def encode(self) -> bytes:
        """The bytes of the object."""
        return documents.write(
            "manifest",
            {
                "cluster": self.cluster_id,
                "topic": self.topic,
                "topic_id": f"{self.topic_id:016x}",
                "queue": self.queue_id,
                "number": self.number,
                "previous_sha256": self.previous_sha256,
                "start": self.start,
                "end": self.end,
                "pages": [asdict(page) for page in self.pages],
                "files": [asdict(file) for file in self.files],
                "nonce": self.nonce,
            },
        )

    def check(self, name: str) -> None:
        """Raises CorruptTier unless the invariants hold."""
        parts: list[PageEntry | FileEntry] = [*self.pages, *self.files]
        check_row(name, parts)
        if not 0 <= self.start <= self.end:
            raise CorruptTier(f"{name} starts at offset {self.start} and ends at {self.end}")
        if parts and not parts[0].start <= self.start < parts[0].end:
            raise CorruptTier(
                f"{name} starts at offset {self.start}, outside its first page or file"
            )
        if (parts[-1].end if parts else self.start) != self.end:
            raise CorruptTier(f"{name} has no files up to its end, offset {self.end}")
        chained = _SHA256.fullmatch(self.previous_sha256) or self.previous_sha256 == NO_DIGEST
        is_first = self.previous_sha256 == NO_DIGEST
        if not chained or self.number < 1 or (self.number == 1) != is_first:
            raise CorruptTier(f"{name} has number {self.number} and a predecessor that differs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Which manifest of a queue counts, as the group's log decided it."""

    cluster_id: str
    topic_id: TopicId
    queue_id: QueueId
    number: int
    length: int
    """Bytes of the manifest."""
    sha256: str
    """The digest of the manifest."""

    @property
    def queue(self) -> QueueKey:
        return QueueKey(self.topic_id, self.queue_id)

    @property
    def manifest_name(self) -> str:
        """Name of the manifest's object."""
        return layout.manifest_name(self.cluster_id, self.queue, self.number, self.sha256)

    @property
    def name(self) -> str:
        """Name of the object with the pointer's copy."""
        return layout.pointer_name(self.cluster_id, self.queue, self.number)

    def encode(self) -> bytes:
        """The bytes of the copy."""
        return documents.write(
            "pointer",
            {
                "cluster": self.cluster_id,
                "topic_id": f"{self.topic_id:016x}",
                "queue": self.queue_id,
                "number": self.number,
                "length": self.length,
                "sha256": self.sha256,
            },
        )


def pointer_to(manifest: Manifest) -> tuple[Pointer, bytes]:
    """Returns the pointer that names a manifest, and the manifest's bytes."""
    data = manifest.encode()
    return pointer_of(manifest, data), data


def pointer_of(manifest: Manifest, data: bytes) -> Pointer:
    """Returns the pointer that names a manifest, of which `data` are the bytes."""
    return Pointer(
        cluster_id=manifest.cluster_id,
        topic_id=manifest.topic_id,
        queue_id=manifest.queue_id,
        number=manifest.number,
        length=len(data),
        sha256=documents.sha256_of(data),
    )


def check_row(name: str, parts: Sequence[PageEntry | FileEntry]) -> None:
    """Raises CorruptTier unless the ranges follow each other, and so do the append times."""
    for part in parts:
        if not 0 <= part.start < part.end or not _SHA256.fullmatch(part.sha256):
            raise CorruptTier(f"{name} has an entry of offsets {part.start} to {part.end}")
        if not 0 < part.rows <= part.end - part.start:
            raise CorruptTier(f"{name} has {part.rows} rows of {part.start} to {part.end}")
        if part.first_append_us > part.last_append_us:
            raise CorruptTier(f"{name}: append times fall within offsets from {part.start}")
    for left, right in itertools.pairwise(parts):
        if left.end != right.start:
            raise CorruptTier(f"{name} goes on at offset {right.start} after {left.end}")
        if left.last_append_us > right.first_append_us:
            raise CorruptTier(f"{name}: append times fall at offset {right.start}")


# --- reading ------------------------------------------------------------------------------------


def check_whole(name: str, data: bytes, length: int, sha256: str) -> None:
    """Raises CorruptTier unless an object is what refers to it says."""
    if len(data) != length:
        raise CorruptTier(f"{name} has {len(data)} bytes, not {length}: it is not whole")
    if documents.sha256_of(data) != sha256:
        raise CorruptTier(f"{name} is damaged: its SHA-256 differs")


def decode(name: str, data: bytes) -> Manifest:
    """Returns the manifest. Raises CorruptTier, and ForeignTier for a newer format."""
    found = documents.read(name, "manifest", data)
    manifest = Manifest(
        cluster_id=found.take("cluster", str),
        topic=found.take("topic", str),
        topic_id=topic_id_of(name, found),
        queue_id=QueueId(found.take("queue", int)),
        number=found.take("number", int),
        previous_sha256=found.take("previous_sha256", str),
        start=found.take("start", int),
        end=found.take("end", int),
        pages=tuple(_entry(name, PageEntry, each) for each in found.take("pages", list)),
        files=tuple(_entry(name, FileEntry, each) for each in found.take("files", list)),
        nonce=found.take("nonce", str),
    )
    found.done()
    manifest.check(name)
    return manifest


def decode_pointer(name: str, data: bytes) -> Pointer:
    """Returns the pointer. Raises CorruptTier, and ForeignTier for a newer format."""
    found = documents.read(name, "pointer", data)
    pointer = Pointer(
        cluster_id=found.take("cluster", str),
        topic_id=topic_id_of(name, found),
        queue_id=QueueId(found.take("queue", int)),
        number=found.take("number", int),
        length=found.take("length", int),
        sha256=found.take("sha256", str),
    )
    found.done()
    if pointer.number < 1 or not _SHA256.fullmatch(pointer.sha256):
        raise CorruptTier(f"{name} points nowhere")
    return pointer


def encode_page(files: Sequence[FileEntry], nonce: str) -> tuple[PageEntry, bytes]:
    """Returns the entry and the bytes of the page that has `files`, one or more. Its `nonce` is as
    that of a manifest."""
    fields = {"files": [asdict(file) for file in files], "nonce": nonce}
    data = documents.write("page", fields)
    entry = PageEntry(
        start=files[0].start,
        end=files[-1].end,
        files=len(files),
        rows=sum(file.rows for file in files),
        length=len(data),
        sha256=documents.sha256_of(data),
        file_bytes=sum(file.length for file in files),
        min_timestamp_us=min(file.min_timestamp_us for file in files),
        max_timestamp_us=max(file.max_timestamp_us for file in files),
        first_append_us=files[0].first_append_us,
        last_append_us=files[-1].last_append_us,
    )
    return entry, data


def decode_page(name: str, entry: PageEntry, data: bytes) -> tuple[FileEntry, ...]:
    """Returns the files of the page that `entry` names. Raises CorruptTier."""
    check_whole(name, data, entry.length, entry.sha256)
    found = documents.read(name, "page", data)
    files = tuple(_entry(name, FileEntry, each) for each in found.take("files", list))
    nonce = found.take("nonce", str)
    found.done()
    check_row(name, files)
    if not files or encode_page(files, nonce)[0] != entry:
        raise CorruptTier(f"{name} has other files than the manifest says")
    return files


def topic_id_of(name: str, found: Fields) -> TopicId:
    """Takes the field `topic_id`. Raises CorruptTier."""
    text = found.take("topic_id", str)
    if not re.fullmatch(r"[0-7][0-9a-f]{15}", text):
        raise CorruptTier(f"{name} has the topic id {text!r}")
    return TopicId(int(text, 16))


def _entry(name: str, kind: type[Any], found: Any) -> Any:
    given = Fields(f"an entry of {name}", found)
    types = {"int": int, "str": str}
    values: dict[str, Any] = {
        field.name: given.take(field.name, types[str(field.type)]) for field in fields(kind)
    }
    given.done()
    return kind(**values)
