"""The controller that may write, and what becomes of one that may not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from semel.controller import records
from semel.controller.brokers.routes import RouteTable
from semel.controller.config import ControllerConfig
from semel.controller.epoch import ControllerEpoch, stored_cluster_id, unbroken
from semel.controller.store import (
    MemoryStore,
    StoreFailed,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.protos.errors import (
    DataDirectoryError,
    DiskFull,
    InvalidRequest,
    MessageTooLarge,
    SemelError,
    Throttled,
    Unavailable,
    UnknownTopic,
    UnsupportedVersion,
)
from semel.protos.levels import LEVEL_MAX
from semel.protos.v1.controller_pb2 import GroupRoute, OpenProducerRequest, TopicRoute
from tests.kit.controller_cluster import raised_by, running_cluster
from tests.kit.waiting import until_async


async def test_the_cluster_keeps_its_id_and_epochs_are_counted() -> None:
    store = MemoryStore()
    first = await ControllerEpoch.begin(store, now_us=1)
    second = await ControllerEpoch.begin(store, now_us=2, cluster_id=first.cluster_id)
    assert second.cluster_id == first.cluster_id
    assert second.number == first.number + 1
    with pytest.raises(DataDirectoryError, match="belongs to cluster"):
        await ControllerEpoch.begin(store, now_us=3, cluster_id="other")
    assert (
        await ControllerEpoch.begin(MemoryStore(), now_us=1, cluster_id="given")
    ).cluster_id == "given"


async def test_a_replaced_controller_cannot_write_and_is_told() -> None:
    store = MemoryStore()
    old = await ControllerEpoch.begin(store, now_us=1)
    new = await ControllerEpoch.begin(store, now_us=2)
    with pytest.raises(Unavailable, match="taken over"):
        await old.transact(puts={"/a": b"old"})
    assert await store.get("/a") is None
    await old.wait_over()
    await new.transact(puts={"/a": b"new"})
    with pytest.raises(VersionConflict):
        await new.transact(checks={"/a": None}, puts={"/a": b"newer"})


async def test_an_unknown_outcome_ends_the_epoch_and_a_known_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    epoch = await ControllerEpoch.begin(store, now_us=1)
    known: tuple[SemelError, ...] = (
        DiskFull("no room"),
        Throttled("too many", retry_after_ms=1),
        MessageTooLarge("2 MB"),
    )
    for refusal in known:
        with monkeypatch.context() as patched:
            patched.setattr(store, "transact", AsyncMock(side_effect=refusal))
            with pytest.raises(type(refusal)):
                await epoch.transact(puts={"/a": b"refused"})
        assert not epoch.over
    with pytest.raises(VersionConflict):
        await epoch.transact(checks={"/a": 7}, puts={"/a": b"refused"})
    assert not epoch.over
    with monkeypatch.context() as patched:
        patched.setattr(store, "transact", AsyncMock(side_effect=Unavailable("no majority")))
        with pytest.raises(Unavailable, match="no majority"):
            await epoch.transact(puts={"/a": b"perhaps"})
    assert epoch.over
    assert "unknown" in (await epoch.wait_over()).message
    with pytest.raises(Unavailable, match="unknown"):
        await epoch.transact(puts={"/a": b"later"})
    assert await store.get("/a") is None


async def test_epochs_begun_at_once_get_different_numbers() -> None:
    store = MemoryStore()
    epochs = await asyncio.gather(*(ControllerEpoch.begin(store, now_us=1) for _ in range(5)))
    assert sorted(epoch.number for epoch in epochs) == [1, 2, 3, 4, 5]
    assert len({epoch.cluster_id for epoch in epochs}) == 1


async def test_a_new_clusters_metadata_begin_at_the_newest_level_and_others_stay() -> None:
    assert (await ControllerEpoch.begin(MemoryStore(), now_us=1)).level == LEVEL_MAX
    store = MemoryStore()
    await ControllerEpoch.begin(store, now_us=1, level_max=4)
    for now_us in 2, 3:
        epoch = await ControllerEpoch.begin(store, now_us=now_us)
        assert epoch.level == 4
    await epoch.raise_level(5)
    await epoch.raise_level(3)
    assert (await ControllerEpoch.begin(store, now_us=4)).level == 5
    before = MemoryStore()
    await before.transact(Transaction(puts={records.CLUSTER: b"\n\x01c"}))
    assert (await ControllerEpoch.begin(before, now_us=1)).level == 0, "stored by an older program"


async def test_metadata_of_which_a_part_is_missing_is_not_taken_for_the_whole() -> None:
    """An import that was cut short has left its mark; a topic that is not there yet would be
    created once more."""
    store = MemoryStore()
    await ControllerEpoch.begin(store, now_us=1)
    await store.transact(Transaction(puts={records.IMPORT: b"half"}))
    with pytest.raises(DataDirectoryError, match="import of metadata was not finished"):
        await ControllerEpoch.begin(store, now_us=2)
    await store.transact(Transaction(deletes=frozenset({records.IMPORT})))
    await ControllerEpoch.begin(store, now_us=3)


async def test_a_level_that_is_not_stored_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else records of it would be written that an older controller does not expect."""
    store = MemoryStore()
    await ControllerEpoch.begin(store, now_us=1, level_max=4)
    epoch = await ControllerEpoch.begin(store, now_us=2)

    async def refuse(transaction: Transaction) -> int:
        raise DiskFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(store, "transact", refuse)
        with pytest.raises(DiskFull):
            await epoch.raise_level(5)
    assert epoch.level == 4
    await epoch.raise_level(5)
    assert (epoch.level, (await ControllerEpoch.begin(store, now_us=3)).level) == (5, 5)


