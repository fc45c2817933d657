"""What nodes report is stored, whoever hangs up or has no room meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from semel.controller import records
from semel.controller.brokers.registry import BrokerRegistry
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import MemoryStore, Transaction
from semel.protos.errors import DiskFull
from semel.protos.levels import own_levels
from semel.protos.v1.common_pb2 import NodeAddress
from semel.protos.v1.controller_pb2 import ReportNodeRequest
from semel.protos.v1.metadata_pb2 import BrokerGroupRecord
from tests.unit.controller.brokers.held_store import MOMENTS, HeldStore, cancel_in_the_middle


async def registry(store: MemoryStore) -> BrokerRegistry:
    """The registry of a controller that has just begun its epoch."""
    epoch = await ControllerEpoch.begin(store, now_us=1, cluster_id="c")
    made = BrokerRegistry(
        epoch,
        RouteTable("c", epoch.number, lambda: None),
        report_timeout_ms=2_000,
        clock=lambda: 0,
        clock_us=lambda: 1,
        placed=dict,
        on_new_master=lambda _: None,
    )
    await made.load()
    return made


def report(node: int = 1, term: int = 1, address: str = "") -> ReportNodeRequest:
    """A master's."""
    return ReportNodeRequest(
        group_id=1,
        node=NodeAddress(node_id=node, address=address or f"h:{node}"),
        role="master",
        term=term,
        levels=own_levels(),
    )


async def stored(store: MemoryStore) -> tuple[int, int, list[str]]:
    """Term, master and addresses of group 1, as the next controller reads them."""
    key = records.broker_group_key(1)
    entry = await store.get(key)
    assert entry is not None
    record = records.load(BrokerGroupRecord, key, entry)
    return record.term, record.master_id, [node.address for node in record.nodes]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_node_that_hangs_up_in_the_middle_leaves_its_group_stored(moment: str) -> None:
    store = HeldStore()
    of = await registry(store)
    await cancel_in_the_middle(store, moment, of.on_report(report(term=3)))
    assert await stored(store) == (3, 1, ["h:1"])


async def test_what_found_no_room_is_stored_with_the_next_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The route is published all the same, and the node is told that it has been heard."""
    store = MemoryStore()
    of = await registry(store)

    async def refuse(transaction: Transaction) -> int:
        raise DiskFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(store, "transact", refuse)
        version = (await of.on_report(report(term=3))).route_version
        assert (await of.on_report(report(term=3))).route_version == version
    assert "group is not stored, its next report tries again group=1 reason=no room" in caplog.text
    assert await store.scan(records.BROKERS) == {}
    await of.on_report(report(term=3))
    assert await stored(store) == (3, 1, ["h:1"])


async def test_the_newest_of_two_changes_is_stored_and_nothing_is_written_twice() -> None:
    store = HeldStore()
    of = await registry(store)
    store.moment = MOMENTS[0]
    first = asyncio.ensure_future(of.on_report(report(term=3)))
    await store.held()
    others = [
        asyncio.ensure_future(of.on_report(report(term=4, address="new:1"))) for _ in range(3)
    ]
    await asyncio.sleep(0)
    store.release()
    await asyncio.gather(first, *others)
    assert await stored(store) == (4, 1, ["new:1"])
    written = [keys for keys in store.written if records.broker_group_key(1) in keys]
    assert len(written) == 2
    await of.on_report(report(term=4, address="new:1"))
    assert len(written) == len(
        [keys for keys in store.written if records.broker_group_key(1) in keys]
    )
