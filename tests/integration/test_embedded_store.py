"""Three controllers' metadata over real gRPC and real disks, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from pathlib import Path

import pytest

from semel.controller.store import Transaction, VersionConflict, Versioned
from semel.controller.store.embedded import EmbeddedStore
from semel.controller.store.embedded.files import OsFiles
from semel.protos import compat
from semel.protos.errors import DataDirectoryError, InvalidRequest, Unavailable
from tests.contract.metadata_store import CHECKS
from tests.unit.controller.store.embedded.group import StoreGroup, held_by

ALONE = {
    "check_one_controller_becomes_active",
    "check_closing_refuses_calls",
    "check_a_revision_can_be_raised_and_never_lowered",
}
"""Checks of what is so in a group of one, or in an empty store only."""


async def test_the_contract_holds_on_a_master_and_on_a_slave(tmp_path: Path) -> None:
    assert set(CHECKS) > ALONE
    async with StoreGroup(tmp_path) as group:
        master = await group.master()
        slave = next(number for number in group.ids if number != master)
        for number in (master, slave):
            for name, check in CHECKS.items():
                if name not in ALONE:
                    store = group.stores[number]
                    await check(store)
                    left = frozenset(await store.scan(""))
                    await store.transact(Transaction(deletes=left))


async def test_a_master_that_ends_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    async with StoreGroup(tmp_path) as group:
        old = await group.master()
        for number in range(20):
            await group.stores[old].transact(Transaction(puts={f"/{number}": b"v"}))
        before = await group.stores[old].scan("")
        await group.stop(old)
        new = await group.master(but=old)
        assert await group.stores[new].scan("") == before
        version = await group.stores[new].transact(
            Transaction(checks={"/0": before["/0"].version}, puts={"/0": b"new"})
        )
        assert version > max(entry.version for entry in before.values())
        await group.start([old])
        entry = await group.stores[old].get("/0")
        assert entry is not None
        assert (entry.value, entry.version) == (b"new", version)
        with pytest.raises(VersionConflict):
            await group.stores[old].transact(Transaction(checks={"/0": None}))
        async for mastership in group.stores[old].mastership():
            if held_by(mastership) == new:
                break
        heard = await group.stores[new].controllers()
        assert {address.controller_id: up for address, up in heard.items()} == dict.fromkeys(
            group.ids, True
        )


async def until_held(store: EmbeddedStore, *, mine: bool) -> None:
    """Returns once the store has said so."""
    async with compat.timeout(60), contextlib.aclosing(store.mastership()) as hints:
        async for mastership in hints:
            if mastership.mine is mine:
                return


async def test_a_master_whose_disk_hangs_is_told_so_and_another_one_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is in the disk, and can say nothing any more."""
    async with StoreGroup(tmp_path) as group:
        old = await group.master()
        store = group.stores[old]
        await store.transact(Transaction(puts={"/a": b"1"}))
        sync, hanging, free = OsFiles.sync, asyncio.Event(), threading.Event()
        loop, files = asyncio.get_running_loop(), store._files

        def hang(self: OsFiles, name: str) -> None:
            if self is files:
                loop.call_soon_threadsafe(hanging.set)
                free.wait(120)
            sync(self, name)

        monkeypatch.setattr(OsFiles, "sync", hang)
        try:
            writing = asyncio.ensure_future(store.transact(Transaction(puts={"/b": b"1"})))
            await hanging.wait()
            await until_held(store, mine=False)
            new = await group.master(but=old)
            await group.stores[new].transact(Transaction(puts={"/a": b"2"}))
        finally:
            free.set()
        await writing  # it was asked again at the new master
        entry = await store.get("/a")
        assert entry is not None
        assert entry.value == b"2"
        assert await store.get("/b") is not None


async def test_a_master_that_resigns_leaves_it_to_another_one_and_keeps_its_vote(
    tmp_path: Path,
) -> None:
    async with StoreGroup(tmp_path) as group:
        old = await group.master()
        group.stores[old].resign()
        await until_held(group.stores[old], mine=False)
        new = await group.master()
        assert new != old
        group.stores[new].resign()
        third = next(number for number in group.ids if number not in (old, new))
        await group.stop(third)  # the two that have resigned are the majority
        await group.stores[old].transact(Transaction(puts={"/a": b"1"}))


async def increment(store: EmbeddedStore, times: int) -> None:
    """Raises a common counter; a conflict is somebody else's success, never one's own."""
    for _ in range(times):
        while True:
            entry = await store.get("/n")
            value, version = (0, None) if entry is None else (int(entry.value), entry.version)
            try:
                await store.transact(
                    Transaction(checks={"/n": version}, puts={"/n": b"%d" % (value + 1)})
                )
            except VersionConflict:
                continue
            break


