"""Fetches a queue from another broker group, on the master of the group that gets it.

How it works. A controller calls again and again (`server/moves_service.py`), each time for a while.
The master pulls stored batches from the source's master, from where the incoming queue ends, checks
them, and proposes them as copies. Once the source has sealed the queue, the slice follows in
pieces, and then INGEST. The replicated state says how far the copy is, so the master that is called
next, after any crash, goes on there.

Invariants
1. A batch is proposed only after its CRCs, its queue and its offset were checked.
2. Copying before the seal takes no more than `move_bytes_per_second`; one request at a time is
   under way.
3. Of a topic in memory, nothing is ingested before a majority of this group has all bodies.
4. Nothing is taken from a group whose log is at a higher feature level: its queues may follow rules
   that this group's members do not know.

Not here: what a step means (`state/apply/moves.py`), the source's answers
(`server/moves_service.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.moved_ids import delayed_of
from semel.broker.state import (
    RECORD_BYTES,
    ApplyResult,
    CopiedIds,
    IdWindow,
    Incoming,
    MoveApplied,
    MoveState,
    State,
    ordinal_of_copy,
)
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    check_batch,
    decode_broker_header,
    decode_header,
)
from semel.protos.channels import Channels
from semel.protos.errors import (
    CorruptBatch,
    InvalidRequest,
    SemelError,
    Throttled,
    UnsupportedVersion,
)
from semel.protos.ids import QueueKey
from semel.protos.levels import (
    COMPACTED_MOVE_LEVEL,
    DELAYED_MOVE_LEVEL,
    UNTOLD_MAX,
    own_levels,
)
from semel.protos.masters import MasterSearch
from semel.protos.queue_refs import queue_ref
from semel.protos.security.credentials import Security
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, control_pb2
from semel.protos.v1.common_pb2 import Levels

COPY_BYTES: Final = 2 << 20
"""Bytes of batches a request asks for; four of the largest are below a message's limit."""
PART_BYTES: Final = 1 << 20
SUPERSEDED_IDS: Final = 100_000
SOURCE_TIMEOUT_S: Final = 5.0


T = TypeVar("T")


class Ids(Protocol):
    """The indexes of message ids of that node."""

    @property
    def behind(self) -> bool: ...

    def index_of(self, topic_id: int) -> IdIndex | None: ...

    async def look(self, ids: IdIndex, executor: Executor, work: Callable[[], T]) -> T: ...


class Target(Protocol):
    """The node that gets the queue, as this module needs it."""

    @property
    def state(self) -> State: ...

    async def submit_control(self, record: control_pb2.ControlRecord) -> ApplyResult: ...

    @property
    def memory_room(self) -> int: ...

    async def submit_copy(self, stored: bytes, *, in_memory: bool = False) -> ApplyResult: ...

    @property
    def ids(self) -> Ids: ...

    @property
    def readers(self) -> Executor: ...

    async def in_reader(self, work: Callable[[], T]) -> T: ...


class Source:
    """The group that has the queue; its master is found by asking its nodes."""

    def __init__(
        self,
        addresses: Sequence[str],
        levels: Levels | None = None,
        security: Security | None = None,
    ) -> None:
        """`levels` are this node's."""
        told = own_levels() if levels is None else levels
        self._addresses = list(addresses)
        self._channels = Channels(lambda: told, security=security)

    async def close(self) -> None:
        await self._channels.close()

    async def ask(self, method: str, request: Any) -> Any:
        """The master's answer. Raises SemelError, never NotMaster."""
        search = MasterSearch("the queue's broker group", self._addresses)
        while address := search.next():
            try:
                reply = await self._channels.call(
                    address, broker_pb2_grpc.MovesStub, method, request, SOURCE_TIMEOUT_S
                )
            except SemelError as error:
                search.on_error(error)
            else:
                if self._addresses[0] != address:
                    self._addresses.insert(0, address)
                return reply
        raise search.error


