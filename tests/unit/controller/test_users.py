"""Users with passwords in the metadata store."""

from __future__ import annotations

import argon2
import pytest

from semel.controller import records
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import MemoryStore, Versioned
from semel.controller.users import Stored, UserService, new_stored
from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.security import passwords
from semel.protos.security.scram import HASHES, new_verifier
from semel.protos.v1.controller_pb2 import UserChange
from semel.protos.v1.metadata_pb2 import UserRecord

ADD = UserChange.USER_CHANGE_ADD
PASSWORD = UserChange.USER_CHANGE_PASSWORD
REMOVE = UserChange.USER_CHANGE_REMOVE
NONE = Stored()
SHA_256, SHA_512 = HASHES


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(passwords, "_HASHER", hasher)


async def service(store: MemoryStore, *, level_max: int = 9, users_max: int = 3) -> UserService:
    epoch = await ControllerEpoch.begin(store, now_us=0, level_max=level_max)
    return UserService(epoch, lambda: 7_000_000, users_max)


async def changes(made: UserService, user: str, change: UserChange, stored: Stored = NONE) -> bool:
    return (await made.change(user, change, stored)).changed


async def test_a_user_is_added_changed_and_removed() -> None:
    made = await service(MemoryStore())
    assert await made.hash_of("alice") is None
    assert await changes(made, "alice", ADD, Stored(password_hash="h1"))
    assert await made.hash_of("alice") == "h1"
    assert await changes(made, "alice", PASSWORD, Stored(password_hash="h2"))
    assert await made.hash_of("alice") == "h2"
    assert await changes(made, "a/b", ADD, Stored(password_hash="h3"))
    listed = [(info.user, info.changed_us) for info in await made.list()]
    assert listed == [("a/b", 7_000_000), ("alice", 7_000_000)]
    assert await changes(made, "alice", REMOVE)
    assert not await changes(made, "alice", REMOVE)
    assert await made.hash_of("alice") is None


async def test_what_makes_no_sense_is_refused() -> None:
    store = MemoryStore()
    made = await service(store)
    await made.change("alice", ADD, Stored(password_hash="h1"))
    with pytest.raises(InvalidRequest, match="exists already"):
        await made.change("alice", ADD, Stored(password_hash="h2"))
    with pytest.raises(InvalidRequest, match="no user 'bob'"):
        await made.change("bob", PASSWORD, Stored(password_hash="h2"))
    for name in ("", "*", "a b", "x" * 300):
        with pytest.raises(InvalidRequest):
            await made.change(name, ADD, Stored(password_hash="h2"))
    with pytest.raises(InvalidRequest):
        await made.change("alice", UserChange.USER_CHANGE_UNSPECIFIED, Stored(password_hash="h2"))
    assert await made.hash_of("alice") == "h1"


async def test_there_is_a_limit_of_users() -> None:
    made = await service(MemoryStore(), users_max=1)
    await made.change("alice", ADD, Stored(password_hash="h1"))
    with pytest.raises(InvalidRequest, match="most allowed"):
        await made.change("bob", ADD, Stored(password_hash="h1"))
    await made.change("alice", PASSWORD, Stored(password_hash="h2"))


async def test_metadata_of_a_lower_level_hold_no_users() -> None:
    made = await service(MemoryStore(), level_max=8)
    with pytest.raises(UnsupportedVersion):
        await made.change("alice", ADD, Stored(password_hash="h1"))


async def test_verifiers_are_those_of_the_newest_password_for_who_is_to_have_them() -> None:
    store = MemoryStore()
    made = await service(store, level_max=10)
    await made.change("alice", ADD, new_stored("correct horse", scram=True))
    assert await made.scram_of("alice", SHA_256) == (b"", None)  # nobody asked for it
    done = await made.change(
        "alice", PASSWORD, new_stored("battery staple", scram=True), scram=True
    )
    assert done.scram
    secret, _ = await made.scram_of("alice", SHA_256)
    assert len(secret) == 32
    for password in ("battery staple", "another one"):
        if password == "another one":  # it keeps SCRAM when nobody says anything of it
            again = await made.change("alice", PASSWORD, new_stored(password, scram=True))
            assert again.scram
        for mechanism in HASHES:
            same, found = await made.scram_of("alice", mechanism)
            assert same == secret
            assert found is not None
            assert found == new_verifier(mechanism, password, found.salt)
    assert [(info.user, info.scram) for info in await made.list()] == [("alice", True)]
    without = await made.change(
        "alice", PASSWORD, new_stored("the third one", scram=False), scram=False
    )
    assert not without.scram
    assert await made.scram_of("alice", SHA_256) == (secret, None)
    assert [(info.user, info.scram) for info in await made.list()] == [("alice", False)]
    assert await made.scram_of("nobody", SHA_512) == (secret, None)
    await made.change("bob", ADD, new_stored("correct horse", scram=True), scram=True)
    assert (await made.scram_of("bob", SHA_512))[1] is not None
    await made.change("bob", REMOVE)
    assert await made.scram_of("bob", SHA_512) == (secret, None)


