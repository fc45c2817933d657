"""Committing a transaction of several broker groups: in which order, and what is said in doubt."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.transactions import commit
from semel.client.transactions.commit import Committed, TransactionCore
from semel.client.transactions.staging import StagedPart, StageReceipt
from semel.protos.errors import (
    SemelError,
    TimedOut,
    TransactionAborted,
    TransactionFenced,
    Unavailable,
)
from semel.protos.v1 import transactions_pb2


class Groups:
    """Broker groups 1 to 3, the first of which coordinates; stands where `Cluster` does."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(request_timeout_ms=5_000)
        self.routes = SimpleNamespace(groups=lambda: [1, 2, 3], replicas=lambda group: [])
        self.calls: list[tuple[str, int]] = []
        """As they were answered."""
        self.participants: list[int] = []
        self.attempt = 1
        self.failing: dict[tuple[str, int], SemelError] = {}
        self.committed = False
        """What the coordinator says of the attempt when it is asked to abort it."""
        self.published_after = 1
        """All is published after this many answers of the coordinator."""

    async def call_master(
        self, group: int, method: str, request: Any, timeout_s: float | None, *, service: str
    ) -> Any:
        await asyncio.sleep(0)
        if (error := self.failing.get((method, group))) is not None:
            raise error
        self.calls.append((method, group))
        answer = getattr(self, f"_{method.lower()}", None)
        return answer(request) if answer is not None else None

    def _begin(self, request: Any) -> Any:
        return transactions_pb2.BeginReply(epoch=4, attempt=self.attempt, last_epoch=3)

    def _decide(self, request: Any) -> Any:
        self.participants = list(request.decide.participants)
        self.published_after -= 1
        return transactions_pb2.DecideReply(published=self.published_after <= 0)

    def _abort(self, request: Any) -> Any:
        return transactions_pb2.AbortReply(committed=self.committed)

    def _describe(self, request: Any) -> Any:
        reply = transactions_pb2.DescribeTransactionsReply()
        if self.committed or not self.attempt:
            self.published_after -= 1
            reply.coordinated.add(transaction_id="t", epoch=4, published=self.published_after <= 0)
        return reply

    def count(self, method: str) -> int:
        return [name for name, _ in self.calls].count(method)


def receipts() -> list[StageReceipt]:
    """Receipts of two writers, for queues of groups 2 and 3."""
    return [
        StageReceipt(
            transaction_id="t",
            epoch=4,
            writer=writer,
            stager_id=100 + writer,
            parts=tuple(StagedPart(group, 7, group, 1, 5, 9) for group in groups),
        )
        for writer, groups in ((0, (2, 3)), (1, (3,)))
    ]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    monkeypatch.setattr(commit, "PUBLISH_POLL_S", 0)
    return Groups()


async def committing(groups: Groups) -> Committed:
    cluster: Any = groups
    return await TransactionCore(cluster).commit("t", "q", 4, receipts())


async def test_all_is_pinned_before_it_is_decided_and_published_before_it_is_told(
    groups: Groups,
) -> None:
    groups.published_after = 3
    assert await committing(groups) == Committed(4, 15, replayed=False)
    steps = [call for call in groups.calls if call[0] in ("Begin", "Pin", "Decide")]
    assert steps[0] == ("Begin", 1)
    assert sorted(steps[1:3]) == [("Pin", 2), ("Pin", 3)]
    assert steps[3:] == [("Decide", 1)] * 3, "asked until all have published"
    assert groups.participants == [2, 3], "each of which is told to publish"
    assert groups.count("Drop") == 0


@pytest.mark.parametrize("group", [2, 3])
async def test_what_one_group_cannot_pin_is_decided_by_none(groups: Groups, group: int) -> None:
    groups.failing["Pin", group] = TransactionAborted("its time was over")
    with pytest.raises(TransactionAborted, match="its time was over"):
        await committing(groups)
    assert groups.count("Decide") == 0
    assert groups.count("Abort") == 1, "it never will be"
    assert sorted(call for call in groups.calls if call[0] in ("Drop", "Settle")) == [
        ("Drop", 2),
        ("Drop", 3),
        ("Settle", 2),
        ("Settle", 3),
    ]


async def test_a_pin_that_fails_because_all_is_committed_already_is_a_success(
    groups: Groups,
) -> None:
    """The answer to the decision of an earlier call was lost."""
    groups.failing["Pin", 2] = TransactionAborted("what was staged is gone")
    groups.committed = True
    groups.published_after = 4
    assert await committing(groups) == Committed(4, 15, replayed=False)
    assert groups.published_after <= 0
    assert groups.count("Drop") == 0


@pytest.mark.parametrize("error", [Unavailable("no master"), TimedOut("no answer")])
async def test_nothing_is_given_up_while_nobody_knows_what_was_decided(
    groups: Groups, error: SemelError
) -> None:
    groups.failing["Pin", 2] = error
    groups.failing["Abort", 1] = error
    with pytest.raises(Unavailable, match="is not known"):
        await committing(groups)
    groups.failing = {("Decide", 1): error}
    with pytest.raises(type(error)):
        await committing(groups)
    assert [call for call in groups.calls if call[0] in ("Drop", "Settle")] == []


@pytest.mark.parametrize("error", [TransactionFenced("anew"), TransactionAborted("too long")])
async def test_what_the_coordinator_refuses_is_given_up(groups: Groups, error: SemelError) -> None:
    groups.failing["Decide", 1] = error
    with pytest.raises(type(error)):
        await committing(groups)
    assert (groups.count("Settle"), groups.count("Drop")) == (2, 2)


async def test_an_epoch_that_was_committed_before_is_told_once_it_is_published(
    groups: Groups,
) -> None:
    groups.attempt = 0
    groups.published_after = 4
    assert await committing(groups) == Committed(4, 15, replayed=True)
    assert groups.published_after <= 0
    assert (groups.count("Pin"), groups.count("Decide")) == (0, 0)
    assert groups.count("Drop") == 2, "what this run has staged is not stored again"


async def test_a_receipt_counts_once(groups: Groups) -> None:
    cluster: Any = groups
    first, second = receipts()
    with pytest.raises(TransactionAborted, match="are the same"):
        await TransactionCore(cluster).commit("t", "q", 4, [first, second, first])
    assert groups.count("Pin") == 0
