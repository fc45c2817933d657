"""Flink's own Kafka connector before two gateways: `./run soak kafka-flink`.

How it works. A job numbers messages at an even rate, and KafkaSink stores them: exactly once, by a
transaction for each checkpoint, or at least once. Another one copies a topic, from KafkaSource.
Both gateways are killed one after the other meanwhile, and for `exactly_once` Flink itself as well,
in the middle of a transaction, which the next one ends: it goes on from the checkpoint. What is
stored then is what the SDK reads.

It needs Java 17 or newer, and Maven for the first run.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from semel.client import Client
from semel.client.java import JavaMissing
from tests.kit.flink import Flink, Job, newest_checkpoint
from tests.kit.kafka_gateway import KafkaGatewayProcess, await_acquainted
from tests.kit.maven import Missing, jars, listed
from tests.kit.verdicts import Verdicts, verdict_of
from tests.kit.waiting import until
from tests.soak.kafka_run import chosen, two_gateways

PARTITIONS: Final = 3
MESSAGES: Final = 30_000
MESSAGES_A_SECOND: Final = 600
JOB_S_MAX: Final = 300
NUMBERS: Final = "numbers"


class Judged:
    """A cluster with two gateways, and places for what Flink keeps."""

    def __init__(self, client: Client, gateways: list[KafkaGatewayProcess], scratch: Path) -> None:
        self.client, self.gateways, self.scratch = client, gateways, scratch

    def stored(self, topic: str) -> Counter[int]:
        """How often each number is stored, as the SDK reads it."""
        with self.client.reader(topic, end="latest") as reader:
            return Counter(int(message.value) for message in reader)

    def flink(self, test: str, topic: str, guarantee: str) -> Flink:
        """A Flink that goes on where the one before stopped, if there was one for this test; its
        tables are `numbers`, and one for the topic."""
        checkpoints = self.scratch / test
        settings = {
            "parallelism.default": "2",
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": checkpoints.as_uri(),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "20",
            "restart-strategy.fixed-delay.delay": "1 s",
        }
        if newest := newest_checkpoint(checkpoints):
            settings["execution.state-recovery.path"] = newest.as_uri()
        flink = Flink(self.scratch / f"{test}.log", settings)
        flink.table(
            NUMBERS,
            "n BIGINT",
            {
                "connector": "datagen",
                "rows-per-second": str(MESSAGES_A_SECOND),
                "fields.n.kind": "sequence",
                "fields.n.start": "0",
                "fields.n.end": str(MESSAGES - 1),
            },
        )
        options = {"sink.delivery-guarantee": guarantee}
        if guarantee == "exactly-once":
            options |= {
                "sink.transactional-id-prefix": test,
                "properties.transaction.timeout.ms": "120000",
            }
        self.topic_table(flink, topic, options)
        return flink

    def topic_table(self, flink: Flink, topic: str, options: Mapping[str, str]) -> None:
        """Tells Flink of a topic, whose messages are text."""
        flink.table(
            f"`{topic}`",
            "n STRING",
            {
                "connector": "kafka",
                "topic": topic,
                "format": "raw",
                "properties.bootstrap.servers": ",".join(each.address for each in self.gateways),
                **options,
            },
        )

    def kill_gateways(self, job: Job, topic: str) -> None:
        """Kills one gateway after the other, when a third is stored and when half is."""
        for share, gateway in zip((0.3, 0.5), self.gateways, strict=True):
            self.await_share(job, topic, share)
            gateway.kill()
            assert not job.finished(6), "the job ended before a gateway was back"
            gateway.start()
            await_acquainted(*self.gateways)

    def await_share(self, job: Job, topic: str, share: float) -> None:
        """Waits until that part of the messages is stored."""

        def reached() -> bool:
            assert not job.finished(1), "the job ended too early"
            return len(self.stored(topic)) >= MESSAGES * share

        until(reached, within_s=JOB_S_MAX, what=f"{share:.0%} of {topic}")

    # --------------------------------------------------------------------------------------- tests

    def exactly_once(self) -> None:
        """Numbers are stored by transactions, while gateways and Flink itself are killed."""
        topic = "flink-exactly-once"
        self.client.admin.create_topic(topic, queues=PARTITIONS)
        insert = f"INSERT INTO `{topic}` SELECT CAST(n AS STRING) FROM {NUMBERS}"
        with self.flink("exactly_once", topic, "exactly-once") as flink:
            job = flink.insert(insert)
            self.kill_gateways(job, topic)
            self.await_share(job, topic, 0.7)
            flink.kill()
        at_kill = len(self.stored(topic))
        with self.flink("exactly_once", topic, "exactly-once") as flink:
            assert flink.insert(insert).finished(JOB_S_MAX), "the job did not end"
        assert at_kill < MESSAGES, "Flink was not killed before its end"
        self.judge(topic, once=True)

    def copy(self) -> None:
        """A topic is copied by KafkaSource and KafkaSink, while gateways are killed."""
        topic = "flink-copy"
        self.client.admin.create_topic(topic, queues=PARTITIONS)
        self.client.admin.create_topic("flink-from", queues=PARTITIONS)
        with self.flink("copy", topic, "exactly-once") as flink:
            self.topic_table(
                flink,
                "flink-from",
                {"properties.group.id": "flink-copy", "scan.startup.mode": "earliest-offset"},
            )
            job = flink.insert(f"INSERT INTO `{topic}` SELECT n FROM `flink-from`")
            with self.client.producer() as producer:
                for part in range(4):
                    for number in range(part * MESSAGES // 4, (part + 1) * MESSAGES // 4):
                        producer.send("flink-from", b"%d" % number)
                    producer.flush(60)
                    if part in (1, 2):
                        self.gateways[part - 1].kill()
                        assert not job.finished(6)
                        self.gateways[part - 1].start()
                        await_acquainted(*self.gateways)
            self.await_share(job, topic, 1)
        self.judge(topic, once=True)

    def at_least_once(self) -> None:
        """Numbers are stored without transactions, while gateways are killed."""
        topic = "flink-at-least-once"
        self.client.admin.create_topic(topic, queues=PARTITIONS)
        with self.flink("at_least_once", topic, "at-least-once") as flink:
            job = flink.insert(f"INSERT INTO `{topic}` SELECT CAST(n AS STRING) FROM {NUMBERS}")
            self.kill_gateways(job, topic)
            assert job.finished(JOB_S_MAX), "the job did not end"
        self.judge(topic, once=False)

    def judge(self, topic: str, *, once: bool) -> None:
        """Asserts that every number is stored, and with `once` that none is there twice."""
        found = self.stored(topic)
        lost = set(range(MESSAGES)) - set(found)
        twice = sum(found.values()) - len(found)
        print(f"{topic}: {len(found)} numbers, {len(lost)} lost, {twice} twice", flush=True)
        assert not lost, f"{len(lost)} numbers are lost, {min(lost)} among them"
        assert set(found) == set(range(MESSAGES)), "numbers are stored that nobody sent"
        assert not (once and twice), f"{twice} messages are stored twice"
        assert self.client.admin.verify(topic).ok


TESTS: Final[dict[str, Callable[[Judged], None]]] = {
    "exactly_once": Judged.exactly_once,
    "copy": Judged.copy,
    "at_least_once": Judged.at_least_once,
}


def main(arguments: list[str]) -> int:
    """Runs all tests, or those that are named; returns the exit status."""
    about = (__doc__ or "").partition(": ")[2]
    tests = chosen("./run soak kafka-flink", about, arguments, tuple(TESTS))
    verdicts = Verdicts()
    [connector] = [each for each in listed("flink") if ":flink-connector-kafka" in each]
    try:
        jars("flink")
    except Missing as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="semel-kafka-flink-") as directory,
        two_gateways(Path(directory)) as served,
    ):
        print(connector, flush=True)
        judged = Judged(served.client, served.gateways, Path(directory))
        try:
            for name in tests or TESTS:
                call = functools.partial(TESTS[name], judged)
                verdicts.add(verdict_of("Flink's connector", name, call))
        except JavaMissing as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 1 if verdicts.failed else 0
