"""What passes at the nodes of a world with quotas, told to their ledgers.

How it works. While `watched` is entered, methods of the product at which something comes, passes or
is refused tell the ledger of their process (`quota_ledger.py`), before they go on or after. What
they do stays as it is. Bytes that are read are counted in the answers themselves, and staged bytes
from all that is on hold, so that a way around the quotas is seen. Anything wrong ends the run.

Time is the simulated one, as for the product's own buckets. A node that stood still since something
came is excused for what is late, and for nothing else.

Not here: who uses quotas, and who changes them (`parts/quotas.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from semel.broker.quotas.broker_quotas import calling_principal
from semel.broker.quotas.open_producers import OpenProducers
from semel.broker.quotas.write_pace import WritePace
from semel.broker.replica.replica import Replica
from semel.broker.server import produce as produce_module
from semel.broker.server.fetch import FetchHandler, _Outlet
from semel.broker.server.produce import ProduceStream, _Arrival
from semel.protos.batch import BatchHeader, check_batch, decode_header
from semel.protos.errors import SemelError, Throttled
from semel.protos.queue_refs import queue_key_of
from semel.protos.security.call_quotas import CallQuotas
from semel.protos.security.declared import declared
from semel.protos.security.enforcement import CALLER
from semel.protos.security.meters import Meter, Meters
from semel.protos.security.quotas import Limit, QuotaKind
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.streams import Ping, decode_fetch_header, decode_produce
from semel.protos.v1.metadata_pb2 import RightsRecord
from tests.world.loop import PROCESS, Process, SimLoop
from tests.world.quota_ledger import Item, Ledger, Wrong

if TYPE_CHECKING:
    from tests.world.run import Run

UNCOUNTED: Final = frozenset(
    {
        *("HeartbeatGroup", "LeaveGroup", "GetClusterStatus", "ChangeQuotas"),
        *("GetNodeStatus", "RenewLocks", "ReleaseLocks"),
    }
)
_FRESH_S: Final = 0.6
"""The age of the sum by which a topic's quota may refuse a batch, at most."""
_STILL_S: Final = 0.05
"""Disks block nodes for shorter times again and again; this is part of the slack."""
_FULL_S: Final = 1.0
"""What was on its way into the log so long ago may be missing in the sum."""
_MESSAGE: ContextVar[Item] = ContextVar("item of the message that is worked on")
_ANSWER_S: ContextVar[float] = ContextVar("when the node began to make the answer")


class _Amounts:
    """What one topic has, delayed or staged, at one node process."""

    def __init__(self) -> None:
        self.on_way: dict[int, int] = {}
        """Stored lengths of what was let in and not answered yet, by the identity of its header."""
        self.recent: deque[tuple[float, int, int]] = deque()
        """Time, stored bytes, and those on their way, whenever somebody asked."""
        self.taken: deque[tuple[float, int]] = deque()


