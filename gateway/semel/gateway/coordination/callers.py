"""On whose behalf the group service works: the gateway itself, or a client that has logged in.

How it works. Calls about a group go out by the caller's own client of the cluster, so controllers
and brokers judge them by the caller's rights, as they do for the SDK. What a Kafka group is beyond
that lives in this gateway alone: its members and their generations. Whoever touches these needs the
rights that the same would need in a Semel group, and the controllers are asked whether the caller
has them: by a heartbeat of nobody (`commit`), and by a look at the group (`describe`). Both change
nothing. The answer is good for a while; a Heartbeat of Kafka may go by an older one than what
changes something. While no controller answers, what is known counts, as it does at brokers.

Invariant: a right that was never confirmed is none.

Not here: offsets, which the brokers guard themselves (`committed_offsets.py`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from semel.client import AsyncClient
from semel.client.session import Session
from semel.client.transactions.commit import TransactionCore
from semel.gateway.coordination.refused import Refused
from semel.gateway.groups.results import GroupError
from semel.gateway.topic_book import TopicBook
from semel.protos.errors import (
    PermissionDenied,
    SemelError,
    UnknownGroup,
    UnknownMember,
)
from semel.protos.v1 import controller_pb2

CALL_S: Final = 5.0
FRESH_S: Final = 1.0
"""How old the answer may be by which something changes."""
BEAT_S: Final = 10.0
"""How old it may be for a heartbeat, of which there are many."""
ANSWERS_MAX: Final = 10_000

_Key = tuple[str, str]
"""A method of the controllers, and a group."""


class Caller:
    """See the module's text. Lives on the gateway's event loop."""

    def __init__(self, client: AsyncClient, *, checks: bool) -> None:
        """`checks` is false for the gateway itself: it asks for nothing that it is not told to."""
        self.session: Session = client._session
        self.topics = TopicBook(self.session.cluster)
        """The topics that it may see."""
        self.transactions = TransactionCore(self.session.cluster)
        self._checks = checks
        self._answers: dict[_Key, tuple[bool, float]] = {}
        """Whether it may, and when that was heard."""
        self._asking: dict[_Key, asyncio.Task[bool]] = {}

    @property
    def is_gone(self) -> bool:
        """Its client is closed."""
        return self.session.closed

    async def check_member(self, group_id: str, age_s: float = FRESH_S) -> None:
        """Raises Refused unless the caller may be a member of the group."""
        await self._check("HeartbeatGroup", group_id, age_s)

    async def may_be_member(self, group_id: str) -> bool:
        """Whether the caller may be a member of the group, as far as somebody can tell."""
        try:
            await self.check_member(group_id)
        except Refused:
            return False
        return True

    async def check_describe(self, group_id: str) -> None:
        """Raises Refused unless the caller may see the group."""
        await self._check("ListGroups", group_id, FRESH_S)

    async def _check(self, method: str, group_id: str, age_s: float) -> None:
        if not self._checks:
            return
        key = (method, group_id)
        known = self._answers.get(key)
        allowed = known is not None and known[0]
        if known is None or time.monotonic() - known[1] > age_s:
            try:
                allowed = await self._ask(key)
            except SemelError as error:
                if known is None:
                    raise Refused(GroupError.COORDINATOR_NOT_AVAILABLE) from error
        if not allowed:
            raise Refused(GroupError.GROUP_AUTHORIZATION_FAILED)

    async def _ask(self, key: _Key) -> bool:
        """All that ask the same at one time share a call. Raises SemelError."""
        task = self._asking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._call(key), name="semel-kafka-right")
            self._asking[key] = task
            task.add_done_callback(lambda done: self._on_asked(key, done))
        return await asyncio.shield(task)

    def _on_asked(self, key: _Key, done: asyncio.Task[bool]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever asked may be gone

    async def _call(self, key: _Key) -> bool:
        method, group_id = key
        request: Any
        if method == "HeartbeatGroup":
            request = controller_pb2.HeartbeatGroupRequest(group=group_id)
        else:
            request = controller_pb2.ListGroupsRequest(group=group_id, counts_only=True)
        asked_s, allowed = time.monotonic(), True
        try:
            await self.session.cluster.controller(method, request, CALL_S)
        except PermissionDenied:
            allowed = False
        except (UnknownGroup, UnknownMember):
            pass
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        self._answers[key] = (allowed, asked_s)
        return allowed
