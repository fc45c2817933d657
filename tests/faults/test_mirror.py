"""A mirror between two real clusters: it crashes at each of its calls, its link is cut and healed,
the source is lost, the target is promoted and goes on, and everything goes back.

This is the drill of docs/operations.md, "A mirror in another cluster".
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from semel.client import Client, connect
from semel.client.mirror.topic_copy import MirrorWork
from tests.faults.proxied import CLIENTS, CONTROLLER, ProxiedCluster
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.consuming import take
from tests.kit.waiting import until

NEAR, FAR = "a" * 32, "b" * 32
TOPIC = "orders.eu"
Rows = dict[tuple[int, int], tuple[bytes | None, int]]


class Crash(Exception):
    """The mirror's program ends here."""


class Crashing(MirrorWork):
    """A run that ends at its call number `at`, before the call, or after it took effect."""

    def __init__(self, source: Client, target: Client, *, at: int, after: bool) -> None:
        super().__init__(
            source._session.cluster,
            target._session.cluster,
            [TOPIC],
            settle_s=0.05,
            progress_s=0.05,
            once=True,
            note=lambda progress: None,
        )
        self.calls, self.at, self.after = 0, at, after

    async def _call(self, *args: Any) -> Any:
        self.calls += 1
        mine = self.calls
        if mine == self.at and not self.after:
            raise Crash
        reply = await super()._call(*args)
        if mine == self.at:
            raise Crash
        return reply


