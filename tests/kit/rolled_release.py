"""A cluster of one release becomes one of the next, node by node, under load, with all that must
hold on the way.

How it works. A cluster of the older program is started, and a client of this tree sends one awaited
message after the other until the end. Controllers are exchanged, one of them back and forward
again; then the slaves, so that the group is mixed under an older master; then a newer node is
master of the mixed group; one node goes back to the older program and forward again, because
nothing was raised; at last everything is new, and is raised, and an older program is refused. At
each stage a client of the older program and one of this tree send, read, and take turns in one
consumer group. A stream of Spark, if there is one, is of the older program until after the raise,
and then of this tree, on the same checkpoint.

Invariants
1. No send fails, and every message is there exactly once, and is consumed exactly once: of all
   clients, and in the copy that Spark makes.
2. No level rises before it is asked for, and `--check` says before that why it cannot.
3. A node can be taken back until the level is raised, and not after that.

Not here: the older program (`previous.py`), the query (`rolled_query.py`).
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from semel.client import Client, connect
from semel.protos.levels import LEVEL_MAX
from tests.kit.cluster import Cluster, Node
from tests.kit.previous import Previous
from tests.kit.rolled_query import RolledQuery
from tests.kit.steady_sends import steady_sends
from tests.kit.waiting import until

CLIENT: Final = """
import sys
from semel.client import connect
bootstrap, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
numbers = list(range(first, first + count))
with connect(bootstrap) as client:
    with client.producer("turns") as producer:
        for number in numbers:
            producer.send("turns", b"%d" % number, key=b"k").result(timeout=60)
    with client.reader("turns", end="latest") as reader:
        found = [int(message.value) for message in reader]
    assert found == list(range(first + count)), found
    with client.consumer("turns", "turns") as consumer:
        taken = []
        while len(taken) < count:
            taken += [int(message.value) for message in consumer.poll(timeout=60)]
            consumer.commit()
        assert taken == numbers, (taken, numbers)
        assert consumer.poll(timeout=0.2) == []
    with client.reader("orders", end="latest") as reader:
        values = [message.value for message in reader]
    assert len(values) == len(set(values)), "a message twice"