async def test_a_controller_that_does_not_know_the_metadatas_level_begins_no_epoch() -> None:
    store = MemoryStore()
    epoch = await ControllerEpoch.begin(store, now_us=1)
    with pytest.raises(UnsupportedVersion, match=f"level {LEVEL_MAX}, .*: upgrade this controller"):
        await ControllerEpoch.begin(store, now_us=2, level_max=LEVEL_MAX - 1)
    with pytest.raises(UnsupportedVersion):
        await stored_cluster_id(store, "", LEVEL_MAX - 1)
    await epoch.transact(puts={"/a": b"its epoch goes on"})


async def test_a_level_that_rises_meanwhile_is_seen_by_whoever_begins_an_epoch() -> None:
    """Between looking and taking, the other one has raised it."""

    class Raised(MemoryStore):
        async def get(self, key: str) -> Versioned | None:
            found = await super().get(key)
            if key == records.LEVEL and raising:
                await epoch.raise_level(raising.pop())
            return found

    raising: list[int] = []
    store = Raised()
    epoch = await ControllerEpoch.begin(store, now_us=1, level_max=4)
    raising.append(5)
    with pytest.raises(UnsupportedVersion):
        await ControllerEpoch.begin(store, now_us=2, level_max=4)


async def test_work_that_must_not_break_outlives_its_caller() -> None:
    begun, done = asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await asyncio.sleep(0)
        done.append(True)

    caller = asyncio.ensure_future(unbroken(work()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0)
    assert done


async def test_a_node_that_was_replaced_is_active_again_when_it_is_told_to(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        await ControllerEpoch.begin(cluster.store, now_us=1)
        request = OpenProducerRequest(name="p", open_id=b"1")
        error = await raised_by(cluster.client.call("OpenProducer", request))
        assert isinstance(error, Unavailable)
        assert "taken over" in error.message
        node = cluster.node
        assert node is not None
        await until_async(lambda: node.is_active)
        assert (await cluster.client.call("OpenProducer", request)).epoch == 1
        assert (await cluster.client.routes()).version >> 32 == 3


class BreakingStore(MemoryStore):
    """Its disk fails when told to."""

    broken = False

    async def _persist(self, transaction: Transaction, revision: int) -> None:
        if self.broken:
            self._fail(StoreFailed("the disk is gone"))
            raise StoreFailed("the disk is gone")


async def test_a_node_whose_disk_fails_ends(tmp_path: Path) -> None:
    store = BreakingStore()
    async with running_cluster(tmp_path, store) as cluster:
        store.broken = True
        request = OpenProducerRequest(name="p", open_id=b"1")
        assert isinstance(
            await raised_by(cluster.client.call("OpenProducer", request)), Unavailable
        )
        assert cluster.node is not None
        assert "disk is gone" in (await cluster.node.failed()).message


def test_every_change_of_the_routes_raises_the_version_and_no_other() -> None:
    changes: list[int] = []
    routes = RouteTable("c", 1, lambda: changes.append(1))
    versions = [routes.version]
    steps: list[Callable[[], object]] = [
        lambda: routes.set_group(GroupRoute(group_id=1)),
        lambda: routes.set_group(GroupRoute(group_id=1, master_id=2)),
        lambda: routes.set_topic(TopicRoute(name="t", topic_id=1)),
        lambda: routes.set_topic(TopicRoute(name="u", topic_id=2)),
        lambda: routes.remove_topic("t"),
    ]
    for change in steps:
        change()
        versions.append(routes.version)
    assert versions == sorted(set(versions))
    assert len(changes) == 5
    routes.set_group(GroupRoute(group_id=1, master_id=2))
    routes.set_topic(TopicRoute(name="u", topic_id=2))
    routes.remove_topic("t")
    assert routes.version == versions[-1]
    assert RouteTable("c", 2, lambda: None).version > versions[-1]


def test_routes_are_chosen_by_name() -> None:
    routes = RouteTable("c", 1, lambda: None)
    for number, name in enumerate(("b", "a")):
        routes.set_topic(TopicRoute(name=name, topic_id=number + 1))
    routes.set_group(GroupRoute(group_id=1))
    assert [topic.name for topic in routes.snapshot().topics] == ["a", "b"]
    assert [topic.name for topic in routes.snapshot(["b", "b"]).topics] == ["b"]
    assert not routes.snapshot(groups_only=True).topics
    assert not routes.snapshot(["x"], strict=False).topics
    with pytest.raises(UnknownTopic, match="'x'"):
        routes.snapshot(["b", "x"])


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x", "host:65536", "h:-1"])
def test_senseless_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        ControllerConfig(data=Path("c"), listen=address)


def test_loopback_is_recognised() -> None:
    for listen, loopback in (
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("example.org:1", False),
    ):
        assert ControllerConfig(data=Path(), listen=listen).loopback is loopback


def test_names_with_any_characters_have_keys_of_their_own() -> None:
    assert records.topic_key("a.b") == "/topics/a.b"
    assert records.consumer_group_key("a/b c") == "/consumers/a%2Fb%20c"