class Watch:
    """The ledgers of all node processes of a run."""

    def __init__(self, run: Run) -> None:
        self.world = run.world
        self.ledgers: dict[Process, Ledger] = {}
        self._held: dict[int, tuple[BatchHeader, Item]] = {}
        """Batches that wait for their topics, by the identity of their headers."""
        self._of_paces: dict[WritePace, list[Item]] = {}
        self._amounts: dict[tuple[Process, str, QuotaKind], _Amounts] = {}
        self._open: dict[tuple[Process, str], set[int]] = {}
        self.stops: dict[Process, list[tuple[float, float]]] = {}
        """When processes stood still, and until when."""

    @property
    def now_s(self) -> float:
        return self.world.now

    @property
    def ledger(self) -> Ledger:
        """That of the process that runs."""
        process = PROCESS.get()
        if process not in self.ledgers:
            self.ledgers[process] = Ledger(process.name, self.now_s)
        return self.ledgers[process]

    def excused(self, since_s: float, process: Process | None = None) -> bool:
        """Whether a process, that which runs, stood still for some time since then."""
        return any(
            until_s - max(from_s, since_s) > _STILL_S
            for from_s, until_s in self.stops.get(process or PROCESS.get(), ())
        )

    def note(self, does: Callable[[], object], what: str = "") -> None:
        """Does something that may show that a quota was not kept; counts it if it is true."""
        try:
            if does() and what:
                self.world.count(what)
        except Wrong as wrong:
            self.world.loop.errors.append(f"quota: {wrong}")

    # --- produce streams

    def message_comes(self, data: bytes | memoryview) -> Item | None:
        """A message of a produce stream was read; None for a ping, or for nothing of the kind."""
        try:
            batches = decode_produce(data)
            if isinstance(batches, Ping):
                return None
            messages = sum(decode_header(batch).count for batch in batches)
            producers = [decode_header(batch).producer_id for batch in batches]
        except SemelError:
            return None
        owner = calling_principal()
        self._hear_of(owner, producers)
        costs = {
            QuotaKind.REQUESTS: 1.0,
            QuotaKind.WRITE_BYTES: float(len(data)),
            QuotaKind.MESSAGES: float(messages),
        }
        return self.ledger.comes("a message", owner, costs, self.now_s)

    def passes(self, item: Item, what: str) -> None:
        excused = self.excused(item.came_s)
        self.note(lambda: self.ledger.passes(item, self.now_s, excused=excused), what)

    def held(self, pace: WritePace, header: BatchHeader, length: int) -> None:
        """A batch comes to the quotas of its topic."""
        name = pace._quotas.topic_of(header.queue_key)
        item = self._of_topic(name, header, length)
        self._held[id(header)] = header, item
        self._of_paces.setdefault(pace, []).append(item)

    def submitted(self, replica: Replica, header: BatchHeader, length: int) -> None:
        """A batch goes on its way into the log."""
        queue = replica.state.queues.get(header.queue_key)
        name = None if queue is None else queue.topic
        _, item = self._held.pop(id(header), (header, None))
        if item is None:
            item = self._of_topic(name, header, length)
        self.passes(item, "quota: a batch waited for its topic")
        kind = _kind_of(header)
        if kind is not None and name is not None:
            self._amounts_of(name, kind).on_way[id(header)] = header.stored_length

    def answered(self, header: BatchHeader) -> None:
        process = PROCESS.get()
        for (of, _, _), amounts in self._amounts.items():
            if of is process:
                amounts.on_way.pop(id(header), None)

    def ended(self, pace: WritePace) -> None:
        """A stream has ended: what it held never came."""
        for item in self._of_paces.pop(pace, ()):
            self.gives_up(item)

    def gives_up(self, item: Item) -> None:
        """Something does not pass, unless it has."""
        if not item.over:
            self.world.seen["quota: somebody gave up"] += 1
            self.ledger.gives_up(item, self.now_s)

    def _of_topic(self, name: str | None, header: BatchHeader, length: int) -> Item:
        costs = {
            QuotaKind.WRITE_BYTES: float(length),
            QuotaKind.MESSAGES: float(header.count),
        }
        if name is None:  # its queue has gone; it may wait behind others of its stream
            return Item("a batch of no topic", self.now_s, [], over=True)
        return self.ledger.comes("a batch", f"topic:{name}", costs, self.now_s)

    # --- what topics have

    def judged(self, pace: WritePace, header: BatchHeader, refusal: SemelError | None) -> None:
        """A batch was let in or refused by what its topic has, having waited for its rates."""
        if refusal is not None and id(header) in self._held:
            _, item = self._held.pop(id(header))
            self.passes(item, "quota: a batch waited for its topic")
        kind, quotas = _kind_of(header), pace._quotas
        name = quotas.topic_of(header.queue_key)
        limit = None if kind is None or name is None else self.ledger.limit(f"topic:{name}", kind)
        if kind is None or name is None or limit is None:
            if refusal is not None:
                self.note(lambda: _wrong(f"a batch was refused without a quota: {refusal}"))
            return
        now_s, amounts = self.now_s, self._amounts_of(name, kind)
        stored = _stored(quotas._replica, header.topic_id, kind)
        amounts.recent.append((now_s, stored, sum(amounts.on_way.values())))
        while amounts.recent[0][0] < now_s - _FULL_S:
            amounts.recent.popleft()
        length = header.stored_length
        if refusal is not None:
            most = max(had for at_s, had, _ in amounts.recent if now_s - at_s <= _FRESH_S)
            most += sum(size for at_s, size in amounts.taken if now_s - at_s <= _FRESH_S)
            self.world.count(f"quota: {kind.value} refused")
            if most + length <= limit:
                self.note(lambda: _wrong(f"{name} has room for {length} {kind.value}: {refusal}"))
        else:
            amounts.taken.append((now_s, length))
            waiting = max(on_way for _, _, on_way in amounts.recent)
            if stored + length > limit + waiting and not quotas._is_stored(header):
                self.note(lambda: _wrong(f"{name} has {stored} {kind.value} and gets {length}"))

    def _amounts_of(self, name: str, kind: QuotaKind) -> _Amounts:
        return self._amounts.setdefault((PROCESS.get(), name, kind), _Amounts())

    # --- producers

    def _hear_of(self, owner: str, producers: Iterable[int]) -> None:
        limit = self.ledger.limit(owner, QuotaKind.PRODUCERS)
        if limit is None:
            return
        known = self._open.setdefault((PROCESS.get(), owner), set())
        for number in producers:
            if len(known) < limit:
                known.add(number)

    def opened(self, owner: str, number: int, refusal: Throttled | None) -> None:
        """A producer was opened, or was one too many."""
        place = PROCESS.get(), owner
        limit = self.ledger.limit(owner, QuotaKind.PRODUCERS)
        if limit is None:
            self._open.pop(place, None)
            if refusal is not None:
                self.note(lambda: _wrong(f"producer {number} was refused without a quota"))
            return
        known = self._open.setdefault(place, set())
        room = number in known or len(known) < limit
        if refusal is not None:
            self.world.count("quota: a producer refused")
        if room is (refusal is not None):
            text = f"{owner or 'nobody'} has {len(known)} producers of {limit}, and {number} comes"
            self.note(lambda: _wrong(f"{text}: {refusal}"))
        if refusal is None:
            known.add(number)

    # --- reads and calls

    def fetched(self, out: Any, reply: bytes, read_s: float) -> None:
        """An answer to a fetch leaves, which the node began to read at `read_s`."""
        header, _ = decode_fetch_header(reply)
        replica: Replica = out.sim_replica
        sizes: dict[str, int] = {}
        for result in header.results:
            size = sum(batch.length for batch in result.batches)
            queue = replica.state.queues.get(queue_key_of(result.queue))
            if queue is not None and size:
                owner = f"topic:{queue.topic}"
                sizes[owner] = sizes.get(owner, 0) + size
        excused = self.excused(self.now_s - 2)
        if header.throttled_ms:
            self.world.count("quota: a reader waited")
            self.note(
                lambda: self.ledger.waited(
                    out.sim_owner, header.throttled_ms / 1000, self.now_s, excused=excused
                )
            )
        if sizes:
            sizes[out.sim_owner] = sum(sizes.values())
        for owner, size in sizes.items():
            self.note(
                partial(self.ledger.reads, owner, size, self.now_s, read_s=read_s, excused=excused)
            )

    def asked(self) -> None:
        """A fetch has come."""
        self.ledger.takes(calling_principal(), QuotaKind.REQUESTS, 1, self.now_s)