"""
A_TURN: Final = 20
START_S: Final = 120.0
"""How long a program may take to start: it is not a fork of one that has imported everything."""
_REFUSED_S: Final = 60.0


def upgrade_cluster(
    previous: Previous,
    directory: Path,
    *,
    controllers: int = 1,
    metadata: str | None = None,
    spark: bool = False,
) -> int:
    """Carries it out; returns how many messages this tree's client sent. `metadata` is a store of
    the controllers elsewhere. Asserts what must hold."""
    cluster = Cluster(directory / "cluster", controllers=controllers, metadata=metadata)
    for node in cluster.nodes:
        previous.takes(node)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start(START_S)
        client = stack.enter_context(connect(cluster.bootstrap))
        client.admin.create_topic("orders", queues=2)
        client.admin.create_topic("turns", queues=1)
        turns = Turns(cluster, previous)
        query = RolledQuery(client, cluster.bootstrap, directory / "query") if spark else None
        with steady_sends(client, "orders", "newer") as load:
            if query is not None:
                stack.callback(query.kill)
                query.begin(previous.python)
            began = _levels(client)

            def stage() -> None:
                load.go_on()
                turns.take()
                if query is not None:
                    query.go_on()

            stage()
            _roll_controllers(cluster, previous)
            _roll_brokers(cluster, client, previous, stage)
            assert _levels(client) == began, "nothing rises by itself"
            _wait_whole(client)
            assert client.admin.check_upgrade().ready
            client.admin.upgrade()
            assert _levels(client) == {LEVEL_MAX}
            stage()
            if began != {LEVEL_MAX}:
                _refuse(cluster, cluster.slaves()[0], previous)
                _refuse(cluster, cluster.controllers[-1], previous)
            if query is not None:  # this tree goes on where the older program was
                query.end()
                query.begin(Path(sys.executable))
            stage()
        if query is not None:
            query.end()
            assert sorted(map(str, query.copied())) == sorted(map(str, load.sent))
        with client.reader("orders", end="latest") as reader:
            found = sorted(int(message.value or b"") for message in reader)
        assert found == list(range(len(load.sent))), "each message is there once"
        topics = ["orders", "turns", *(["copied"] if spark else [])]
        assert all(client.admin.verify(topic).ok for topic in topics)
        return len(load.sent)


class Turns:
    """Clients of both programs, in turn on one topic, as one named producer and one group."""

    def __init__(self, cluster: Cluster, previous: Previous) -> None:
        self._cluster = cluster
        self._previous = previous
        self._sent = 0

    def take(self) -> None:
        """One turn of each. Asserts that they end well."""
        for python in (self._previous.python, Path(sys.executable)):
            numbers = (str(self._sent), str(A_TURN))
            done = subprocess.run(
                [str(python), "-c", CLIENT, self._cluster.bootstrap, *numbers],
                cwd=self._previous.python.parent,
                capture_output=True,
                text=True,
                check=False,
                timeout=240,
            )
            assert done.returncode == 0, f"{python}: {done.stderr[-4_000:]}"
            self._sent += A_TURN


def _roll_controllers(cluster: Cluster, previous: Previous) -> None:
    for node in cluster.controllers:
        _exchange(cluster, node, previous.gives_back)
    _exchange(cluster, cluster.controllers[0], previous.takes)  # there is a way back
    _exchange(cluster, cluster.controllers[0], previous.gives_back)


def _roll_brokers(
    cluster: Cluster, client: Client, previous: Previous, stage: Callable[[], None]
) -> None:
    older = cluster.master()
    newer, other = cluster.slaves()
    _exchange(cluster, newer, previous.gives_back)
    _exchange(cluster, other, previous.gives_back)
    assert cluster.master() == older, "a mixed group under an older master"
    assert older.command[0] == str(previous.python)
    stage()
    client.admin.transfer_mastership(1, newer.id)
    assert cluster.master() == newer, "a mixed group under a newer master"
    stage()
    _exchange(cluster, other, previous.takes)  # nothing was raised: there is a way back
    stage()
    check = client.admin.check_upgrade(LEVEL_MAX)
    if previous.flags:
        assert {each.kind for each in check.obstacles if each.stops} == {"too-old"}
    _exchange(cluster, other, previous.gives_back)
    _exchange(cluster, older, previous.gives_back)


def _exchange(cluster: Cluster, node: Node, change: Callable[[Node], None]) -> None:
    """Ends a node in order and starts it with the other program; returns once all are whole."""
    cluster.kill(node, signal.SIGTERM)
    change(node)
    cluster.start_node(node, START_S)
    with connect(cluster.bootstrap) as client:
        _wait_whole(client)


def _refuse(cluster: Cluster, node: Node, previous: Previous) -> None:
    """Asserts that an older program is not taken after the raise and is told so, by itself (a
    controller ends) or by its peers (a broker waits), and that this tree's program goes on."""
    cluster.kill(node, signal.SIGTERM)
    previous.takes(node)
    told = node.log_file.stat().st_size
    cluster._spawn(node)

    def refused() -> bool:
        text = node.log_file.read_bytes()[told:].decode()
        ended = node.process is None or node.process.poll() not in (None, 0)
        if node.kind == "controller":
            return ended and f"feature level {LEVEL_MAX}" in text
        return re.search(rf"at level {LEVEL_MAX}: upgrade node {node.id}\b", text) is not None

    until(refused, _REFUSED_S, f"the refusal of {node.kind} {node.id}")
    if node.running:
        cluster.kill(node)
    previous.gives_back(node)
    cluster.start_node(node, START_S)
    with connect(cluster.bootstrap) as client:
        _wait_whole(client)


def _wait_whole(client: Client) -> None:
    deadline = time.monotonic() + START_S
    while True:
        found = client.admin.inspect_cluster()
        silent = [each.reason for each in (*found.nodes, *found.controllers) if each.reason]
        late = [*found.under_replicated(1), *(n.node for n in found.nodes if n.non_counting)]
        if len(found.nodes) == 3 and not silent and found.master(1) is not None and not late:
            return
        assert time.monotonic() < deadline, found.as_dict()
        time.sleep(0.1)


def _levels(client: Client) -> set[int]:
    found = client.admin.inspect_cluster()
    groups = {each.level for each in found.nodes if each.serving}
    return groups | {max(each.level for each in found.controllers)}
