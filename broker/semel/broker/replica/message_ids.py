"""Message ids on the master: batches, retries and single ids are looked up in the node's indexes.

How it works. A batch is looked up in memory at once; if some of its ids may be on disk, a thread
reads, and the batch goes to the proposer when that is done. One thread does this for all batches,
so they stay in the order in which they came.

Not here: the indexes (`id_indexes.py`), what a known id means (`dedup/`), the window
(`state/admission/id_admission.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from semel.broker.dedup.dropped_answers import answer_of, arrivals_of
from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_index import MEMORY_IDS, IdIndex, Search
from semel.broker.dedup.id_store import CorruptIndex, IdStore
from semel.broker.dedup.looked_up import LookedUp, prints_in
from semel.broker.dedup.pinned_ids import (
    PinnedIds,
    PinnedRecord,
    may_grow_too_large,
)
from semel.broker.replica.ack_sink import AckSink
from semel.broker.replica.id_indexes import IdIndexes, IdNode, TopicIndex
from semel.broker.replica.proposer import Proposer
from semel.broker.state import BatchName, KnownIds, StagedExtent
from semel.protos.batch import BATCH_BYTES_MAX, BatchHeader
from semel.protos.errors import DedupStateExpired, MessageTooLarge, SemelError, Throttled
from semel.protos.ids import QueueKey
from semel.protos.staging import STAGER_ID_MIN

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SMALL_MESSAGES: Final = 65_536
_SMALL_BATCHES: Final = 8_192
_SMALL_BYTES: Final = 4 << 20
"""A transaction up to this size fits into the entry of its publication, should all of it have to
stand there again: with 40 bytes a message and 200 a batch for the decision."""
_RETRY_AFTER_MS: Final = 100
_IN_FLIGHT_MS: Final = 20


class IdPlace(NamedTuple):
    """Where a message with an id was when it arrived."""

    arrival: int
    queue_id: int
    offset: int
    """-1 if it was delayed."""
    due_us: int
    """0 if it was not."""
    entry: int
    """ENTRY_MASK of the number of the entry that holds it, if it was delayed."""


class MessageIds(IdIndexes):
    """All indexes of one node, and the look-ups in them."""

    def __init__(
        self,
        node: IdNode,
        open_store: Callable[[], IdStore],
        *,
        memory_ids: int = MEMORY_IDS,
        on_behind: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Takes what `IdIndexes` takes."""
        super().__init__(node, open_store, memory_ids=memory_ids, on_behind=on_behind)
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="ids")
        self._looking_up = 0
        """Batches that wait for the thread."""

    # --- look-ups ---------------------------------------------------------------------------

    def submit(self, header: BatchHeader, data: bytes, sink: AckSink) -> None:
        """Looks the ids of a batch up, and gives it to the proposer then."""
        proposer = self._node.proposer
        if proposer is None:
            sink.refuse(header, self._node.not_master())
            return
        topic = self._topics.get(header.topic_id)
        window = self._node.state.id_windows.topics.get(header.topic_id)
        if self.behind or (topic is not None and self.is_full(topic)):
            sink.refuse(header, _throttled("it cannot be written" if topic else "it is incomplete"))
            return
        if topic is not None and header.producer_id >= STAGER_ID_MIN:
            # They are looked up when they are published, and must be well-formed then.
            try:
                if may_grow_too_large(header, BATCH_BYTES_MAX):
                    raise _too_large_to_stage(header)
                prints_in(topic.fingerprints, header, data)
            except SemelError as error:
                sink.refuse(header, error)
                return
        if (
            not header.count
            or topic is None
            or window is None
            or header.producer_id >= STAGER_ID_MIN
            or proposer.is_stored(header)
        ):
            proposer.submit_batch(header, data, sink)
            self._node.schedule_turn()
            return
        try:
            looked_up = LookedUp.begin(
                topic.ids, topic.fingerprints, header, data, window.first_arrival
            )
        except SemelError as error:
            sink.refuse(header, error)
            return
        if not looked_up.needs_disk and not self._looking_up:
            proposer.submit_batch(header, data, sink, looked_up)
            self._node.schedule_turn()
            return
        self._looking_up += 1
        proposer.pending_bytes += len(data)
        reading = asyncio.get_running_loop().run_in_executor(self._readers, looked_up.finish)
        done = partial(self._on_looked_up, proposer, topic, header, data, sink)
        reading.add_done_callback(done)

    def _on_looked_up(
        self,
        asked: Proposer,
        topic: TopicIndex,
        header: BatchHeader,
        data: bytes,
        sink: AckSink,
        reading: asyncio.Future[LookedUp],
    ) -> None:
        self._looking_up -= 1
        if reading.cancelled():
            return
        error = reading.exception()
        proposer = self._node.proposer
        if proposer is not asked:
            # The ids that it has found may be cut off since, so it knows nothing of damage either.
            sink.refuse(header, self._node.not_master())
            return
        proposer.pending_bytes -= len(data)
        if error is not None:
            sink.refuse(header, self._unreadable(topic.ids, error))
            return
        proposer.submit_batch(header, data, sink, reading.result())
        self._node.schedule_turn()

    def pinned(
        self, pinned: Mapping[QueueKey, Sequence[StagedExtent]]
    ) -> dict[int, tuple[PinnedIds, KnownIds]]:
        """For each topic of pinned batches that compares ids, what looks them up in a thread, and
        the topic's window.

        Raises Throttled.
        """
        records: dict[int, list[PinnedRecord]] = {}
        messages = 0
        for key, extents in pinned.items():
            if self.compares(key.topic_id):
                found = records.setdefault(key.topic_id, [])
                found += [PinnedRecord(*extent[:3]) for extent in extents]
                messages += sum(extent.messages for extent in extents)
        every = [record for found in records.values() for record in found]
        small = (
            messages <= _SMALL_MESSAGES
            and len(every) <= _SMALL_BATCHES
            and sum(record.length for record in every) <= _SMALL_BYTES
        )
        made = {}
        for topic_id, found in records.items():
            topic = self._topics.get(topic_id)
            if topic is None or self.behind or self.is_full(topic):
                raise _throttled("it is incomplete, or cannot be written")
            window = self._node.state.id_windows.topics[topic_id]
            # Copied, because the look-up is in a thread. What has changed until the publication is
            # accepted counts then.
            known = KnownIds(
                window.first_arrival,
                [each[:] for each in window.gone],
                window.settings.keep_first,
            )
            made[topic_id] = PinnedIds(topic.ids, topic.fingerprints, found, small=small), known
        return made

    async def look(self, ids: IdIndex, executor: Executor, work: Callable[[], T]) -> T:
        """Runs a look-up in one index in a thread. Raises Throttled if the index is damaged or not
        readable, and what `work` raises."""
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work)
        except (OSError, CorruptIndex) as error:
            raise self._unreadable(ids, error) from error

    def _unreadable(self, ids: IdIndex, error: BaseException) -> Throttled:
        """The refusal of a look-up that has failed. If the index is damaged, and nobody has noticed
        that meanwhile, all indexes begin anew."""
        if isinstance(error, CorruptIndex) and not ids.is_abandoned:
            self.on_damage(error)
        logger.error("message ids not looked up topic=%d error=%s", ids.topic_id, error)
        return _throttled(f"it cannot be read: {error}")

    # --- retries ----------------------------------------------------------------------------

    def answer_again(self, header: BatchHeader, base_offset: int, sink: AckSink) -> None:
        """Gives the answer once more to a batch that is stored at `base_offset`, and of which
        messages were dropped."""
        topic = self._topics.get(header.topic_id)
        window = self._node.state.id_windows.topics.get(header.topic_id)
        name = BatchName(header.queue_id, header.producer_id, header.base_sequence)
        dropped = None if window is None else window.dropped.find(name)
        if window is None or dropped is None or arrivals_of(dropped).min() < window.first_arrival:
            sink.refuse(header, _answer_is_lost(header))
        elif topic is None or self.behind:
            sink.refuse(header, _throttled("it is incomplete"))
        else:
            reading = asyncio.get_running_loop().run_in_executor(
                self._readers, answer_of, topic.ids, dropped
            )
            reading.add_done_callback(
                partial(self._on_answer, topic, header, base_offset, sink),
            )

    def _on_answer(
        self,
        topic: TopicIndex,
        header: BatchHeader,
        base_offset: int,
        sink: AckSink,
        reading: asyncio.Future[bytes | None],
    ) -> None:
        if reading.cancelled():
            return
        error = reading.exception()
        if error is not None:
            sink.refuse(header, self._unreadable(topic.ids, error))
        elif (answer := reading.result()) is None:
            sink.refuse(header, _answer_is_lost(header))
        else:
            # The batch is applied, so the answer holds whoever is master by now.
            sink.ack(header, "duplicate", base_offset, 0, answer)

    # --- one id -----------------------------------------------------------------------------

    async def locate(self, topic_id: int, message_id: bytes) -> IdPlace | None:
        """Where the newest message with this id is that the window holds, cancelled or not; None
        if there is none, or if the topic compares no ids.

        Raises Throttled while it is in flight, and if the index cannot be read.
        """
        topic = self._topics.get(topic_id)
        window = self._node.state.id_windows.topics.get(topic_id)
        if window is None:
            return None
        if topic is None or self.behind:
            raise _throttled("it is incomplete")
        keys = topic.fingerprints.keys(pa.array([message_id], pa.binary()))
        search = topic.ids.search_memory(keys, window.first_arrival)
        work = partial(_places, topic.ids, search, keys, window.first_arrival)
        found = await self.look(topic.ids, self._readers, work)
        if found is not None and found.arrival >= window.next_arrival:
            raise Throttled("the message is being stored; ask again", retry_after_ms=_IN_FLIGHT_MS)
        return found

    def close(self) -> None:
        """Ends the threads; what they do is brought to its end. BLOCKING."""
        self._readers.shutdown(wait=True)
        super().close()


