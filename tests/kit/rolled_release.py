"""A cluster of one release becomes one of the next, node by node, under load, with all that must
hold on the way.

How it works. A cluster of the older program is started, and a client of this tree sends one awaited
message after the other until the end. Controllers are exchanged, then the slaves, so that the group
is mixed under an older master; then a newer node is master of the mixed group; one node goes back
to the older program and forward again, because nothing was raised; at last everything is new, and
is raised. Clients of the older program send and read at the beginning, in the mixed cluster and at
the end.

Invariants
1. No send fails, and every message is there exactly once: of both clients.
2. No level rises before it is asked for, and `--check` says before that why it cannot.

Not here: the older program (`previous.py`).
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from semel.client import Client, connect
from semel.protos.levels import LEVEL_MAX
from tests.kit.cluster import Cluster, Node
from tests.kit.previous import Previous
from tests.kit.steady_sends import steady_sends

OLD_CLIENT = """
import sys
from semel.client import connect
bootstrap, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with connect(bootstrap) as client:
    with client.producer("older") as producer:
        for number in range(first, first + count):
            producer.send("older", b"%d" % number, key=b"k").result(timeout=60)
    with client.reader("older", end="latest") as reader:
        found = [int(message.value) for message in reader]
    assert found == list(range(first + count)), found
    with client.reader("orders", end="latest") as reader:
        values = [message.value for message in reader]
    assert len(values) == len(set(values)), "a message of a newer client twice"
print(len(found))
"""
SENT_BY_OLD = 20
START_S = 120.0
"""How long a program may take to start: it is not a fork of one that has imported everything."""


def upgrade_cluster(previous: Previous, directory: Path, *, controllers: int = 1) -> int:
    """Carries it out; returns how many messages this tree's client sent. Asserts what must hold."""
    cluster = Cluster(directory, controllers=controllers)
    for node in cluster.nodes:
        previous.takes(node)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start(START_S)
        client = stack.enter_context(connect(cluster.bootstrap))
        client.admin.create_topic("orders", queues=2)
        client.admin.create_topic("older", queues=1)
        sent_by_old = 0

        def old_client() -> None:
            nonlocal sent_by_old
            previous.run(OLD_CLIENT, cluster.bootstrap, str(sent_by_old), str(SENT_BY_OLD))
            sent_by_old += SENT_BY_OLD

        with steady_sends(client, "orders", "newer") as load:
            began = _levels(client)
            old_client()
            for node in cluster.controllers:
                _exchange(cluster, node, previous.gives_back)
            assert cluster.master().command[0] == str(previous.python)
            newer, other = cluster.slaves()
            _exchange(cluster, newer, previous.gives_back)
            _exchange(cluster, other, previous.gives_back)
            older = cluster.master()
            assert older.command[0] == str(previous.python), "a mixed group under an older master"
            load.go_on()
            old_client()
            client.admin.transfer_mastership(1, newer.id)
            assert cluster.master() == newer, "a mixed group under a newer master"
            load.go_on()
            _exchange(cluster, other, previous.takes)  # nothing was raised: there is a way back
            load.go_on()
            check = client.admin.check_upgrade(LEVEL_MAX)
            _exchange(cluster, other, previous.gives_back)
            _exchange(cluster, older, previous.gives_back)
            assert _levels(client) == began, "nothing rises by itself"
            if previous.flags:
                assert {each.kind for each in check.obstacles if each.stops} == {"too-old"}
            _wait_whole(client)
            assert client.admin.check_upgrade().ready
            client.admin.upgrade()
            assert _levels(client) == {LEVEL_MAX}
            old_client()
            load.go_on()
        with client.reader("orders", end="latest") as reader:
            found = sorted(int(message.value) for message in reader)
        assert found == list(range(len(load.sent))), "each message is there once"
        assert all(client.admin.verify(topic).ok for topic in ("orders", "older"))
        return len(load.sent)


def _exchange(cluster: Cluster, node: Node, change: Any) -> None:
    """Ends a node in order and starts it with the other program; returns once all are whole."""
    cluster.kill(node, signal.SIGTERM)
    change(node)
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
