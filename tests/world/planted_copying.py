"""Bugs in progress that is staged with transactions, for the worlds of `parts/copying.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from semel.broker.state.apply import stagers
from semel.broker.state.apply.locks import ConsumerGroups
from semel.broker.state.apply.staged_commits import Place, StagedCommit, pack_commits
from semel.broker.state.apply.staging import Staging
from semel.broker.state.apply.transactions import Step, Transactions
from semel.gateway.coordination import transaction_service
from semel.gateway.coordination.broker_ledger import BrokerLedger
from semel.gateway.coordination.staged_in import StagedIn
from semel.gateway.transactions import coordinator
from semel.gateway.transactions.ledger import Attempt, Stage
from semel.gateway.transactions.standing import Producer, Row, Standing, standing_of
from semel.protos.errors import LockLost
from semel.protos.ids import QueueKey
from semel.protos.v1 import transaction_records_pb2


def publishes_progress_on_abort() -> AbstractContextManager[object]:
    """A pin that is dropped stores the progress of its winners, as a publication does."""
    apply = Transactions.apply

    def bad(self: Transactions, step: Step, *rest: Any, groups: Any, **more: Any) -> Any:
        if step.WhichOneof("step") == "drop_pin":
            pin = self.staging.pin_of(step.drop_pin.transaction_id, step.drop_pin.attempt)
            if pin is not None:
                self._store_progress(pin, groups)
        return apply(self, step, *rest, groups=groups, **more)

    return patch.object(Transactions, "apply", bad)


def gives_up_too_much() -> AbstractContextManager[object]:
    """Stagers that are given up store their progress, as if they had won."""
    apply = Transactions.apply

    def bad(self: Transactions, step: Step, *rest: Any, groups: Any, **more: Any) -> Any:
        if step.WhichOneof("step") == "drop_stagers":
            for number in step.drop_stagers.stager_ids:
                stager = self.staging.stagers.get(number)
                if stager is not None and not stager.pinned:
                    for (group, key), commit in stager.commits.items():
                        groups.commit_staged(group, key, commit)
        return apply(self, step, *rest, groups=groups, **more)

    return patch.object(Transactions, "apply", bad)


def forgets_progress_in_checkpoints() -> AbstractContextManager[object]:
    def bad(session: int, commits: Mapping[Place, StagedCommit]) -> bytes:
        return pack_commits(session, {})

    return patch.object(stagers, "pack_commits", bad)


def stages_under_any_token() -> AbstractContextManager[object]:
    """A coordinator that was replaced stages progress: its token is not looked at."""
    judge = ConsumerGroups.judge

    def bad(
        self: ConsumerGroups, group: str, key: Any, queue: Any, commit: Any, **more: Any
    ) -> Any:
        found = judge(self, group, key, queue, commit, **more)
        state = self.lookup(group, key)
        staged = isinstance(commit, transaction_records_pb2.StagedCommit)
        stale = isinstance(found, LockLost) and queue is not None and state is not None
        return state if staged and stale else found

    return patch.object(ConsumerGroups, "judge", bad)


def keeps_progress_of_deleted_groups() -> AbstractContextManager[object]:
    return patch.object(Staging, "remove_group", lambda *_: None)


def lets_the_reader_before_commit() -> AbstractContextManager[object]:
    """The next reader of a partition leaves what the one before has staged."""
    return patch.object(Transactions, "drop_progress", lambda *_: None)


def obeys_producers_of_the_past() -> AbstractContextManager[object]:
    """A gateway takes a producer that was fenced for the newest one: a zombie commits."""

    def bad(row: Row, producer: Producer) -> Standing:
        found = standing_of(row, producer)
        return Standing.ONGOING if found is Standing.FENCED and row.attempt else found

    @contextmanager
    def both() -> Any:
        with ExitStack() as stack:
            for module in (coordinator, transaction_service):
                stack.enter_context(patch.object(module, "standing_of", bad))
            yield

    return both()


def commits_messages_alone() -> AbstractContextManager[object]:
    """A gateway leaves the stagers of progress out of the commit."""
    commit = BrokerLedger.commit

    async def bad(self: BrokerLedger, begun: Attempt, stages: Sequence[Stage]) -> None:
        await commit(self, begun, [stage for stage in stages if stage.parts])

    return patch.object(BrokerLedger, "commit", bad)


def ends_progress_early() -> AbstractContextManager[object]:
    """Staged progress lives a second, whatever the transaction may take."""
    opening = StagedIn.opening

    def bad(self: StagedIn, group_id: str, queue: QueueKey) -> transaction_records_pb2.OpenStager:
        return opening(self._replace(ttl_ms=1_000), group_id, queue)

    return patch.object(StagedIn, "opening", bad)


_PROGRESS = "has lock and progress"
_STAGED = "has staged progress"
_TWICE = "is committed, and progress is|was acknowledged|copies of"

PLANTS: dict[str, tuple[Callable[[], AbstractContextManager[object]], str, int]] = {
    "lets the reader before commit": (lets_the_reader_before_commit, _STAGED, 28),
    "publishes progress on abort": (publishes_progress_on_abort, _PROGRESS, 20),
    "gives up too much": (gives_up_too_much, _PROGRESS, 1),
    "forgets progress in checkpoints": (forgets_progress_in_checkpoints, _STAGED, 11),
    "stages under any token": (stages_under_any_token, _STAGED, 11),
    "keeps progress of deleted groups": (keeps_progress_of_deleted_groups, _STAGED, 17),
    "obeys producers of the past": (obeys_producers_of_the_past, _TWICE, 20),
    "ends progress early": (ends_progress_early, _TWICE, 2),
    "commits messages alone": (commits_messages_alone, _TWICE, 20),
}
"""Each with a pattern of its error, and the seed that found it when it was planted."""
