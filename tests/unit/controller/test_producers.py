"""Producers' ids and epochs: never twice, never back, the same for the same call."""

from __future__ import annotations

import asyncio

import pytest

from semel.controller import producers
from semel.controller.epoch import ControllerEpoch
from semel.controller.producers import ProducerService, next_open
from semel.controller.store import MemoryStore, Transaction
from semel.protos.errors import InvalidRequest, UnknownProducer
from semel.protos.v1.metadata_pb2 import ProducerRecord


class CountingStore(MemoryStore):
    """Counts transactions, and gives other tasks a turn within each."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    async def _persist(self, transaction: Transaction, revision: int) -> None:
        self.writes += 1
        await asyncio.sleep(0)


async def service(store: MemoryStore) -> ProducerService:
    return ProducerService(await ControllerEpoch.begin(store, now_us=0), clock_us=lambda: 5)


async def test_a_name_keeps_its_id_and_its_epoch_rises() -> None:
    store = MemoryStore()
    first = await (await service(store)).open("loader", b"1")
    second = await (await service(store)).open("loader", b"2")
    assert second.producer_id == first.producer_id >= 1
    assert second.epoch == first.epoch + 1
    (info,) = await (await service(store)).list("")
    assert (info.name, info.epoch, info.opened_us) == ("loader", second.epoch, 5)


async def test_a_repeated_call_gets_its_old_answer_even_after_a_newer_one() -> None:
    store = CountingStore()
    first = await (await service(store)).open("loader", b"1")
    second = await (await service(store)).open("loader", b"2")
    again = await service(store)
    writes = store.writes
    assert await again.open("loader", b"1") == first
    assert await again.open("loader", b"2") == second
    assert store.writes == writes


async def test_concurrent_opens_get_epochs_of_their_own() -> None:
    opened = await service(CountingStore())
    replies = await asyncio.gather(*(opened.open("loader", bytes([n])) for n in range(1, 20)))
    assert len({reply.producer_id for reply in replies}) == 1
    assert sorted(reply.epoch for reply in replies) == list(range(1, 20))


async def test_anonymous_ids_are_never_used_again_and_cost_no_write_each() -> None:
    store = CountingStore()
    seen: set[int] = set()
    for start in range(3):  # three controllers one after the other
        opened = await service(store)
        writes = store.writes
        for call in range(100):
            reply = await opened.open("", f"{start}-{call}".encode())
            assert reply.producer_id not in seen
            assert reply.epoch == 1
            seen.add(reply.producer_id)
        assert store.writes - writes == 1
    named = await (await service(store)).open("loader", b"1")
    assert named.producer_id not in seen
    assert min(seen) == 1


async def test_an_anonymous_call_repeated_gets_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = await service(MemoryStore())
    assert await opened.open("", b"1") == await opened.open("", b"1")
    assert await opened.open("", b"2") != await opened.open("", b"1")


async def test_a_block_of_ids_that_is_used_up_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "ID_BLOCK", 3)
    opened = await service(CountingStore())
    replies = await asyncio.gather(*(opened.open("", bytes([n])) for n in range(1, 9)))
    assert sorted(reply.producer_id for reply in replies) == list(range(1, 9))


async def test_a_cancelled_open_leaves_nothing_that_is_given_twice() -> None:
    store = CountingStore()
    opened = await service(store)
    cancelled = asyncio.ensure_future(opened.open("loader", b"1"))
    while store.writes < 3:  # the epoch, the block of ids, the name
        await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    other, again = await asyncio.gather(opened.open("loader", b"2"), opened.open("loader", b"1"))
    assert (again.epoch, other.epoch) == (1, 2)


@pytest.mark.parametrize("name", ["x" * 250, "a\nb", "\0"])
async def test_senseless_names_and_calls_are_refused(name: str) -> None:
    opened = await service(MemoryStore())
    with pytest.raises(InvalidRequest):
        await opened.open(name, b"1")
    with pytest.raises(InvalidRequest):
        await opened.open("loader", b"")
    with pytest.raises(InvalidRequest):
        await opened.open("loader", b"x" * 65)
    with pytest.raises(UnknownProducer):
        await opened.list("loader")


async def test_names_cannot_reach_into_each_others_place() -> None:
    opened = await service(MemoryStore())
    names = ["a/b", "a%2Fb", "a", "../a", "ä", " "]
    ids = {(await opened.open(name, b"1")).producer_id for name in names}
    assert len(ids) == len(names)
    assert [info.name for info in await opened.list("")] == sorted(names)


def test_epochs_end_loudly() -> None:
    record = ProducerRecord(name="loader", producer_id=1, epoch=producers.EPOCH_MAX)
    with pytest.raises(InvalidRequest, match="all epochs"):
        next_open(record, b"1", 0)


async def test_ids_lent_to_brokers_are_nobody_elses() -> None:
    epoch = await ControllerEpoch.begin(MemoryStore(), now_us=1)
    service = ProducerService(epoch, clock_us=lambda: 0)
    given = [(await service.open("", bytes([n]))).producer_id for n in range(3)]
    lent = [range(*await service.lend_ids()) for _ in range(2)]
    given += [(await service.open("", bytes([n]))).producer_id for n in range(3, 6)]
    for ids in lent:
        assert len(ids) > 0
        assert not set(given) & set(ids)
    assert not set(lent[0]) & set(lent[1])


async def test_whose_an_id_is() -> None:
    store = MemoryStore()
    producers = await service(store)
    for unused in (0, 1, 2, 10**9):
        assert not (await producers.owner(unused)).given
    named = (await producers.open("loader", b"1")).producer_id
    nobody = (await producers.open("", b"2")).producer_id
    start, end = await producers.lend_ids()
    assert not (await producers.owner(nobody + 1)).given, "it is in the block, and nobody's"
    later = (await producers.open("later", b"3")).producer_id
    assert (await producers.owner(later)).name == "later"
    successor = await service(store)
    for number, name in ((named, "loader"), (nobody, ""), (start, ""), (end - 1, "")):
        owner = await successor.owner(number)
        assert (owner.given, owner.name) == (True, name)
    assert not (await successor.owner(end)).given


async def test_the_id_of_a_name_never_looks_like_one_of_nobody() -> None:
    """Also while the name is being stored, and whoever has its id could not know it yet."""
    store = CountingStore()
    producers = await service(store)
    assert not (await producers.owner(1)).given
    opening = asyncio.ensure_future(producers.open("loader", b"1"))
    seen = set()
    while not opening.done():
        owner = await producers.owner(1)
        seen.add((owner.given, owner.name))
        await asyncio.sleep(0)
    assert (await opening).producer_id == 1
    assert seen <= {(False, ""), (True, "loader")}
    assert (True, "loader") in seen


async def test_one_name_too_many_is_refused_and_known_ones_go_on() -> None:
    store = MemoryStore()
    await (await service(store)).open("one", b"1")
    epoch = await ControllerEpoch.begin(store, now_us=0)
    limited = ProducerService(epoch, clock_us=lambda: 5, producers_max=lambda: 2)
    await limited.open("two", b"1")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="--producers-max"):
            await limited.open("three", b"1")
    assert (await limited.open("one", b"2")).epoch == 2
    await limited.open("", b"anonymous")