def _wrong(text: str) -> None:
    raise Wrong(text)


def _kind_of(header: BatchHeader) -> QuotaKind | None:
    if header.producer_id >= STAGER_ID_MIN:
        return QuotaKind.STAGED_BYTES
    return QuotaKind.DELAYED_BYTES if header.deliver_at_us else None


def _stored(replica: Replica, topic_id: int, kind: QuotaKind) -> int:
    """What a topic has, added up."""
    state = replica.state
    if kind is QuotaKind.DELAYED_BYTES:
        queues = state.delays.queues.items()
        return sum(queue.bytes for key, queue in queues if key.topic_id == topic_id)
    return sum(
        extent.length
        for stager in state.transactions.staging.stagers.values()
        for key, staged in stager.queues.items()
        if key.topic_id == topic_id
        for extent in staged.extents
    )


def _quotas_of(record: RightsRecord) -> Mapping[tuple[str, QuotaKind], int]:
    return {(each.subject, QuotaKind.of(each.kind)): each.limit for each in record.quotas}


@contextmanager
def watched(run: Run) -> Iterator[Watch]:
    """While the block runs, all that passes at any node is told to its ledger."""
    watch = Watch(run)
    with ExitStack() as stack:

        def exchange(target: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(target, name, value))

        for hooks in (_of_records, _of_produce, _of_batches, _of_reads, _of_calls):
            hooks(watch, exchange)
        yield watch