def _places(ids: IdIndex, search: Search, keys: U64, first_arrival: int) -> IdPlace | None:
    """BLOCKING. Ends a look-up of one id. Raises CorruptIndex and OSError."""
    hits = ids.search_disk(search, keys, first_arrival).hits
    if not len(hits.rows):
        return None
    places = ids.places_of(hits.arrivals)
    return IdPlace(int(hits.arrivals[0]), *(int(column[0]) for column in places))


def _too_large_to_stage(header: BatchHeader) -> MessageTooLarge:
    return MessageTooLarge(
        f"batch of {header.count:,} messages, {header.uncompressed_length:,} bytes before"
        " compression: if some of its message ids are known at the commit, the rest could be larger"
        " than a batch may be; send smaller batches",
        limit_bytes=BATCH_BYTES_MAX,
    )


def _throttled(why: str) -> Throttled:
    return Throttled(
        f"the index of message ids of this node does not serve, {why}; send again",
        retry_after_ms=_RETRY_AFTER_MS,
    )


def _answer_is_lost(header: BatchHeader) -> SemelError:
    """The refusal of a retry whose batch is stored without some of its messages."""
    return DedupStateExpired(
        f"batch {header.base_sequence} to {header.last_sequence} of producer {header.producer_id}"
        f" is stored in queue {header.queue_id} without the messages whose ids were known; which"
        " ones these were is not known any more"
    )
