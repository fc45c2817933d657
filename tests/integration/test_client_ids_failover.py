"""Producers that send the same ids while masters die: each id is stored once, and none is lost."""

from __future__ import annotations

import threading

from semel.client import IdDedup, Producer, connect
from semel.protos.errors import SemelError
from tests.kit.cluster import Cluster

COUNT = 3_000
TOPIC = "t"


def store_all(
    producer: Producer, first: int, failed: list[SemelError], calm: threading.Event
) -> None:
    """Sends every id again and again until it is calm; then what has failed, until all are stored.
    It begins with the id number `first`."""
    every = [(first + number) % COUNT for number in range(COUNT)]
    left = every
    while left:
        sent = [
            (number, producer.send(TOPIC, b"%d" % number, message_id=f"id {number}"))
            for number in left
        ]
        left = []
        for number, future in sent:
            try:
                future.result(60)
            except SemelError as error:
                failed.append(error)
                left.append(number)
        left = left if calm.is_set() else every


def test_each_id_is_stored_once_though_masters_die(cluster: Cluster) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic(TOPIC, queues=2, dedup=IdDedup(window_bytes=1 << 20))
        failed: list[SemelError] = []
        calm = threading.Event()
        with client.producer() as one, client.producer() as two:
            threads = [
                threading.Thread(target=store_all, args=(producer, first, failed, calm))
                for producer, first in ((one, 0), (two, COUNT // 3))
            ]
            for thread in threads:
                thread.start()
            for _ in range(2):
                master = cluster.master()
                cluster.kill(master)
                cluster.start_node(master)
            calm.set()
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive()
        with client.reader(TOPIC, end="latest") as reader:
            assert sorted(int(message.value) for message in reader) == list(range(COUNT))
        assert {type(error).__name__ for error in failed} <= {"DedupStateExpired"}
        verified = client.admin.verify(TOPIC)
        assert (verified.ok, verified.id_duplicates, verified.messages) == (True, 0, COUNT)
        dedup = client.admin.describe_topic(TOPIC).dedup
        assert dedup is not None
        assert (dedup.ids, dedup.conflicts) == (COUNT, 0)
        assert dedup.hits >= COUNT
