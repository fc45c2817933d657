"""The asynchronous face of one embedded store: failure, limits, somebody else's directory."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from semel.controller.store import ControllerAddress, StoreFailed, Transaction
from semel.controller.store.embedded import EmbeddedStore, embedded_store
from semel.controller.store.embedded import ticker as ticker_module
from semel.controller.store.embedded.files import OsFiles
from semel.controller.store.embedded.journal import FILE_NAMES
from semel.protos.errors import Closed, DataDirectoryError, DiskFull, Throttled, Unavailable

ME = ControllerAddress(controller_id=1, address="127.0.0.1:7070")


async def opened(directory: Path, *, timeout_s: float = 20.0) -> EmbeddedStore:
    store = await EmbeddedStore.open(directory, 1, {}, timeout_s=timeout_s)
    await store.start(ME)
    return store


async def test_a_restart_gives_everything_back(tmp_path: Path) -> None:
    store = await opened(tmp_path / "new" / "directory")
    for number in range(30):
        await store.transact(Transaction(puts={f"/{number % 7}": b"%d" % number}))
    await store.transact(Transaction(deletes=frozenset({"/3"})))
    before, revision = await store.scan(""), await store.revision()
    store._ticker.post(lambda member: member.node.compact_soon())  # type: ignore[union-attr]
    await store.transact(Transaction())
    await store.close()
    store = await opened(tmp_path / "new" / "directory")
    assert await store.scan("") == before
    assert await store.revision() == revision + 1
    await store.close()


async def test_a_failed_sync_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path)
    await store.transact(Transaction(puts={"/a": b"1"}))
    tries = []

    def fail(self: OsFiles, name: str) -> None:
        tries.append(name)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(OsFiles, "sync", fail)
    failed = asyncio.ensure_future(store.wait_failed())
    with pytest.raises(StoreFailed, match="Input/output error"):
        await store.transact(Transaction(puts={"/a": b"2"}))
    assert "must end" in (await failed).message
    for call in (store.get("/a"), store.transact(Transaction())):
        with pytest.raises(StoreFailed):
            await call
    assert len(tries) == 1, "a failed sync is never tried again"
    await store.close()


async def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path)
    monkeypatch.setattr(OsFiles, "free_bytes", lambda self: embedded_store.FREE_BYTES_MIN - 1)
    with pytest.raises(DiskFull, match="nothing was changed"):
        await store.transact(Transaction(puts={"/a": b"1"}))
    monkeypatch.undo()
    assert await store.get("/a") is None
    await store.transact(Transaction(puts={"/a": b"1"}))
    await store.close()


async def test_a_disk_that_hangs_is_waited_for_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker_module, "STOP_S", 0.1)
    store = await opened(tmp_path, timeout_s=0.3)
    await store.revision()
    sync, free = OsFiles.sync, threading.Event()

    def hang(self: OsFiles, name: str) -> None:
        free.wait()
        sync(self, name)

    monkeypatch.setattr(OsFiles, "sync", hang)
    with pytest.raises(Unavailable, match="unknown"):
        await store.transact(Transaction(puts={"/a": b"1"}))
    monkeypatch.setattr(embedded_store, "UNDER_WAY_MAX", 0)
    with pytest.raises(Throttled):
        await store.transact(Transaction(puts={"/a": b"1"}))
    await store.close()
    with pytest.raises(DataDirectoryError, match="in use by process"):
        await EmbeddedStore.open(tmp_path, 1, {})
    free.set()
    store._ticker._thread.join()  # type: ignore[union-attr]
    store._close()


async def test_a_directory_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    with pytest.raises(DataDirectoryError, match="in use by process"):
        await EmbeddedStore.open(tmp_path, 1, {})
    await store.close()
    await (await opened(tmp_path)).close()


async def test_a_damaged_journal_is_refused_with_its_name_and_the_way_out(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for number in range(5):
        await store.transact(Transaction(puts={f"/{number}": b"v" * 50}))
    await store.close()
    for name in FILE_NAMES:
        image = bytearray((tmp_path / name).read_bytes())
        image[image.index(b"vvvv")] ^= 1
        (tmp_path / name).write_bytes(bytes(image))
    with pytest.raises(DataDirectoryError) as raised:
        await EmbeddedStore.open(tmp_path, 1, {})
    for part in (str(tmp_path / FILE_NAMES[0]), "damaged", "Empty", "backup"):
        assert part in raised.value.message


async def test_missing_files_are_refused(tmp_path: Path) -> None:
    for name in ("hard_state", "journal.a"):
        directory = tmp_path / name
        store = await opened(directory)
        await store.transact(Transaction(puts={"/a": b"1"}))
        await store.close()
        for path in directory.glob(f"{name.split('.')[0]}*"):
            path.unlink()
        with pytest.raises(DataDirectoryError, match=f"{name} .*missing"):
            await EmbeddedStore.open(directory, 1, {})


async def test_closing_lets_nobody_wait(tmp_path: Path) -> None:
    peers = {2: "127.0.0.1:1", 3: "127.0.0.1:1"}  # nobody is there
    store = await EmbeddedStore.open(tmp_path, 1, peers, cluster_id="c")
    await store.start(ME)
    waiting = [
        asyncio.ensure_future(call)
        for call in (store.get("/a"), store.transact(Transaction(puts={"/a": b"1"})))
    ]
    masters = asyncio.ensure_future(_all_masters(store))
    await asyncio.sleep(0)
    await store.close()
    for one in waiting:
        with pytest.raises(Closed):
            await one
    assert [mine for mine in await masters if mine] == []


async def _all_masters(store: EmbeddedStore) -> list[bool]:
    return [mastership.mine async for mastership in store.mastership()]


async def test_reads_that_come_together_share_an_entry(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.revision()
    submitted: list[object] = []
    member = store._opened()
    submit = member.submit

    def count(key: object, command: bytes) -> None:
        submitted.append(key)
        submit(key, command)

    member.submit = count  # type: ignore[method-assign]
    await asyncio.gather(*(store.get("/a") for _ in range(50)))
    assert 1 <= len(submitted) <= 3
    await store.close()
