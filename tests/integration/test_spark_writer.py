"""The writers on a real cluster, called in Spark's order without a JVM: attempts that fail, lose or
come late, commits that are repeated, ids that belong to somebody else."""

from __future__ import annotations

import itertools
import pickle
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from semel.client import Client, connect
from semel.client.api.sync_transactions import Transactions
from semel.protos.errors import (
    InvalidRequest,
    MessageTooLarge,
    TransactionAborted,
    TransactionConflict,
    Unavailable,
    UnknownTopic,
)
from semel.spark_connector import SemelSource, writer
from semel.spark_connector.connections import discard_all
from tests.kit.cluster import Cluster

SCHEMA = StructType([StructField("value", BinaryType()), StructField("key", StringType())])
PATIENCE_MS = "60000"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path) -> Iterator[Cluster]:
    """Two broker groups of one node each: a commit needs both."""
    with Cluster(module_path / "cluster", brokers=1, groups=2) as cluster:
        yield cluster
    discard_all()


@pytest.fixture
def topic(client: Client) -> str:
    name = f"topic-{next(_numbers)}"
    client.admin.create_topic(name, queues=4)
    return name


class Query:
    """Spark's side of one streaming query: attempts at tasks, then the commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, **options: str) -> None:
        self._patch = monkeypatch
        self._name = name
        self._options = {"timeoutMs": PATIENCE_MS, **options}

    def writer(self) -> writer.SemelStreamWriter:
        """Spark makes one for planning, and another one for every commit."""
        found = SemelSource(self._options).streamWriter(schema=SCHEMA, overwrite=False)
        assert isinstance(found, writer.SemelStreamWriter)
        return found

    def attempt(self, batch: int, partition: int, rows: Iterator[pa.RecordBatch]) -> Any:
        local = {"sql.streaming.queryId": self._name, "streaming.sql.batchId": str(batch)}
        context = SimpleNamespace(getLocalProperty=local.get, partitionId=lambda: partition)
        self._patch.setattr(TaskContext, "get", lambda: context)
        worker = pickle.loads(pickle.dumps(self.writer()))
        return pickle.loads(pickle.dumps(worker.write(rows)))

    def run(self, batch: int, values: list[bytes], partitions: int) -> list[Any]:
        """All tasks of a micro-batch; what its commit is to be given."""
        parts = [values[start::partitions] for start in range(partitions)]
        return [self.attempt(batch, number, arrow(part)) for number, part in enumerate(parts)]


def arrow(values: list[bytes]) -> Iterator[pa.RecordBatch]:
    """As Spark would hand them over, in small batches."""
    for start in range(0, len(values), 50):
        some = values[start : start + 50]
        keys = pa.array([value.decode() for value in some], pa.string())
        yield pa.record_batch({"value": pa.array(some, pa.binary()), "key": keys})


def rows(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def stored(client: Client, topic: str) -> Counter[bytes]:
    with client.reader(topic, end="latest") as reader:
        found = Counter(message.value for message in reader)
    result = client.admin.verify(topic)
    assert result.ok, result.problems
    return found


@pytest.fixture
def query(shared_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(monkeypatch, f"query-of-{topic}", bootstrap=shared_cluster.bootstrap, topic=topic)


def test_only_the_winners_are_stored_and_only_at_the_commit(
    client: Client, topic: str, query: Query
) -> None:
    staged = []

    def fails() -> Iterator[pa.RecordBatch]:
        yield from arrow(rows(0, 200))
        staged.append(True)
        raise RuntimeError("the task fails after its rows")

    with pytest.raises(RuntimeError):
        query.attempt(0, 0, fails())
    assert staged
    loser = query.attempt(0, 0, arrow(rows(0, 200)))  # speculation: complete, and not chosen
    assert loser.receipt.messages == 200
    winners = [query.attempt(0, 0, arrow(rows(0, 200))), query.attempt(0, 1, arrow([]))]
    winners.append(query.attempt(0, 2, arrow(rows(200, 300))))
    assert not stored(client, topic)
    query.writer().commit(winners, 0)
    assert stored(client, topic) == Counter(rows(0, 300))
    late = query.attempt(0, 0, arrow(rows(0, 200)))  # a zombie, after the commit
    assert late.receipt.messages == 200
    query.writer().commit(query.run(1, rows(300, 400), 1), 1)
    assert stored(client, topic) == Counter(rows(0, 400))
    info = client.transactions.describe(f"query-of-{topic}")
    assert info is not None
    assert (info.query_id, info.last_epoch) == (f"query-of-{topic}", 1)


def test_a_batch_that_is_repeated_after_its_commit_changes_nothing(
    client: Client, topic: str, query: Query
) -> None:
    first = query.run(0, rows(0, 300), 3)
    query.writer().commit(first, 0)
    # The driver died before Spark stored it: same batch, other partitions, another order.
    again = query.run(0, list(reversed(rows(0, 300))), 2)
    query.writer().commit(again, 0)
    query.writer().abort(again, 0)
    query.writer().abort(first, 0)
    query.writer().commit(first, 0)
    assert stored(client, topic) == Counter(rows(0, 300))
    query.writer().commit(query.run(1, [], 2), 1)  # an empty batch counts, too
    query.writer().commit(query.run(2, rows(300, 310), 2), 2)
    assert stored(client, topic) == Counter(rows(0, 310))


def test_a_commit_whose_reply_was_lost_is_asked_for_again(
    client: Client, topic: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    genuine = Transactions.commit

    def loses_the_first(self: Transactions, *arguments: Any) -> Any:
        calls.append(genuine(self, *arguments))
        if len(calls) == 1:
            raise Unavailable("the reply was lost")
        return calls[-1]

    monkeypatch.setattr(Transactions, "commit", loses_the_first)
    query.writer().commit(query.run(0, rows(0, 100), 2), 0)
    assert [call.replayed for call in calls] == [False, True]
    assert stored(client, topic) == Counter(rows(0, 100))


def test_an_aborted_batch_leaves_nothing(client: Client, topic: str, query: Query) -> None:
    receipts = query.run(0, rows(0, 100), 2)
    query.writer().abort([receipts[0], None, receipts[1]], 0)
    with pytest.raises(TransactionAborted):
        query.writer().commit(receipts, 0)
    with pytest.raises(InvalidRequest, match="gave no receipt"):
        query.writer().commit([receipts[0], None], 0)
    assert not stored(client, topic)


def test_a_new_checkpoint_under_a_used_id_is_refused(
    shared_cluster: Cluster, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "bootstrap": shared_cluster.bootstrap,
        "topic": topic,
        "transactionId": f"copy-{topic}",
    }
    old = Query(monkeypatch, "old", **options)
    old.writer().commit(old.run(0, rows(0, 10), 1), 0)
    new = Query(monkeypatch, "new", **options)
    for batch in (0, 1):
        with pytest.raises(TransactionConflict, match="old"):
            new.writer().commit(new.run(batch, rows(10, 20), 1), batch)
    old.writer().commit(old.run(1, rows(20, 30), 1), 1)
    assert stored(client, topic) == Counter(rows(0, 10) + rows(20, 30))


def test_the_masters_death_while_rows_are_staged(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again between the last receipt and the commit."""
    query = Query(monkeypatch, "survivor", bootstrap=cluster.bootstrap, topic="survivor")

    def killing() -> Iterator[pa.RecordBatch]:
        yield from arrow(rows(0, 2_000))
        cluster.kill(master)
        yield from arrow(rows(2_000, 4_000))

    with connect(cluster.bootstrap) as own:
        own.admin.create_topic("survivor", queues=2)
        master = cluster.master()
        receipts = [query.attempt(0, 0, killing())]
        assert cluster.master() != master
        cluster.start_node(master)
        receipts.append(query.attempt(0, 1, arrow(rows(4_000, 4_100))))
        second = cluster.master()
        cluster.kill(second)
        query.writer().commit(receipts, 0)
        cluster.start_node(second)  # verifying wants every copy
        assert stored(own, "survivor") == Counter(rows(0, 4_100))