Exchange = Callable[[Any, str, Any], None]


def _of_records(watch: Watch, exchange: Exchange) -> None:
    take, on_open, made = Meters.take, OpenProducers.on_open, Meter.__init__

    def taken(self: Meters, record: RightsRecord) -> None:
        take(self, record)
        watch.ledger.hear(record.version, _quotas_of(record), watch.now_s)

    def opened(self: OpenProducers, principal: str, producer_id: int) -> None:
        try:
            on_open(self, principal, producer_id)
        except Throttled as refusal:
            watch.opened(principal, producer_id, refusal)
            raise
        watch.opened(principal, producer_id, None)

    def begun(self: Meter, limit: Limit, now_s: float) -> None:
        made(self, limit, now_s)
        watch.ledger.begins(limit.owner, limit.kind, watch.now_s)

    stop = SimLoop.stop_process

    def stopped(self: SimLoop, process: Process, until: float) -> None:
        watch.stops.setdefault(process, []).append((self.now, until))
        stop(self, process, until)

    exchange(SimLoop, "stop_process", stopped)
    exchange(Meters, "take", taken)
    exchange(Meter, "__init__", begun)
    exchange(OpenProducers, "on_open", opened)


def _of_produce(watch: Watch, exchange: Exchange) -> None:
    on_message = ProduceStream._on_message

    async def message(self: ProduceStream, data: bytes | memoryview) -> bool:
        item = watch.message_comes(data)
        if item is None:
            return await on_message(self, data)
        _MESSAGE.set(item)
        try:
            return await on_message(self, data)
        finally:
            watch.gives_up(item)

    def checked(batch: bytes) -> BatchHeader:
        watch.passes(_MESSAGE.get(), "quota: a message waited for its user")
        return check_batch(batch)

    exchange(ProduceStream, "_on_message", message)
    exchange(produce_module, "check_batch", checked)


def _of_batches(watch: Watch, exchange: Exchange) -> None:
    hold, refusal, close = WritePace.hold, WritePace.refusal, WritePace.close
    submit_batch, ack, refuse = Replica.submit_batch, _Arrival.ack, _Arrival.refuse

    def held(self: WritePace, header: BatchHeader, length: int, submit: Any) -> bool:
        watch.held(self, header, length)
        return hold(self, header, length, submit)

    def judged(self: WritePace, header: BatchHeader) -> Throttled | None:
        found = refusal(self, header)
        watch.judged(self, header, found)
        return found

    def closed(self: WritePace) -> None:
        watch.ended(self)
        close(self)

    def submitted(self: Replica, header: BatchHeader, data: bytes, sink: Any) -> None:
        watch.submitted(self, header, len(data))
        submit_batch(self, header, data, sink)

    def acked(self: _Arrival, header: BatchHeader, *arguments: Any) -> None:
        watch.answered(header)
        ack(self, header, *arguments)

    def refused(self: _Arrival, header: BatchHeader, error: SemelError) -> None:
        watch.answered(header)
        refuse(self, header, error)

    exchange(WritePace, "hold", held)
    exchange(WritePace, "refusal", judged)
    exchange(WritePace, "close", closed)
    exchange(Replica, "submit_batch", submitted)
    exchange(_Arrival, "ack", acked)
    exchange(_Arrival, "refuse", refused)


