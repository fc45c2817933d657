"""The indexes of message ids of one node: batches are looked up in them, and they follow the log.

How it works. Each topic that compares ids has an index. On a slave its ids come from applied
batches. On the master they come from accepted ones, and are cut off again if mastership is lost
before they are applied. A batch is looked up in memory at once; if some of its ids may be on disk,
a thread reads, and the batch goes to the proposer when that is done. One thread does this for all
batches, so they stay in the order in which they came.

A second thread writes, merges and drops runs. A checkpoint waits until the index has on disk what
its state counts as arrived (`settle`), so a node that starts finds in its index all ids that the
replay of the log does not bring.

Invariants
1. While a node serves as master, each index holds exactly the ids of accepted and applied batches.
2. `behind` is set while an index lacks ids that the state counts as arrived; such a node must not
   become master (`on_behind`).

Not here: what a known id means (`dedup/`), which ids arrive (`state/admission/id_admission.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, Protocol

from semel.broker.dedup.fingerprints import Fingerprints
from semel.broker.dedup.id_index import MEMORY_IDS, IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import CorruptIndex, IdStore
from semel.broker.dedup.looked_up import LookedUp, prints_of
from semel.broker.replica.proposer import AckSink, Proposer
from semel.broker.state import ApplyResult, BatchApplied, IdsChecked, State
from semel.protos.batch import BROKER_HEADER_BYTES, BatchHeader, check_batch
from semel.protos.columns import decode_columns
from semel.protos.errors import SemelError, Throttled
from semel.protos.frames import iter_records

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1
"""Time between two looks at whether runs are to be written or merged."""
_RETRY_AFTER_MS: Final = 100


class _Topic(NamedTuple):
    ids: IdIndex
    fingerprints: Fingerprints


class IdNode(Protocol):
    """The replica, as this module needs it."""

    @property
    def state(self) -> State: ...

    @property
    def proposer(self) -> Proposer | None:
        """None unless this node serves as master."""
        ...

    def not_master(self) -> SemelError:
        """The error for requests when it does not."""
        ...

    def schedule_turn(self) -> None:
        """Makes an entry of what waits soon."""
        ...


class MessageIds:
    """All indexes of one node."""

    def __init__(
        self,
        node: IdNode,
        open_store: Callable[[], IdStore],
        *,
        memory_ids: int = MEMORY_IDS,
        on_behind: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`open_store` is called when the first topic compares ids. `on_behind` is told whether
        ids are missing."""
        self._node = node
        self._open_store = open_store
        self._memory_ids = memory_ids
        self._on_behind = on_behind
        self._store: IdStore | None = None
        self._topics: dict[int, _Topic] = {}
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="ids")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ids-writer")
        self._maintaining = asyncio.Lock()
        self._looking_up = 0
        """Batches that wait for the thread."""
        self.behind = False

    def compares(self, topic_id: int) -> bool:
        """Whether the topic compares ids."""
        return topic_id in self._node.state.id_windows.topics

    # --- following the state ----------------------------------------------------------------

    def follow(self) -> None:
        """Opens and drops indexes so that there is one for each window of the state. BLOCKING for
        as long as the store needs to open.

        An index that lacks ids makes the node `behind`.
        """
        windows = self._node.state.id_windows.topics
        for topic_id in [each for each in self._topics if each not in windows]:
            self._topics.pop(topic_id).ids.destroy()
        for topic_id, window in windows.items():
            if topic_id not in self._topics:
                if self._store is None:
                    self._store = self._open_store()
                seed = window.settings.seed
                ids = IdIndex(self._store, topic_id, seed, memory_ids=self._memory_ids)
                self._topics[topic_id] = _Topic(ids, Fingerprints(seed))
        self._check()

    def _check(self) -> None:
        windows = self._node.state.id_windows.topics
        lacking = [
            topic_id
            for topic_id, topic in self._topics.items()
            if topic.ids.end_arrival < windows[topic_id].next_arrival
        ]
        if bool(lacking) != self.behind:
            self.behind = bool(lacking)
            if lacking:
                logger.error("index of message ids lacks ids topics=%s", lacking)
            self._on_behind(self.behind)

    def on_applied(self, frame: bytes, results: Sequence[ApplyResult]) -> None:
        """Adds the ids of an applied entry, unless they are there already."""
        windows = self._node.state.id_windows.topics
        if len(windows) != len(self._topics) or windows.keys() != self._topics.keys():
            self.follow()
        if not self._topics or self.behind:
            return
        checked = [at for at, result in enumerate(results) if isinstance(result, IdsChecked)]
        if checked:
            records = [payload for _, _, payload in iter_records(frame)]
            for at in checked:
                self._add(results[at], results[at + 1], records[at + 1])

    def _add(self, checked: ApplyResult, batch: ApplyResult, record: memoryview) -> None:
        assert isinstance(checked, IdsChecked)
        assert isinstance(batch, BatchApplied)
        topic = self._topics.get(checked.topic_id)
        if topic is None or checked.first_arrival + checked.ids <= topic.ids.end_arrival:
            return
        data = bytes(record[BROKER_HEADER_BYTES:])
        header = check_batch(data)
        prints = prints_of(topic.fingerprints, decode_columns(data, header))
        if len(prints.rows) != checked.ids:
            raise CorruptIndex(
                f"batch of topic {checked.topic_id} has {len(prints.rows)} ids, not {checked.ids}"
            )
        due_us = header.deliver_at_us if batch.base_offset < 0 else 0
        places = Places.of(
            checked.first_arrival, header.queue_id, batch.base_offset, prints.rows, due_us
        )
        topic.ids.add(prints.keys, prints.digests, places, checked.first_arrival)

    def on_lost(self) -> None:
        """Mastership is lost: ids of accepted batches count only if their entries are applied."""
        windows = self._node.state.id_windows.topics
        for topic_id, topic in self._topics.items():
            if topic_id in windows:
                topic.ids.cut_back(windows[topic_id].next_arrival)

    # --- look-ups ---------------------------------------------------------------------------

    def submit(self, header: BatchHeader, data: bytes, sink: AckSink) -> None:
        """Looks the ids of a batch up, and gives it to the proposer then."""
        proposer = self._node.proposer
        if proposer is None:
            sink.refuse(header, self._node.not_master())
            return
        topic = self._topics.get(header.topic_id)
        window = self._node.state.id_windows.topics.get(header.topic_id)
        if not header.count or topic is None or window is None or proposer.is_stored(header):
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
        done = partial(self._on_looked_up, proposer, header, data, sink)
        reading.add_done_callback(done)

    def _on_looked_up(
        self,
        asked: Proposer,
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
            sink.refuse(header, self._node.not_master())
            return
        proposer.pending_bytes -= len(data)
        if error is not None:
            logger.error("message ids not looked up error=%s", error)
            sink.refuse(header, _unreadable(error))
            return
        proposer.submit_batch(header, data, sink, reading.result())
        self._node.schedule_turn()

    # --- the disk ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes, merges and drops runs, and has windows shortened; ends only by cancellation."""
        while True:
            await asyncio.sleep(LOOK_S)
            for topic_id in list(self._topics):
                try:
                    await self._maintain(topic_id)
                except (OSError, CorruptIndex) as error:
                    logger.error("index of message ids not written topic=%d %s", topic_id, error)
                proposer = self._node.proposer
                if proposer is not None:
                    proposer.submit_eviction(topic_id)
                    self._node.schedule_turn()

    async def _maintain(self, topic_id: int, *, freeze: bool = False) -> None:
        async with self._maintaining:
            topic = self._topics.get(topic_id)
            window = self._node.state.id_windows.topics.get(topic_id)
            if topic is None or window is None:
                return
            if freeze or topic.ids.is_full:
                topic.ids.freeze(window.next_arrival)
            work = partial(topic.ids.maintain, window.first_arrival)
            loop = asyncio.get_running_loop()
            while await loop.run_in_executor(self._writer, work):
                pass

    async def settle(self, arrivals: dict[int, int]) -> None:
        """Returns once all ids below these arrivals, by topic, are durable; at once if the node is
        `behind`, because it will notice that again when it starts.

        Raises CorruptIndex and OSError.
        """
        if self.behind:
            return
        for topic_id, arrival in arrivals.items():
            while (topic := self._topics.get(topic_id)) and topic.ids.durable_arrival < arrival:
                await self._maintain(topic_id, freeze=True)

    def close(self) -> None:
        """Ends the threads; what they do is brought to its end. BLOCKING."""
        self._readers.shutdown(wait=True)
        self._writer.shutdown(wait=True)
        if self._store is not None:
            self._store.close()


def _unreadable(error: BaseException) -> SemelError:
    return Throttled(
        f"the index of message ids cannot be read: {error}; send again",
        retry_after_ms=_RETRY_AFTER_MS,
    )
