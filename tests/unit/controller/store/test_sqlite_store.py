"""The SQLite store's own matters: durability, damage, somebody else's directory."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from semel.controller.store import SqliteStore, StoreFailed, Transaction, Versioned
from semel.controller.store.sqlite import FILE_NAME
from semel.protos.errors import DataDirectoryError, DiskFull
from tests.kit.controller_cluster import raised_by


async def fill(directory: Path) -> dict[str, Versioned]:
    store = await SqliteStore.open(directory)
    for number in range(50):
        await store.transact(Transaction(puts={f"/k/{number % 20}": b"%d" % number * 40}))
    await store.transact(Transaction(deletes=frozenset({"/k/3"})))
    content = await store.scan("")
    await store.close()
    return content


async def test_everything_returns_after_a_restart(tmp_path: Path) -> None:
    content = await fill(tmp_path / "new" / "directory")
    store = await SqliteStore.open(tmp_path / "new" / "directory")
    assert await store.scan("") == content
    assert await store.revision() == 51
    await store.close()


async def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "live")
    await store.transact(Transaction(puts={"/a": b"1"}))
    copy = tmp_path / "copy"  # what the disk holds while the process lives is what a kill leaves
    copy.mkdir()
    for path in (tmp_path / "live").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    again = await SqliteStore.open(copy)
    assert await again.get("/a") == Versioned(value=b"1", version=1)
    await again.close()
    await store.close()


async def test_a_damaged_byte_is_refused_by_name_or_does_no_harm(tmp_path: Path) -> None:
    """After a clean stop the one file holds everything: no byte of another one counts."""
    content = await fill(tmp_path / "good")
    good = (tmp_path / "good" / FILE_NAME).read_bytes()
    assert {path.name for path in (tmp_path / "good").iterdir()} == {FILE_NAME, "lock"}
    refused = accepted = 0
    flips = [(position, mask) for position in range(0, len(good), 101) for mask in (0xFF, 0x01)]
    for number, (position, mask) in enumerate(flips):
        directory = tmp_path / f"bad-{number}"
        directory.mkdir()
        bad = bytearray(good)
        bad[position] ^= mask
        (directory / FILE_NAME).write_bytes(bad)
        try:
            store = await SqliteStore.open(directory)
        except DataDirectoryError as error:
            refused += FILE_NAME in error.message
            continue
        accepted += 1
        assert await store.scan("") == content
        assert await store.revision() == 51
        await store.close()
    assert refused > 5
    assert refused + accepted == len(flips)


async def test_a_transaction_that_was_rolled_back_in_part_is_refused(tmp_path: Path) -> None:
    """The process died while it wrote, and a byte of SQLite's journal is damaged."""
    directory = tmp_path / "live"
    before = await fill(directory)
    connection = sqlite3.connect(directory / FILE_NAME, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM entries WHERE key < '/k/15'")
    connection.execute("UPDATE meta SET value = 60, crc = ? WHERE name = 'revision'", (0,))
    connection.execute("PRAGMA cache_spill = 1")
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    connection.execute("ROLLBACK")
    connection.close()
    journal = files[FILE_NAME + "-journal"]
    assert len(journal) > 8192, "no page was spilled"
    outcomes = Counter[str]()
    for number, at in enumerate([None, *range(0, len(journal), 211)]):
        copy = tmp_path / str(number)
        copy.mkdir()
        for name, data in files.items():
            (copy / name).write_bytes(data)
        if at is not None:
            bad = bytearray(journal)
            bad[at] ^= 0x20
            (copy / f"{FILE_NAME}-journal").write_bytes(bad)
        try:
            store = await SqliteStore.open(copy)
        except DataDirectoryError as error:
            outcomes["refused" if FILE_NAME in error.message and at is not None else "wrong"] += 1
            continue
        assert await store.scan("") == before
        await store.close()
        outcomes["rolled back"] += 1
    assert outcomes.keys() == {"refused", "rolled back"}
    assert min(outcomes.values()) > 3


async def test_a_file_of_version_one_is_brought_up(tmp_path: Path) -> None:
    """With a write-ahead log that the old program had not yet written back."""
    directory = tmp_path / "live"
    before = await fill(directory)
    connection = sqlite3.connect(directory / FILE_NAME, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("DELETE FROM meta WHERE name = 'digest'")
    connection.execute("PRAGMA user_version = 1")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in directory.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    connection.close()
    assert (copy / f"{FILE_NAME}-wal").stat().st_size
    for _ in range(2):
        store = await SqliteStore.open(copy)
        assert await store.scan("") == before
        await store.close()
    assert not (copy / f"{FILE_NAME}-wal").exists()


async def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    await fill(tmp_path)
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-4096])
    error = await raised_by(SqliteStore.open(tmp_path))
    assert isinstance(error, DataDirectoryError)
    assert "backup" in error.message


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    error = await raised_by(SqliteStore.open(tmp_path))
    assert isinstance(error, DataDirectoryError)
    assert "in use by process" in error.message
    await store.close()
    await (await SqliteStore.open(tmp_path)).close()


async def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hard_state").write_bytes(b"vote")
    error = await raised_by(SqliteStore.open(tmp_path))
    assert isinstance(error, DataDirectoryError)
    assert "hard_state" in error.message
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_file_instead_of_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert isinstance(await raised_by(SqliteStore.open(path)), DataDirectoryError)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("PRAGMA user_version = 3", "format 3"),
        ("DELETE FROM entries WHERE key = '/k/7'", "entries are missing"),
        ("PRAGMA application_id = 77", "another program"),
        ("DELETE FROM meta", "revision is missing"),
        ("UPDATE entries SET value = x'00' WHERE key = '/k/7'", "/k/7"),
        ("UPDATE meta SET value = 50", "the revision"),
    ],
)
async def test_a_file_that_cannot_be_trusted_is_refused(
    tmp_path: Path, statement: str, told: str
) -> None:
    await fill(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    connection.execute(statement)
    connection.close()
    error = await raised_by(SqliteStore.open(tmp_path))
    assert isinstance(error, DataDirectoryError)
    assert told in error.message


async def test_a_full_disk_changes_nothing_and_is_survived(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    await store.transact(Transaction(puts={"/a": b"1"}))
    connection = store._connected

    def limit(pages: int) -> None:
        connection().execute(f"PRAGMA max_page_count = {pages}")

    await store._run(limit, 8)
    error = await raised_by(store.transact(Transaction(puts={"/a": b"2", "/big": bytes(1 << 20)})))
    assert isinstance(error, DiskFull)
    assert await store.get("/a") == Versioned(value=b"1", version=1)
    assert await store.get("/big") is None
    await store._run(limit, 1 << 20)
    assert await store.transact(Transaction(puts={"/a": b"3"})) == 2
    await store.close()


async def test_a_failed_write_ends_the_store(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)

    def break_it() -> None:
        store._connected().execute("DROP TABLE entries")

    await store._run(break_it)
    for _ in range(2):
        assert isinstance(
            await raised_by(store.transact(Transaction(puts={"/a": b"1"}))), StoreFailed
        )
    assert FILE_NAME in (await store.wait_failed()).message
    await store.close()
