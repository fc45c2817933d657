"""A queue is split with its delayed messages: each comes once, in order, none early. Real nodes."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from semel.client import Client, IdDedup, connect
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.waiting import until
from tests.kit.watching import CLOCKS_S, Watch

KEYS = 40
WAVES = 6
EACH = 200
VALUE_BYTES = 16_000
"""Enough that its parts take many entries."""


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster.bootstrap) as connected:
        yield connected


def second_from_now(seconds: float) -> int:
    return (int(time.time() + seconds) + 1) * 1_000_000


def test_a_queue_is_split_and_its_master_killed_while_it_parts(
    cluster: Cluster, client: Client
) -> None:
    client.admin.create_topic("orders", queues=1)
    console, watch = Console(cluster.bootstrap), Watch(client, "orders")
    first_us = second_from_now(25)
    due_of: dict[bytes, int] = {}
    chance = random.Random(7)
    with client.producer() as producer:
        for number in range(WAVES * EACH):
            name = b"%06d" % number
            due_of[name] = first_us + number % WAVES * 1_000_000
            producer.send(
                "orders",
                name + chance.randbytes(VALUE_BYTES),
                key=b"k%d" % (number % KEYS),
                deliver_at=due_of[name],
            )
        producer.flush()
        assert console.json("queue", "split", "orders/0", "--into", "2")["children"] == [1, 2]
        until(lambda: delayed(client, 1) and delayed(client, 0), 20, "the first parts")
        killed = cluster.master()
        cluster.kill(killed)
        for number in range(WAVES * EACH, WAVES * EACH + KEYS):
            name = b"%06d" % number
            due_of[name] = first_us + number % WAVES * 1_000_000
            producer.send("orders", name, key=b"k%d" % (number % KEYS), deliver_at=due_of[name])
        producer.flush()
    cluster.start_node(killed)
    until(lambda: not delayed(client, 0), 60, "all to be handed over")
    assert watch.seen == [], "nothing was due yet"
    stats = client.admin.delay_stats("orders")
    assert (stats.messages, stats.first_due_us) == (len(due_of), first_us)

    watch.until(len(due_of), 60)
    homes = defaultdict(set)
    orders = defaultdict(list)
    for came, message in watch.seen:
        assert message.value is not None
        name = message.value[:6]
        assert message.key is not None
        homes[message.key].add(message.queue)
        orders[message.queue].append((message.offset, due_of[name], name))
        assert came >= due_of[name] / 1e6 - CLOCKS_S, f"{name!r} came early"
    assert {value[:6] for value in watch.values if value} == set(due_of)
    assert sorted(orders) == [1, 2]
    assert all(len(found) == 1 for found in homes.values()), "keys are in one queue"
    for found in orders.values():
        assert sorted(found) == sorted(found, key=lambda each: (each[1], each[2]))
    watch.close()
    verified = client.admin.verify("orders")
    assert verified.ok, verified.problems
    assert (verified.messages, verified.delayed) == (len(due_of), 0)


def delayed(client: Client, queue: int) -> int:
    """How many messages of a queue are delayed."""
    found = (each for each in client.admin.describe_topic("orders").queues if each.queue == queue)
    return sum(each.delayed_messages for each in found)


def test_ids_lead_to_what_was_handed_over(cluster: Cluster, client: Client) -> None:
    client.admin.create_topic("jobs", queues=1, dedup=IdDedup(window_bytes=1 << 20))
    console = Console(cluster.bootstrap)
    soon_us, later_us = second_from_now(10), second_from_now(3600)
    names = [f"job {number}" for number in range(60)]
    soon = names[50:]  # whether they are delivered before or after they are handed over
    with client.producer() as producer:
        for name in names:
            due_us = soon_us if name in soon else later_us
            producer.send("jobs", name.encode(), message_id=name, deliver_at=due_us)
        producer.flush()
        assert console.json("delay", "cancel", "jobs", names[0])["result"] == "cancelled"
        console.json("queue", "split", "jobs/0", "--into", "3")
        assert console.json("delay", "cancel", "jobs", names[1])["result"] == "cancelled"
        until(lambda: not jobs_of_parent(client), 60, "all to be handed over")
        assert console.json("delay", "cancel", "jobs", names[2])["result"] == "cancelled"
        assert console.json("delay", "cancel", "jobs", names[0])["result"] == "cancelled"
        left = {name.encode() for name in names[3:50]}
        listed = client.admin.list_delayed("jobs")
        waiting = {each.message_id: each.queue for each in listed}
        assert left <= waiting.keys() <= left | {name.encode() for name in soon}
        assert {waiting[name] for name in left} == {1, 2, 3}
        again = producer.send("jobs", names[5].encode(), message_id=names[5]).result(10)
        assert again.duplicate, "its id is known still"
    watch = Watch(client, "jobs")
    watch.until(len(soon), 60)
    assert sorted(watch.values) == sorted(name.encode() for name in soon)
    assert all(came >= soon_us / 1e6 - CLOCKS_S for came, _ in watch.seen)
    for _, message in watch.seen[:3]:
        found = console.json("message", "find", "jobs", "--id", message.value.decode())
        assert (found["queue"], found["offset"]) == (message.queue, message.offset)
    watch.close()
    verified = client.admin.verify("jobs")
    assert verified.ok, verified.problems
    assert (verified.messages, verified.delayed) == (len(soon), len(left))


def jobs_of_parent(client: Client) -> int:
    queues = client.admin.describe_topic("jobs").queues
    return sum(each.delayed_messages for each in queues if each.sealed)