def batch_writer(columns: StructType = SCHEMA, /, **options: str) -> writer.SemelWriter:
    source = SemelSource({"timeoutMs": PATIENCE_MS, **options})
    found = source.writer(schema=columns, overwrite=False)
    assert isinstance(found, writer.SemelWriter)
    sent: writer.SemelWriter = pickle.loads(pickle.dumps(found))
    return sent


@pytest.fixture
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(getLocalProperty=lambda name: None, partitionId=lambda: 0)
    monkeypatch.setattr(TaskContext, "get", lambda: context)


@pytest.mark.usefixtures("in_a_task")
def test_batches_each_once_and_under_an_id_of_ones_own_idempotent(
    shared_cluster: Cluster, client: Client, topic: str
) -> None:
    place = {"bootstrap": shared_cluster.bootstrap, "topic": topic}
    for first in (0, 10):
        fresh = batch_writer(**place)
        fresh.commit([fresh.write(arrow(rows(first, first + 10)))])
    for epoch, first, last in [(5, 20, 30), (5, 20, 30), (6, 30, 40)]:
        own = batch_writer(transactionId=f"own-{topic}", transactionEpoch=str(epoch), **place)
        own.commit([own.write(arrow(rows(first, last)))])
    gone = batch_writer(**place)
    message = gone.write(arrow(rows(90, 99)))
    gone.abort([message])
    assert stored(client, topic) == Counter(rows(0, 40))


