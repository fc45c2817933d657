"""Bugs of a node in who the members of its group are, and whether it counts, and what becomes of
them.

Not here: how many seeds each may take (`test_world.py`, `test_foundings.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from semel.broker.membership import asking
from semel.broker.membership.status import MembershipStatus
from semel.broker.raft import RaftCore


def votes_after_losing_its_disk() -> Any:
    return patch.object(RaftCore, "set_non_counting", lambda self, non_counting: None)


@contextmanager
def founds_with_a_majority_of_empty_nodes(*, strangers: bool = False) -> Iterator[None]:
    """An empty node that finds a majority empty takes the group for new: silence says nothing."""
    original = MembershipStatus._catch_up

    async def _catch_up(self: Any) -> None:
        empty = {self._config.node_id}
        while not self._replica.core.commit_index:
            answers = await asking.ask_all(self._peers())
            if not strangers:
                answers = {n: a for n, a in answers.items() if not self._identity.stranger(n, a)}
            if any(answer.commit_index or answer.log_end_index for answer in answers.values()):
                break
            empty.update(answers)
            if len(empty) > len(self._config.members) // 2:
                return
            await asyncio.sleep(0.1)
        await original(self)

    with patch.object(MembershipStatus, "_catch_up", _catch_up):
        yield


def counts_strangers() -> Any:
    """Any node that answers at a member's address, and has nothing, counts as an empty member."""
    return founds_with_a_majority_of_empty_nodes(strangers=True)


@contextmanager
def founders_of_one_begin_again() -> Iterator[None]:
    """An empty node that was told to found a group of one takes itself for that group."""
    original = MembershipStatus._catch_up

    async def _catch_up(self: Any) -> None:
        if len(self._config.members) != 1:
            await original(self)

    with patch.object(MembershipStatus, "_catch_up", _catch_up):
        yield


def removes_its_mark_before_it_has_caught_up() -> Any:
    """A node that crashes while it is fed forgets that it lost its disk."""
    original = MembershipStatus._catch_up

    async def _catch_up(self: Any) -> None:
        self._drop_mark()
        await original(self)

    return patch.object(MembershipStatus, "_catch_up", _catch_up)


def asks_only_whom_it_knows() -> Any:
    """A node that was away while all others were replaced asks those that have gone, and one that
    lost its disk and founded its group alone asks nobody."""

    async def nobody(self: Any) -> dict[int, Any]:
        return {}

    return patch.object(MembershipStatus, "_ask_named", nobody)
