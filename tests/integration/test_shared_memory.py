"""Readers on the brokers' machine: the same messages come through shared memory, whatever happens
meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.client import Client, connect
from semel.client.transport.shared_memory import Exchange
from tests.kit.cluster import Cluster

VALUE_BYTES = 1_000
COUNT = 60_000
"""Some 60 MB: several times what the slots of a stream hold."""
CALL = 5_000


def value(number: int) -> bytes:
    return b"%d/" % number + bytes([number % 251]) * (VALUE_BYTES - 8)


def fill(client: Client, topic: str, compression: str = "none") -> None:
    client.admin.create_topic(topic, queues=3)
    with client.producer(compression=compression) as producer:
        for start in range(0, COUNT, CALL):
            producer.send_many(topic, [value(number) for number in range(start, start + CALL)])


def numbers_of(values: list[bytes]) -> list[int]:
    """Asserts that each is whole."""
    numbers = [int(each.partition(b"/")[0]) for each in values]
    assert all(each == value(number) for each, number in zip(values, numbers, strict=True))
    return numbers


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose nodes are killed and frozen."""
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes of batches that came in memory, and that were sent."""
    found = {"in memory": 0, "sent": 0}
    original: Callable[..., list[memoryview]] = Exchange.on_answer

    def on_answer(self: Exchange, header: Any, *rest: Any) -> list[memoryview]:
        batches = original(self, header, *rest)
        found["in memory" if header.in_memory else "sent"] += sum(map(len, batches))
        return batches

    monkeypatch.setattr(Exchange, "on_answer", on_answer)
    return found


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_messages_come_through_memory_and_are_the_same(
    shared_cluster: Cluster, client: Client, answers: dict[str, int], compression: str
) -> None:
    fill(client, compression, compression)
    stored = sum(queue.bytes for queue in client.admin.describe_topic(compression).queues)
    for allowed in (True, False):
        answers.update({"in memory": 0, "sent": 0})
        with (
            connect(shared_cluster.bootstrap, shared_memory=allowed) as own,
            own.reader(compression, end="latest") as reader,
        ):
            read = numbers_of([message.value for message in reader])
        assert sorted(read) == list(range(COUNT))
        assert sum(answers.values()) >= stored
        if allowed and compression == "none":
            assert answers["in memory"] > 0.7 * stored, answers
        if not allowed:
            assert answers["in memory"] == 0


def test_whoever_keeps_all_gets_all(
    shared_cluster: Cluster, client: Client, answers: dict[str, int]
) -> None:
    """Arrays point into shared memory. With all of it kept the rest is sent, and nothing that was
    given out ever changes."""
    fill(client, "kept")
    kept: list[pa.RecordBatch] = []
    with client.consumer("keepers", "kept") as consumer:
        while sum(batch.num_rows for batch in kept) < COUNT:
            batch = consumer.poll_arrow(20)
            assert batch is not None
            kept.append(batch)
    assert answers["in memory"] > 0
    assert answers["sent"] > answers["in memory"] / 2
    values = [each for batch in kept for each in batch.column("value").to_pylist()]
    assert sorted(numbers_of(values)) == list(range(COUNT))


def test_a_child_keeps_what_it_saw(shared_cluster: Cluster, client: Client) -> None:
    """A process forks with arrays in its hands, drops its own and reads on."""
    fill(client, "forked")
    told, tell = os.pipe()
    gate, opens = os.pipe()
    with client.reader("forked", end="latest") as reader:
        kept: list[pa.RecordBatch] = []
        while (seen := sum(batch.num_rows for batch in kept)) < COUNT // 3:
            batch = reader.poll_arrow(20)
            assert batch is not None
            kept.append(batch)
        child = os.fork()
        if not child:
            # Nothing but this may run here: it is the parent's test, client and all.
            try:
                os.read(gate, 1)
                for each in kept:
                    numbers_of(each.column("value").to_pylist())
                os.write(tell, b"whole")
            finally:
                os._exit(0)
        kept.clear()
        del batch
        later: list[pa.RecordBatch] = []  # kept, too, so that every slot is used again
        while (batch := reader.poll_arrow(20)) is not None:
            seen += batch.num_rows
            later.append(batch)
    os.write(opens, b"x")
    os.close(tell)
    os.waitpid(child, 0)
    assert os.read(told, 10) == b"whole"
    for descriptor in (told, gate, opens):
        os.close(descriptor)
    assert seen == COUNT


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_a_master_that_goes_in_mid_read(
    running: Cluster, answers: dict[str, int], fault: str
) -> None:
    """The next stream has memory of its own: what a frozen master writes when it wakes up, nobody
    reads."""
    with connect(running.bootstrap) as client:
        fill(client, "orders")
        running.wait_caught_up()
        read: list[int] = []
        master = running.master()
        with client.reader("orders", end="latest") as reader:
            while (batch := reader.poll_arrow(20)) is not None:
                before = len(read)
                read += numbers_of(batch.column("value").to_pylist())
                if before < COUNT // 3 <= len(read):
                    if fault == "kill":
                        running.kill(master)
                    else:
                        running.pause(master)
                if fault == "freeze" and before < 2 * COUNT // 3 <= len(read):
                    running.resume(master)
        assert sorted(read) == list(range(COUNT))
        assert answers["in memory"] > 0
