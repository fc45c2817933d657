"""Programs of librdkafka and of Java read, write and store their progress in transactions, through
kills of all that serves them and of themselves: `./run soak kafka-transactions`.

How it works. Two gateways stand before a broker group of three and a controller. A program stores
numbered messages in a topic. Two pairs of programs copy it, each pair as one consumer group into a
topic of its own, every program with a transactional id of its own: `tests/kit/kafka_copier.py`, and
Kafka's own TransactionalMessageCopier, which aborts a third of its transactions besides. A seed
shuffles what is killed, frozen or split next: the master, gateways, the controller, a copier, a
queue of the source or of a copy. A copier is frozen for longer than its session, too: then the
other one reads on, and the frozen one wakes up in the middle of its transaction. After each strike
both copies must get more. A round ends with `semel verify` and with reading both copies: every
message once, in order, and the groups' progress at the end.

Each strike leaves a mark (`tests/soak/kafka_marks.py`), and a kind of strike that never does fails
the run. With `--plant` librdkafka's copiers store their progress by themselves, and the run
succeeds if that is noticed.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.kit.kafka_tools import KafkaTools
from tests.kit.kafka_writer import WriterProcess
from tests.kit.maven import Missing
from tests.kit.numbered import Findings
from tests.kit.waiting import until
from tests.soak.kafka_copiers import Copier, Copying
from tests.soak.kafka_marks import Marks
from tests.soak.kafka_run import Served, two_gateways
from tests.soak.kafka_strikes import STRIKES as ON_CLUSTER
from tests.soak.kafka_strikes import strike
from tests.soak.options import kill_rounds, rounds

PARTITIONS: Final = 4
"""Partitions of a topic that have messages."""
PARTITIONS_MAX: Final = 10
KILL: Final = "copier"
PAUSE: Final = "pause copier"
SPLIT: Final = "split"
STRIKES: Final = (*ON_CLUSTER, *(KILL,) * 3, *(PAUSE,) * 3, SPLIT, SPLIT)
PAUSE_S: Final = (0.1, 13.0)
"""Sessions of librdkafka's copiers last 6 s, of Java's 10 s."""
RESUME_S: Final = 120.0
"""A call of librdkafka that does not come back costs its pair half a minute."""


class Round:
    """One source, and its copies."""

    def __init__(
        self, served: Served, scratch: Path, seed: int, rate: float, tools: KafkaTools | None
    ) -> None:
        """Without `tools` librdkafka's copiers are alone, and have their bug."""
        self._served = served
        self._scratch = scratch
        self._rng = random.Random(seed)
        self._rate = rate
        self._addresses = served.addresses
        self._choices: Sequence[str] = STRIKES if tools else (KILL,)
        self.source = f"source-{seed}"
        self.copies = [f"librdkafka-{seed}", *([f"java-{seed}"] if tools else [])]
        self._copying = [
            Copying(self._addresses, self.source, topic, tools) for topic in self.copies
        ]
        self.marks = Marks(served, rate * len(self.copies))
        self.acked: list[int] = []
        for topic in (self.source, *self.copies):
            served.client.admin.create_topic(topic, queues=PARTITIONS)

    @property
    def _copiers(self) -> list[Copier]:
        return [copier for pair in self._copying for copier in pair.copiers]

    @property
    def told(self) -> Counter[str]:
        """What copiers went on after, or ended with."""
        return sum((copier.told for copier in self._copiers), Counter[str]())

    @property
    def _strays(self) -> int:
        """How often copiers were disturbed so far."""
        return sum(copier.disturbances for copier in self._copiers)

    def _copied(self, topic: str) -> int:
        for copier in self._copiers:
            copier.keep()
        queues = self._served.client.admin.describe_topic(topic).queues
        return sum(queue.log_end_offset for queue in queues)

    def _copied_in_all(self) -> int:
        return sum(self._copied(topic) for topic in self.copies)

    def _await(self, topic: str, count: int, within_s: float) -> None:
        def enough() -> bool:
            time.sleep(0.1)
            return self._copied(topic) >= count

        until(enough, within_s, f"{count} messages in {topic}; {self.told}")

    def _wait_for_more(self) -> None:
        for topic in self.copies:
            self._await(topic, self._copied(topic) + 1, RESUME_S)

    def run(self, seconds: float) -> None:
        """Strikes again and again, then lets all be copied. Raises AssertionError if copying does
        not go on."""
        with contextlib.ExitStack() as stack:
            log = self._scratch / "writer.log"
            writer = WriterProcess(self._addresses, self.source, PARTITIONS, 0, self._rate, log)
            stack.callback(writer.kill)
            writer.wait_for_more(RESUME_S)
            for pair in self._copying:
                stack.enter_context(pair)
            self._wait_for_more()
            ends = time.monotonic() + seconds
            deck: list[str] = []
            while time.monotonic() < ends:
                time.sleep(self._rng.uniform(0.2, 2.0))
                if not deck:
                    deck = self._rng.sample(self._choices, len(self._choices))
                name = deck.pop()
                with self.marks.of(name, self._copied_in_all, lambda: self._strays):
                    self._strike(name)
                    self._wait_for_more()
            writer.stop()
            self.acked = writer.acked
            for topic in self.copies:
                self._await(topic, sum(self.acked), RESUME_S * 3)

    def _strike(self, name: str) -> None:
        if name == KILL:
            self._rng.choice(self._copiers).kill()
        elif name == PAUSE:
            self._rng.choice(self._copiers).pause(self._rng.uniform(*PAUSE_S))
        elif name == SPLIT:
            topic = self._rng.choice([self.source, *self.copies])
            still_open = self._served.open_queues(topic)
            if len(still_open) < PARTITIONS_MAX:
                self._served.client.admin.split_queue(topic, self._rng.choice(still_open))
        else:
            strike(name, self._served.cluster, self._served.gateways, self._rng)

    def judge(self, topic: str) -> tuple[Findings, int]:
        """What a copy has, and how far its group is behind."""
        lag = self._served.client.admin.describe_group(topic).lag
        return self._served.judge(topic, {0: self.acked}), lag


