"""The store of message ids in RocksDB.

How it works. RocksDB keeps the chunks of runs under keys that only grow. A file of them overlaps no
other, so its compaction moves them instead of rewriting them, as long as nothing else is in the
file: what is written besides, the manifest and dropped ranges, is synced by itself. It has no
write-ahead log here: the broker's log is the source of truth, and a write that a crash loses is
made again from it. A run's chunks are written before the manifest that names them, and RocksDB
recovers a prefix of the writes.

What is kept apart is in a column family of its own, named by its prefix, so that RocksDB deletes
the files when it is dropped. What is in the default one can only be dropped as a range, and for the
space to be given back RocksDB reads all of it. A column family has memory and options of its own,
so only large runs get one. Before there were any, large runs were in the default one, too.

It is opened at its first use. After a write that failed it refuses all others, even once the disk
has room again, so it is closed and opened before the next write.

Invariants
1. Nobody reads or writes while the database is closed or opened.
2. All keys with the prefix of a column family are in it, and no others.

Not here: what is in it (`id_runs.py`).
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from semel.broker import c_malloc
from semel.broker.dedup.id_store import PREFIX_BYTES, CorruptIndex, Writes

CACHE_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 4 << 10
_BUFFER_BYTES: Final = 32 << 20
_FILE_BYTES: Final = 64 << 20
_OPEN_FILES_MAX: Final = 256
_DEFAULT: Final = "default"
"""RocksDB's name for the column family that is always there."""
_DAMAGED: Final = ("Corruption", "No such file", "NotFound", "Invalid argument", "Not implemented")
"""Errors that name one of them do not go away by themselves."""


def _options(cache: Cache) -> Options:
    table = BlockBasedOptions()
    table.set_block_size(_BLOCK_BYTES)
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.none())  # fingerprints do not compress
    options.set_write_buffer_size(_BUFFER_BYTES)
    options.set_target_file_size_base(_FILE_BYTES)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_paranoid_checks(True)
    return options


def _without_log() -> WriteOptions:
    options: Any = WriteOptions()  # whose stub takes this property for a method
    options.disable_wal = True
    return options  # type: ignore[no-any-return]


T = TypeVar("T")


def _prefix_of(key: bytes) -> bytes:
    return key[:PREFIX_BYTES]