async def test_a_change_of_masters_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with StoreGroup(tmp_path) as group:
        old = await group.master()
        others = [number for number in group.ids if number != old]
        newest = Versioned(value=b"0", version=0)

        async def follow(store: EmbeddedStore) -> None:
            nonlocal newest
            while newest.value != b"60":
                found = await store.get("/n") or newest
                assert found.version >= newest.version, "a read went back"
                assert int(found.value) >= int(newest.value)
                newest = found

        following = asyncio.ensure_future(follow(group.stores[others[0]]))
        load = [
            asyncio.ensure_future(increment(group.stores[number], 30 if at else 10))
            for at, number in enumerate([old, *others[:1]])
        ]
        await load[0]
        rest = asyncio.ensure_future(increment(group.stores[others[1]], 20))
        await group.stop(old)
        await asyncio.gather(*load, rest)
        await following
        assert newest == await group.stores[others[1]].get("/n")
        assert (newest.value, newest.version) == (b"60", 60)


async def test_a_lost_disk_comes_back_and_counts_again(tmp_path: Path) -> None:
    async with StoreGroup(tmp_path) as group:
        master = await group.master()
        lost = next(number for number in group.ids if number != master)
        await group.stores[master].transact(Transaction(puts={"/a": b"1"}))
        await group.stop(lost)
        shutil.rmtree(tmp_path / str(lost))
        await group.start([lost])
        assert await group.stores[lost].get("/a") is not None
        version = await group.stores[lost].transact(Transaction(puts={"/a": b"2"}))
        await group.stop(master)  # now the one that came back is needed for the majority
        entry = await group.stores[lost].get("/a")
        assert entry is not None
        assert entry.version == version


async def test_without_a_majority_nothing_is_written_and_nothing_old_is_read(
    tmp_path: Path,
) -> None:
    async with StoreGroup(tmp_path) as group:
        master = await group.master()
        await group.stores[master].transact(Transaction(puts={"/a": b"1"}))
        for number in group.ids:
            if number != master:
                await group.stop(number)
        store = group.stores[master]
        store._timeout_s = 0.3
        with pytest.raises(Unavailable, match="no majority of the controllers"):
            await store.transact(Transaction(puts={"/a": b"2"}))
        with pytest.raises(Unavailable, match="nothing was read"):
            await store.get("/a")
        store._timeout_s = group.timeout_s
        await group.start([number for number in group.ids if number != master])
        entry = await store.get("/a")
        assert entry is not None
        assert entry.value in (b"1", b"2")  # what was unknown may still have come


async def test_a_controller_of_another_cluster_is_refused_with_both_names(tmp_path: Path) -> None:
    async with StoreGroup(tmp_path) as group:
        await group.master()
        await group.stop(3)
        shutil.rmtree(tmp_path / "3")
        await group.start([3], cluster_id="d" * 32)
        stranger = group.stores[3]
        stranger._timeout_s = 1.0
        async with compat.timeout(20):
            while True:
                with pytest.raises(Unavailable) as raised:
                    await stranger.get("/a")
                if "two clusters" in raised.value.message:
                    break
        assert "c" * 32 in raised.value.message
        assert await group.stores[1].revision() == 0  # the others go on


async def test_a_directory_of_another_controller_or_group_is_refused(tmp_path: Path) -> None:
    async with StoreGroup(tmp_path) as group:
        addresses = dict(group.addresses)
    directory = tmp_path / "1"
    with pytest.raises(DataDirectoryError, match="belongs to cluster"):
        await EmbeddedStore.open(directory, 1, addresses, cluster_id="e" * 32)
    with pytest.raises(DataDirectoryError, match="belongs to controller 1, not to 2"):
        await EmbeddedStore.open(directory, 2, addresses, cluster_id="c" * 32)
    with pytest.raises(DataDirectoryError, match="group of controllers 1,2,3, not 1"):
        await EmbeddedStore.open(directory, 1, {}, cluster_id="c" * 32)
    with pytest.raises(InvalidRequest, match="1, 3 or 5"):
        await EmbeddedStore.open(tmp_path / "new", 1, {2: "127.0.0.1:1"}, cluster_id="c" * 32)
    with pytest.raises(InvalidRequest, match="id of their cluster"):
        await EmbeddedStore.open(tmp_path / "new", 1, addresses)