class QueuePull:
    """One call's part of the fetching of one queue."""

    def __init__(
        self,
        target: Target,
        source: Source,
        key: QueueKey,
        job: int,
        *,
        bytes_per_second: int,
        on_copied: Callable[[int], None],
        bodies_refusal: Callable[[], Awaitable[str]],
    ) -> None:
        """`on_copied` hears how many bytes of batches have become durable here. `bodies_refusal`
        says why it is not certain that a majority has what was copied of a topic in memory; empty
        if it is."""
        self._target = target
        self._source = source
        self._key = key
        self._job = job
        self._rate = bytes_per_second
        self._due = 0.0
        self._on_copied = on_copied
        self._bodies_refusal = bodies_refusal

    async def run(self, max_s: float, *, finish: bool) -> broker_pb2.PullQueueReply:
        """Returns at the source's present end, or when the time is over; with `finish` only when
        the queue is ready, or the time is over. Raises SemelError."""
        until = time.monotonic() + max_s
        reply = broker_pb2.PullQueueReply()
        while not self._ready():
            answer = await self._copy(reply)
            at_end = reply.copied_offset >= reply.log_end_offset
            if at_end or time.monotonic() >= until:
                if answer.feature_level >= DELAYED_MOVE_LEVEL:
                    await self._copy_delayed(reply, until, finish=finish and at_end)
                ids_to = await self._copy_ids(until, finish=finish and at_end)
                reply.ids_left = ids_to - self._copied_ids().arrival
                if at_end and finish:
                    await self._ingest(ids_to)
                break
            if not finish:
                await self._pace(sum(len(batch.stored) for batch in answer.batches))
        reply.ready = self._ready()
        return reply

    def _ready(self) -> bool:
        place = self._target.state.moves.places.get(self._key)
        return place is not None and place.job == self._job and place.state is MoveState.READY

    def _incoming(self) -> Incoming:
        moves = self._target.state.moves
        place, incoming = moves.places.get(self._key), moves.incoming.get(self._key)
        if place is None or incoming is None or place.job != self._job:
            raise InvalidRequest(
                f"move {self._job} of queue {self._key.queue_id} has not begun here, or is over"
            )
        return incoming

    # --- batches --------------------------------------------------------------------------------

    async def _copy(self, progress: broker_pb2.PullQueueReply) -> broker_pb2.CopyQueueReply:
        at = self._incoming().queue.log_end_offset
        request = broker_pb2.CopyQueueRequest(
            queue=queue_ref(self._key), offset=at, max_bytes=COPY_BYTES, job=self._job
        )
        answer: broker_pb2.CopyQueueReply = await self._source.ask("CopyQueue", request)
        self._check_level(answer.feature_level)
        in_memory = self._incoming().queue.in_memory
        await self._target.in_reader(lambda: self._check(answer, in_memory=in_memory))
        base = answer.batches[0].base_offset if answer.batches else answer.log_start_offset
        if base > at:
            await self._step(control_pb2.MOVE_STEP_FLOOR, offset=base)
        elif self._incoming().queue.log_start_offset < answer.log_start_offset <= at:
            await self._step(control_pb2.MOVE_STEP_FLOOR, offset=answer.log_start_offset)
        await self._store([batch.stored for batch in answer.batches])
        queue = self._incoming().queue
        progress.log_start_offset = answer.log_start_offset
        progress.log_end_offset = answer.log_end_offset
        progress.copied_offset = queue.log_end_offset
        progress.copied_bytes, progress.total_bytes = queue.bytes, answer.bytes
        return answer

    async def _store(self, copies: Sequence[bytes]) -> None:
        in_memory = self._incoming().queue.in_memory
        if in_memory and sum(map(len, copies)) > self._target.memory_room:
            raise Throttled(
                f"queue {self._key.queue_id} waits for room in the memory of its new broker group,"
                " which has as much of topics in memory as it may (--memory-topic-bytes-max)"
            )
        submits = (self._target.submit_copy(stored, in_memory=in_memory) for stored in copies)
        results = await asyncio.gather(*submits)
        for result in results:
            assert isinstance(result, MoveApplied)
            if result.error is not None:
                raise result.error
        self._on_copied(sum(map(len, copies)))

    def _check(self, answer: broker_pb2.CopyQueueReply, *, in_memory: bool = False) -> None:
        """BLOCKING for some milliseconds. A batch in memory that is lost has both headers alone.
        Raises CorruptBatch."""
        at: int | None = None
        for batch in answer.batches:
            head = decode_broker_header(batch.stored)
            lost = in_memory and len(batch.stored) == RECORD_BYTES
            check = decode_header if lost else check_batch
            found = check(batch.stored, BROKER_HEADER_BYTES)
            count = head.span or found.count
            if (
                found.queue_key != self._key
                or count != batch.count
                or head.base_offset != batch.base_offset
                or at not in (None, head.base_offset)
            ):
                raise CorruptBatch(
                    f"offset {batch.base_offset} of queue {self._key.queue_id} came with a batch of"
                    f" {found.queue_key}, {count} offsets from {head.base_offset}"
                )
            at = head.base_offset + count

    # --- delayed batches ------------------------------------------------------------------------

    async def _copy_delayed(
        self, progress: broker_pb2.PullQueueReply, until: float, *, finish: bool
    ) -> None:
        """Copies the delayed batches that there are as of now, or with `finish` False until the
        time is over."""
        at, asked = self._incoming().delayed.below_ordinal, -1
        while at > asked:  # else the queue has no more
            request = broker_pb2.CopyDelayedRequest(
                queue=queue_ref(self._key), ordinal=at, max_bytes=COPY_BYTES
            )
            answer: broker_pb2.CopyDelayedReply = await self._source.ask("CopyDelayed", request)
            self._check_level(answer.feature_level)
            await self._target.in_reader(partial(self._check_delayed, answer.stored, at))
            await self._store(answer.stored)
            asked, at = at, answer.ordinal_to
            progress.delayed_left = answer.bytes_left
            if not finish:
                if time.monotonic() >= until:
                    break
                await self._pace(sum(map(len, answer.stored)))
        copied = self._incoming().delayed.queue.bytes
        progress.copied_bytes += copied
        progress.total_bytes += copied + progress.delayed_left

    def _check_delayed(self, copies: Sequence[bytes], ordinal: int) -> None:
        """BLOCKING for some milliseconds. Raises CorruptBatch."""
        for stored in copies:
            found = check_batch(stored, BROKER_HEADER_BYTES)
            number = ordinal_of_copy(decode_broker_header(stored))
            if found.queue_key != self._key or number is None or number < ordinal:
                raise CorruptBatch(
                    f"delayed batch {ordinal} of queue {self._key.queue_id} or a later one was"
                    f" expected, and {number} of {found.queue_key} came"
                )
            ordinal = number + 1

    def _check_level(self, level: int) -> None:
        """Raises UnsupportedVersion."""
        own = self._target.state.feature_level
        level = level or UNTOLD_MAX  # programs from before feature levels name none
        if level > own:
            raise UnsupportedVersion(
                f"queue {self._key.queue_id} comes from a broker group at feature level {level},"
                f" this group is at {own}: raise it first (semel cluster upgrade --finish)",
                level=level,
            )

    async def _pace(self, length: int) -> None:
        """Sleeps until `length` more bytes may come."""
        now = time.monotonic()
        self._due = max(self._due, now) + length / self._rate
        if self._due > now:
            await asyncio.sleep(self._due - now)

    # --- message ids ----------------------------------------------------------------------------

    async def _copy_ids(self, until: float, *, finish: bool) -> int:
        """Copies the message ids that there are as of now, or with `finish` False until the time is
        over; returns up to which arrival of the source they must have come."""
        await self._supersede()
        goal: int | None = None
        while True:
            copied = self._copied_ids()
            request = broker_pb2.CopyIdsRequest(
                queue=queue_ref(self._key), arrival=copied.arrival, horizon_us=copied.horizon_us
            )
            answer: broker_pb2.CopyIdsReply = await self._source.ask("CopyIds", request)
            self._check_level(answer.feature_level)
            if not answer.compares:
                return copied.arrival
            window = self._window()
            if window is None or window.settings.seed != answer.seed:
                raise InvalidRequest(
                    f"the topic of queue {self._key.queue_id} has begun to compare message ids"
                    " since the move began; give the move up and begin again"
                )
            if answer.ids_to > request.arrival:
                await self._take_ids(request, answer)
            goal = answer.next_arrival if goal is None else goal  # other queues' ids go on to come
            if answer.ids_to >= goal:
                if finish:
                    await self._copy_waiting_ids(goal)
                return goal
            if answer.ids_to <= request.arrival:  # a message is delayed, and may be cancelled yet
                if finish:
                    raise Throttled(f"message ids from {request.arrival} on do not come; ask again")
                return goal
            if not finish:
                if time.monotonic() >= until:
                    return goal
                await self._pace(len(answer.ids))

    async def _copy_waiting_ids(self, ids_to: int) -> None:
        """Copies the ids of messages that waited, which the sealed queue keeps as they are."""
        while (copied := self._copied_ids()).waiting < ids_to and copied.horizon_us:
            request = broker_pb2.CopyIdsRequest(
                queue=queue_ref(self._key),
                arrival=copied.waiting,
                horizon_us=copied.horizon_us,
                waiting=True,
            )
            answer: broker_pb2.CopyIdsReply = await self._source.ask("CopyIds", request)
            self._check_level(answer.feature_level)
            if answer.ids_to <= request.arrival:
                raise Throttled(f"message ids from {request.arrival} on do not come; ask again")
            await self._take_ids(request, answer)

    async def _take_ids(
        self, request: broker_pb2.CopyIdsRequest, answer: broker_pb2.CopyIdsReply
    ) -> None:
        await self._step(
            control_pb2.MOVE_STEP_IDS,
            ids=answer.ids,
            ids_from=request.arrival,
            ids_to=answer.ids_to,
            seed=answer.seed,
            horizon_us=answer.horizon_us,
            # Below level 8 the ids end in front of the first message that waits.
            waits_from=answer.waits_from if answer.horizon_us else answer.ids_to,
            waiting=request.waiting,
        )

    async def _supersede(self) -> None:
        """Has ids of the queue's delayed messages count no more that this group knows from earlier,
        before others come. Raises Throttled while its index is incomplete."""
        state, window = self._target.state, self._window()
        if state.feature_level < DELAYED_MOVE_LEVEL or window is None:
            return
        if self._copied_ids().is_open:
            return
        index = self._target.ids.index_of(self._key.topic_id)
        if index is None or self._target.ids.behind:
            raise Throttled("the index of message ids is incomplete; ask again")
        arrivals = range(window.first_arrival, window.next_arrival)
        look = partial(delayed_of, index, arrivals, self._key.queue_id)
        found = await self._target.ids.look(index, self._target.readers, look)
        for at in range(0, max(1, len(found)), SUPERSEDED_IDS):
            portion = found[at : at + SUPERSEDED_IDS]
            await self._step(
                control_pb2.MOVE_STEP_SUPERSEDE,
                arrivals=portion.astype("<u8").tobytes(),
                last=at + len(portion) == len(found),
            )

    def _window(self) -> IdWindow | None:
        return self._target.state.id_windows.topics.get(self._key.topic_id)

    def _copied_ids(self) -> CopiedIds:
        return self._target.state.id_windows.copied.get(self._key, CopiedIds())

    # --- the slice ------------------------------------------------------------------------------

    async def _ingest(self, ids_to: int) -> None:
        if self._incoming().queue.in_memory and (lacking := await self._bodies_refusal()):
            raise Throttled(f"queue {self._key.queue_id} stays where it is: {lacking}; ask again")
        at, total, digest, time_us = 0, 1, b"", 0
        while at < total:
            request = broker_pb2.ReadSliceRequest(
                queue=queue_ref(self._key), job=self._job, offset=at, max_bytes=PART_BYTES
            )
            answer: broker_pb2.ReadSliceReply = await self._source.ask("ReadSlice", request)
            self._check_level(answer.feature_level)
            if not answer.part:
                raise InvalidRequest(f"the slice of queue {self._key.queue_id} ends at {at}")
            await self._step(control_pb2.MOVE_STEP_PART, offset=at, part=answer.part)
            at += len(answer.part)
            total, digest = answer.total_bytes, answer.digest
            time_us = answer.log_time_us
        if self._target.state.feature_level < COMPACTED_MOVE_LEVEL:
            time_us = 0
        await self._step(
            control_pb2.MOVE_STEP_INGEST,
            offset=total,
            digest=digest,
            ids_to=ids_to,
            source_time_us=time_us,
        )

    async def _step(self, step: control_pb2.MoveStep, **fields: Any) -> None:
        """Raises the refusal."""
        record = control_pb2.MoveQueue(
            queue=queue_ref(self._key), job=self._job, step=step, **fields
        )
        record.group_id = self._target.state.moves.places[self._key].group_id
        result = await self._target.submit_control(control_pb2.ControlRecord(move_queue=record))
        assert isinstance(result, MoveApplied)
        if result.error is not None:
            raise result.error
