"""Bad requests to a Kafka gateway before a real cluster: `./run soak kafka-requests`.

How it works. Strangers send requests of all APIs and versions, made from kio's schemas, most of
them changed (`tests/fuzz/kafka_assault.py`), while a producer and a consumer work. Afterwards the
gateway must live, have said nothing of a mistake of its own, hold no more memory than before but
for some, and have stored what the producer sent, once.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from semel.client import connect
from tests.fuzz.kafka_assault import assault
from tests.fuzz.kafka_request_targets import kafka_requests
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, consume, produce

TOPIC: Final = "undisturbed"
STEP: Final = 5_000
GROWTH_BYTES_MAX: Final = 150 << 20
MISTAKES: Final = ("Traceback", "request failed", "fetch stream failed", "never retrieved")
"""What a log says of a mistake of ours."""


def main(arguments: list[str]) -> int:
    """Exit status 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="./run soak kafka-requests", description=__doc__)
    parser.add_argument("--requests", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        return besiege(Path(directory), requests=options.requests, seed=options.seed)


def besiege(directory: Path, *, requests: int, seed: int) -> int:
    """Runs it in a cluster of its own, and returns the number of findings."""
    corpus = kafka_requests()
    log = directory / "gateway.log"
    sent = stored = 0
    began = time.monotonic()
    with Cluster(directory / "cluster", brokers=1) as cluster:
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic(TOPIC, queues=1)
            client.admin.create_topic("orders", queues=2)
        with KafkaGatewayProcess(cluster.bootstrap, log=log) as gateway:
            values: list[bytes] = []
            before = 0
            while sent < requests:
                count = min(STEP, requests - sent)
                answered = asyncio.run(
                    assault(gateway.address, corpus, requests=count, seed=seed + sent)
                )
                sent += count
                more = [b"%d" % number for number in range(stored, stored + 10)]
                produce(gateway.address, TOPIC, more)
                values += more
                stored += len(more)
                resident = gateway.resident_bytes()
                before = before or resident
                took = time.monotonic() - began
                print(
                    f"{sent} requests, {answered} bytes answered, {resident >> 20} MiB,"
                    f" {took:.0f} s",
                    flush=True,
                )
            found = consume(gateway.address, TOPIC, 1, stored)
            assert [message.value() for message in found] == values
            assert resident - before < GROWTH_BYTES_MAX, f"{before} bytes became {resident}"
        with connect(cluster.bootstrap) as client:
            assert client.admin.verify(TOPIC).ok
    said = log.read_text(errors="replace")
    lines = [line for line in said.splitlines() if any(word in line for word in MISTAKES)]
    for line in lines[:10]:
        print(line)
    print(f"{len(lines)} findings", flush=True)
    return len(lines)
