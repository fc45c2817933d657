"""Writes rows exactly once: tasks stage, and the driver commits what the winning tasks staged.

How it works. Every attempt at a task stages its rows under (transaction id, epoch, partition) with
a stager of its own and answers with a receipt. Spark gives the driver the receipts of one attempt
at each partition, and only once all are there; the driver commits these, all or nothing, and
the rows of other attempts never become visible.

| write | transaction id | epoch | belongs to |
|---|---|---|---|
| stream | the query's id, or the option | the number of its micro-batch | the query's id |
| batch | a fresh one, or the option | 0, or the option | `spark-batch` |

A micro-batch that Spark repeats because it did not store our commit has the same epoch: its commit
succeeds, and the rows staged for the repetition are given up, whatever rows or partitions it has.

Invariants
1. No row of the batch is visible before `commit`, and all are after it.
2. A transaction id belongs to one query: a checkpoint that was begun anew is refused at its first
   commit. Otherwise its batches, counted from 0 again, would be taken for repeated ones and lost.
3. `abort` gives up what is not committed, and never what is.

A stream's writer is made anew for every micro-batch, in a process that is used once, and again for
its commit. So it makes no request to the cluster; a batch's writer checks that the topic exists.

Not here: transactions (`semel.client`), rows (`sink_rows.py`), options (`sink_options.py`).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from semel.client import StageReceipt
from semel.protos.errors import InvalidRequest, SemelError, TimedOut, Unavailable
from semel.spark_connector.connections import discard, shared_client
from semel.spark_connector.sink_options import WriteOptions
from semel.spark_connector.sink_rows import check_write_schema, lots

logger = logging.getLogger(__name__)

BATCH_OWNER: Final = "spark-batch"
COMMIT_RETRY_S: Final = 0.2


@dataclass(frozen=True)
class TaskReceipt(WriterCommitMessage):
    """The receipt of one attempt at a task, for the driver."""

    receipt: StageReceipt
    query_id: str
    """Owner of the transaction: Spark does not tell the driver's side of a stream."""


class SemelWriter(DataSourceArrowWriter):
    """Appends a batch. Made once for each write, and pickled for its tasks and its commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises InvalidRequest, UnknownTopic, Unavailable."""
        check_write(options, schema, overwrite=overwrite)
        self._options = options
        self._transaction_id = options.transaction_id or f"{BATCH_OWNER}-{uuid.uuid4()}"
        self._epoch = options.transaction_epoch or 0
        if options.topic:
            client = shared_client(options.client, options.timeout_ms)
            try:
                client.admin.describe_topics([options.topic])
            finally:
                discard(options.client)  # this process is not used again

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReceipt:
        """Stages the rows of one task. Raises SemelError."""
        receipt = stage_rows(iterator, self._options, self._transaction_id, self._epoch)
        return TaskReceipt(receipt, BATCH_OWNER)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes all rows visible.

        Raises TransactionAborted and TransactionConflict when nothing is stored, and Unavailable or
        TimedOut when the outcome is unknown.
        """
        commit_receipts(messages, self._options, self._epoch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Gives up the staged rows."""
        drop_receipts(messages, self._options)


class SemelStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches. Made anew for each, and again for its commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises InvalidRequest."""
        check_write(options, schema, overwrite=overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReceipt:
        """Stages the rows of one task. Raises SemelError."""
        context = TaskContext.get()
        assert context is not None, "write runs in a task"
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if not query_id or batch_id is None:
            raise InvalidRequest("this task belongs to no streaming query")
        transaction_id = self._options.transaction_id or query_id
        receipt = stage_rows(iterator, self._options, transaction_id, int(batch_id))
        return TaskReceipt(receipt, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Like `SemelWriter.commit`; a micro-batch that was committed before is a success."""
        commit_receipts(messages, self._options, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Gives up the staged rows; a committed micro-batch stays."""
        drop_receipts(messages, self._options)


def check_write(options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
    """Raises InvalidRequest for a write that is not possible."""
    if overwrite:
        raise InvalidRequest(
            "format semel only appends: mode('append') in a batch, outputMode('append') in a"
            " stream; what is in a topic goes by retention or with the topic"
        )
    check_write_schema(schema, options.topic)


def stage_rows(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, transaction_id: str, epoch: int
) -> StageReceipt:
    """Stages the rows of one attempt at one task; gives them up when anything fails."""
    context = TaskContext.get()
    assert context is not None, "write runs in a task"
    client = shared_client(options.client, options.timeout_ms)
    try:
        with client.transactions.stage(
            transaction_id,
            epoch,
            writer=context.partitionId(),
            ttl_ms=options.ttl_ms,
            **options.producer,
        ) as stage:
            for batch in batches:
                for lot in lots(batch, options.topic):
                    stage.send_many(
                        lot.topic,
                        lot.values,
                        keys=lot.keys,
                        headers=lot.headers,
                        queue=lot.queue,
                        deliver_at=lot.deliver_at,
                        message_ids=lot.message_ids,
                    )
            return stage.receipt()
    except BaseException:
        discard(options.client)
        raise


def commit_receipts(
    messages: Sequence[WriterCommitMessage | None], options: WriteOptions, epoch: int
) -> None:
    """Commits the rows that the tasks of one batch staged; retries while in doubt."""
    told = _receipts(messages)
    if len(told) != len(messages):
        raise InvalidRequest("a task gave no receipt; nothing is committed")
    if not told:
        return  # no task, no rows
    transaction_id, query_id = told[0].receipt.transaction_id, told[0].query_id
    give_up = time.monotonic() + options.timeout_ms / 1e3
    try:
        while True:
            try:
                client = shared_client(options.client, options.timeout_ms)
                done = client.transactions.commit(
                    transaction_id, query_id, epoch, [each.receipt for each in told]
                )
                break
            except (Unavailable, TimedOut) as error:
                if time.monotonic() > give_up:
                    raise
                logger.warning("the commit is in doubt, asking again: %s", error.message)
                time.sleep(COMMIT_RETRY_S)
    finally:
        discard(options.client)  # this process is not used again
    if done.replayed:
        logger.warning(
            "the epoch was committed before, its messages are not stored again transaction=%s"
            " epoch=%d messages=%d",
            transaction_id,
            epoch,
            done.messages,
        )


def drop_receipts(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    """Gives up the staged rows on brokers that answer; the others expire by themselves."""
    receipts = [each.receipt for each in _receipts(messages)]
    if not receipts:
        return
    try:
        shared_client(options.client, options.timeout_ms).transactions.abort(receipts)
    except SemelError as error:
        logger.warning("what was staged ends by its time: %s", error.message)
    finally:
        discard(options.client)


def _receipts(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReceipt]:
    return [each for each in messages if isinstance(each, TaskReceipt)]
