"""What must hold of tiers: of every manifest that a log decides, of what a log forgets, and of what
the store deletes.

How it works. The log's records pass when their entries are committed first. The store is looked at
as it is in truth at that moment, past all faults. What decided manifests name is kept, and compared
with what the logs say when the run is over.

Invariants
1. Pointers of a queue follow each other by number and digest, in whatever group it is.
2. What a decided manifest names is there and whole at the moment of the decision. Files follow each
   other without gap or overlap, from the start to the end that the record tells.
3. Nothing is deleted that the present pointer leads to, or led to less than a reader's time ago.
4. A log forgets only what the present manifest has, whole.
5. Rows in files are the messages that the logs have at these offsets, all of them.
6. In the end nothing is in the store that no pointer leads to.

Not here: the faults (`object_store.py`), who reads (`archivists.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2
from semel.tier import FileEntry, Manifest, Pointer
from semel.tier.documents import sha256_of
from semel.tier.files import decode_whole
from semel.tier.manifest import check_whole, decode, decode_page
from tests.checking.history import digest_of
from tests.checking.raw_log import Fold
from tests.world.folded import InvariantError, require
from tests.world.nodes import CLUSTER
from tests.world.object_store import ObjectStore
from tests.world.world import World

READER_S: Final = 1.0
"""So long what a replaced pointer leads to stays, on the store's clock."""
WORK_S: Final = 0.8
"""So long work on a manifest may take."""


@dataclass(slots=True)
class Decided:
    """A manifest that the log has decided."""

    pointer: Pointer
    names: frozenset[str]
    """All that it leads to, and itself."""
    end: int
    files: tuple[FileEntry, ...]
    replaced_s: float | None = None


