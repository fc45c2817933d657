"""The store of message ids in RocksDB.

How it works. RocksDB keeps the chunks of runs under keys that only grow, so its files hardly ever
overlap, and its compaction moves them instead of rewriting them. It has no write-ahead log here:
the broker's log is the source of truth, and a write that a crash loses is made again from it. A
run's chunks are written before the manifest that names them, and RocksDB recovers a prefix of the
writes.

Not here: what is in it (`id_runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        """Opens or makes the database. Raises CorruptIndex and OSError."""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        options = _options(cache_bytes)
        self._db: Any = self._do(
            lambda: Rdict(str(directory), options, access_type=AccessType.read_write())
        )
        self._without_log = _without_log()

    def _do(self, work: Callable[[], T]) -> T:
        """Runs `work`. All errors of RocksDB are plain exceptions that differ in their text."""
        try:
            return work()
        except Exception as error:
            text = f"RocksDB in {self._directory}: {error}"
            if "Corruption" in str(error):
                raise CorruptIndex(f"the index of message ids is damaged. {text}") from error
            raise OSError(text) from error

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys."""
        found: list[bytes | None] = self._do(lambda: self._db.get(list(keys)))
        return found

    def write(self, writes: Writes) -> None:
        """Makes the changes in memory."""
        batch = WriteBatch(raw_mode=True)
        for begin, end in writes.dropped:
            batch.delete_range(begin, end)
        for key, value in writes.puts:
            batch.put(key, value)
        self._do(lambda: self._db.write(batch, self._without_log))

    def sync(self) -> None:
        """Writes RocksDB's memory to files, and waits for the disk."""
        self._do(lambda: self._db.flush(wait=True))

    def close(self) -> None:
        """Closes the database without a flush."""
        self._db.close()
