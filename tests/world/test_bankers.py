"""Whole clusters over which programs commit transactions to topics that compare message ids: each
id once within its window, and no other message dropped, wherever a node dies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import numpy as np
import pytest

from semel.broker.dedup.pinned_ids import PinnedIds, Rewrite, _Drops
from semel.broker.replica.message_ids import MessageIds
from semel.broker.state.admission.id_admission import IdAdmission
from tests.world.soak import first_failure, run_until_seen

_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
SEEDS = range(24)
RARE = {
    "at rest": 8,
    "batch published where it lay": 35,
    "batch rewritten": 20,
    "duplicate dropped": 300,
    "kill of the master in a step": 5,
    "strike in a transaction: publish": 1,
    "strike in a transaction: rewrite": 2,
    "transaction with ids committed": 15,
    "transaction: publish": 18,
    "transaction: rewrite": 15,
}
"""A quarter of what is usual, or less."""


@pytest.mark.timeout(300)
def test_ids_of_transactions_are_stored_once_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("ids", "bankers"))


def finds_nothing_to_rewrite() -> AbstractContextManager[object]:
    """Large transactions are published as they were staged."""
    return patch.multiple(
        PinnedIds, rewrites=lambda *_: iter(()), _drops=lambda *_: _Drops(*_NOTHING)
    )


def drops_for_what_is_forgotten() -> AbstractContextManager[object]:
    """Nobody looks whether the window still has what a message is dropped for."""
    return patch.object(Rewrite, "holds", lambda *_: True)


def does_not_read_what_is_published() -> AbstractContextManager[object]:
    """A node that follows applies a publication at once."""
    return patch.object(MessageIds, "to_fetch", lambda *_: None)


def does_not_count_what_is_published() -> AbstractContextManager[object]:
    """The ids of an accepted publication get the arrivals of those behind it."""
    whole = IdAdmission.use_published

    def use_published(self: IdAdmission, topic_id: int, ids: int) -> None:
        whole(self, topic_id, 0)

    return patch.object(IdAdmission, "use_published", use_published)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (finds_nothing_to_rewrite, "and arrived as"),
        (drops_for_what_is_forgotten, "which is not in the window"),
        (does_not_read_what_is_published, "and nothing has lost them"),
        (does_not_count_what_is_published, "AssertionError|ids"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_bug_of_transactions_with_ids_is_found(
    plant: Callable[[], AbstractContextManager[object]], told: str
) -> None:
    first_failure(SEEDS, plant, match=told, more=("ids", "bankers"))
