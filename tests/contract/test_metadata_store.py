"""What every MetadataStore must keep: one suite against all of them, and against planted bugs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from semel.controller.store import (
    MemoryStore,
    MetadataStore,
    SqliteStore,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.controller.store.embedded import EmbeddedStore
from semel.controller.store.memory import Table
from semel.controller.store.zookeeper import ZooKeeperStore
from semel.protos import compat
from tests.contract.metadata_store import CHECKS, ME, Check
from tests.kit.zookeeper import Server


async def open_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> MetadataStore:
    match kind:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return await SqliteStore.open(tmp_path)
        case "embedded":
            return await EmbeddedStore.open(tmp_path, ME.controller_id, {})
        case _:
            assert kind == "zookeeper"
            server: Server = request.getfixturevalue("zookeeper_server")
            return await ZooKeeperStore.open((server.address,), f"/{secrets.token_hex(8)}")


@pytest.fixture(params=["memory", "sqlite", "embedded", "zookeeper"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[MetadataStore]:
    opened = await open_store(request.param, request, tmp_path)
    await opened.start(ME)
    yield opened
    await opened.close()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
async def test_contract(store: MetadataStore, check: Check) -> None:
    await check(store)


class ForgetsChecks(Table):
    def check(self, transaction: Transaction) -> None:
        """Lets everything pass."""


class ChecksOneKeyOnly(Table):
    def check(self, transaction: Transaction) -> None:
        first = dict(list(transaction.checks.items())[:1])
        super().check(Transaction(checks=first))


class CountsPerKey(Table):
    def apply(self, transaction: Transaction) -> int:
        before = {key: entry.version for key, entry in self.entries.items()}
        super().apply(transaction)
        for key, value in transaction.puts.items():
            self.entries[key] = Versioned(value=value, version=before.get(key, 0) + 1)
        return self.revision


class NeverRaises(Table):
    def next_revision(self, transaction: Transaction) -> int:
        return self.revision + 1


class KeepsDeleted(Table):
    def apply(self, transaction: Transaction) -> int:
        return super().apply(Transaction(puts=transaction.puts))


class AppliesBeforeItChecks(Table):
    def check(self, transaction: Transaction) -> None:
        try:
            super().check(transaction)
        except VersionConflict:
            self.entries.update(
                {k: Versioned(value=v, version=0) for k, v in transaction.puts.items()}
            )
            raise


class RacyStore(MemoryStore):
    """Checks first, waits for the disk, then applies, without keeping others out."""

    async def _transact(self, transaction: Transaction) -> int:
        self._check_open()
        self._table.check(transaction)
        await asyncio.sleep(0)
        return self._table.apply(transaction)


def with_table(table: type[Table]) -> MemoryStore:
    store = MemoryStore()
    store._table = table()
    return store


@pytest.mark.parametrize(
    "plant",
    [
        lambda: with_table(ForgetsChecks),
        lambda: with_table(ChecksOneKeyOnly),
        lambda: with_table(CountsPerKey),
        lambda: with_table(NeverRaises),
        lambda: with_table(KeepsDeleted),
        lambda: with_table(AppliesBeforeItChecks),
        RacyStore,
    ],
    ids=[
        "no-checks",
        "one-check",
        "per-key",
        "never-raises",
        "keeps-deleted",
        "not-atomic",
        "racy",
    ],
)
async def test_the_suite_catches_planted_bugs(plant: Callable[[], MemoryStore]) -> None:
    caught = []
    for name, check in CHECKS.items():
        store = plant()
        await store.start(ME)
        try:
            async with compat.timeout(0.5):
                await check(store)
        except (AssertionError, pytest.fail.Exception, KeyError, TimeoutError):
            caught.append(name)
        await store.close()
    assert caught
