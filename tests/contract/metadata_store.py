"""What every MetadataStore must keep: one suite of checks for all of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest

from semel.controller.store import (
    ControllerAddress,
    MetadataStore,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.protos import compat
from semel.protos.errors import Closed

Check = Callable[[MetadataStore], Awaitable[None]]


ME = ControllerAddress(controller_id=1, address="127.0.0.1:7070")


def put(*keys: str, value: bytes = b"v", **checks: int | None) -> Transaction:
    return Transaction(puts=dict.fromkeys(keys, value), checks=checks)


async def check_reading_what_was_written(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    revision = await store.transact(put("/a", "/b/1", value=b"\x00\xff"))
    assert await store.get("/a") == Versioned(value=b"\x00\xff", version=revision)
    await store.transact(put("/a", value=b""))
    entry = await store.get("/a")
    assert entry is not None
    assert entry.value == b""


async def check_one_controller_becomes_active(store: MetadataStore) -> None:
    async with compat.timeout(10):
        async for mastership in store.mastership():
            if mastership.mine:
                assert mastership.master == ME
                break
    assert await store.controllers() == {ME: True}


async def check_scanning_one_prefix_in_order(store: MetadataStore) -> None:
    for key in ("/b/2", "/b/10", "/b", "/c/1", "/b/é"):
        await store.transact(put(key))
    assert list(await store.scan("/b/")) == ["/b/10", "/b/2", "/b/é"]
    assert list(await store.scan("/x")) == []
    assert len(await store.scan("")) == 5


async def check_the_revision_rises_with_every_transaction(store: MetadataStore) -> None:
    revisions = [await store.revision()]
    for transaction in (put("/a"), put("/a"), Transaction(), Transaction(deletes=frozenset("x"))):
        revisions.append(await store.transact(transaction))
        assert await store.revision() == revisions[-1]
    assert revisions == sorted(set(revisions))


async def check_a_revision_can_be_raised_and_never_lowered(store: MetadataStore) -> None:
    high = await store.transact(Transaction(puts={"/a": b"v"}, revision_min=1 << 40))
    assert high == 1 << 40
    assert await store.get("/a") == Versioned(value=b"v", version=high)
    later = await store.transact(Transaction(puts={"/a": b"v"}, revision_min=5))
    assert later > high
    assert await store.revision() == later


async def check_a_failed_check_changes_nothing(store: MetadataStore) -> None:
    version = await store.transact(put("/a", value=b"old"))
    revision = await store.revision()
    for checks in ({"/a": version + 1}, {"/a": None}, {"/b": version}, {"/a": version, "/b": 1}):
        transaction = Transaction(
            checks=checks, puts={"/a": b"new", "/b": b"new"}, deletes=frozenset({"/c"})
        )
        with pytest.raises(VersionConflict):
            await store.transact(transaction)
    assert await store.scan("") == {"/a": Versioned(value=b"old", version=version)}
    assert await store.revision() == revision


async def check_a_transaction_is_whole(store: MetadataStore) -> None:
    version = await store.transact(put("/a", "/b"))
    transaction = Transaction(
        checks={"/a": version, "/c": None}, puts={"/c": b"c"}, deletes=frozenset({"/a", "/zz"})
    )
    revision = await store.transact(transaction)
    assert await store.scan("/") == {
        "/b": Versioned(value=b"v", version=version),
        "/c": Versioned(value=b"c", version=revision),
    }


async def check_a_version_never_comes_again(store: MetadataStore) -> None:
    versions = []
    for _ in range(3):
        versions.append(await store.transact(put("/a")))
        await store.transact(Transaction(deletes=frozenset({"/a"})))
    assert len(set(versions)) == 3
    await store.transact(put("/a"))
    with pytest.raises(VersionConflict):
        await store.transact(Transaction(checks={"/a": versions[0]}, puts={"/a": b"late"}))


async def check_of_concurrent_writers_one_wins(store: MetadataStore) -> None:
    async def attempt(number: int) -> bool:
        try:
            await store.transact(Transaction(checks={"/a": None}, puts={"/a": b"%d" % number}))
        except VersionConflict:
            return False
        return True

    won = await asyncio.gather(*(attempt(number) for number in range(10)))
    assert sum(won) == 1
    entry = await store.get("/a")
    assert entry is not None
    assert entry.value == b"%d" % won.index(True)


async def check_a_counter_loses_no_increment(store: MetadataStore) -> None:
    async def increment() -> None:
        while True:
            entry = await store.get("/n")
            value, version = (0, None) if entry is None else (int(entry.value), entry.version)
            try:
                await store.transact(
                    Transaction(checks={"/n": version}, puts={"/n": b"%d" % (value + 1)})
                )
            except VersionConflict:
                continue
            return

    await asyncio.gather(*(increment() for _ in range(8)))
    entry = await store.get("/n")
    assert entry is not None
    assert int(entry.value) == 8


async def check_closing_refuses_calls(store: MetadataStore) -> None:
    await store.transact(put("/a"))
    await store.close()
    for call in (store.get("/a"), store.scan("/"), store.transact(put("/a")), store.revision()):
        with pytest.raises(Closed):
            await call
    await store.close()


async def check_a_cancelled_caller_leaves_the_store_whole(store: MetadataStore) -> None:
    writing = asyncio.ensure_future(store.transact(put("/a", "/b")))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await store.transact(put("/c"))
    found = await store.scan("")
    assert list(found) in (["/c"], ["/a", "/b", "/c"])


CHECKS: dict[str, Check] = {
    name: check
    for name, check in list(globals().items())
    if name.startswith("check_") and inspect.iscoroutinefunction(check)
}
