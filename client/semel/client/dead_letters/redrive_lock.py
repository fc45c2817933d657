"""The lock of one redrive, and the record that it leaves to the next one.

How it works. A redrive holds the lock of a group of its own on the ledger's queue. Its record is
the metadata of that group there, stored under the token of the lock. All redrives are the same
member, so a redrive that acquires the lock ends the one that had it, at once.

A move of the queue ends the lock as well, and takes token and record along. So a redrive that has
lost its lock tells the two apart by the token: it is higher only when a later redrive has begun.

Not here: what the record means (`dead_letters/redrive.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any, Final

from semel.client.admin.calls import AdminCore
from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import QueueRoute
from semel.client.dead_letters.retrying import METADATA_ONLY
from semel.client.transport.cluster import Cluster
from semel.protos.errors import QueueMoved, SemelError, Throttled, from_detail
from semel.protos.groups import REDRIVE_GROUP
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

MEMBER: Final = "redrive"
"""All runs are the same member, so a lock passes from one to the next at once."""
LOCK_MS: Final = 24 * 3600 * 1000
"""The longest lock time there is. It delays no later run, which takes the lock over."""
MOVING_POLICY: Final = BackoffPolicy(initial_ms=50, max_ms=1_000)


class RedriveLock:
    """The exclusive right of one run: the lock of a group of its own on a queue of the ledger, and
    the record beside that group's offset. A run that acquires it ends the run that had it."""

    def __init__(self, cluster: Cluster, ledger: str, queue: QueueRoute) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._queue = queue
        self._token = 0
        self._version = 0

    async def acquire(self) -> bytes:
        """Acquires the lock and returns the record that is left there. Waits for a move of the
        queue to end, as long as for any call. Raises SemelError."""
        request = broker_pb2.AcquireLocksRequest(
            group=REDRIVE_GROUP,
            member_id=MEMBER,
            queues=[queue_ref(self._queue.key)],
            lock_ms=LOCK_MS,
            session_ms=LOCK_MS,
        )
        deadline = time.monotonic() + self._cluster.config.request_timeout_ms / 1000
        backoff = Backoff(MOVING_POLICY, random.random)
        while True:
            (grant,) = (await self._call("AcquireLocks", request)).grants
            if grant.token:
                self._token = grant.token
                return bytes(grant.metadata)
            error = from_detail(grant.error)
            wait_s = backoff.next_ms() / 1000
            if isinstance(error, QueueMoved):
                self._cluster.routes.on_moved(error)
            elif isinstance(error, Throttled):  # the queue is on its way to another group
                wait_s = max(wait_s, error.retry_after_ms / 1000)
            else:
                raise error
            if time.monotonic() + wait_s >= deadline:
                raise error
            await asyncio.sleep(wait_s)

    async def store(self, record: bytes) -> None:
        """Raises LockLost when a later run has begun, or the queue has moved."""
        self._version += 1
        request = broker_pb2.CommitRequest(group=REDRIVE_GROUP)
        request.commits.add(
            queue=queue_ref(self._queue.key),
            token=self._token,
            offset=METADATA_ONLY,
            metadata=record,
            metadata_version=self._version,
        )
        for outcome in (await self._call("Commit", request)).outcomes:
            if outcome.HasField("error"):
                raise from_detail(outcome.error)

    async def passed_on(self) -> bool:
        """A later run has acquired the lock. A move of the queue ends it, too, but leaves the
        token as it is. Raises SemelError."""
        found = await AdminCore(self._cluster).describe_group(REDRIVE_GROUP)
        tokens = [
            queue.token
            for queue in found.queues
            if (queue.topic, queue.queue) == (self._ledger, self._queue.key.queue_id)
        ]
        return max(tokens, default=0) > self._token

    async def release(self) -> None:
        """Clears the record: no attempt is open for a later run to settle."""
        with contextlib.suppress(SemelError):
            await self.store(b"")
            request = broker_pb2.ReleaseLocksRequest(group=REDRIVE_GROUP, member_id=MEMBER)
            request.locks.add(queue=queue_ref(self._queue.key), token=self._token)
            await self._call("ReleaseLocks", request)

    async def _call(self, method: str, request: Any) -> Any:
        home = self._cluster.routes.home(self._queue)
        return await self._cluster.call_master(home, method, request)
