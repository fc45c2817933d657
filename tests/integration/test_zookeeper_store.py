"""The store in ZooKeeper when connections, sessions, clients and servers fail: all of them real."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol.serialization import Transaction as Transact

from semel.controller.epoch import ControllerEpoch
from semel.controller.store import (
    ControllerAddress,
    Mastership,
    MetadataStore,
    StoreFailed,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.controller.store.zookeeper import ZooKeeperStore, layout, session
from semel.protos import compat
from semel.protos.errors import (
    DataDirectoryError,
    MessageTooLarge,
    PermissionDenied,
    SemelError,
    Unavailable,
)
from tests.faults.proxy import Network
from tests.kit.waiting import until_async
from tests.kit.zookeeper import Server, running_ensemble, running_server

CLIENT, SERVER = 1, 2
REQUESTS, REPLIES = [(CLIENT, SERVER)], [(SERVER, CLIENT)]
PATIENCE_S = 60.0
"""No figure is measured here; on a machine with other work things take as long as they take."""


def address(number: int) -> ControllerAddress:
    return ControllerAddress(controller_id=number, address=f"127.0.0.1:{7069 + number}")


def increment(value: bytes, version: int | None) -> Transaction:
    return Transaction(checks={"/n": version}, puts={"/n": b"%d" % (int(value) + 1)})


def holds_lease(store: ZooKeeperStore) -> bool:
    """It may act as master now, whether or not its loop had the time to see the end come."""
    lease = None if store._election is None else store._election._lease_end
    return lease is not None and lease.when() > asyncio.get_running_loop().time()


class Rig:
    """A chroot of a server, reached directly and through a network that can be cut."""

    def __init__(self, server: Server, network: Network) -> None:
        self.chroot = f"/{secrets.token_hex(8)}"
        self.network = network
        self.direct = server.address
        port = int(server.address.rpartition(":")[2])
        network.expose(CLIENT, SERVER, [port])
        self.proxied = f"127.1.{CLIENT}.{SERVER}:{port}"
        self.opened: list[ZooKeeperStore] = []

    async def open(self, host: str = "", **options: Any) -> ZooKeeperStore:
        """A store; without `host`, one that no fault reaches."""
        given = {"request_s": PATIENCE_S, "session_ms": 5_000, **options}
        store = await ZooKeeperStore.open((host or self.direct,), self.chroot, **given)
        self.opened.append(store)
        return store

    async def close(self) -> None:
        self.network.heal()
        for store in self.opened:
            await store.close()


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as running:
        yield running


@pytest.fixture
async def rig(zookeeper_server: Server, network: Network) -> AsyncIterator[Rig]:
    made = Rig(zookeeper_server, network)
    yield made
    await made.close()


async def lose_the_reply(rig: Rig, meanwhile: int = 0, *, same_key: bool = False) -> int:
    """A transaction that is done and never answered; others follow before its client is back.

    Returns the revision that the client was told in the end, one above what was before.
    """
    store, other = await rig.open(rig.proxied), await rig.open()
    first = await store.transact(Transaction(puts={"/n": b"1"}))
    rig.network.cut(REPLIES)
    writing = asyncio.ensure_future(store.transact(increment(b"1", first)))

    async def done() -> bool:
        return await other.revision() > first

    await until_async(done)
    for number in range(meanwhile):
        key = "/n" if same_key else f"/other/{number}"
        await other.transact(Transaction(puts={key: b"7"}))

    async def held() -> bool:
        return rig.network.flow(SERVER, CLIENT).held > 0

    await until_async(held)  # the reply is there, and does not go on
    assert rig.network.drop(CLIENT, SERVER), "nothing was cut"
    rig.network.heal()
    try:
        revision = await writing
    finally:
        entry = await other.get("/n")
        assert entry is not None
        assert entry.value == (b"7" if same_key and meanwhile else b"2")
        assert await other.revision() == first + 1 + meanwhile
    assert revision == first + 1
    assert await store.get("/n") == entry
    return revision


async def lose_the_request(rig: Rig, meanwhile: Transaction | None = None) -> None:
    """A transaction that does not arrive before its connection breaks."""
    store, other = await rig.open(rig.proxied), await rig.open()
    first = await store.transact(Transaction(puts={"/n": b"1"}))
    rig.network.cut(REQUESTS)
    writing = asyncio.ensure_future(store.transact(increment(b"1", first)))

    async def held() -> bool:
        return rig.network.flow(CLIENT, SERVER).held > 0

    await until_async(held)
    if meanwhile is not None:
        await other.transact(meanwhile)
    assert rig.network.drop(CLIENT, SERVER)
    rig.network.heal()
    await writing
    assert await other.get("/n") == Versioned(value=b"2", version=await other.revision())


async def test_a_change_whose_reply_is_lost_is_done_once(rig: Rig) -> None:
    await lose_the_reply(rig)


@pytest.mark.parametrize("same_key", [False, True])
async def test_a_lost_reply_is_found_behind_the_changes_of_others(rig: Rig, same_key: bool) -> None:
    await lose_the_reply(rig, meanwhile=5, same_key=same_key)


async def test_a_change_that_did_not_arrive_is_sent_again(rig: Rig) -> None:
    await lose_the_request(rig)


async def test_a_change_that_did_not_arrive_is_sent_again_behind_others(rig: Rig) -> None:
    await lose_the_request(rig, Transaction(puts={"/other": b""}))


async def test_a_change_that_did_not_arrive_and_does_not_fit_any_more_is_a_conflict(
    rig: Rig,
) -> None:
    with pytest.raises(VersionConflict):
        await lose_the_request(rig, Transaction(puts={"/n": b"9"}))


async def test_what_nobody_can_tell_any_more_ends_the_store(rig: Rig) -> None:
    with pytest.raises(StoreFailed, match="nobody can tell"):
        await lose_the_reply(rig, meanwhile=layout.RECENT_MAX + 1)
    await rig.opened[0].wait_failed()
    with pytest.raises(StoreFailed):
        await rig.opened[0].get("/n")


async def test_forgetting_who_asked_is_noticed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout.Head, "revision_of", lambda *_: None)
    with pytest.raises(VersionConflict):
        await lose_the_reply(rig)


async def test_a_fate_that_stays_unknown_ends_the_mastership(rig: Rig) -> None:
    store, other = await rig.open(rig.proxied, request_s=1.0), await rig.open()
    await store.start(address(1))
    masterships = store.mastership()
    while not (await anext(masterships)).mine:
        pass
    rig.network.cut(REPLIES)
    with pytest.raises(Unavailable, match="did not answer"):
        await store.transact(Transaction(puts={"/n": b"1"}))
    assert await anext(masterships) == Mastership(master=None, mine=False)

    async def done() -> bool:
        return await other.get("/n") is not None

    await until_async(done)
    rig.network.heal()
    while not (await anext(masterships)).mine:
        pass
    assert await store.get("/n") == await other.get("/n")


async def test_a_client_that_dies_at_any_write_leaves_whole_changes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is the last: not sent at all, or done without its client learning it."""

    class Died(Exception):
        pass

    calls = {"until": 0, "after": 0, "sent": 0}
    commit, create = session.Session.commit, session.Session.create

    def dying(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(self: session.Session, *args: Any, **kwargs: Any) -> Any:
            calls["until"] -= 1
            if calls["until"] == 0:
                if calls["after"]:
                    calls["sent"] += 1
                    await write(self, *args, **kwargs)
                raise Died
            return await write(self, *args, **kwargs)

        return counted

    async def work(acknowledged: list[int]) -> None:
        store = await rig.open()
        for number in range(1, 4):
            puts = {f"/{number}/a": b"%d" % number, f"/{number}/b": b"%d" % number, "/last": b""}
            await store.transact(Transaction(puts=puts, deletes=frozenset({f"/{number - 1}/b"})))
            acknowledged.append(number)

    died = 0
    for after in (0, 1):
        for crash in range(1, 12):
            rig.chroot = f"/{secrets.token_hex(8)}"
            calls.update(until=crash, after=after)
            acknowledged: list[int] = []
            with monkeypatch.context() as patch:
                patch.setattr(session.Session, "commit", dying(commit))
                patch.setattr(session.Session, "create", dying(create))
                try:
                    await work(acknowledged)
                    finished = True
                except Died:
                    died += 1
                    finished = False
            found = await (await rig.open()).scan("/")
            done = max((int(key[1]) for key in found if key != "/last"), default=0)
            assert done in (len(acknowledged), len(acknowledged) + 1)
            expected = {f"/{number}/a" for number in range(1, done + 1)}
            expected |= {f"/{done}/b", "/last"} if done else set()
            assert set(found) == expected
            if finished:
                break
            for store in rig.opened:
                await store.close()
            rig.opened.clear()
    assert died >= 8
    assert calls["sent"] >= 4


async def test_two_controllers_count_without_losing_one(rig: Rig) -> None:
    async def count(store: MetadataStore) -> None:
        for _ in range(25):
            while True:
                entry = await store.get("/n")
                value, version = (b"0", None) if entry is None else (entry.value, entry.version)
                with contextlib.suppress(VersionConflict):
                    await store.transact(increment(value, version))
                    break

    stores = [await rig.open(), await rig.open()]
    await asyncio.gather(*(count(store) for store in stores))
    for store in stores:
        entry = await store.get("/n")
        assert entry is not None
        assert entry.value == b"50"


@pytest.mark.parametrize("missed", [1, 2 * layout.RECENT_MAX])
async def test_a_controller_that_missed_changes_writes_and_reads_as_if_it_had_not(
    rig: Rig, missed: int
) -> None:
    stale, other = await rig.open(), await rig.open()
    version: int | None = None

    async def change() -> None:
        nonlocal version
        for number in range(missed):
            version = await other.transact(
                Transaction(
                    checks={"/n": version},
                    puts={"/n": b"1", f"/{number}": b""},
                    deletes=frozenset({f"/{number - number % 5}"} - {f"/{number}"}),
                )
            )

    await change()
    written = await stale.transact(Transaction(checks={"/n": version}, puts={"/n": b"2"}))
    assert written == await other.revision()
    version = written
    await change()
    assert await stale.transact(Transaction(puts={"/unchecked": b""})) > written
    await change()
    assert await stale.scan("/") == await other.scan("/")
    await change()
    with pytest.raises(VersionConflict):
        await stale.transact(Transaction(checks={"/n": written}, puts={"/n": b"3"}))


async def test_reads_are_the_newest_after_a_broken_connection(rig: Rig) -> None:
    store, other = await rig.open(rig.proxied), await rig.open()
    for number in range(3):
        rig.network.cut(REPLIES)
        for key in range(number * 20, number * 20 + 20):
            await other.transact(
                Transaction(puts={f"/w/{key}": b"x"}, deletes=frozenset({f"/w/{key - 3}"}))
            )
        await other.transact(Transaction(puts={"/w/last": b"%d" % number}))
        assert rig.network.drop(CLIENT, SERVER)
        rig.network.heal()
        assert await store.scan("/w/") == await other.scan("/w/")


async def test_a_master_that_is_cut_off_stops_before_the_next_one_starts(rig: Rig) -> None:
    old, new = await rig.open(rig.proxied, session_ms=1_000), await rig.open(session_ms=1_000)
    history: list[tuple[int, bool]] = []

    async def follow(number: int, store: ZooKeeperStore, other: ZooKeeperStore) -> None:
        async for mastership in store.mastership():
            if mastership.mine:
                assert not holds_lease(other), "two masters at once"
            history.append((number, mastership.mine))

    def newest(number: int) -> bool:
        return [mine for who, mine in history if who == number][-1:] == [True]

    async def first() -> bool:
        return newest(1)

    async def second() -> bool:
        return newest(2)

    await old.start(address(1))
    following = [asyncio.ensure_future(follow(1, old, new))]
    await until_async(first)
    await new.start(address(2))
    following.append(asyncio.ensure_future(follow(2, new, old)))
    epoch = await ControllerEpoch.begin(old, now_us=1)
    assert await new.controllers() == {address(1): True, address(2): True}

    rig.network.cut(REQUESTS + REPLIES)
    late = asyncio.ensure_future(epoch.transact(puts={"/decision": b"old"}))
    await until_async(second)
    assert not newest(1)
    await ControllerEpoch.begin(new, now_us=2, cluster_id=epoch.cluster_id)
    assert await new.controllers() == {address(1): False, address(2): True}
    rig.network.drop(CLIENT, SERVER)
    rig.network.heal()
    with pytest.raises(Unavailable, match="taken over"):
        await late
    assert await new.get("/decision") is None

    async def standby() -> bool:
        return (await new.controllers())[address(1)]

    await until_async(standby)
    await new.close()
    await until_async(first)  # it is there again, and the next in line
    await old.close()
    await asyncio.gather(*following)


async def test_an_answer_that_cannot_be_read_is_no_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await rig.open()
    first = await store.transact(Transaction(puts={"/n": b"1"}))
    read, damaged = Transact.deserialize, 0

    def deserialize(data: bytes, offset: int) -> Any:
        nonlocal damaged
        damaged += 1
        if damaged == 1:
            raise struct.error("damaged")
        return [] if damaged == 2 else read(data, offset)

    monkeypatch.setattr(Transact, "deserialize", staticmethod(deserialize))
    assert await store.transact(increment(b"1", first)) == first + 1
    assert await store.transact(increment(b"2", first + 1)) == first + 2
    assert await (await rig.open()).get("/n") == Versioned(value=b"3", version=first + 2)
    assert damaged > 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_that_ends_by_itself_ends_the_store(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kazoo does when an answer has an error code that it does not know."""

    def fail(self: object, timeout: float) -> None:
        raise RuntimeError("Invalid error code")

    store = await rig.open(request_s=1.0)
    await store.start(address(1))
    with monkeypatch.context() as patch:
        patch.setattr(session._Connection, "_read_socket", fail)
        async with compat.timeout(PATIENCE_S):
            assert "ended by itself" in (await store.wait_failed()).message
    with pytest.raises(StoreFailed):
        await store.get("/n")


async def test_a_store_that_is_removed_or_set_back_is_not_made_anew(rig: Rig) -> None:
    stores = [await rig.open(), await rig.open()]
    for store in stores:
        await store.transact(Transaction(puts={"/n": b"1"}))
    client = stores[0]._session
    before = await client.read(f"{rig.chroot}/head")
    assert before is not None
    await stores[0].transact(Transaction(puts={"/n": b"2"}))
    await client.set(f"{rig.chroot}/head", before.data)
    with pytest.raises(StoreFailed, match="went back from revision 3 to 2"):
        await stores[0].get("/n")
    await stores[1]._session.delete(f"{rig.chroot}/head")
    with pytest.raises(StoreFailed, match="removed"):
        await stores[1].transact(Transaction(puts={"/n": b"3"}))
    assert await client.read(f"{rig.chroot}/head") is None


async def test_a_second_controller_of_the_same_number_gives_up(rig: Rig) -> None:
    first = await rig.open(session_ms=600)
    await first.start(address(1))
    second = await rig.open(session_ms=600)
    await second.start(address(1))
    async with compat.timeout(PATIENCE_S):
        assert "another controller 1" in (await second.wait_failed()).message
    await first.transact(Transaction(puts={"/n": b"1"}))


async def test_closing_takes_bounded_time_when_nobody_answers(rig: Rig) -> None:
    store = await rig.open(rig.proxied, session_ms=600)
    await store.start(address(1))
    rig.network.cut(REQUESTS + REPLIES)
    waiting = asyncio.ensure_future(store.get("/n"))
    began = time.monotonic()
    await store.close()
    assert time.monotonic() - began < 2 * session.CLOSE_S
    with pytest.raises(SemelError, match="closed"):
        await waiting


async def test_the_session_is_as_long_as_the_server_grants(rig: Rig) -> None:
    for asked_ms, granted_s in ((1_000, 1.0), (60_000, 5.0)):
        store = await rig.open(session_ms=asked_ms)
        assert store._session.session_s == granted_s


async def test_bad_places_are_refused_by_name(rig: Rig, tmp_path: Path) -> None:
    async def refused(kind: type[SemelError], text: str, **options: Any) -> None:
        with pytest.raises(kind, match=text) as caught:
            await rig.open(**options)
        assert "\n" not in caught.value.message

    await rig.open(cluster_id="one")
    await rig.open(cluster_id="one")
    await refused(DataDirectoryError, "belongs to cluster one, not to two", cluster_id="two")

    foreign = rig.chroot
    rig.chroot = f"{foreign}/entries"
    await rig.opened[0].transact(Transaction(puts={"/n": b"1"}))
    await refused(DataDirectoryError, "not a store of Semel's: it holds =%2Fn")
    rig.chroot = f"{foreign}/no/such/place"
    await refused(DataDirectoryError, f"there is no {foreign}/no/such in ZooKeeper")
    rig.chroot = foreign
    await refused(Unavailable, "Connection refused", host="127.0.0.1:1", request_s=0.5)

    rig.chroot = f"/{secrets.token_hex(8)}"
    own = await rig.open(auth="semel:secret")
    await own.transact(Transaction(puts={"/n": b"1"}))
    await (await rig.open(auth="semel:secret")).transact(Transaction(puts={"/n": b"2"}))
    await refused(PermissionDenied, "does not let this user", auth="semel:wrong")
    await refused(PermissionDenied, "does not let this user")


async def test_a_change_that_is_too_large_is_refused_and_the_limit_holds(rig: Rig) -> None:
    store = await rig.open()
    with pytest.raises(MessageTooLarge) as caught:
        await store.transact(Transaction(puts={"/n": bytes(layout.TRANSACTION_BYTES_MAX)}))
    assert caught.value.limit_bytes == layout.TRANSACTION_BYTES_MAX
    for number in range(layout.RECENT_MAX):  # the head is as long as it gets
        key = f"/{number:03}" + "k" * (layout.RECENT_KEYS_BYTES_MAX - 8)
        await store.transact(Transaction(puts={key: b""}))
    room = layout.TRANSACTION_BYTES_MAX - layout.OPERATION_BYTES - len(layout.entry_name("/n"))
    await store.transact(Transaction(puts={"/n": bytes(room)}))
    many = {f"/many/{number}": b"" for number in range(1_500)}
    await store.transact(Transaction(puts=many))
    other = await rig.open()
    assert len(await other.scan("/many/")) == 1_500
    await other.transact(Transaction(deletes=frozenset(many)))
    assert await store.scan("/many/") == {}


async def test_a_server_that_is_killed_and_comes_back(tmp_path: Path, network: Network) -> None:
    with running_server(tmp_path) as server:
        rig = Rig(server, network)
        store = await rig.open()
        await store.start(address(1))
        revision = await store.transact(Transaction(puts={"/n": b"1"}))
        server.end(signal.SIGKILL)
        writing = asyncio.ensure_future(
            store.transact(Transaction(checks={"/n": revision}, puts={"/n": b"2"}))
        )
        await asyncio.to_thread(server.start)
        assert await writing == revision + 1
        assert await store.get("/n") == Versioned(value=b"2", version=revision + 1)
        async with compat.timeout(PATIENCE_S):
            async for mastership in store.mastership():
                if mastership.mine:
                    break
        await rig.close()


async def test_three_servers_lose_one_and_then_another(tmp_path: Path) -> None:
    with running_ensemble(tmp_path) as servers:
        hosts = tuple(server.address for server in servers)
        store = await ZooKeeperStore.open(hosts, "/semel", request_s=PATIENCE_S)
        await store.start(address(1))
        acknowledged = 0

        async def write() -> None:
            nonlocal acknowledged
            while True:
                key = f"/{acknowledged + 1}"
                await store.transact(Transaction(checks={key: None}, puts={key: b""}))
                acknowledged += 1

        writing = asyncio.ensure_future(write())

        async def more(count: int) -> None:
            goal = acknowledged + count

            async def enough() -> bool:
                return acknowledged >= goal or writing.done()

            await until_async(enough)

        await more(20)
        leader = next(server for server in servers if server.mode() == "leader")
        leader.end(signal.SIGKILL)
        await more(20)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        left = [server for server in servers if server is not leader]
        other = await ZooKeeperStore.open(
            tuple(server.address for server in left), "/semel", request_s=PATIENCE_S
        )
        found = await other.scan("/")
        assert len(found) in (acknowledged, acknowledged + 1)
        assert set(found) == {f"/{number}" for number in range(1, len(found) + 1)}
        await other.close()
        await store.close()

        left[0].end(signal.SIGKILL)
        await asyncio.to_thread(left[1].wait_for, "read-only")
        with pytest.raises(Unavailable, match="is read-only"):
            await ZooKeeperStore.open((left[1].address,), "/semel", request_s=1.0)