def main(arguments: list[str]) -> int:
    """Runs rounds until the time is over; returns the exit status."""
    options = kill_rounds(
        "./run soak kafka-transactions", __doc__, arguments, round_minutes=5, rate=300
    )
    struck: Counter[str] = Counter()
    bitten: Counter[str] = Counter()
    ran, stored, noticed = 0, 0, False
    with tempfile.TemporaryDirectory(prefix="semel-kafka-transactions-") as directory:
        scratch = Path(directory)
        try:
            tools = None if options.plant else KafkaTools(scratch)
        except Missing as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        with two_gateways(scratch) as served:
            for seed, seconds in rounds(options):
                current = Round(served, scratch, seed, options.rate, tools)
                current.run(seconds)
                for topic in current.copies:
                    findings, lag = current.judge(topic)
                    verified = served.client.admin.verify(topic).ok
                    stored += findings.stored
                    print(
                        f"{topic}: {findings.stored} stored, lost {findings.lost}, twice"
                        f" {findings.twice}, out of order {findings.disordered}, invented"
                        f" {findings.invented}, lag {lag}, verify {'ok' if verified else 'NOT OK'}",
                        flush=True,
                    )
                    noticed |= not findings.clean or lag != 0 or not verified
                print(f"{current.marks}; told {dict(current.told)}", flush=True)
                struck += current.marks.struck
                bitten += current.marks.bitten
                ran += 1
                if noticed:
                    break
    print(
        f"{ran} rounds, {stored} messages; strikes and how many left a mark:"
        f" { {name: f'{count}, {bitten[name]}' for name, count in sorted(struck.items())} }"
    )
    blunt = sorted(name for name, count in struck.items() if count >= 3 and not bitten[name])
    if blunt:
        print(f"never left a mark: {', '.join(blunt)}")
    return 0 if noticed == options.plant and struck and not blunt else 1
