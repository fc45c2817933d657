"""Which founding the nodes of an empty group are told of: one that is stored."""

from __future__ import annotations

import pytest

from semel.controller import records
from semel.controller.brokers.foundings import Foundings
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import MemoryStore, Transaction
from semel.protos.errors import DataDirectoryError, DiskFull
from semel.protos.v1.controller_pb2 import FoundGroupReply, FoundGroupRequest


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
