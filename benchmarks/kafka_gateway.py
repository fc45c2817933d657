"""Kafka's clients before a gateway, beside Kafka itself: throughput, latency, gaps, memory.

How it works. Rounds run Kafka and Semel after the other, each started anew with three nodes on this
machine. Kafka is started by the peer's script, which `--peer` names; Semel's broker group has one
gateway before it, on the same machine. The clients are the same programs on both sides
(`kafka_load.py`). Only Semel has these figures: the gap after SIGKILL of a gateway, while another
one runs; resident memory of a gateway with 1,000 connections; and messages per second through
several gateways, with as many processes of librdkafka.

Kafka acknowledges by default before anything is on a disk, Semel after a majority has synced.

    ./run bench kafka_gateway --peer peers/peer_kafka.py
    ./run bench kafka_gateway --peer peers/peer_kafka.py --scale 0.1 --rounds 1 --only java_100

Give it the machine alone. It needs Java and Maven; downloads are kept in $PEERS_CACHE and in the
user's cache.

Not here: records alone (`kafka_records.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.commands import Help, guarded, some_of
from benchmarks.harness import (
    Comparison,
    Contender,
    Target,
    arguments,
    compare,
    decimal,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.kafka_load import Load
from benchmarks.kafka_tls import load as load_script
from semel.client import Client, connect
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.kafka_tools import KafkaTools
from tests.kit.maven import Missing

FIGURES: Final = (
    *("java_100", "java_1k", "librdkafka", "consume", "awaited", "gap_leader"),
    *("gap_gateway", "connections", "gateways"),
)
TARGETS: Final = (
    Target(contender="semel", metric="java_100_msg_s", at_least=0.8, of="kafka"),
    Target(contender="semel", metric="java_1k_msg_s", at_least=1.0, of="kafka"),
    Target(contender="semel", metric="librdkafka_msg_s", at_least=0.7, of="kafka"),
    Target(contender="semel", metric="consume_msg_s", at_least=0.7, of="kafka"),
    Target(contender="semel", metric="awaited_p99_ms", at_most=1.0, of="kafka"),
    Target(contender="semel", metric="gap_leader_s", at_most=2.0),
    Target(contender="semel", metric="gap_gateway_s", at_most=2.0),
    Target(contender="semel", metric="connections_rss_mib", at_most=250.0),
)
CONNECTIONS: Final = 1_000
GATEWAYS: Final = (1, 2, 3)
_DISK_BYTES: Final = 20 << 30


class KafkaServed:
    """Kafka, as the peer's script runs it."""

    def __init__(self, kafka: Any) -> None:
        self._kafka = kafka
        self.bootstrap: str = kafka.bootstrap

    @contextlib.contextmanager
    def topic(self, name: str, partitions: int) -> Iterator[str]:
        with self._kafka.topic(name, partitions) as topic:
            yield topic

    def kill(self, address: str) -> None:
        """The node at that address, at once."""
        node = str(self.bootstrap.split(",").index(address) + 1)
        self._kafka.signal(node, signal.SIGKILL)


class SemelServed:
    """A broker group of three, and gateways before it."""

    def __init__(self, cluster: Cluster, client: Client, gateways: list[KafkaGatewayProcess]):
        self._cluster, self._client, self._gateways = cluster, client, gateways
        self.bootstrap = ",".join(gateway.address for gateway in gateways)

    @contextlib.contextmanager
    def topic(self, name: str, partitions: int) -> Iterator[str]:
        self._client.admin.create_topic(name, queues=partitions)
        try:
            yield name
        finally:
            self._client.admin.delete_topic(name)

    def kill_master(self, _: str) -> None:
        self._cluster.kill(self._cluster.master())

    def kill_gateway(self, address: str) -> None:
        """The one at that address: the partition's leader."""
        [leader] = [each for each in self._gateways if each.address == address]
        leader.kill()


