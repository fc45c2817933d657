"""Rules in the metadata store: changes, what is told of them, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from semel.controller import records
from semel.controller.epoch import ControllerEpoch
from semel.controller.rights import RightsService
from semel.controller.store import MemoryStore
from semel.protos.errors import InvalidRequest, NotMaster, UnsupportedVersion
from semel.protos.security import rights_record
from semel.protos.security.rights_record import book_of, changed, changes_of, check_right
from semel.protos.v1.controller_pb2 import ChangeRightsRequest, CheckRightRequest
from semel.protos.v1.metadata_pb2 import PrincipalGroup, RightsRecord

WRITE = "allow user:alice write topic:orders"
READ = "allow group:readers read topic:*"


async def service(
    store: MemoryStore, told: list[RightsRecord] | None = None, level_max: int = 9
) -> RightsService:
    epoch = await ControllerEpoch.begin(store, now_us=0, level_max=level_max)
    made = RightsService(epoch, (told if told is not None else []).append)
    await made.load()
    return made


async def test_a_change_is_stored_told_and_read_back() -> None:
    store, told = MemoryStore(), list[RightsRecord]()
    made = await service(store, told)
    assert await made.change(ChangeRightsRequest(add_rules=[WRITE, READ]))
    group = PrincipalGroup(name="readers", members=["user:bob", "user:alice"])
    assert await made.change(ChangeRightsRequest(add_members=[group]))
    assert [record.version for record in told] == [0, 1, 2]
    assert list(told[-1].rules) == [READ, WRITE]
    assert list(told[-1].groups[0].members) == ["user:alice", "user:bob"]
    assert (await service(store)).record == made.record


async def test_a_change_that_is_so_already_changes_nothing() -> None:
    store, told = MemoryStore(), list[RightsRecord]()
    made = await service(store, told)
    assert await made.change(ChangeRightsRequest(add_rules=[WRITE]))
    assert not await made.change(ChangeRightsRequest(add_rules=[WRITE], remove_rules=[READ]))
    assert len(told) == 2


async def test_what_is_removed_is_gone_and_a_group_without_members_too() -> None:
    made = await service(MemoryStore())
    group = PrincipalGroup(name="readers", members=["user:bob"])
    await made.change(ChangeRightsRequest(add_rules=[WRITE, READ], add_members=[group]))
    assert await made.change(ChangeRightsRequest(remove_rules=[WRITE], remove_members=[group]))
    assert list(made.record.rules) == [READ]
    assert not made.record.groups


async def test_watchers_get_the_rules_now_and_after_each_change() -> None:
    made = await service(MemoryStore())
    watch = made.watch()
    assert (await anext(watch)).version == 0
    following = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    await made.change(ChangeRightsRequest(add_rules=[WRITE]))
    assert (await following).version == 1
    following = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    made.changes.close(NotMaster("over"))
    with pytest.raises(NotMaster, match="over"):
        await following


async def test_changes_at_the_same_time_all_take_effect() -> None:
    made = await service(MemoryStore())
    wanted = [f"allow user:u{number} read topic:a" for number in range(20)]
    await asyncio.gather(*(made.change(ChangeRightsRequest(add_rules=[rule])) for rule in wanted))
    assert list(made.record.rules) == sorted(wanted)
    assert made.record.version == 20


async def test_metadata_of_an_older_level_hold_no_rules() -> None:
    store = MemoryStore()
    made = await service(store, level_max=8)
    with pytest.raises(UnsupportedVersion):
        await made.change(ChangeRightsRequest(add_rules=[WRITE]))
    assert await store.get(records.RIGHTS) is None


@pytest.mark.parametrize(
    "change",
    [
        ChangeRightsRequest(add_rules=["allow everything"]),
        ChangeRightsRequest(remove_rules=["allow everything"]),
        ChangeRightsRequest(add_rules=[WRITE], remove_rules=[WRITE]),
        ChangeRightsRequest(add_members=[PrincipalGroup(members=["user:a"])]),
        ChangeRightsRequest(add_members=[PrincipalGroup(name="g", members=["group:h"])]),
        ChangeRightsRequest(add_members=[PrincipalGroup(name="g", members=["user:a*"])]),
        ChangeRightsRequest(remove_members=[PrincipalGroup(name="g*", members=["user:a"])]),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: ChangeRightsRequest) -> None:
    with pytest.raises(InvalidRequest):
        changed(RightsRecord(), change)


def test_rules_that_would_not_fit_into_the_store_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rights_record, "RECORD_BYTES_MAX", 60)
    assert changed(RightsRecord(), ChangeRightsRequest(add_rules=[WRITE])).version == 1
    with pytest.raises(InvalidRequest, match="bytes"):
        changed(RightsRecord(), ChangeRightsRequest(add_rules=[WRITE, READ]))


def test_a_check_names_the_rule_and_a_pattern_is_no_resource() -> None:
    book = book_of(RightsRecord(rules=[READ, WRITE], groups=[]))
    found = check_right(
        book, CheckRightRequest(principal="user:alice", action="write", resource="topic:orders")
    )
    assert (found.allowed, found.rule) == (True, WRITE)
    for action, resource in (("*", "topic:orders"), ("write", "topic:o*"), ("write", "orders")):
        with pytest.raises(InvalidRequest):
            check_right(
                book,
                CheckRightRequest(principal="user:alice", action=action, resource=resource),
            )


def test_a_change_is_told_line_by_line() -> None:
    group = PrincipalGroup(name="g", members=["user:a", "user:b"])
    request = ChangeRightsRequest(
        add_rules=[READ], remove_rules=[WRITE], add_members=[group], remove_members=[group]
    )
    assert changes_of(request) == [
        f"add {READ}",
        f"remove {WRITE}",
        "add user:a user:b to group:g",
        "remove user:a user:b from group:g",
    ]
