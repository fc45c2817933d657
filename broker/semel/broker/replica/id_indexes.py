"""The indexes of message ids of one node: they follow the log, and are kept on disk.

How it works. Each topic that compares ids has an index. On a slave its ids come from applied
batches. On the master they come from accepted ones, and are cut off again if mastership is lost
before they are applied.

A thread writes, merges and drops runs. A checkpoint waits until the index has on disk what its
state counts as arrived (`settle`), so a node that starts finds in its index all ids that the replay
of the log does not bring.

Ids that an index has lost, by damage, a deleted directory or a snapshot, are `gaps`. The index goes
on behind them, and a peer's runs fill them (`snapshots/id_pull.py`). If no member of the group has
them any more they are *forgotten*: the next master has the window begin behind them. If another
node has become master that is not sure any more, and what is still missing is pulled again. Nor do
ids count as missing that the window of a peer has left behind, even if this node has not applied
that yet: it might need to become master first.

Invariants
1. While a node serves as master, each index holds exactly the ids of accepted and applied batches.
2. `behind` is set while an index lacks ids that the state counts as arrived. Such a node must not
   become master, and a master steps down (`on_behind`).
3. While a node that starts goes through states whose window is known to end, nothing is missing in
   its index: that entry is committed, so every master has applied it.

Not here: look-ups (`message_ids.py`), which ids arrive (`state/admission/id_admission.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from semel.broker.dedup.fingerprints import Fingerprints
from semel.broker.dedup.id_index import MEMORY_IDS, RUNS_PER_LEVEL, IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_runs import IdRun
from semel.broker.dedup.id_store import CorruptIndex, IdStore
from semel.broker.dedup.looked_up import prints_in
from semel.broker.dedup.moved_ids import unpack
from semel.broker.dedup.pinned_ids import ReadRecord
from semel.broker.dedup.published_ids import ArrivedIds, publications_in, read_arrived
from semel.broker.replica.proposer import Proposer
from semel.broker.state import (
    ApplyResult,
    BatchApplied,
    IdsChecked,
    IdWindow,
    MoveApplied,
    Published,
    State,
)
from semel.protos.batch import BROKER_HEADER_BYTES, decode_header
from semel.protos.errors import SemelError, Unavailable
from semel.protos.frames import decode_frame_header, iter_records
from semel.protos.v1.control_pb2 import ControlRecord, MoveQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S: Final = 0.1
"""Time between two looks at whether runs are to be written or merged."""
_MEMORIES_MAX: Final = 4
"""A master admits no more ids once this many times the ids that are to be in memory are there,
because the disk does not take them."""


class TopicIndex(NamedTuple):
    """An index, and what is needed to look ids up in it."""

    ids: IdIndex
    fingerprints: Fingerprints
    seed: bytes


class Loan(NamedTuple):
    """Part of an index that a peer may read."""

    ids: IdIndex
    run: IdRun
    held: range
    """The arrivals of the run that are in the window."""


class Lacking(NamedTuple):
    """Ids that are missing in an index that a peer has asked."""

    end_arrival: int
    """It may have those that arrived from here on; 0: it has had none from the first one on."""


class LeftBehind(NamedTuple):
    """The answer of a peer whose window has left an arrival behind."""

    first_arrival: int
    """The beginning of its window: committed entries say that ids before it are forgotten."""


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


class IdIndexes:
    """All indexes of one node; `MessageIds` looks ids up in them."""

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
        self._topics: dict[int, TopicIndex] = {}
        self._followed = 0
        """The version of the windows when `follow` was called last."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ids-writer")
        self._maintaining = asyncio.Lock()
        self._damaged = False
        """The store is to be wiped."""
        self._unwritten: set[int] = set()
        """Topics whose ids the disk does not take."""
        self._ended: dict[int, int] = {}
        """By topic: the entry that ended its window since this process began, until there is an
        index of the next one."""
        self._fetched: tuple[int, dict[int, ArrivedIds]] = 0, {}
        """The entry whose published ids were read, and these by topic."""
        self.forgotten: dict[int, int] = {}
        """By topic: ids that arrived before are lost on all members of the group."""
        self.behind = False
        self._goes_through = False
        """Whether the window of some index is known to end behind the state."""

    def compares(self, topic_id: int) -> bool:
        """Whether the topic compares ids."""
        return topic_id in self._node.state.id_windows.topics

    # --- following the state ----------------------------------------------------------------

    def follow(self, *, installed: bool = False) -> None:
        """Opens and drops indexes so that there is one for each window of the state, which a
        snapshot may have brought. BLOCKING for as long as the store needs to open."""
        windows, applied = self._node.state.id_windows.topics, self._node.state.applied_index
        for topic_id, topic in list(self._topics.items()):
            if topic_id not in windows or topic.seed != windows[topic_id].settings.seed:
                del self._topics[topic_id]
                self.forgotten.pop(topic_id, None)
                topic.ids.abandon()
                self._ended[topic_id] = max(topic.ids.ended_by, applied)
                self._writer.submit(topic.ids.drop, applied)
        self._followed = self._node.state.id_windows.version
        self.forgotten = {each: at for each, at in self.forgotten.items() if each in windows}
        for topic_id, window in windows.items():
            opened = self._topics.get(topic_id)
            if opened is None and not self._damaged:
                self._open(topic_id, window)
            elif opened is not None and installed:
                _skip_to(opened.ids, window)
        self.check()

    def _open(self, topic_id: int, window: IdWindow) -> None:
        """Opens an index, or has it tried again later."""
        seed = window.settings.seed
        try:
            if self._store is None:
                self._store = self._open_store()
            ids = IdIndex(
                self._store,
                topic_id,
                seed,
                memory_ids=self._memory_ids,
                ended_by=self._ended.get(topic_id),
            )
        except CorruptIndex as error:
            self.on_damage(error)
        except OSError as error:
            logger.error("index of message ids not opened topic=%d error=%s", topic_id, error)
        else:
            self._ended.pop(topic_id, None)
            _skip_to(ids, window)
            self._topics[topic_id] = TopicIndex(ids, Fingerprints(seed), seed)

    def on_damage(self, error: CorruptIndex) -> None:
        """Gives up all indexes, because the store of all is damaged; `run` begins new ones."""
        logger.error("index of message ids is damaged, and begins anew error=%s", error)
        self._damaged = True
        for topic in self._topics.values():
            topic.ids.abandon()
        self._topics.clear()
        self.check()

    def gaps(self) -> dict[int, range]:
        """The oldest ids that are missing, by topic."""
        found, applied = {}, self._node.state.applied_index
        for topic_id, window in self._node.state.id_windows.topics.items():
            topic = self._topics.get(topic_id)
            if topic is not None and topic.ids.ended_by <= applied:
                first = max(window.first_arrival, self.forgotten.get(topic_id, 0))
                missing = topic.ids.missing(first)
                if missing:
                    found[topic_id] = missing[0]
        return found

    def check(self) -> None:
        """Notices whether ids are missing."""
        windows, applied = self._node.state.id_windows.topics, self._node.state.applied_index
        self._goes_through = any(each.ids.ended_by > applied for each in self._topics.values())
        behind = self._damaged or windows.keys() != self._topics.keys() or bool(self.gaps())
        if behind != self.behind:
            self.behind = behind
            logger.log(
                logging.ERROR if behind else logging.INFO,
                "index of message ids changed whole=%s",
                not behind,
            )
            self._on_behind(behind)

    def forget(self, topic_id: int, arrival: int) -> None:
        """Gives up ids that arrived before `arrival`, because no member of the group has them."""
        logger.error(
            "message ids are lost on all nodes, ids that arrived before are new messages topic=%d"
            " arrival=%d",
            topic_id,
            arrival,
        )
        self.forgotten[topic_id] = arrival
        self.check()

    def leave_behind(self, topic_id: int, arrival: int) -> None:
        """Ceases to miss ids that arrived before `arrival`: the window of a peer that has applied
        more begins there, and so will the one of this node."""
        self.forgotten[topic_id] = max(arrival, self.forgotten.get(topic_id, 0))
        self.check()

    def recall(self) -> None:
        """Takes back what `forget` gave up, because another node serves as master: it has the
        window begin behind these ids, or has them, because it had not applied them when it was
        asked."""
        if self.forgotten:
            self.forgotten.clear()
            self.check()

    def on_applied(self, frame: bytes, results: Sequence[ApplyResult]) -> None:
        """Adds the ids of an applied entry, unless they are there already."""
        if self._node.state.id_windows.version != self._followed:
            self.follow()
        if self._topics:
            arrived = [at for at, result in enumerate(results) if _has_ids(result)]
            if arrived:
                entry = decode_frame_header(frame).index
                records = [payload for _, _, payload in iter_records(frame)]
                for at in arrived:
                    result = results[at]
                    if isinstance(result, Published):
                        self._add_published(entry, result)
                    elif isinstance(result, MoveApplied):
                        record = ControlRecord.FromString(bytes(records[at]))
                        self.add_moved(record.move_queue)
                    else:
                        self._add(entry, result, results[at + 1], records[at + 1])
        if self.behind or self._goes_through:
            self.check()

    def _add(
        self, entry: int, checked: ApplyResult, batch: ApplyResult, record: memoryview
    ) -> None:
        assert isinstance(checked, IdsChecked)
        assert isinstance(batch, BatchApplied)
        topic = self._topics.get(checked.topic_id)
        if topic is None or checked.first_arrival + checked.ids <= topic.ids.end_arrival:
            return
        data = record[BROKER_HEADER_BYTES:]
        header = decode_header(data)
        prints = prints_in(topic.fingerprints, header, data)
        if len(prints.rows) != checked.ids:
            raise CorruptIndex(
                f"batch of topic {checked.topic_id} has {len(prints.rows)} ids, not {checked.ids}"
            )
        due_us = header.deliver_at_us if batch.base_offset < 0 else 0
        places = Places.of(
            checked.first_arrival, header.queue_id, batch.base_offset, prints.rows, due_us, entry
        )
        topic.ids.add(prints.keys, prints.digests, places, checked.first_arrival)

    # --- publications -----------------------------------------------------------------------

    def to_fetch(self, frame: bytes) -> Callable[[ReadRecord], dict[int, ArrivedIds]] | None:
        """What has to be done in a thread before an entry is applied: the ids of a publication are
        read from the log. None if nothing has to be.

        Until the entry is applied, its batches are pinned: they cannot be cleaned away.
        """
        windows = self._node.state.id_windows.topics
        if not windows or not self._node.state.transactions.staging.pins:
            return None
        entry = decode_frame_header(frame).index
        if self._fetched[0] == entry:
            return None
        lacking = {}
        for publish in publications_in(frame):
            for arrived in publish.ids:
                ids, window = sum(arrived.ids), windows.get(arrived.topic_id)
                topic = self._topics.get(arrived.topic_id)
                if window is None or not ids:
                    continue
                if topic is None:  # it may be open again by then
                    lacking[arrived.topic_id] = Fingerprints(window.settings.seed)
                elif arrived.first_arrival + ids > topic.ids.end_arrival:
                    lacking[arrived.topic_id] = topic.fingerprints
        if not lacking:
            return None

        def fetch(read: ReadRecord) -> dict[int, ArrivedIds]:
            return read_arrived(frame, lacking, read)

        return fetch

    def on_fetched(self, frame: bytes, found: dict[int, ArrivedIds]) -> None:
        """What `to_fetch` asked for is done; `frame` is applied next."""
        self._fetched = decode_frame_header(frame).index, found

    def give_up_fetching(self, frame: bytes, error: Exception) -> None:
        """The batches of a publication are not readable here: its ids will be missing, and come
        from a peer's index."""
        entry = decode_frame_header(frame).index
        logger.error("published message ids not read entry=%d error=%s", entry, error)
        self._fetched = entry, {}

    def _add_published(self, entry: int, published: Published) -> None:
        fetched = self._fetched[1] if self._fetched[0] == entry else {}
        for topic_id, first_arrival, ids in published.arrived:
            topic = self._topics.get(topic_id)
            if topic is None or first_arrival + ids <= topic.ids.end_arrival:
                continue
            found = fetched.get(topic_id)
            if found is None:
                topic.ids.skip_to(first_arrival + ids)
                self.check()
                continue
            topic.ids.add(found.keys, found.digests, found.places, first_arrival)
        self._fetched = 0, {}

    def add_moved(self, record: MoveQueue) -> None:
        """Adds the ids of a queue that moves here, of an entry that was applied or accepted."""
        topic = self._topics.get(record.queue.topic_id)
        if topic is not None:
            keys, digests, places = unpack(record.ids, record.first_arrival)
            topic.ids.add(keys, digests, places, record.first_arrival)

    def on_lost(self) -> None:
        """Mastership is lost: ids of accepted batches count only if their entries are applied."""
        windows = self._node.state.id_windows.topics
        for topic_id, topic in self._topics.items():
            if topic_id in windows:
                topic.ids.cut_back(windows[topic_id].next_arrival)

    # --- the disk ---------------------------------------------------------------------------

    def is_full(self, topic: TopicIndex) -> bool:
        """Whether the disk does not take the ids of a topic."""
        return topic.ids.memory_ids > _MEMORIES_MAX * self._memory_ids

    async def run(self) -> None:
        """Writes, merges and drops runs, has windows shortened, and opens what could not be opened;
        ends only by cancellation."""
        loop = asyncio.get_running_loop()
        busy, shorten_s = False, 0.0
        while True:
            await asyncio.sleep(0 if busy else LOOK_S)
            try:
                if self._damaged and self._store is not None:
                    await loop.run_in_executor(self._writer, self._store.wipe)
                    self._damaged = False
                if self.behind:
                    self.follow()
            except OSError as error:
                logger.error("damaged index of message ids not removed error=%s", error)
            if loop.time() >= shorten_s:
                shorten_s = loop.time() + LOOK_S
                self._shorten()
            busy = False
            for topic_id in list(self._topics):
                try:
                    busy |= await self._maintain(topic_id)
                    self._unwritten.discard(topic_id)
                except OSError as error:
                    if topic_id not in self._unwritten:
                        logger.error("message ids not written topic=%d error=%s", topic_id, error)
                    self._unwritten.add(topic_id)

    def _shorten(self) -> None:
        """Has windows shortened that are too long."""
        proposer = self._node.proposer
        if proposer is not None and self._topics:
            for topic_id in self._topics:
                proposer.submit_eviction(topic_id)
            self._node.schedule_turn()

    async def _maintain(self, topic_id: int, *, freeze: bool = False) -> bool:
        """Takes one step, so that others are not kept waiting by a merge; False if there was
        nothing to do. Raises OSError."""
        async with self._maintaining:
            topic = self._topics.get(topic_id)
            window = self._node.state.id_windows.topics.get(topic_id)
            if topic is None or window is None:
                return False
            if freeze or topic.ids.is_full:
                topic.ids.freeze(window.next_arrival)
            window_ids = 0
            if topic.ids.run_count >= RUNS_PER_LEVEL:  # else there is nothing to merge
                window_ids = window.ids_max(self._node.state.live_slots(topic_id))
            work = partial(topic.ids.maintain, window.first_arrival, window_ids)
            try:
                return await self.write(work)
            except CorruptIndex as error:
                if topic is self._topics.get(topic_id):
                    self.on_damage(error)
                return False

    async def write(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread that writes; others wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def settle(self, arrivals: dict[int, int]) -> None:
        """Returns once all ids below these arrivals, by topic, are durable, but for those that are
        missing: the node notices that again when it starts. Raises OSError."""
        for topic_id, arrival in arrivals.items():
            while (topic := self._topics.get(topic_id)) and topic.ids.durable_arrival < arrival:
                await self._maintain(topic_id, freeze=True)

    # --- gaps -------------------------------------------------------------------------------

    def index_of(self, topic_id: int) -> IdIndex | None:
        """The index of a topic; None if there is none, or none yet."""
        topic = self._topics.get(topic_id)
        return None if topic is None else topic.ids

    async def lend(
        self, topic_id: int, seed: bytes, arrival: int, *, late: bool = False
    ) -> Loan | Lacking | LeftBehind:
        """The run that holds an arrival, for a peer that lacks it, unless it is missing here, too
        (lost, or not yet applied), or the window has left it behind.

        `late`: the peer has applied more, so its window may have begun since. Raises Unavailable
        and OSError.
        """
        window = self._node.state.id_windows.topics.get(topic_id)
        topic = self._topics.get(topic_id)
        if late and (window is None or window.settings.seed != seed):
            return Lacking(0)
        if window is None or window.settings.seed != seed or topic is None:
            raise Unavailable(f"there is no such index of message ids of topic {topic_id} here")
        if arrival >= window.next_arrival:
            return Lacking(0)
        if arrival < window.first_arrival:
            return LeftBehind(window.first_arrival)
        for gap in topic.ids.missing(window.first_arrival):
            if arrival in gap:
                return Lacking(gap.stop)
        await self.settle({topic_id: arrival + 1})
        run = topic.ids.run_with(arrival)
        if run is None:
            raise Unavailable(f"the ids of topic {topic_id} around {arrival} are gone; ask again")
        first = max(window.first_arrival, run.info.first_arrival)
        return Loan(topic.ids, run, range(first, run.info.end_arrival))

    def close(self) -> None:
        """Ends the thread; what it does is brought to its end. BLOCKING."""
        self._writer.shutdown(wait=True)
        if self._store is not None:
            self._store.close()


def _has_ids(result: ApplyResult) -> bool:
    """Whether ids have arrived with a record, or with the batch behind it."""
    if isinstance(result, Published):
        return bool(result.arrived)
    return isinstance(result, IdsChecked | MoveApplied) and result.ids > 0


def _skip_to(ids: IdIndex, window: IdWindow) -> None:
    """What arrives next is added, whatever is missing before."""
    if ids.end_arrival < window.next_arrival:
        ids.skip_to(window.next_arrival)
