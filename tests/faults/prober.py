"""Asks any node, master or not, for ends, outcomes and locks, and writes down every answer.

How it works. One thread over bare gRPC: each operation goes to one node, once, with a short time
limit. Nothing is repeated and nothing is hidden, so what comes back is what that node answered.
Locks are renewed now and then only, so that their sessions end.

Lines: {"kind": "op", "id", "member", "queue", "what", "began_s", "ended_s" or null, fields of the
operation and of its answer}. An operation that changes something is written before it leaves and
again, under the same id, when it is answered; without an answer, or with an error, it may have
happened. A question that was not answered is not written.

Not here: what the answers must be (`tests/checking/linearizability.py`).
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from semel.protos.errors import LockLost, QueueLocked, from_detail
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2

GROUP: Final = "probers"
SESSION_MS: Final = 700
TIMEOUT_S: Final = 1.5
QUESTIONS: Final = ("end", "outcome", "describe", "renewed", "unrenewed")
"""These questions are written only when they are answered."""


class Prober:
    """One member of the group `probers`."""

    def __init__(
        self,
        *,
        nodes: Sequence[str],
        queue: tuple[int, int],
        member: str,
        seed: int,
        write: Callable[[dict[str, Any]], None],
        stop: threading.Event,
    ) -> None:
        self._nodes = nodes
        self._queue = queue
        self._ref = common_pb2.QueueRef(topic_id=queue[0], queue_id=queue[1])
        self._member = member
        self._random = random.Random(f"{seed} {member}")
        self._write = write
        self._stop = stop
        self._token = 0
        self._committed = 0
        self._end = 0
        self._stored: list[tuple[int, int]] = []
        """Producers and sequences that some node has applied."""
        self._number = 0
        self._last = 0
        """The node that answered last; asked more often than the others."""

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            stubs = [
                broker_pb2_grpc.BrokerStub(
                    stack.enter_context(grpc.insecure_channel(address, options=CHANNEL_OPTIONS))
                )
                for address in self._nodes
            ]
            while not self._stop.is_set():
                at = self._last if self._random.random() < 0.5 else None
                at = self._random.randrange(len(stubs)) if at is None else at
                try:
                    self._ask(stubs[at])
                    self._last = at
                except grpc.RpcError:
                    self._last = self._random.randrange(len(stubs))
                self._stop.wait(self._random.uniform(0.0, 0.06))

    def _ask(self, stub: Any) -> None:
        chance = self._random.random()
        if chance < 0.25:
            self._ends(stub)
        elif chance < 0.35:
            self._outcome(stub)
        elif chance < 0.45:
            self._describe(stub)
        elif not self._token:
            self._acquire(stub)
        elif chance < 0.65:
            self._renew(stub)
        elif chance < 0.8:
            self._commit(stub)
        elif chance < 0.9:
            self._release(stub)
        else:
            self._token = 0  # forgets it; the session will end

    def _ends(self, stub: Any) -> None:
        began = time.monotonic()
        reply = stub.ListOffsets(
            broker_pb2.ListOffsetsRequest(queues=[self._ref]), timeout=TIMEOUT_S
        )
        if not reply.queues[0].HasField("error"):
            self._end = reply.queues[0].high_watermark
            self._line("end", began, end=self._end)

    def _outcome(self, stub: Any) -> None:
        """Asks one node what a producer has stored, and later any node whether that is so."""
        if not self._stored:
            reply = stub.DescribeProducers(
                broker_pb2.DescribeProducersRequest(queues=[self._ref]), timeout=TIMEOUT_S
            )
            self._stored = [
                (row.producer_id, row.last_sequence) for row in reply.rows if row.last_sequence >= 0
            ]
            return
        producer_id, sequence = self._stored.pop()
        began = time.monotonic()
        reply = stub.GetProduceOutcome(
            broker_pb2.ProduceOutcomeRequest(
                queue=self._ref, producer_id=producer_id, sequence=sequence
            ),
            timeout=TIMEOUT_S,
        )
        self._line(
            "outcome",
            began,
            producer_id=producer_id,
            sequence=sequence,
            outcome=reply.Outcome.Name(reply.outcome),
            offset=reply.offset,
        )

    def _describe(self, stub: Any) -> None:
        began = time.monotonic()
        reply = stub.DescribeGroupOffsets(
            broker_pb2.DescribeGroupOffsetsRequest(group=GROUP), timeout=TIMEOUT_S
        )
        for state in reply.states:
            if (state.queue.topic_id, state.queue.queue_id) == self._queue:
                self._line(
                    "describe",
                    began,
                    token=state.token,
                    owner=state.owner,
                    committed=state.committed_offset,
                )

    def _acquire(self, stub: Any) -> None:
        request = broker_pb2.AcquireLocksRequest(
            group=GROUP,
            member_id=self._member,
            queues=[self._ref],
            lock_ms=60_000,
            session_ms=SESSION_MS,
        )
        # Only a master answers this: hundreds of acquisitions of unknown fate, at nodes that
        # are none, would make the search for an order endless.
        self._ends(stub)
        began = self._begin("acquire")
        grant = stub.AcquireLocks(request, timeout=TIMEOUT_S).grants[0]
        if grant.token:
            self._token = grant.token
            self._line("acquire", began, token=grant.token, committed=grant.committed_offset)
        else:
            error = from_detail(grant.error)
            if isinstance(error, QueueLocked):
                self._line("refused", began, owner=error.owner)

    def _commit(self, stub: Any) -> None:
        offset = self._random.randint(0, max(0, self._end))
        request = broker_pb2.CommitRequest(group=GROUP)
        request.commits.add(queue=self._ref, token=self._token, offset=offset)
        call = {"token": self._token, "offset": offset}
        began = self._begin("commit", **call)
        outcome = stub.Commit(request, timeout=TIMEOUT_S).outcomes[0]
        if not outcome.HasField("error"):
            self._line("commit", began, **call)
        elif isinstance(from_detail(outcome.error), LockLost):
            self._line("lost", began, **call)
            self._token = 0
        else:
            self._line("behind", began, **call)

    def _renew(self, stub: Any) -> None:
        request = broker_pb2.RenewLocksRequest(
            group=GROUP,
            member_id=self._member,
            locks=[broker_pb2.LockRef(queue=self._ref, token=self._token)],
        )
        began = time.monotonic()
        lost = stub.RenewLocks(request, timeout=TIMEOUT_S).lost
        self._line("unrenewed" if lost else "renewed", began, token=self._token)
        if lost:
            self._token = 0

    def _release(self, stub: Any) -> None:
        request = broker_pb2.ReleaseLocksRequest(
            group=GROUP,
            member_id=self._member,
            locks=[broker_pb2.LockRef(queue=self._ref, token=self._token)],
        )
        token, self._token = self._token, 0
        began = self._begin("release", token=token)
        stub.ReleaseLocks(request, timeout=TIMEOUT_S)
        self._line("release", began, token=token)

    def _begin(self, what: str, **fields: Any) -> float:
        """Notes an operation that changes something, before it leaves; when that is."""
        began = time.monotonic()
        self._number += 1
        self._put(what, began, None, fields)
        return began

    def _line(self, what: str, began: float, **fields: Any) -> None:
        if what in QUESTIONS:
            self._number += 1
        self._put(what, began, time.monotonic(), fields)

    def _put(self, what: str, began: float, ended: float | None, fields: dict[str, Any]) -> None:
        self._write(
            {
                "kind": "op",
                "id": self._number,
                "member": self._member,
                "what": what,
                "began_s": began,
                "ended_s": ended,
                "queue": self._queue,
                **fields,
            }
        )