def _is_in(prefix: bytes, ranges: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(begin <= prefix < end for begin, end in ranges)


class RocksIdStore:
    """One RocksDB for all topics of a node."""

    def __init__(self, directory: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._directory = directory
        self._cache_bytes = cache_bytes
        self._db: Any = None
        self._apart: dict[bytes, Any] = {}
        """The column families, by prefix; they change as a whole."""
        self._unsynced: set[bytes] = set()
        """Prefixes of those with writes since the last sync."""
        self._cache: Any = None
        self._using = 0
        self._alone = False
        """Whether somebody waits for, or has, the database for himself."""
        self._turn = threading.Condition()
        self._without_log = _without_log()
        self._failed = False
        self.failures = 0

    def _use(self, work: Callable[[Any], T]) -> T:
        """Runs `work` on the database, as others may at the same time."""
        with self._turn:
            self._turn.wait_for(lambda: not self._alone)
            if self._db is None:
                self._db = self._open()
            self._using += 1
        try:
            with self._errors():
                return work(self._db)
        finally:
            with self._turn:
                self._using -= 1
                self._turn.notify_all()

    @contextlib.contextmanager
    def _closed(self) -> Iterator[None]:
        """Closes the database without a flush; the next use opens it."""
        with self._turn:
            self._turn.wait_for(lambda: not self._alone)
            self._alone = True
            self._turn.wait_for(lambda: not self._using)
        try:
            db, self._db = self._db, None
            self._apart = {}  # the database is open for as long as one of them is
            self._unsynced.clear()
            if db is not None:
                with contextlib.suppress(Exception):  # what made a write fail is raised again here
                    db.close()
            del db
            yield
        finally:
            with self._turn:
                self._alone = False
                self._turn.notify_all()

    def _open(self) -> Any:
        c_malloc.keep_more()  # a node that opens its store compares ids
        with self._errors():
            self._directory.mkdir(parents=True, exist_ok=True)
            path, self._cache = str(self._directory), Cache(self._cache_bytes)
            options, names = _options(self._cache), []
            if (self._directory / "CURRENT").exists():
                names = [name for name in Rdict.list_cf(path, options) if name != _DEFAULT]
            opened = Rdict(
                path,
                options,
                column_families={name: _options(self._cache) for name in names},
                access_type=AccessType.read_write(),
            )
            try:
                prefixes = {bytes.fromhex(name): name for name in names}
            except ValueError as error:
                raise CorruptIndex(f"{path} has a column family of another format") from error
            self._apart = {
                prefix: opened.get_column_family(name) for prefix, name in prefixes.items()
            }
        self._failed = False
        return opened

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Tells damage from refusals. All errors of RocksDB are plain exceptions that differ in
        their text."""
        try:
            yield
        except CorruptIndex:
            raise
        except Exception as error:
            text = f"RocksDB in {self._directory}: {error}"
            if any(each in str(error) for each in _DAMAGED):
                raise CorruptIndex(f"the index of message ids is damaged. {text}") from error
            raise OSError(text) from error

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys."""

        def get(db: Any) -> list[bytes | None]:
            found: list[bytes | None] = []
            for prefix, some in groupby(keys, _prefix_of):
                found += self._apart.get(prefix, db).get(list(some))
            return found

        return self._use(get)

    def keep_apart(self, prefix: bytes) -> None:
        """Makes a column family for the keys with a prefix."""
        assert len(prefix) == PREFIX_BYTES

        def make(db: Any) -> None:
            if prefix not in self._apart:
                made = db.create_column_family(prefix.hex(), _options(self._cache))
                self._apart = {**self._apart, prefix: made}

        self._change(make)

    def write(self, writes: Writes) -> None:
        """Makes the changes in memory; what is dropped and was kept apart is gone for good."""

        def write(db: Any) -> None:
            batch = WriteBatch(raw_mode=True)
            for begin, end in writes.dropped:
                batch.delete_range(begin, end)
            for prefix, pairs in groupby(writes.puts, lambda pair: _prefix_of(pair[0])):
                handle = None
                if prefix in self._apart:
                    self._unsynced.add(prefix)
                    handle = db.get_column_family_handle(prefix.hex())
                for key, value in pairs:
                    batch.put(key, value, handle)
            db.write(batch, self._without_log)
            gone = [prefix for prefix in self._apart if _is_in(prefix, writes.dropped)]
            if gone:
                db.flush(wait=True)  # what named these keys is dropped before them
                self._apart = {
                    prefix: each for prefix, each in self._apart.items() if prefix not in gone
                }
                self._unsynced.difference_update(gone)
                for prefix in gone:
                    db.drop_column_family(prefix.hex())

        self._change(write)

    def sync(self) -> None:
        """Writes RocksDB's memory to files, and waits for the disk."""

        def sync(db: Any) -> None:
            for prefix in list(self._unsynced):
                self._apart[prefix].flush(wait=True)
                self._unsynced.discard(prefix)
            db.flush(wait=True)

        self._change(sync)

    def drop(self, begin: bytes, end: bytes) -> None:
        """Drops a half-open range of keys and gives its space back."""

        def has_some(db: Any) -> bool:
            keys = db.keys(from_key=begin)
            return next((key < end for key in keys), False)

        in_default = self._use(has_some)
        self.write(Writes(dropped=[(begin, end)]))
        if in_default:
            self.sync()
            self._change(lambda db: db.compact_range(begin, end))

    def _change(self, work: Callable[[Any], None]) -> None:
        if self._failed:
            with self._closed():
                pass
        try:
            self._use(work)
        except OSError:
            self._failed = True
            self.failures += 1
            raise

    def wipe(self) -> None:
        """Loses everything."""
        with self._closed():
            if self._directory.exists():
                shutil.rmtree(self._directory)

    def close(self) -> None:
        """Closes the database without a flush."""
        with self._closed():
            pass
