"""The store of message ids in RocksDB.

How it works. RocksDB keeps the chunks of runs under keys that only grow. A file of them overlaps no
other, so its compaction moves them instead of rewriting them, as long as nothing else is in the
file: what is written besides, the manifest and dropped ranges, is synced by itself. It has no
write-ahead log here: the broker's log is the source of truth, and a write that a crash loses is
made again from it. A run's chunks are written before the manifest that names them, and RocksDB
recovers a prefix of the writes.

It is opened at its first use. After a write that failed it refuses all others, even once the disk
has room again, so it is closed and opened before the next write.

Invariants
1. Nobody reads or writes while the database is closed or opened.

Not here: what is in it (`id_runs.py`).
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
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

from semel.broker.dedup.id_store import CorruptIndex, Writes

CACHE_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 4 << 10
_BUFFER_BYTES: Final = 32 << 20
_FILE_BYTES: Final = 64 << 20
_OPEN_FILES_MAX: Final = 256
_DAMAGED: Final = ("Corruption", "No such file", "NotFound", "Invalid argument", "Not implemented")
"""Errors that name one of them do not go away by themselves."""


def _options(cache_bytes: int) -> Options:
    table = BlockBasedOptions()
    table.set_block_size(_BLOCK_BYTES)
    table.set_block_cache(Cache(cache_bytes))
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


class RocksIdStore:
    """One RocksDB for all topics of a node."""

    def __init__(self, directory: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._directory = directory
        self._cache_bytes = cache_bytes
        self._db: Any = None
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
        with self._errors():
            self._directory.mkdir(parents=True, exist_ok=True)
            opened = Rdict(
                str(self._directory),
                _options(self._cache_bytes),
                access_type=AccessType.read_write(),
            )
        self._failed = False
        return opened

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Tells damage from refusals. All errors of RocksDB are plain exceptions that differ in
        their text."""
        try:
            yield
        except Exception as error:
            text = f"RocksDB in {self._directory}: {error}"
            if any(each in str(error) for each in _DAMAGED):
                raise CorruptIndex(f"the index of message ids is damaged. {text}") from error
            raise OSError(text) from error

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys."""
        found: list[bytes | None] = self._use(lambda db: db.get(list(keys)))
        return found

    def write(self, writes: Writes) -> None:
        """Makes the changes in memory."""
        batch = WriteBatch(raw_mode=True)
        for begin, end in writes.dropped:
            batch.delete_range(begin, end)
        for key, value in writes.puts:
            batch.put(key, value)
        self._change(lambda db: db.write(batch, self._without_log))

    def sync(self) -> None:
        """Writes RocksDB's memory to files, and waits for the disk."""
        self._change(lambda db: db.flush(wait=True))

    def drop(self, begin: bytes, end: bytes) -> None:
        """Drops a half-open range of keys and gives its space back."""
        self.write(Writes(dropped=[(begin, end)]))
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
