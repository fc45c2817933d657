"""The object store of a node: what ends its start, what does not, and its threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from semel.broker.tiers import place as module
from semel.broker.tiers.place import TierPlace, in_thread
from semel.protos import compat
from semel.protos.errors import InvalidRequest
from semel.tier import (
    ForeignTier,
    Store,
    TierDenied,
    TierMisconfigured,
    TierUnavailable,
    claim,
    owner_of,
)
from tests.kit.faulty_store import FaultySystem, fails


def test_the_address_of_a_place_of_another_cluster_ends_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        place = TierPlace(f"file://{tmp_path}", "c")
        await place.open()
        assert place.store is not None
        assert owner_of(place.store) == "c"
        before = [each.name for each in place.store.objects("")]
        with pytest.raises(ForeignTier, match="belongs to cluster 'c', this is 'd'"):
            await TierPlace(f"file://{tmp_path}", "d").open()
        with pytest.raises(TierMisconfigured, match="there is no folder"):
            await TierPlace(f"file://{tmp_path}/missing", "c").open()
        with pytest.raises(TierMisconfigured, match="the scheme of a tier"):
            await TierPlace("ftp://x/y", "c").open()
        with pytest.raises(InvalidRequest, match="cannot name a folder"):
            await TierPlace(f"file://{tmp_path}", "a/b").open()
        assert [each.name for each in place.store.objects("")] == before

    asyncio.run(main())


async def test_a_store_that_does_not_answer_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_MIN_S", 0.001)
    caplog.set_level(logging.INFO)
    system = FaultySystem()
    system.plant("open_input_file", *[fails("AWS Error SLOW_DOWN")] * 3)
    place = TierPlace("s3://b", "c", lambda url: Store(system, str(tmp_path), url))
    await place.open()
    assert place.store is None
    with pytest.raises(TierUnavailable, match=r"cannot be used: .*SLOW_DOWN"):
        await place.call(lambda store: store.read("x"))
    async with compat.timeout(10):
        await place.run()
    assert place.store is not None
    assert place.counters.errors == 3
    said = [each for each in caplog.records if "cannot be used" in each.message]
    assert len(said) == 1
    assert "answers again" in caplog.text


async def test_a_store_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_S", 0.01)
    system = FaultySystem()
    system.hangs = threading.Event()
    place = TierPlace("s3://b", "c", lambda url: Store(system, str(tmp_path), url))
    await place.open()
    assert place.store is None
    system.hangs.set()


async def test_no_rights_end_the_start(tmp_path: Path) -> None:
    system = FaultySystem()
    system.plant("open_input_file", fails("AWS Error ACCESS_DENIED"))
    place = TierPlace("s3://b", "c", lambda url: Store(system, str(tmp_path), url))
    with pytest.raises(TierDenied, match="check the credentials"):
        await place.open()


async def test_a_call_returns_and_raises_what_its_work_does(tmp_path: Path) -> None:
    place = TierPlace(f"file://{tmp_path}", "c")
    await place.open()
    assert await place.call(owner_of) == "c"
    with pytest.raises(ForeignTier):
        await place.call(lambda store: claim(store, "d"))


async def test_the_thread_of_a_call_that_nobody_waits_for_ends_quietly() -> None:
    goes_on = threading.Event()
    call = asyncio.create_task(in_thread(lambda: goes_on.wait(10)))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    goes_on.set()
    assert await in_thread(lambda: 5) == 5
    daemons = [each.daemon for each in threading.enumerate() if each.name == "tier"]
    assert all(daemons)