async def test_no_two_verifiers_have_one_salt() -> None:
    made = await service(MemoryStore(), level_max=10)
    for user in ("alice", "bob"):
        await made.change(user, ADD, new_stored("correct horse", scram=True), scram=True)
    found = [(await made.scram_of(user, m))[1] for user in ("alice", "bob") for m in HASHES]
    assert len({each.salt for each in found if each is not None}) == 4


async def test_names_and_passwords_that_scram_cannot_take_change_nothing() -> None:
    store = MemoryStore()
    made = await service(store, level_max=10)
    await made.change("alice", ADD, new_stored("correct horse", scram=True), scram=True)
    before = await store.scan("/")
    foreign = new_stored("pässwords all", scram=True)
    for name, change in (("alice", PASSWORD), ("bob", ADD)):
        with pytest.raises(InvalidRequest, match="ASCII"):
            await made.change(name, change, foreign, scram=True)
    with pytest.raises(InvalidRequest, match="ASCII"):  # it has SCRAM, and would lose it unasked
        await made.change("alice", PASSWORD, foreign)
    with pytest.raises(InvalidRequest, match="ASCII"):
        await made.change("älice", ADD, new_stored("correct horse", scram=True), scram=True)
    assert await store.scan("/") == before
    await made.change("alice", PASSWORD, foreign, scram=False)
    await made.change("älice", ADD, foreign)


async def test_metadata_below_level_10_have_nothing_of_scram() -> None:
    store = MemoryStore()
    made = await service(store, level_max=9)
    with pytest.raises(UnsupportedVersion, match="logins by SCRAM"):
        await made.change("alice", ADD, new_stored("correct horse", scram=True), scram=True)
    assert not await store.scan("/users/")
    done = await made.change("alice", ADD, new_stored("correct horse", scram=True))
    assert not done.scram
    (stored,) = (await store.scan("/users/")).values()
    fields = UserRecord.FromString(stored.value).ListFields()
    assert [field.name for field, _ in fields] == ["password_hash", "changed_us"]
    assert await store.get(records.SCRAM) is None
    await made._epoch.raise_level(10)
    await made.change("alice", PASSWORD, new_stored("correct horse", scram=True), scram=True)


async def test_one_secret_is_made_whoever_is_first() -> None:
    """Another change comes between the look and the write."""
    store = MemoryStore()
    made = await service(store, level_max=10)
    get = store.get
    raced = False

    async def racing(key: str) -> Versioned | None:
        nonlocal raced
        found = await get(key)
        if key == records.SCRAM and not raced:
            raced = True
            await made.change("bob", ADD, new_stored("correct horse", scram=True), scram=True)
        return found

    store.get = racing  # type: ignore[method-assign]
    await made.change("alice", ADD, new_stored("correct horse", scram=True), scram=True)
    assert raced
    secrets = {(await made.scram_of(user, SHA_256))[0] for user in ("alice", "bob")}
    assert len(secrets) == 1
    assert all([(await made.scram_of(user, SHA_256))[1] for user in ("alice", "bob")])


def test_nothing_of_a_password_is_shown() -> None:
    stored = new_stored("correct horse", scram=True)
    assert stored.scram is not None
    for each in (stored, *stored.scram.values()):
        assert "argon2" not in repr(each)
        assert "key" not in repr(each)
        assert "salt" not in repr(each)


def test_no_name_makes_another_ones_key() -> None:
    for name in ("alice", "a/b", "a%2Fb", "é@x"):
        key = records.user_key(name)
        assert records.user_of(key) == name
        assert key.count("/") == 2
