"""Queues of a compacted topic move while it is written, read as a table, and compacted."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from semel.client import Client, Compaction, connect
from semel.protos.errors import InvalidRequest
from tests.kit.cluster import Cluster
from tests.kit.waiting import until

FLAGS = [
    "--compaction-check-ms",
    "50",
    "--compaction-dirty-percent",
    "1",
]
TOMBSTONE_MS = 4_000
KEYS = 150


class Writer:
    """Sends updates and tombstones, and remembers the newest value of each key."""

    def __init__(self, client: Client) -> None:
        self.newest: dict[bytes, bytes | None] = {}
        self.sent = 0
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        chance = random.Random(7)
        with self._client.producer("writer") as producer:
            while not self._stop.wait(0.01):
                rows = [
                    (
                        b"k%d" % chance.randrange(KEYS),
                        None if chance.random() < 0.3 else b"%d" % (self.sent + row) * 20,
                    )
                    for row in range(chance.randrange(1, 12))
                ]
                keys, values = [key for key, _ in rows], [value for _, value in rows]
                producer.send_many("t", values, keys=keys).result(60)
                self.newest |= dict(rows)
                self.sent += len(rows)

    @property
    def values(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.newest.items() if value is not None}


def arrives(client: Client, queue: int, group: int) -> None:
    def there() -> bool:
        moves = client.admin.list_moves("t")
        assert not [each for each in moves if each.stage == "aborted"], moves
        return client.admin.describe_topic("t").queues[queue].group == group and not moves

    until(there, 60, "the move")


def read(client: Client) -> list[tuple[bytes | None, bytes | None]]:
    with client.reader("t", end="latest") as reader:
        return [(message.key, message.value) for message in reader]


def state_of(rows: list[tuple[bytes | None, bytes | None]]) -> dict[bytes, bytes]:
    """What a reader ends with."""
    return {key: value for key, value in dict(rows).items() if key and value is not None}


def test_a_compacted_topic_moves_there_and_back_while_it_is_written(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c", brokers=3, groups=2, broker_flags=FLAGS)
    with cluster, connect(cluster.bootstrap) as client:
        compaction = Compaction(tombstone_ms=TOMBSTONE_MS)
        client.admin.create_topic("t", queues=2, groups=[1], compaction=compaction)
        with Writer(client) as writer:
            until(lambda: writer.sent > 1_500, 60, "something to move")
            with client.table("t") as table:
                client.admin.move_queue("t", 0, 2)
                arrives(client, 0, 2)
                client.admin.move_queue("t", 1, 2)
                cluster.kill(master := cluster.master(2))
                cluster.start_node(master)
                arrives(client, 1, 2)
                client.admin.move_queue("t", 0, 1)
                arrives(client, 0, 1)
                sent = writer.sent
                until(lambda: writer.sent > sent + 300, 60, "more at the new places")
                writer.stop()
                table.catch_up(timeout=60)
                assert dict(table) == writer.values
        assert len(writer.values) < len(writer.newest), "some keys are gone"
        assert state_of(read(client)) == writer.values

        def only_values() -> bool:
            rows = read(client)
            return dict(rows) == writer.values and len(rows) == len(writer.values)

        until(only_values, 60, "old messages and tombstones to go at the new places")
        assert [queue.group for queue in client.admin.describe_topic("t").queues] == [1, 2]
        verified = client.admin.verify("t")
        assert verified.ok, verified


def test_a_move_that_is_given_up_lets_compaction_go_on(tmp_path: Path) -> None:
    slow = [*FLAGS, "--move-rate", "1000000"]
    cluster = Cluster(tmp_path / "c", brokers=1, groups=2, broker_flags=slow)
    with cluster, connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic("t", queues=1, groups=[1], compaction=Compaction())
        for number in range(40):
            producer.send("t", b"x" * 900_000, key=b"big%d" % number).result(30)
        client.admin.move_queue("t", 0, 2)
        until(lambda: client.admin.list_moves("t")[0].copied_bytes > 0, 30, "the copy")
        for value in (b"1", b"2"):
            producer.send("t", value, key=b"k").result(30)
        with pytest.raises(InvalidRequest, match="is on its way"):
            client.admin.move_queue("t", 0, 1)
        assert (b"k", b"1") in read(client), "nothing is compacted while it is copied"
        client.admin.cancel_move("t", 0)
        until(lambda: (b"k", b"1") not in read(client), 60, "the compaction")
