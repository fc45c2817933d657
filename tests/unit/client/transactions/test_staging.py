"""What a writer says of what it has staged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.transactions.staging import StageCore
from semel.protos.errors import SemelError, TimedOut, TransactionAborted


def stage(*, failed: int = 0, flush: SemelError | None = None) -> tuple[Any, list[str]]:
    """A stage to whose end nothing is missing but the receipt; what is done from now on."""
    happened: list[str] = []

    async def flushed() -> None:
        happened.append("flush")
        if flush is not None:
            raise flush

    core: Any = object.__new__(StageCore)
    core._receipt = None
    core._sums = {}
    core.intake = SimpleNamespace(shut=lambda: happened.append("shut"))
    core.flush = flushed
    core.stats = SimpleNamespace(failed=failed)
    core.stager = SimpleNamespace(transaction_id="t", transaction_epoch=3, writer=2, producer_id=7)
    return core, happened


async def test_a_receipt_says_that_everything_is_staged_and_nothing_more_comes_in() -> None:
    core, happened = stage()
    receipt = await core.receipt()
    assert (receipt.epoch, receipt.writer, receipt.stager_id) == (3, 2, 7)
    assert await core.receipt() is receipt
    assert happened == ["shut", "flush"]


@pytest.mark.parametrize(("failed", "flush"), [(1, None), (0, TimedOut("no answer"))])
async def test_no_receipt_without_every_message(failed: int, flush: SemelError | None) -> None:
    """Also when its sender was told of the failure already: else all but that is committed."""
    core, _ = stage(failed=failed, flush=flush)
    for _ in range(2):
        with pytest.raises(TransactionAborted, match="cannot be committed"):
            await core.receipt()