class Measured:
    """The contenders: each call starts one side anew and returns its figures."""

    def __init__(self, load: Load, only: list[str], data: Path, script: Path) -> None:
        self._load = load
        self._only = only
        self._data = data
        self._script = script

    def kafka(self) -> Mapping[str, float]:
        module = load_script(self._script)
        with module.Kafka() as kafka:
            served = KafkaServed(kafka)
            figures = self._throughput(served)
            if "gap_leader" in self._only:
                figures["gap_leader_s"] = self._load.gap_s(served, served.kill)
        return figures

    def semel(self) -> Mapping[str, float]:
        figures: dict[str, float] = {}
        with self._served(1) as (served, _):
            figures.update(self._throughput(served))
            if "gap_leader" in self._only:
                figures["gap_leader_s"] = self._load.gap_s(served, served.kill_master)
        if "gap_gateway" in self._only:
            with self._served(2) as (served, _):
                figures["gap_gateway_s"] = self._load.gap_s(served, served.kill_gateway)
        if "connections" in self._only:
            with self._served(1) as (served, [gateway]):
                before = gateway.resident_bytes()
                resident = asyncio.run(_with_connections(gateway))
                figures["idle_rss_mib"] = before / 2**20
                figures["connections_rss_mib"] = resident / 2**20
        if "gateways" in self._only:
            for count in GATEWAYS:
                figures[f"gateways_{count}_msg_s"] = self._through(count)
        return figures

    def _throughput(self, served: KafkaServed | SemelServed) -> dict[str, float]:
        load = self._load
        calls: dict[str, tuple[str, Callable[[], float]]] = {
            "java_100": (
                "java_100_msg_s",
                lambda: load.java_produce(served, size=100, count=6_000_000),
            ),
            "java_1k": (
                "java_1k_msg_s",
                lambda: load.java_produce(served, size=1024, count=1_000_000),
            ),
            "librdkafka": ("librdkafka_msg_s", lambda: load.produce(served, count=6_000_000)),
            "consume": ("consume_msg_s", lambda: load.consume(served, count=5_000_000)),
            "awaited": ("awaited_p99_ms", lambda: load.awaited_p99_ms(served, count=3_000)),
        }
        wanted = [name for name in calls if name in self._only]
        if wanted:
            load.java_produce(served, size=100, count=1_000_000)  # warms up
        return {calls[name][0]: calls[name][1]() for name in wanted}

    def _through(self, count: int) -> float:
        """Messages per second of as many processes as there are gateways."""
        records = self._load.records(2_000_000)
        with self._served(count) as (served, _), served.topic("curve", 4) as topic:
            clients = [
                self._load.start_produce(served.bootstrap, topic, records) for _ in range(count)
            ]
            return sum(self._load.rate(client) for client in clients)

    @contextlib.contextmanager
    def _served(self, gateways: int) -> Iterator[tuple[SemelServed, list[KafkaGatewayProcess]]]:
        with (
            temporary_directory(self._data) as place,
            Cluster(place / "cluster") as cluster,
            connect(cluster.bootstrap) as client,
            contextlib.ExitStack() as stack,
        ):
            processes = [
                stack.enter_context(KafkaGatewayProcess(cluster.bootstrap)) for _ in range(gateways)
            ]
            yield SemelServed(cluster, client, processes), processes


async def _with_connections(gateway: KafkaGatewayProcess) -> int:
    """Resident memory of a gateway with many connections, each of which has asked for metadata."""
    host, _, port = gateway.address.partition(":")
    # Metadata, version 1, of all topics; no client id.
    request = struct.pack(">hhihi", 3, 1, 1, -1, -1)
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(CONNECTIONS):
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            writer.write(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
        return gateway.resident_bytes()
    finally:
        for writer in writers:
            writer.close()


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line; ends with one line when it is invalid."""
    parser = arguments(__doc__.partition("\nGive it")[0], rounds=3)
    parser.formatter_class = Help
    parser.set_defaults(warm_ups=0)
    parser.add_argument(
        "--peer", type=Path, required=True, metavar="SCRIPT", help="the script that runs Kafka"
    )
    parser.add_argument(
        "--scale", type=decimal(0.0001, 100), default=1.0, help="factor on counts of messages"
    )
    parser.add_argument(
        "--only",
        type=some_of("figure", FIGURES),
        default=list(FIGURES),
        metavar="A,B",
        help=f"some of {', '.join(FIGURES)}",
    )
    options = parser.parse_args(argv)
    if not options.peer.is_file():
        parser.error(f"--peer {options.peer}: there is no such file")
    require_disk(parser, options.data, int(_DISK_BYTES * min(1.0, options.scale)) + (2 << 30))
    return options


def measure(options: argparse.Namespace) -> Comparison:
    """Runs all rounds."""
    os.environ.setdefault("PEERS_CACHE", str(Path.home() / ".cache" / "peers"))
    wanted = {name for name in FIGURES if name in options.only}
    with temporary_directory(options.data) as data:
        try:
            tools = KafkaTools(data)
        except Missing as error:
            raise RuntimeError(str(error)) from None
        load = Load(options.peer.absolute(), tools, data, options.scale)
        measured = Measured(load, options.only, data, options.peer.absolute())
        contenders = [Contender(name="semel", run=measured.semel)]
        if wanted - {"gap_gateway", "connections", "gateways"}:
            contenders.insert(0, Contender(name="kafka", run=measured.kafka))
        return compare(
            "Kafka's clients before a gateway, and before Kafka",
            contenders,
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[each for each in TARGETS if any(each.metric.startswith(w) for w in wanted)],
        )


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    options = parse(argv)
    return guarded(lambda: report(measure(options), options))


if __name__ == "__main__":
    sys.exit(main())
