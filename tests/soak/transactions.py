"""`./run soak transactions`: programs commit over two broker groups while masters are killed.

How it works. Each program has a transaction id and commits again and again, gives some up, and
settles what it was left in doubt about by committing again. Meanwhile masters and slaves of both
groups are killed, and masters stopped for a while. Beside them a plain producer writes to the same
queues. In the end every message is read: those of a committed transaction once, of any other never;
and every node's log must prove that.

A program also checks what it is told of its past: the last committed epoch is the one it knows.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from semel.client import Client, Producer, ProducerTransaction, connect
from semel.protos.errors import FencedError, InvalidRequest, SemelError, TransactionAborted
from tests.kit.cluster import Cluster

TOPIC = "t"
PROGRAMS = 3
SETTLE_S = 120.0
FLAGS = ("--transaction-pin-ms", "1000", "--segment-bytes", str(1 << 20))
CLEAN = ("--retained-log-bytes", str(1 << 18), "--retention-check-ms", "300")


class Program:
    """One program, alone under its id."""

    def __init__(self, cluster: Cluster, name: str, seed: int, stop: threading.Event) -> None:
        self.committed: list[bytes] = []
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self._name = name
        self._random = random.Random(f"{seed} {name}")
        self._stop = stop
        self._bootstrap = cluster.bootstrap
        self._last_epoch = -1
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with connect(self._bootstrap) as client, client.producer() as producer:
                number = 0
                while not self._stop.is_set():
                    number += 1
                    self._once(producer, number)
        except BaseException as error:
            self.failures.append(f"{self._name} ended: {error!r}")
            raise

    def _once(self, producer: Producer, number: int) -> None:
        count = self._random.randint(1, 60)
        values = [b"%s:%d:%d" % (self._name.encode(), number, row) for row in range(count)]
        keys = [b"k%d" % self._random.randrange(100) for _ in values]
        transaction = producer.transaction(self._name)
        try:
            transaction.__enter__()
        except SemelError as error:
            self.outcomes[f"not begun: {type(error).__name__}"] += 1
            return
        if transaction.last_epoch != self._last_epoch:
            self.failures.append(
                f"{self._name} knows epoch {self._last_epoch}, was told {transaction.last_epoch}"
            )
        try:
            transaction.send_many(TOPIC, values, keys=keys)
        except SemelError as error:
            self.outcomes[f"not sent: {type(error).__name__}"] += 1
            transaction.abort()
            return
        if self._random.random() < 0.1:
            transaction.abort()
            self.outcomes["given up"] += 1
            return
        if self._commit(transaction):
            self.committed += values
            self._last_epoch = transaction.epoch

    def _commit(self, transaction: ProducerTransaction) -> bool:
        """Whether it is committed; asks until that is known."""
        doubts = 0
        while True:
            try:
                transaction.commit()
            except (TransactionAborted, FencedError) as error:
                self.outcomes[f"{type(error).__name__} after {min(doubts, 1)} doubts"] += 1
                return False
            except InvalidRequest:  # the stage failed, and was given up at once
                self.outcomes["given up"] += 1
                return False
            except SemelError:
                doubts += 1
                continue
            self.outcomes[f"committed after {min(doubts, 1)} doubts"] += 1
            return True


class Plain:
    """Somebody who writes to the same queues without transactions."""

    def __init__(self, cluster: Cluster, stop: threading.Event) -> None:
        self.sent: list[bytes] = []
        self._stop = stop
        self._bootstrap = cluster.bootstrap
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with connect(self._bootstrap) as client, client.producer() as producer:
            while not self._stop.wait(0.005):
                self.sent.append(b"plain:%d" % len(self.sent))
                producer.send(TOPIC, self.sent[-1])
            producer.flush(SETTLE_S)


def _strike(cluster: Cluster, chosen: random.Random, counts: Counter[str]) -> None:
    """One fault of one node, healed."""
    group = chosen.choice((1, 2))
    kinds = ["master killed", "master stopped"]
    if len(cluster.brokers) > 2:
        kinds.append("slave killed")
    kind = chosen.choice(kinds)
    if kind == "slave killed":
        node = chosen.choice(cluster.slaves(group))
    else:
        node = cluster.master(group, SETTLE_S)
    if kind == "master stopped":
        cluster.pause(node)
        time.sleep(chosen.uniform(0.2, 3))
        cluster.resume(node)
    else:
        cluster.kill(node)
        time.sleep(chosen.uniform(0, 1))
        cluster.start_node(node, SETTLE_S)
    counts[kind] += 1


def _settled(client: Client) -> None:
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = [one for one in client.transactions.list() if one.state != "idle"]
        hanging = [one for one in found if one.state in ("publishing", "committing")]
        if not hanging:
            return
        assert time.monotonic() < deadline, f"hanging: {[one.as_dict() for one in hanging]}"
        time.sleep(0.1)


def _check(client: Client, expected: Counter[bytes]) -> None:
    found: Counter[bytes] = Counter()
    with client.reader(TOPIC, end="latest") as reader:
        for message in reader:
            found[message.value] += 1
    missing, extra = expected - found, found - expected
    assert not missing, f"{missing.total()} messages are missing: {sorted(missing)[:5]}"
    assert not extra, f"{extra.total()} messages too many: {sorted(extra)[:5]}"
    result = client.admin.verify(TOPIC)
    assert result.ok, [*result.problems, *result.unread]


def run(seed: int, seconds: float, brokers: int) -> None:
    """One cluster; raises AssertionError when something does not hold."""
    chosen = random.Random(seed)
    stop = threading.Event()
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="semel-transactions-") as directory,
        ExitStack() as ends,
    ):
        cluster = Cluster(Path(directory), brokers=brokers, groups=2, broker_flags=[*FLAGS, *CLEAN])
        ends.callback(cluster.stop)
        cluster.start(SETTLE_S)
        client = ends.enter_context(connect(cluster.bootstrap))
        client.admin.create_topic(TOPIC, queues=6)
        programs = [Program(cluster, f"p{n}", seed, stop) for n in range(PROGRAMS)]
        plain = Plain(cluster, stop)
        try:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(chosen.uniform(0.3, 2))
                _strike(cluster, chosen, counts)
        finally:
            stop.set()
            for thread in (*(program.thread for program in programs), plain.thread):
                thread.join(SETTLE_S)
        _settled(client)
        failures = [text for program in programs for text in program.failures]
        assert not failures, failures
        expected = Counter(plain.sent)
        outcomes: Counter[str] = Counter()
        for program in programs:
            expected.update(program.committed)
            outcomes += program.outcomes
        _check(client, expected)
        committed = sum(n for what, n in outcomes.items() if what.startswith("committed"))
        assert committed > PROGRAMS, f"hardly anything was committed: {outcomes}"
        assert counts, "no fault struck"
    told = ", ".join(f"{what} {n}" for what, n in sorted((counts + outcomes).items()))
    print(f"seed {seed}: {expected.total():,} messages; {told}", flush=True)


def main(arguments: list[str]) -> int:
    """Exit status 0 when everything held; raises at the first seed where something did not."""
    parser = argparse.ArgumentParser(prog="./run soak transactions", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (default 1)")
    parser.add_argument("--round", type=float, default=60, help="seconds a cluster (default 60)")
    parser.add_argument("--brokers", type=int, default=3, help="a group (default 3)")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.minutes * 60
    seed = options.seed
    while time.monotonic() < deadline:
        try:
            run(seed, options.round, options.brokers)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seed += 1
    return 0