def _of_reads(watch: Watch, exchange: Exchange) -> None:
    fetch, poll, answer = FetchHandler._fetch, FetchHandler._poll, FetchHandler._answer
    made, write, write_now = _Outlet.__init__, _Outlet.write, _Outlet.write_now
    of_stream: ContextVar[FetchHandler] = ContextVar("handler of the stream")

    async def fetched(self: FetchHandler, context: Any, gate: Any) -> None:
        of_stream.set(self)
        await fetch(self, context, gate)

    def polled(self: FetchHandler, *arguments: Any) -> Any:
        found = poll(self, *arguments)
        watch.asked()
        return found

    def make(self: Any, context: Any) -> None:
        made(self, context)
        self.sim_owner = calling_principal()
        self.sim_replica = of_stream.get()._node

    async def answered(self: FetchHandler, *arguments: Any) -> bool:
        _ANSWER_S.set(watch.now_s)
        return await answer(self, *arguments)

    async def wrote(self: Any, reply: bytes) -> None:
        watch.fetched(self, reply, _ANSWER_S.get(watch.now_s))
        await write(self, reply)

    def wrote_now(self: Any, reply: bytes) -> bool:
        done = write_now(self, reply)
        if done:
            watch.fetched(self, reply, watch.now_s)
        return done

    exchange(FetchHandler, "_fetch", fetched)
    exchange(FetchHandler, "_poll", polled)
    exchange(FetchHandler, "_answer", answered)
    exchange(_Outlet, "__init__", make)
    exchange(_Outlet, "write", wrote)
    exchange(_Outlet, "write_now", wrote_now)


def _of_calls(watch: Watch, exchange: Exchange) -> None:
    single, replies = CallQuotas.single, CallQuotas.replies

    def is_counted(self: CallQuotas, method: str) -> bool:
        what = declared(method)
        name = method.rpartition("/")[2]
        known = self._inner is not None
        return name not in UNCOUNTED and not what.for_nodes_only and (known or not what.nodes)

    def served(context: Any) -> None:
        owner, limited = _caller()
        if limited:
            watch.note(lambda: watch.ledger.served(owner, watch.now_s))
        context.sim_reached = True

    def streamed(self: CallQuotas, method: str, behavior: Any) -> Any:
        if not is_counted(self, method):
            return replies(self, method, behavior)

        def reached(request: Any, context: Any) -> Any:
            served(context)
            return behavior(request, context)

        return replies(self, method, reached)

    def counted(self: CallQuotas, method: str, behavior: Any) -> Any:
        if not is_counted(self, method):
            return single(self, method, behavior)

        async def reached(request: Any, context: Any) -> Any:
            served(context)
            return await behavior(request, context)

        guarded = single(self, method, reached)

        async def called(request: Any, context: Any) -> Any:
            try:
                return await guarded(request, context)
            except Throttled:
                if not getattr(context, "sim_reached", False):
                    watch.world.count("quota: a call refused")
                    owner, _ = _caller()
                    watch.note(lambda: watch.ledger.refused(owner, watch.now_s))
                raise

        return called

    exchange(CallQuotas, "single", counted)
    exchange(CallQuotas, "replies", streamed)


def _caller() -> tuple[str, bool]:
    """The caller of the running call, and whether its calls are limited."""
    caller = CALLER.get()
    if caller is None:
        return "", True
    return caller.principal, not caller.node and not caller.administrator
