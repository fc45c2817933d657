"""Users with passwords in the metadata store."""

from __future__ import annotations

import pytest

from semel.controller import records
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import MemoryStore
from semel.controller.users import UserService
from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.v1.controller_pb2 import UserChange

ADD = UserChange.USER_CHANGE_ADD
PASSWORD = UserChange.USER_CHANGE_PASSWORD
REMOVE = UserChange.USER_CHANGE_REMOVE


async def service(store: MemoryStore, *, level_max: int = 9, users_max: int = 3) -> UserService:
    epoch = await ControllerEpoch.begin(store, now_us=0, level_max=level_max)
    return UserService(epoch, lambda: 7_000_000, users_max)


async def test_a_user_is_added_changed_and_removed() -> None:
    made = await service(MemoryStore())
    assert await made.hash_of("alice") is None
    assert await made.change("alice", ADD, "h1")
    assert await made.hash_of("alice") == "h1"
    assert await made.change("alice", PASSWORD, "h2")
    assert await made.hash_of("alice") == "h2"
    assert await made.change("a/b", ADD, "h3")
    listed = [(info.user, info.changed_us) for info in await made.list()]
    assert listed == [("a/b", 7_000_000), ("alice", 7_000_000)]
    assert await made.change("alice", REMOVE)
    assert not await made.change("alice", REMOVE)
    assert await made.hash_of("alice") is None


async def test_what_makes_no_sense_is_refused() -> None:
    store = MemoryStore()
    made = await service(store)
    await made.change("alice", ADD, "h1")
    with pytest.raises(InvalidRequest, match="exists already"):
        await made.change("alice", ADD, "h2")
    with pytest.raises(InvalidRequest, match="no user 'bob'"):
        await made.change("bob", PASSWORD, "h2")
    for name in ("", "*", "a b", "x" * 300):
        with pytest.raises(InvalidRequest):
            await made.change(name, ADD, "h2")
    with pytest.raises(InvalidRequest):
        await made.change("alice", UserChange.USER_CHANGE_UNSPECIFIED, "h2")
    assert await made.hash_of("alice") == "h1"


async def test_there_is_a_limit_of_users() -> None:
    made = await service(MemoryStore(), users_max=1)
    await made.change("alice", ADD, "h1")
    with pytest.raises(InvalidRequest, match="most allowed"):
        await made.change("bob", ADD, "h1")
    await made.change("alice", PASSWORD, "h2")


async def test_metadata_of_a_lower_level_hold_no_users() -> None:
    made = await service(MemoryStore(), level_max=8)
    with pytest.raises(UnsupportedVersion):
        await made.change("alice", ADD, "h1")


def test_no_name_makes_another_ones_key() -> None:
    for name in ("alice", "a/b", "a%2Fb", "é@x"):
        key = records.user_key(name)
        assert records.user_of(key) == name
        assert key.count("/") == 2