@pytest.mark.usefixtures("in_a_task")
def test_columns_name_topics_and_queues(
    shared_cluster: Cluster, client: Client, topic: str
) -> None:
    other = f"{topic}-other"
    client.admin.create_topic(other, queues=2)
    columns = StructType(
        [
            StructField("topic", StringType()),
            StructField("queue", IntegerType()),
            StructField("value", StringType()),
        ]
    )
    own = batch_writer(columns, bootstrap=shared_cluster.bootstrap, compression="lz4")
    batch = pa.record_batch(
        {
            "topic": [topic, other, topic, other],
            "queue": pa.array([3, 1, None, 1], pa.int32()),
            "value": ["a", "b", "c", "d"],
        }
    )
    own.commit([own.write(iter([batch]))])
    with client.reader(topic, end="latest") as reader:
        found = {message.value: message.queue for message in reader}
    assert found.keys() == {b"a", b"c"}
    assert found[b"a"] == 3
    with client.reader(other, end="latest") as reader:
        assert [(each.queue, each.offset, each.value) for each in reader] == [
            (1, 0, b"b"),
            (1, 1, b"d"),
        ]


@pytest.mark.usefixtures("in_a_task")
def test_rows_that_are_refused_leave_nothing(
    shared_cluster: Cluster, client: Client, topic: str
) -> None:
    own = batch_writer(bootstrap=shared_cluster.bootstrap, topic=topic)
    refused: list[tuple[bytes | None, str | None, Any, str]] = [
        (None, None, InvalidRequest, "null in 1 of 1 rows of a batch that have no key"),
        (b"x" * (20 << 20), "k", (MessageTooLarge, TransactionAborted), "limit"),
    ]
    for value, key, error, message in refused:
        columns = {"value": pa.array([value], pa.binary()), "key": pa.array([key], pa.string())}
        bad = pa.record_batch(columns)
        with pytest.raises(error, match=message):
            own.write(itertools.chain(arrow(rows(0, 100)), [bad]))
    schema = StructType([*SCHEMA.fields, StructField("topic", StringType())])
    elsewhere = batch_writer(schema, bootstrap=shared_cluster.bootstrap)
    good = {"value": pa.array([b"a"]), "key": ["k"]}
    with pytest.raises((UnknownTopic, TransactionAborted), match="no topic 'nowhere'"):
        elsewhere.write(
            iter([pa.record_batch({**good, "topic": [name]}) for name in (topic, "nowhere")])
        )
    assert not stored(client, topic)


def test_what_is_known_before_anything_runs(shared_cluster: Cluster, topic: str) -> None:
    place = {"bootstrap": shared_cluster.bootstrap}
    with pytest.raises(UnknownTopic, match="no topic 'nowhere'"):
        batch_writer(topic="nowhere", **place)
    with pytest.raises(InvalidRequest, match="needs 'transactionEpoch'"):
        batch_writer(topic=topic, transactionId="a", **place)
    for make in (SemelSource(place).writer, SemelSource(place).streamWriter):
        with pytest.raises(InvalidRequest, match="give the topic"):
            make(schema=SCHEMA, overwrite=False)
        with pytest.raises(InvalidRequest, match="only appends"):
            make(schema=SCHEMA, overwrite=True)


def test_a_cluster_that_is_down_is_said_in_time() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(Unavailable, match=address):
            batch_writer(bootstrap=address, topic="orders", timeoutMs="500")
    assert time.monotonic() - start < 30