class MirrorProcess:
    """`semel mirror --json` as a process."""

    def __init__(self, near: str, far: str) -> None:
        words = ["mirror", "--from", near, "--to", far, "--topics", "orders.*", "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "semel.console", *words, "--settle", "100ms", "--every", "50ms"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.told: SimpleQueue[dict[str, Any]] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.put(json.loads(line))

    def wait(self, what: str, wanted: Any, timeout: float = 30.0) -> dict[str, Any]:
        """The first report from now on that is wanted."""
        while not self.told.empty():
            self.told.get()
        deadline = time.monotonic() + timeout
        while True:
            assert self.process.poll() is None, "the mirror ended"
            told = self.told.get(timeout=max(0.1, deadline - time.monotonic()))
            assert time.monotonic() < deadline, f"{what}: not after {told}"
            if wanted(told):
                return told

    def caught_up(self) -> None:
        """Returns when the target has all that the source has now, as reported twice: the first
        report may be older than what the source has."""
        for _ in range(2):
            told = self.wait("to catch up", lambda told: told["lag_seconds"] is not None)
            self.wait(
                "to catch up",
                lambda told: told["lag"] == 0 and told["topics"] and (told["lag_seconds"] or 9) < 1,
            )
            assert told["event"] == "progress"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def mirroring(near: str, far: str) -> Iterator[MirrorProcess]:
    running = MirrorProcess(near, far)
    try:
        yield running
    finally:
        running.kill()


def rows(client: Client) -> Rows:
    """All messages by queue and offset, with their times."""
    found: Rows = {}
    with client.reader(TOPIC, end="latest") as reader:
        for each in reader:
            found[each.queue, each.offset] = each.value, each.timestamp_us
    return found


class Lines:
    """A file that grows, and that a named producer loads exactly once."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def grow(self, console: Console, count: int) -> None:
        self.count += count
        self.path.write_text("".join(f"{number}\n" for number in range(self.count)))
        console.json("produce", TOPIC, self.path, "--producer", "loader")

    def check(self, found: Rows) -> None:
        """Every line is there once."""
        values = [value for value, _ in found.values() if value is not None and value.isdigit()]
        assert sorted(map(int, values)) == list(range(self.count))


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "near", brokers=1, cluster_id=NEAR) as cluster:
        yield cluster


@pytest.fixture
def far(tmp_path: Path) -> Iterator[ProxiedCluster]:
    with ProxiedCluster(tmp_path / "far", brokers=1, cluster_id=FAR) as cluster:
        yield cluster


def test_a_crash_at_each_call_loses_and_doubles_nothing(
    near: Cluster, far: ProxiedCluster, tmp_path: Path
) -> None:
    lines, at_near = Lines(tmp_path / "lines"), Console(near.bootstrap)
    crashes = 0
    with connect(near.bootstrap) as source, connect(far.bootstrap) as target:
        source.admin.create_topic(TOPIC, queues=2)
        with source.producer() as producer:
            producer.send(TOPIC, b"late", deliver_after=3600).result(10)
            for at in range(1, 9):
                for after in (False, True):
                    work = Crashing(source, target, at=at, after=after)
                    for number in range(3):
                        producer.send(TOPIC, b"%d %d %d" % (at, after, number)).result(10)
                    try:
                        source._session.run(work.run(), 30)
                    except Crash:
                        crashes += 1
        lines.grow(at_near, 50)
        source._session.run(Crashing(source, target, at=0, after=False).run(), 30)
        before = rows(source)
    at_far = Console(far.bootstrap)
    at_far.json("mirror", "promote", "--to", far.bootstrap, "--topics", TOPIC, "--yes")
    with connect(far.bootstrap) as target:
        assert rows(target) == before
        lines.check(rows(target))
        assert target.admin.delay_stats(TOPIC).messages == 1
    assert crashes >= 12
    assert at_far.json("verify", "--exactly-once", TOPIC)["ok"]


def test_fail_over_and_fail_back(near: Cluster, far: ProxiedCluster, tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines")
    at_near, at_far = Console(near.bootstrap), Console(far.bootstrap)
    at_near.json("topic", "create", TOPIC, "--queues", "2")
    lines.grow(at_near, 100)
    with connect(near.bootstrap) as client, client.consumer("billing", [TOPIC]) as consumer:
        read = {(each.queue, each.offset) for each in take(consumer, 60)}
        consumer.commit()
    with mirroring(near.bootstrap, far.bootstrap) as mirror:
        mirror.caught_up()
        _cut_and_heal(mirror, far, lambda: lines.grow(at_near, 100))
        mirror.kill()
    with mirroring(near.bootstrap, far.bootstrap) as mirror:
        lines.grow(at_near, 100)
        mirror.caught_up()
        with connect(near.bootstrap) as client:
            before = rows(client)
        near.stop()  # the site is lost
        done = at_far.json("mirror", "promote", "--to", far.bootstrap, "--topics", "*", "--yes")
        assert {topic["stage"] for topic in done["topics"]} == {"promoted"}
        assert sum(queue["end"] for queue in done["topics"][0]["queues"]) == 300
    lines.grow(at_far, 100)  # the producer goes on
    with connect(far.bootstrap) as client:
        after = rows(client)
        assert {place: after[place] for place in before} == before
        lines.check(after)
        with client.consumer("billing", [TOPIC]) as consumer:  # and the consumers
            rest = {(each.queue, each.offset) for each in take(consumer, 400 - len(read))}
            consumer.commit()
        assert read | rest == after.keys()
        assert not read & rest
    # Back: the old site gives up what it has, and becomes the target.
    near.start()
    assert "cannot be mirrored" not in at_near.json("topic", "delete", TOPIC, "--yes")
    at_near.json(
        "mirror", "--from", far.bootstrap, "--to", near.bootstrap, "--topics", "*", "--once"
    )
    at_near.json("mirror", "promote", "--to", near.bootstrap, "--topics", "*", "--yes")
    lines.grow(at_near, 50)
    with connect(near.bootstrap) as client:
        back = rows(client)
        assert {place: back[place] for place in after} == after
        lines.check(back)
        with client.consumer("billing", [TOPIC]) as consumer:
            assert len(take(consumer, 50)) == 50
    assert at_near.json("verify", "--exactly-once", TOPIC)["ok"]
    assert at_far.json("verify", "--exactly-once", TOPIC)["ok"]


def _cut_and_heal(mirror: MirrorProcess, far: ProxiedCluster, meanwhile: Any) -> None:
    """The link to the target is cut, and the lag grows; it is healed, and the mirror goes on."""
    parties = [CONTROLLER, *(node.id for node in far.brokers)]
    flows = [pair for party in parties for pair in ((CLIENTS, party), (party, CLIENTS))]
    far.network.cut(flows)
    meanwhile()
    mirror.wait("a lag", lambda told: told["lag"] > 0 or (told["lag_seconds"] or 0) > 1)
    assert any(far.network.flow(*pair).held for pair in flows), "the cut bit"
    far.network.free(flows)
    mirror.caught_up()


def test_a_split_and_two_mirrors_at_once(near: Cluster, far: ProxiedCluster) -> None:
    """A topic with delayed messages is split while it is copied; a second mirror takes over."""
    at_near, at_far = Console(near.bootstrap), Console(far.bootstrap)
    with connect(near.bootstrap) as source, connect(far.bootstrap) as target:
        source.admin.create_topic(TOPIC, queues=1)
        with source.producer("loader") as producer:

            def send(first: int) -> None:
                for number in range(first, first + 40):
                    key = b"key %d" % number
                    after = {0: 3600.0, 1: 2.0}.get(number % 4)
                    producer.send(TOPIC, b"%d" % number, key=key, deliver_after=after)
                producer.flush(timeout=10)

            send(0)
            with mirroring(near.bootstrap, far.bootstrap) as first:
                first.caught_up()
                send(40)
                source.admin.split_queue(TOPIC, 0)
                with mirroring(near.bootstrap, far.bootstrap) as second:
                    assert first.process.wait(30) == 1
                    assert first.process.stderr is not None
                    assert b"another mirror goes on" in first.process.stderr.read()
                    second.caught_up()
                    send(80)
                    second.caught_up()
                    until(lambda: len(rows(source)) == 90)  # what was to be delivered soon is
                    second.caught_up()
        before = rows(source)
        at_far.json("mirror", "promote", "--to", far.bootstrap, "--topics", TOPIC, "--yes")
        assert rows(target) == before
        assert target.admin.delay_stats(TOPIC).messages == 30
        described = target.admin.describe_topic(TOPIC).queues
        assert [queue.queue for queue in described] == [0, 1, 2]
        with target.producer("loader") as producer:
            for number in range(120, 140):
                producer.send(TOPIC, b"%d" % number, key=b"key %d" % number)
            producer.flush(timeout=10)
        assert len(rows(target)) == 110
    assert at_far.json("verify", "--exactly-once", TOPIC)["ok"]
    assert at_near.json("verify", "--exactly-once", TOPIC)["ok"]
