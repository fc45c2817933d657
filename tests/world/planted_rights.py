"""Bugs in the check of rights, and what becomes of them: intruders and guests must find each.

Not here: how many seeds each may take (`test_rights.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from semel.broker.control_plane.producer_owners import ProducerOwners
from semel.broker.control_plane.rights_copy import RightsCopy
from semel.client.producer.producer import ProducerCore
from semel.controller.rights import RightsService
from semel.protos.security.enforcement import Enforcer, Gate
from semel.protos.security.rules import RuledRights


def lets_all_messages_of_streams_in() -> Any:
    """The stream is checked when it is opened, its messages are not."""
    return patch.object(Gate, "admit", lambda *_: None)


def lets_streams_outlive_rights() -> Any:
    """What an open stream was let through with counts for ever."""
    return patch.object(Gate, "check_again", lambda _: None)


def does_not_check_calls() -> Any:
    """Calls of single requests pass."""
    return patch.object(Enforcer, "check_call", lambda *_: None)


def takes_batches_in_any_name() -> Any:
    """A right to write to the topic is enough to write as any producer."""
    return patch.object(Gate, "admit_producer", lambda *_: None)


def lets_anybody_fence_the_unseen() -> Any:
    """A producer that the group has not seen yet counts as one without a name."""

    async def check(self: Any, request: Any) -> None:
        pass

    return patch.object(ProducerOwners, "check", check)


def ignores_deny_rules() -> Any:
    """Rules that allow are all that is looked at."""
    made = RuledRights.__init__

    def init(self: Any, rules: Any) -> None:
        made(self, [rule for rule in rules if rule.allow])

    return patch.object(RuledRights, "__init__", init)


def tells_of_hidden_topics() -> Any:
    """Replies leave nothing out."""
    return patch.object(Enforcer, "told", lambda _, what, reply, caller: reply)


def forgets_rules_with_the_controller() -> Any:
    """A controller that becomes the active one begins with no rules."""

    async def load(self: Any) -> None:
        self._on_changed(self.record)

    return patch.object(RightsService, "load", load)


def hears_rules_once() -> Any:
    """A broker goes by the rules that it has heard first after its start."""
    take = RightsCopy._take

    def first(self: Any, address: str, record: Any) -> None:
        if self._record is None and record.rules:
            take(self, address, record)

    return patch.object(RightsCopy, "_take", first)


def believes_its_copy() -> Any:
    """A broker that has a copy on its disk asks nobody any more."""
    watch = RightsCopy._watch

    async def _watch(self: Any, address: str) -> None:
        if self._kept is None:
            await watch(self, address)
        else:
            await asyncio.get_running_loop().create_future()

    return patch.object(RightsCopy, "_watch", _watch)


def begins_again_with_the_first_session() -> Any:
    """A topic that is hidden for a moment counts as one that was never known."""
    made = ProducerCore.lane_to

    def lane_to(self: Any, queue: Any) -> Any:
        lane = made(self, queue)
        lane.session = 0
        return lane

    return patch.object(ProducerCore, "lane_to", lane_to)
