"""An idempotent producer of librdkafka through kills of all that serves it: `./run soak
kafka-kills`.

How it works. Two gateways stand before a broker group of three. A program stores numbered messages
through them (`tests/kit/kafka_writer.py`), while a seed chooses what is killed or frozen next: the
master, a gateway, both at once, the controller, the program itself; or a gateway that is frozen
first, so that what it has passed on is stored and the program never hears of it. After each strike
every partition must be acknowledged again. A program that was killed goes on as another one, with a
producer id of its own. A round ends with `semel verify` and with reading the topic by librdkafka:
lost 0, twice 0, order kept (`tests/kit/numbered.py`).

With `--plant` gateways have a bug, and the run succeeds if that is noticed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from semel.client import Client
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, consume
from tests.kit.kafka_writer import WriterProcess
from tests.kit.numbered import Findings, NumberedJudge
from tests.kit.waiting import until
from tests.soak.kafka_run import two_gateways
from tests.soak.kafka_strikes import MUTE, strike
from tests.soak.kafka_strikes import STRIKES as ON_CLUSTER

PARTITIONS: Final = 4
"""A new topic has so many."""
PARTITIONS_MAX: Final = 16
SPLIT: Final = "split"
STRIKES: Final = (*ON_CLUSTER, "writer", SPLIT, SPLIT)
RESUME_S: Final = 60.0


class Round:
    """One topic, one writer in some lives."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        gateways: list[KafkaGatewayProcess],
        scratch: Path,
        seed: int,
        rate: float,
        strikes: Sequence[str] = STRIKES,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._gateways = gateways
        self._scratch = scratch
        self._rng = random.Random(seed)
        self._rate = rate
        self._choices = strikes
        self.topic = f"kills-{seed}"
        self.strikes: Counter[str] = Counter()
        self.acked: dict[int, list[int]] = {}
        self.wrong: list[str] = []
        client.admin.create_topic(self.topic, queues=PARTITIONS)
        self._writer = self._start()

    @property
    def partitions(self) -> int:
        """How many the topic has: one for each open queue."""
        return len(self._open_queues())

    def _open_queues(self) -> list[int]:
        queues = self._client.admin.describe_topic(self.topic).queues
        return [each.queue for each in queues if not each.sealed]

    def _start(self) -> WriterProcess:
        """Starts a writer to all partitions, once each gateway knows them."""
        partitions = self.partitions
        for gateway in self._gateways:
            admin = AdminClient({"bootstrap.servers": gateway.address, "log_level": 0})

            def known(admin: AdminClient = admin) -> bool:
                topic = admin.list_topics(self.topic, timeout=10).topics[self.topic]
                return len(topic.partitions) == partitions

            until(known, RESUME_S, f"{partitions} partitions at {gateway.address}")
        addresses = ",".join(gateway.address for gateway in self._gateways)
        log = self._scratch / "writer.log"
        life = len(self.acked)
        self.acked[life] = []
        return WriterProcess(addresses, self.topic, partitions, life, self._rate, log)

    def run(self, seconds: float) -> None:
        """Strikes again and again. Raises AssertionError if acknowledgements do not come back."""
        until = time.monotonic() + seconds
        try:
            self._writer.wait_for_more(RESUME_S)
            while time.monotonic() < until:
                time.sleep(self._rng.uniform(0.2, 2.0))
                name = self._rng.choice(self._choices)
                self.strikes[name] += 1
                self._strike(name)
                self._writer.wait_for_more(RESUME_S)
            self._writer.stop()
        finally:
            self._writer.kill()
            self._end_of_life()

    def _end_of_life(self) -> None:
        self.acked[self._writer.life] = self._writer.acked
        self.wrong += self._writer.wrong

    def _strike(self, name: str) -> None:
        match name:
            case "writer":
                self._writer.kill()
                self._end_of_life()
                self._writer = self._start()
            case _ if name == SPLIT:
                queues = self._open_queues()
                if len(queues) < PARTITIONS_MAX:
                    self._client.admin.split_queue(self.topic, self._rng.choice(queues))
            case _:
                strike(name, self._cluster, self._gateways, self._rng)

    def judge(self) -> Findings:
        """What the topic has, read by librdkafka."""
        queues = self._client.admin.describe_topic(self.topic).queues
        count = sum(queue.log_end_offset for queue in queues)
        addresses = ",".join(gateway.address for gateway in self._gateways)
        partitions = self.partitions
        found: dict[int, dict[int, bytes]] = {number: {} for number in range(partitions)}
        for message in consume(addresses, self.topic, partitions, count):
            found[message.partition()][message.offset()] = message.value()
        judge = NumberedJudge()
        for partition, stored in found.items():
            assert sorted(stored) == list(range(len(stored))), "offsets have gaps"
            judge.take(partition, [stored[offset] for offset in range(len(stored))])
        return judge.judge(self.acked)


def main(arguments: list[str]) -> int:
    """Runs rounds until the time is over; returns the exit status."""
    parser = argparse.ArgumentParser(prog="./run soak kafka-kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="for how long [30]")
    parser.add_argument("--round-minutes", type=float, default=3.0, help="of one topic [3]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages per second [1000]")
    parser.add_argument("--plant", action="store_true", help="gateways with a bug are noticed")
    options = parser.parse_args(arguments)
    if min(options.minutes, options.round_minutes, options.rate) <= 0:
        parser.error("want --minutes, --round-minutes and --rate above 0")
    print(f"seed {options.seed}", flush=True)
    program = "tests.kit.forgetful_gateway" if options.plant else "semel.console"
    # The planted bug shows when a client sends again what is stored.
    strikes = (MUTE,) if options.plant else STRIKES
    deadline = time.monotonic() + options.minutes * 60
    total: Counter[str] = Counter()
    seed, stored, noticed = options.seed, 0, False
    with tempfile.TemporaryDirectory(prefix="semel-kafka-kills-") as directory:
        scratch = Path(directory)
        with two_gateways(scratch, program=program) as served:
            while (left := deadline - time.monotonic()) > 0 and not noticed:
                current = Round(*served, scratch, seed, options.rate, strikes)
                current.run(min(left, options.round_minutes * 60))
                findings = current.judge()
                verified = served.client.admin.verify(current.topic).ok
                total += current.strikes
                stored += findings.stored
                seed += 1
                print(
                    f"{current.topic}: {findings.stored} stored in {len(current.acked)} lives,"
                    f" {current.partitions} partitions,"
                    f" lost {findings.lost}, twice {findings.twice}, out of order"
                    f" {findings.disordered}, invented {findings.invented}, verify"
                    f" {'ok' if verified else 'NOT OK'}, told wrong {current.wrong[:1]};"
                    f" {dict(current.strikes)}",
                    flush=True,
                )
                noticed = not (findings.clean and verified and not current.wrong)
    print(f"{seed - options.seed} rounds, {stored} messages, strikes {dict(total)}")
    return 0 if noticed == options.plant and total else 1