@dataclass(slots=True)
class TierChecks:
    """The memory of one run."""

    world: World | None = None
    store: ObjectStore | None = None
    decided: dict[QueueKey, list[Decided]] = field(default_factory=dict)
    files: dict[tuple[QueueKey, str], tuple[FileEntry, bytes]] = field(default_factory=dict)
    """Every file that was ever decided, with its bytes."""
    records: list[control_pb2.Tiered] = field(default_factory=list)
    gone: dict[QueueKey, float] = field(default_factory=dict)
    """Queues that were deleted, and when."""

    def on_record(self, record: control_pb2.ControlRecord) -> None:
        """Looks at a record whose entry was just committed. Raises InvariantError."""
        match record.WhichOneof("record"):
            case "tiered":
                self._on_tiered(record.tiered)
            case "forget":
                self._on_forget(record.forget)
            case "delete_queue":
                key = queue_key_of(record.delete_queue.queue)
                assert self.world is not None
                if not record.delete_queue.noted:  # it may be asked for again
                    self.gone.setdefault(key, self.world.now)

    def _on_tiered(self, record: control_pb2.Tiered) -> None:
        assert self.world is not None
        key = queue_key_of(record.queue)
        known = self.decided.setdefault(key, [])
        present = known[-1].pointer if known else None
        number, sha256 = (present.number, present.sha256) if present else (0, "")
        require(
            (record.number, record.previous_sha256.hex()) == (number + 1, sha256),
            f"queue {key} has manifest {number}, and {record.number} does not follow it",
        )
        pointer = Pointer(
            cluster_id=CLUSTER,
            topic_id=key.topic_id,
            queue_id=key.queue_id,
            number=record.number,
            length=record.length,
            sha256=record.sha256.hex(),
        )
        manifest, files = self._read(pointer)
        told = (record.previous_sha256.hex(), record.tier_start, record.tier_end)
        require(
            (manifest.previous_sha256, manifest.start, manifest.end) == told,
            f"queue {key}: the log says {told} of manifest {record.number}, it has"
            f" {manifest.previous_sha256}, {manifest.start}, {manifest.end}",
        )
        end = files[0].start if files else record.tier_end
        require(end <= record.tier_start or not files, f"queue {key}: {pointer} begins too late")
        names = {page.name(CLUSTER, key) for page in manifest.pages} | {pointer.manifest_name}
        for file in files:
            require(file.start == end, f"queue {key}: {pointer} has no file from {end} on")
            end = file.end
            names.add(file.name(CLUSTER, key))
            self.files.setdefault((key, file.sha256), (file, self._whole(key, file)))
        require(end == record.tier_end, f"queue {key}: {pointer} has no files up to its end")
        if known:
            known[-1].replaced_s = self.world.now
            merged = len(files) < len(known[-1].files) and end == known[-1].end
            self.world.seen["files of a tier merged"] += merged
            given_up = any(file.end <= manifest.start for file in known[-1].files)
            self.world.seen["files of a tier given up"] += given_up
        known.append(Decided(pointer, frozenset(names), end, files))
        self.records.append(record)
        self.world.count("manifest decided")
        self.world.seen["manifest with pages decided"] += bool(manifest.pages)

    def _read(self, pointer: Pointer) -> tuple[Manifest, tuple[FileEntry, ...]]:
        """The manifest and all of its files."""
        try:
            data = self._object(pointer.manifest_name)
            check_whole(pointer.manifest_name, data, pointer.length, pointer.sha256)
            manifest = decode(pointer.manifest_name, data)
            files: list[FileEntry] = []
            for page in manifest.pages:
                name = page.name(CLUSTER, pointer.queue)
                files += decode_page(name, page, self._object(name))
        except InvariantError:
            raise
        except Exception as error:
            raise InvariantError(f"{pointer} was decided, and is damaged: {error}") from None
        return manifest, (*files, *manifest.files)

    def _whole(self, key: QueueKey, file: FileEntry) -> bytes:
        name = file.name(CLUSTER, key)
        data = self._object(name)
        good = (len(data), sha256_of(data)) == (file.length, file.sha256)
        require(good, f"queue {key}: a manifest names {name}, which is not whole")
        return data

    def _object(self, name: str) -> bytes:
        assert self.store is not None
        data = self.store.now_object(name)
        if data is None:
            raise InvariantError(f"a manifest was decided that leads to {name}, which is not there")
        return data

    def _on_forget(self, record: control_pb2.Forget) -> None:
        assert self.world is not None
        key = queue_key_of(record.queue)
        known = self.decided.get(key)
        end = known[-1].end if known else 0
        require(
            record.local_start <= end,
            f"queue {key} forgets up to {record.local_start}, its tier ends at {end}",
        )
        for file in known[-1].files if known else ():
            if file.start < record.local_start:
                self._whole(key, file)
        self.world.count("extents forgotten")

    def on_delete(self, name: str) -> None:
        """The store is about to lose an object. Raises InvariantError."""
        assert self.world is not None
        assert self.store is not None
        now, written = self.world.now, self.store.written_s(name)
        for key, known in self.decided.items():
            if now - self.gone.get(key, now) >= READER_S:
                continue
            for each in known:
                replaced_s = now if each.replaced_s is None else each.replaced_s
                require(
                    name not in each.names or now - replaced_s >= READER_S,
                    f"{name} is deleted, to which manifest {each.pointer.number} of queue {key}"
                    f" leads; {'it counts' if each.replaced_s is None else 'readers may be there'}."
                    f" It was written at {written}",
                )
        self.world.seen["object deleted"] += 1

    def garbage(self) -> list[str]:
        """The objects that no pointer of a queue leads to: all of a deleted queue."""
        assert self.store is not None
        kept = {"semel-tier.json", f"{CLUSTER}/clock"}
        for key, known in self.decided.items():
            if key not in self.gone:
                kept |= known[-1].names | {known[-1].pointer.name}
        return [
            name
            for name in self.store.names()
            if name not in kept and not name.endswith("/topic.json")
        ]

    def wrong_rows(self, fold: Fold) -> str:
        """The first contradiction between files that were decided and what the logs say."""
        held: dict[Any, dict[int, str]] = {}
        for row in fold.rows:
            held.setdefault(row.queue, {})[row.offset] = row.digest
        for (key, _), (file, data) in self.files.items():
            rows = decode_whole(file.name(CLUSTER, key), file, data)
            found = dict(
                zip(
                    rows.column("offset").to_pylist(),
                    map(
                        digest_of,
                        rows.column("value").to_pylist(),
                        rows.column("key").to_pylist(),
                    ),
                    strict=True,
                )
            )
            place = int(key.topic_id), int(key.queue_id)
            if place not in held:
                continue  # of a topic that was deleted
            wanted = {
                at: held[place][at] for at in range(file.start, file.end) if at in held[place]
            }
            if found != wanted:
                return (
                    f"tier: the file of offsets {file.start} to {file.end} of queue {key} has other"
                    f" messages than the log: {found} instead of {wanted}"
                )
        return ""
