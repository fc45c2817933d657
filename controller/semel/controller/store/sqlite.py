"""The metadata store of a single controller: one SQLite file.

How it works. At start the whole file is checked and read into memory. From then on reads are served
from memory, and every transaction is one SQLite transaction on a thread of its own, with a rollback
journal and `synchronous=EXTRA`, so it is on disk before `transact` returns. A write-ahead log would
be faster, but SQLite treats a damaged frame of it as its end and silently forgets the transactions
behind that frame.

Format. `DIR/metadata.sqlite`, application id "SMLC", `user_version` 2:
    entries(key TEXT PRIMARY KEY, version INTEGER, value BLOB, crc INTEGER)
    meta(name TEXT PRIMARY KEY, value INTEGER, crc INTEGER)    -- rows "revision" and "digest"
`crc` is the CRC32C of the key, a zero byte, the version (8 bytes, little-endian) and the value; in
meta, of the name, a zero byte and the value. The digest is the sum of the entries' CRCs, modulo
2**48: it reveals missing rows, and pages of two different transactions. SQLite checks the structure
of its pages but not their content, which the CRCs and the digest do. Version 1 had no digest and
used a write-ahead log; opening such a file upgrades it to version 2.

Crash cases. SQLite's own journal rolls a torn transaction back; if that journal is damaged, the
digest reveals a transaction that was rolled back only in part. A damaged page, value or CRC is
refused at start with the file's name: guessing could give out a producer's epoch or a topic's id
twice. The running process locks `DIR/lock` and writes its process id into it.

Invariants
1. A failed write is fatal unless the disk is merely full: a failed fsync is never retried.
2. One process at a time has the directory open.

Not here: versions, checks (`memory.py`).
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import google_crc32c

from semel.controller.store.base import StoreFailed, Transaction, Versioned
from semel.controller.store.memory import MemoryStore
from semel.protos.errors import DataDirectoryError, DiskFull

FILE_NAME: Final = "metadata.sqlite"
LOCK_NAME: Final = "lock"
APPLICATION_ID: Final = int.from_bytes(b"SMLC", "big")
FORMAT_VERSION: Final = 2
REVISION: Final = "revision"
DIGEST: Final = "digest"
_DIGEST_MASK: Final = (1 << 48) - 1
_WAY_OUT: Final = (
    "Restore the file from a backup. Starting with an empty directory makes a new cluster, "
    "which brokers and clients of the old one refuse"
)
_SCHEMA: Final = f"""
    CREATE TABLE entries(
        key TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE meta(
        name TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL
    ) WITHOUT ROWID;
    PRAGMA application_id = {APPLICATION_ID};
    PRAGMA user_version = {FORMAT_VERSION};
"""


def entry_crc(key: str, version: int, value: bytes) -> int:
    """The checksum that is stored beside each value."""
    return int(google_crc32c.value(key.encode() + b"\0" + version.to_bytes(8, "little") + value))


def _is_row(key: object, version: object, value: object) -> bool:
    """Checks the types: SQLite's columns have no fixed type, so a damaged row may hold anything."""
    return (
        isinstance(key, str)
        and isinstance(version, int)
        and version >= 0
        and isinstance(value, bytes)
    )


def _is_full(error: sqlite3.Error) -> bool:
    # An error raised by the Python module itself has no code.
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


class SqliteStore(MemoryStore):
    """A durable MetadataStore in one directory; made by `open`."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._path = directory / FILE_NAME
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        self._lock_file = -1
        self._connection: sqlite3.Connection | None = None
        self._digest = 0

    @classmethod
    async def open(cls, directory: Path) -> SqliteStore:
        """Opens or creates the store.

        Raises DataDirectoryError when the directory cannot be used, is in use, belongs to something
        else or was written by a newer program, or when the file is damaged.
        """
        store = cls(directory)
        try:
            await store._run(store._open)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        if self._closed:
            return
        await super().close()
        await self._run(self._close)
        self._thread.shutdown()

    async def _persist(self, transaction: Transaction, revision: int) -> None:
        try:
            await self._run(self._write, transaction, revision)
        except sqlite3.Error as error:
            if _is_full(error):
                raise DiskFull(
                    f"no room to write {self._path}; nothing was changed. Free some disk space"
                ) from error
            failure = StoreFailed(f"cannot write {self._path}: {error}. The controller must end")
            self._fail(failure)
            raise failure from error

    async def _run(self, function: Callable[..., None], *args: object) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, functools.partial(function, *args))

    # Everything below runs on the store's own thread.

    def _open(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            created = self._check_kind()
            self._connection = sqlite3.connect(self._path, isolation_level=None)
            self._check_format()
            self._load()
            if created:
                self._sync_directories()
        except sqlite3.Error as error:
            if _is_full(error):
                raise DiskFull(f"no room for {self._path}. Free some disk space") from error
            raise self._damaged(str(error)) from error
        except ValueError as error:  # SQLite returned a message or a key that is not UTF-8
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise DataDirectoryError(
                f"cannot use the data directory {self._directory}: {error.strerror or error}"
            ) from error

    def _take_lock(self) -> None:
        self._lock_file = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock_file, 32, 0).decode("ascii", "replace").strip()
            raise DataDirectoryError(
                f"the data directory {self._directory} is in use by process {owner or '?'}. "
                "Stop that one, or choose another directory"
            ) from None
        os.ftruncate(self._lock_file, 0)
        os.pwrite(self._lock_file, f"{os.getpid()}\n".encode(), 0)

    def _check_kind(self) -> bool:
        """Returns True when there is no file yet; refuses a directory of another program."""
        if self._path.exists():
            return False
        others = sorted(
            path.name
            for path in self._directory.iterdir()
            if path.name not in (LOCK_NAME, "lost+found") and path.suffix != ".log"
        )
        if others:
            raise DataDirectoryError(
                f"{self._directory} is not a controller's data directory: it holds {others[0]} "
                f"and no {FILE_NAME}. Choose an empty directory"
            )
        return True

    def _check_format(self) -> None:
        connection = self._connected()
        connection.execute("PRAGMA synchronous = EXTRA")
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if (application, version, tables) == (0, 0, 0):
            connection.execute("PRAGMA journal_mode = DELETE")
            rows = ", ".join(
                f"('{name}', 0, {entry_crc(name, 0, b'')})" for name in (REVISION, DIGEST)
            )
            connection.executescript(f"BEGIN; {_SCHEMA} INSERT INTO meta VALUES {rows}; COMMIT;")
        elif application != APPLICATION_ID:
            raise DataDirectoryError(f"{self._path} is a database of another program")
        elif version > FORMAT_VERSION:
            raise DataDirectoryError(
                f"{self._path} has format {version}, this program knows up to {FORMAT_VERSION}. "
                "Start the newer program"
            )
        else:
            connection.execute("PRAGMA journal_mode = DELETE")
            if version == 1:
                self._add_digest()

    def _add_digest(self) -> None:
        """Upgrades version 1 to version 2; `_load` still checks the content of the rows."""
        connection = self._connected()
        rows = connection.execute("SELECT crc FROM entries").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        self._put_meta(DIGEST, sum(crc for (crc,) in rows) & _DIGEST_MASK)
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")

    def _load(self) -> None:
        connection = self._connected()
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise self._damaged(str(verdict))
        self._table.revision = self._get_meta(REVISION)
        digest = 0
        for key, version, value, crc in connection.execute(
            "SELECT key, version, value, crc FROM entries"
        ):
            if not _is_row(key, version, value) or entry_crc(key, version, value) != crc:
                raise self._damaged(f"the value of {key!r} does not match its checksum")
            if version > self._table.revision:
                raise self._damaged(f"{key} is newer than the revision")
            self._table.entries[key] = Versioned(value=value, version=version)
            digest += crc
        self._digest = self._get_meta(DIGEST)
        if digest & _DIGEST_MASK != self._digest:
            raise self._damaged("entries are missing or are not of the same transaction")

    def _get_meta(self, name: str) -> int:
        row = (
            self._connected()
            .execute("SELECT value, crc FROM meta WHERE name = ?", (name,))
            .fetchone()
        )
        if row is None or not _is_row(name, row[0], b"") or entry_crc(name, row[0], b"") != row[1]:
            raise self._damaged(f"the {name} is missing or does not match its checksum")
        return int(row[0])

    def _put_meta(self, name: str, value: int) -> None:
        self._connected().execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)",
            (name, value, entry_crc(name, value, b"")),
        )

    def _write(self, transaction: Transaction, revision: int) -> None:
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            digest = self._digest
            for key in (*transaction.puts, *transaction.deletes):
                row = connection.execute("SELECT crc FROM entries WHERE key = ?", (key,)).fetchone()
                digest -= row[0] if row is not None else 0
            rows = [
                (key, revision, bytes(value), entry_crc(key, revision, bytes(value)))
                for key, value in transaction.puts.items()
            ]
            digest += sum(row[3] for row in rows)
            connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", rows)
            connection.executemany(
                "DELETE FROM entries WHERE key = ?", [(key,) for key in transaction.deletes]
            )
            self._put_meta(REVISION, revision)
            self._put_meta(DIGEST, digest & _DIGEST_MASK)
            connection.execute("COMMIT")
            self._digest = digest & _DIGEST_MASK
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def _connected(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _damaged(self, what: str) -> DataDirectoryError:
        return DataDirectoryError(f"{self._path} is damaged: {what}. {_WAY_OUT}")

    def _sync_directories(self) -> None:
        for directory in (self._directory, self._directory.parent):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
