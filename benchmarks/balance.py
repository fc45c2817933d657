"""How soon a consumer group is balanced again: the plan alone, and a real group of real processes.

How it works. The plan: 200 members and 1,000 queues of 20 topics, with equal and with different
subscriptions, from nothing, after a join, after a death, and from one member that has everything.
The group: consumers in processes of their own, on a real cluster. A member joins (or is killed),
and the clock runs until every queue's lock is held by the member to which it is assigned, each
member within one queue of the fair share. A death cannot be known before the session ends, so the
session's time is subtracted.

    python -m benchmarks.balance [--members 4] [--queues 64] [--rounds 5]

Not here: the invariants of a plan, which tests check.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    number,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from semel.controller.groups.balance import balance
from semel.protos.ids import QueueId, QueueKey, TopicId
from tests.kit.cluster import Cluster

TOPIC = GROUP = "balance"
SESSION_MS = 2_000
SETTLE_S = 60.0


def plan() -> dict[str, float]:
    """Milliseconds of processor time for the plans of 200 members and 1,000 queues."""
    queues = {
        topic: [QueueKey(TopicId(topic), QueueId(each)) for each in range(50)]
        for topic in range(1, 21)
    }
    figures: dict[str, float] = {}
    for kind in ("equal", "different"):
        subscriptions = {
            f"m{n}": {topic for topic in queues if kind == "equal" or (n + topic) % 3}
            for n in range(200)
        }
        settled = balance(subscriptions, queues, {})
        newcomer = {**subscriptions, "new": set(queues)}
        survivors = dict(list(subscriptions.items())[1:])
        everything = {"m0": [queue for found in queues.values() for queue in found]}
        for what, members, current in (
            ("from nothing", subscriptions, {}),
            ("join", newcomer, settled),
            ("death", survivors, settled),
            ("from one", subscriptions, everything),
        ):
            start = time.process_time()
            balance(members, queues, current)
            figures[f"{kind}, {what}, ms"] = (time.process_time() - start) * 1000
    return figures


def consume(bootstrap: str, ready: Connection) -> None:
    """A member in a process of its own; lives until it is killed."""
    with (
        connect(bootstrap) as client,
        client.consumer(GROUP, TOPIC, session_ms=SESSION_MS) as consumer,
    ):
        ready.send(consumer.member_id)
        while True:
            consumer.poll(timeout=0.5)
            consumer.commit()


class Group:
    """Members in processes."""

    def __init__(self, client: Client, bootstrap: str, queues: int) -> None:
        self._client = client
        self._bootstrap = bootstrap
        self._queues = queues
        self._spawn = multiprocessing.get_context("spawn")
        self.members: dict[str, BaseProcess] = {}

    def join(self) -> float:
        """Starts a new member; returns the moment at which it had joined."""
        ours, theirs = self._spawn.Pipe()
        process = self._spawn.Process(target=consume, args=(self._bootstrap, theirs), daemon=True)
        process.start()
        self.members[ours.recv()] = process
        return time.perf_counter()

    def kill(self) -> float:
        """Kills one member; returns the moment."""
        member_id, process = self.members.popitem()
        assert process.pid is not None, member_id
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        return time.perf_counter()

    def settled(self) -> float:
        """Waits until every queue is held by its assigned member, evenly; returns the moment."""
        give_up = time.perf_counter() + SETTLE_S
        while time.perf_counter() < give_up:
            now = time.perf_counter()
            if self._is_settled():
                return now
            time.sleep(0.02)
        raise AssertionError(f"not settled within {SETTLE_S:g} s")

    def _is_settled(self) -> bool:
        found = self._client.admin.describe_group(GROUP)
        held: dict[str, int] = {}
        for queue in found.queues:
            if queue.owner:
                held[queue.owner] = held.get(queue.owner, 0) + 1
        low, rest = divmod(self._queues, len(self.members))
        return (
            held.keys() == self.members.keys()
            and sum(held.values()) == self._queues
            and set(held.values()) <= {low, low + bool(rest)}
        )

    def end(self) -> None:
        for process in self.members.values():
            process.kill()
            process.join()


def settle(group: Group) -> Mapping[str, float]:
    """Seconds to settle after a join, and after a death beyond the session time-out."""
    joined = group.join()
    join_s = group.settled() - joined
    died = group.kill()
    death_s = group.settled() - died
    return {"join_s": join_s, "death_s": death_s - SESSION_MS / 1000}


def main() -> int:
    """Command line."""
    parser = arguments("Measure how soon a consumer group is balanced again.")
    parser.add_argument(
        "--members", type=number(2, 50), default=4, help="beside the one that joins"
    )
    parser.add_argument("--queues", type=number(1, 10_000), default=64)
    options = parser.parse_args()
    require_disk(parser, options.data, 1 << 30)
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic(TOPIC, queues=options.queues)
        group = Group(client, cluster.bootstrap, options.queues)
        try:
            for _ in range(options.members):
                group.join()
            group.settled()
            comparison = compare(
                f"Balance: {options.members} members and one more, {options.queues} queues",
                [
                    Contender(name="plan", run=plan),
                    Contender(name="group", run=lambda: settle(group)),
                ],
                rounds=options.rounds,
                warm_ups=options.warm_ups,
                targets=[
                    *(Target(contender="plan", metric=each, at_most=100) for each in plan()),
                    Target(contender="group", metric="join_s", at_most=2),
                    Target(contender="group", metric="death_s", at_most=2),
                ],
            )
        finally:
            group.end()
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
