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

import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from tests.kit.kafka_writer import WriterProcess
from tests.kit.numbered import Findings
from tests.kit.waiting import until
from tests.soak.kafka_run import Served, two_gateways
from tests.soak.kafka_strikes import MUTE, strike
from tests.soak.kafka_strikes import STRIKES as ON_CLUSTER
from tests.soak.options import kill_rounds, rounds

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
        served: Served,
        scratch: Path,
        seed: int,
        rate: float,
        strikes: Sequence[str] = STRIKES,
    ) -> None:
        self._served = served
        self._scratch = scratch
        self._rng = random.Random(seed)
        self._rate = rate
        self._choices = strikes
        self.topic = f"kills-{seed}"
        self.strikes: Counter[str] = Counter()
        self.acked: dict[int, list[int]] = {}
        self.wrong: list[str] = []
        served.client.admin.create_topic(self.topic, queues=PARTITIONS)
        self._writer = self._start()

    @property
    def partitions(self) -> int:
        """How many the topic has: one for each open queue."""
        return len(self._served.open_queues(self.topic))

    def _start(self) -> WriterProcess:
        """Starts a writer to all partitions, once each gateway knows them."""
        partitions = self.partitions
        for gateway in self._served.gateways:
            admin = AdminClient({"bootstrap.servers": gateway.address, "log_level": 0})

            def known(admin: AdminClient = admin) -> bool:
                topic = admin.list_topics(self.topic, timeout=10).topics[self.topic]
                return len(topic.partitions) == partitions

            until(known, RESUME_S, f"{partitions} partitions at {gateway.address}")
        log = self._scratch / "writer.log"
        life = len(self.acked)
        self.acked[life] = []
        return WriterProcess(self._served.addresses, self.topic, partitions, life, self._rate, log)

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
                queues = self._served.open_queues(self.topic)
                if len(queues) < PARTITIONS_MAX:
                    self._served.client.admin.split_queue(self.topic, self._rng.choice(queues))
            case _:
                strike(name, self._served.cluster, self._served.gateways, self._rng)

    def judge(self) -> Findings:
        """What the topic has, read by librdkafka."""
        return self._served.judge(self.topic, self.acked)


def main(arguments: list[str]) -> int:
    """Runs rounds until the time is over; returns the exit status."""
    options = kill_rounds("./run soak kafka-kills", __doc__, arguments, round_minutes=3, rate=1_000)
    program = "tests.kit.forgetful_gateway" if options.plant else "semel.console"
    # The planted bug shows when a client sends again what is stored.
    strikes = (MUTE,) if options.plant else STRIKES
    total: Counter[str] = Counter()
    ran, stored, noticed = 0, 0, False
    with tempfile.TemporaryDirectory(prefix="semel-kafka-kills-") as directory:
        scratch = Path(directory)
        with two_gateways(scratch, program=program) as served:
            for seed, seconds in rounds(options):
                current = Round(served, scratch, seed, options.rate, strikes)
                current.run(seconds)
                findings = current.judge()
                verified = served.client.admin.verify(current.topic).ok
                total += current.strikes
                stored += findings.stored
                ran += 1
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
                if noticed:
                    break
    print(f"{ran} rounds, {stored} messages, strikes {dict(total)}")
    return 0 if noticed == options.plant and total else 1
