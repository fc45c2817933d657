"""A stream's reader: where it begins, what the next trigger reads, which tasks read it.

How it works. One long-lived process of the driver holds one `SemelStreamReader` for each stream and
asks it for offsets; tasks get a copy and call `read`. `latestOffset` looks at the cluster, lets
`progress.py` determine the backlog, takes as much as the limits allow, and answers with an end that
carries its start. Topics that newly match a pattern and queues made by splits are included the next
time.

Traps of Spark, and how they are handled
1. Spark calls `initialOffset` twice on a first run, and again when the first trigger is repeated,
   and does not store the answer: `partitions` goes by the end alone.
2. Spark never calls `stop`, but sends SIGTERM to the process: a handler closes the connections.
3. `commit` lags behind by a trigger and is never called for the last one, so it does nothing. The
   call of `latestOffset(start)` shows that everything up to `start` is processed, also after the
   last trigger.
4. Spark can neither combine two kinds of limit nor delay a trigger: `latestOffset` applies all
   limits. Spark only says when they do not count (`Trigger.Once`).
5. Spark runs a trigger whenever the answer's text differs from `start`: an idle reader returns
   `start` itself. Spark may run a trigger without new data with `start` as its end: it has no
   partitions.

Not here: ranges and their order (`progress.py`), limits (`limits.py`), reading (`tasks.py`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from semel.client import Client
from semel.protos.errors import InvalidRequest, SemelError, UnknownTopic
from semel.spark_connector.connections import discard, discard_all, shared_client
from semel.spark_connector.limits import Pacer, rows_within, share
from semel.spark_connector.offsets import QueuePlace, QueueState, places, times_asked
from semel.spark_connector.options import ReadOptions
from semel.spark_connector.packing import pack, tasks_wanted
from semel.spark_connector.progress import Backlog, Progress, backlog
from semel.spark_connector.reader import cores, on_loss
from semel.spark_connector.tasks import RangesPartition, read_ranges
from semel.spark_connector.view import describe, describe_living, look_up

logger = logging.getLogger(__name__)


class SemelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams the topics of `options` with the columns of `schema`, which was checked before."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pacer = Pacer(options.trigger_rows_min, options.trigger_delay_ms_max)
        self._until: dict[tuple[int, int], int] | None = None
        """End offsets of an AvailableNow trigger, by topic id and queue."""
        self._published: dict[QueuePlace, int] | None = None
        """The positions that the lag group was last told; None before the first time."""
        self._seen: Sequence[QueueState] = ()

    # --- the driver -----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The beginning of a stream without a checkpoint. Raises SemelError."""
        options, topics = self._options, self._options.topics
        assert options.starting is not None
        with self._connected() as client:
            states = describe(client, topics)
            named = states
            if topics.queues is not None:
                states = describe_living(client, topics)
                if isinstance(options.starting.each, int):
                    named = states
            times = look_up(client, times_asked(options.starting, named))
            at = places(
                "starting", named, options.starting, times, options.late_start, on_loss(options)
            )
            for heir in states:  # split off an assigned queue, so the JSON cannot name it
                at.setdefault(heir.place, heir.log_start_offset)
        return Progress.beginning(states, at).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next trigger; `start` itself when no trigger is to be run now."""
        done = Progress.from_json(start)
        with self._connected() as client:
            self._seen = describe_living(client, self._options.topics)
            self._require_topics(done)
            left = backlog(done, self._seen, on_loss(self._options), self._until)
            self._publish(client, done)
        now_ms = time.monotonic() * 1e3
        if not isinstance(limit, ReadAllAvailable):
            waits = not left.moved and self._until is None
            if waits and not self._pacer.ready(left.rows, now_ms):
                return start
        end = left.take(self._rows(left, limit))
        if end is None:
            return start
        if end.ranges():
            self._pacer.on_trigger(now_ms)
        return end.to_json()

    def _rows(self, left: Backlog, limit: ReadLimit) -> Mapping[QueuePlace, int]:
        """Messages to take of each queue."""
        if isinstance(limit, ReadAllAvailable):
            return left.available
        rows_max = self._options.trigger_rows_max
        if self._options.trigger_bytes_max is not None:
            sizes = {place: state.row_bytes for place, state in left.states.items()}
            rows = rows_within(left.available, sizes, self._options.trigger_bytes_max)
            rows_max = rows if rows_max is None else min(rows, rows_max)
        return share(left.available, rows_max, left.turn)

    def _require_topics(self, done: Progress) -> None:
        """Raises UnknownTopic for a missing named topic, unless the stream may go on without it."""
        seen = {state.topic for state in self._seen}
        for name in self._options.topics.names:
            if name not in seen and name not in done.topics and self._options.fail_on_data_loss:
                raise UnknownTopic(f"there is no topic {name!r}")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns anything but ReadAllAvailable when the options limit triggers: see trap 4."""
        options = self._options
        if options.trigger_rows_max is not None:
            return ReadMaxRows(options.trigger_rows_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        if options.trigger_rows_min is not None:
            return ReadMinRows(options.trigger_rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Makes the stream end at the present ends of the queues."""
        with self._connected() as client:
            states = describe_living(client, self._options.topics)
        self._until = {(state.topic_id, state.queue): state.log_end_offset for state in states}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Ends of all queues as they were last seen, for the query's progress report."""
        found: dict[str, dict[str, int]] = {}
        for state in self._seen:
            found.setdefault(state.topic, {})[str(state.queue)] = state.log_end_offset
        return found or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of one trigger, planned from its end alone: see traps 1 and 5."""
        if start == end:
            return []
        ranges = Progress.from_json(end).ranges()
        tasks = tasks_wanted(
            sum(each.count for each in ranges),
            cores=cores(),
            tasks_min=self._options.partitions_min,
            records_max=self._options.records_per_partition_max,
        )
        return [RangesPartition(lot) for lot in pack(ranges, tasks)]

    def commit(self, end: dict[str, Any]) -> None:
        """A no-op: see trap 3."""

    def stop(self) -> None:
        """Closes all connections of this process."""
        discard_all()

    # --- tasks ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_ranges(partition, self._options, self._schema)

    # --- helpers --------------------------------------------------------------------------------

    def _connected(self) -> _Connected:
        return _Connected(self._options)

    def _publish(self, client: Client, done: Progress) -> None:
        """Publishes the processed offsets under the name of the lag group.

        Raises InvalidRequest when the name belongs to consumers at the start. Later failures are
        only logged, because a stream can go on without showing its lag.
        """
        if not self._options.lag_group:
            return
        told = self._published or {}
        news = {
            place: at
            for place, at in _publishable(done, self._seen).items()
            if told.get(place) != at
        }
        if not news:
            return
        try:
            left = client.admin.publish_progress(self._options.lag_group, news)
        except SemelError as error:
            if self._published is None and isinstance(error, InvalidRequest):
                raise
            logger.warning("lag is not shown group=%s: %s", self._options.lag_group, error.message)
            return
        if left:
            logger.warning(
                "lag is not shown group=%s: somebody holds %s", self._options.lag_group, left
            )
        self._published = {**told, **{at: news[at] for at in news if at not in left}}


def _publishable(done: Progress, states: Sequence[QueueState]) -> dict[QueuePlace, int]:
    """The positions in the queues that still exist.

    Queues that wait for their parent are left out: the brokers grant nobody a lock on them.
    """
    ends = {state.place: state.log_end_offset for state in states}
    found = {}
    for state in states:
        topic = done.topics.get(state.topic)
        if topic is None or topic.topic_id != state.topic_id or state.queue not in topic.ends:
            continue
        parent = state.parent
        if parent is not None and topic.ends.get(parent, 0) < ends.get((state.topic, parent), 0):
            continue
        found[state.place] = topic.ends[state.queue]
    return found


class _Connected:
    """A connected client; a failure during its use closes it, so that the next try reconnects."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def __enter__(self) -> Client:
        _close_on_sigterm()
        return shared_client(self._options.client, self._options.timeout_ms)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            discard(self._options.client)


def _close_on_sigterm() -> None:
    """Makes SIGTERM close the connections before it ends this process: see trap 2."""
    if threading.current_thread() is not threading.main_thread():
        return  # only in a test: Spark's runner has just the main thread
    if signal.getsignal(signal.SIGTERM) is not _on_sigterm:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        discard_all()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
