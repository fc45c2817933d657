"""Which founding the nodes of an empty group are told of: one that is stored."""

from __future__ import annotations

import asyncio

import pytest

from semel.controller import records
from semel.controller.brokers.foundings import Foundings
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import MemoryStore, Transaction
from semel.protos.errors import DataDirectoryError, DiskFull
from semel.protos.v1.controller_pb2 import FoundGroupReply, FoundGroupRequest
from semel.protos.v1.metadata_pb2 import FoundingRecord
from tests.unit.controller.brokers.held_store import MOMENTS, HeldStore, cancel_in_the_middle


async def foundings(store: MemoryStore, *, has_history: bool = False) -> Foundings:
    """The foundings of a controller that has just begun its epoch."""
    epoch = await ControllerEpoch.begin(store, now_us=1, cluster_id="c")
    made = Foundings(
        epoch,
        clock_us=lambda: 1,
        nodes=lambda group: [],
        has_history=lambda group: has_history,
    )
    await made.load()
    return made


async def ask(of: Foundings, *members: int, complete_id: str = "") -> FoundGroupReply:
    return await of.on_request(
        FoundGroupRequest(cluster_id="c", group_id=1, members=members, complete_id=complete_id)
    )


@pytest.mark.parametrize("step", ["prepare", "complete"])
async def test_no_founding_is_told_that_is_not_stored(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next controller would make another one, and nodes of one group belong to two."""
    store = MemoryStore()
    first = await foundings(store)
    found = FoundGroupReply() if step == "prepare" else await ask(first, 1, 2, 3)

    async def refuse(transaction: Transaction) -> int:
        raise DiskFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(store, "transact", refuse)
        with pytest.raises(DiskFull):
            await ask(first, 1, 2, 3, complete_id=found.founding_id)
    told = await ask(first)
    assert (told.founding_id, told.founded) == (found.founding_id, False)
    told = await ask(first, 1, 2, 3, complete_id=found.founding_id)
    assert told.founded == (step == "complete")
    assert await ask(await foundings(store)) == told, "the next controller says the same"


async def test_what_is_founded_is_not_founded_again() -> None:
    store = MemoryStore()
    first = await foundings(store)
    found = await ask(first, 1, 2, 3)
    assert not (await ask(first, 1, 2, 3, complete_id="another")).founded
    done = await ask(first, 1, 2, 3, complete_id=found.founding_id)
    assert (done.founding_id, done.founded) == (found.founding_id, True)
    for members in ((1, 2, 3), (1, 2, 4)):
        assert await ask(first, *members) == done


async def test_a_group_that_had_a_master_is_not_founded() -> None:
    """Its members are older than foundings, and will tell theirs."""
    store = MemoryStore()
    old = await foundings(store, has_history=True)
    told = await ask(old, 1, 2, 3)
    assert (told.founding_id, told.founded) == ("", True)
    assert await store.scan(records.FOUNDINGS) == {}
    await old.on_report(1, 2, "theirs")
    assert (await ask(old, 1, 2, 3)).founding_id == "theirs"


async def test_a_node_of_a_founding_that_was_ended_is_refused() -> None:
    """Its data is of another history. One of the founding before may be taken over."""
    of = await foundings(MemoryStore())
    await of.on_report(1, 1, "first")
    anew = FoundGroupRequest(cluster_id="c", group_id=1, members=[1, 2, 3], anew=True)
    second = (await of.on_request(anew)).founding_id
    for founding in ("", "first", second):
        await of.on_report(1, 2, founding)
    with pytest.raises(DataDirectoryError, match="another history"):
        await of.on_report(1, 2, "zeroth")
    assert (await ask(of)).founding_id == second


async def stored(store: MemoryStore) -> FoundingRecord:
    """The record of group 1, as the next controller reads it."""
    key = records.founding_key(1)
    entry = await store.get(key)
    assert entry is not None
    return records.load(FoundingRecord, key, entry)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("step", ["prepare", "complete", "anew", "report"])
async def test_a_caller_that_hangs_up_in_the_middle_leaves_memory_and_store_the_same(
    step: str, moment: str
) -> None:
    """Else this controller would make another founding over one that is stored and promised."""
    store = HeldStore()
    of = await foundings(store)
    call = ask(of, 1, 2, 3)
    if step == "complete":
        call = ask(of, 1, 2, 3, complete_id=(await call).founding_id)
    elif step == "anew":
        await call
        anew = FoundGroupRequest(cluster_id="c", group_id=1, members=[1, 2, 3], anew=True)
        call = of.on_request(anew)
    elif step == "report":
        call.close()
    asked = of.on_report(1, 1, "theirs") if step == "report" else call
    await cancel_in_the_middle(store, moment, asked)
    told, record = await ask(of), await stored(store)
    assert (told.founding_id, told.founded) == (record.founding_id, record.founded)
    assert told.founded == (step != "prepare")
    assert await ask(await foundings(store)) == told, "the next controller says the same"


async def test_a_caller_that_hangs_up_lets_nobody_in_beside_its_change() -> None:
    """The change goes on, so the next one has to wait for it as before."""
    store = HeldStore()
    of = await foundings(store)
    store.moment = MOMENTS[0]
    caller = asyncio.ensure_future(ask(of, 1, 2, 3))
    await store.held()
    caller.cancel()
    other = asyncio.ensure_future(ask(of, 1, 2, 3))
    await asyncio.sleep(0)
    store.release()
    assert (await other).founding_id == (await stored(store)).founding_id
    assert len([keys for keys in store.written if records.founding_key(1) in keys]) == 1
