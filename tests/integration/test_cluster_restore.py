"""The drill of docs/operations.md, "All machines are lost": a cluster that tiers is killed and its
directories are deleted; a new one is restored from the object store, and nothing is missing but
what the command says."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.broker.state import read_slice
from semel.client import Client, connect
from semel.protos.errors import TimedOut
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import QueueFacts, Store, identity_of, newest_facts, open_store, owner_of
from tests.kit.console import Console
from tests.kit.consuming import take
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until

SETTINGS = {
    "TIER_FILE_BYTES": "20000",
    "TIER_WAIT_MS": "100",
    "TIER_CHECK_MS": "50",
    "TIER_FACTS_MS": "100",
    "RETENTION_CHECK_MS": "100",
}
TIERED: dict[str, Any] = {"tier_after_ms": 200, "local_retention_ms": 400}
NEVER_MS = 3_600_000
Rows = dict[tuple[str, int, int], tuple[bytes | None, bytes | None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"SEMEL_BROKER_{name}", value)


def rows(client: Client, *topics: str) -> Rows:
    """All messages with their queues and offsets."""
    found: Rows = {}
    for topic in topics:
        with client.reader(topic, end="latest") as reader:
            for each in reader:
                assert (topic, each.queue, each.offset) not in found
                found[topic, each.queue, each.offset] = (each.key, each.value)
    return found


def differences(before: Rows, after: Rows) -> list[tuple[str, int, int]]:
    """Where the two are not equal."""
    places = before.keys() | after.keys()
    return sorted(place for place in places if before.get(place) != after.get(place))


def facts_of(store: Store, client: Client, topic: str, queue: int) -> QueueFacts | None:
    topic_id = TopicId(client.admin.describe_topic(topic).topic_id)
    found = newest_facts(store, owner_of(store), QueueKey(topic_id, QueueId(queue)))
    return None if found is None else found[1]


def tiered(client: Client, *topics: str) -> bool:
    """The object store has everything, and the brokers nothing."""
    return all(
        queue.local_start_offset == queue.log_end_offset
        for topic in topics
        for queue in client.admin.describe_topic(topic).queues
    )


def produce(console: Console, topic: str, lines: int, folder: Path) -> dict[str, Any]:
    """Numbered lines, from the first on, by a producer that goes on where it was."""
    path = folder / f"{topic}.txt"
    path.write_text("".join(f"{number} {'v' * 60}\n" for number in range(lines)))
    done: dict[str, Any] = console.json("produce", topic, path, "--producer", "loader")
    return done


def test_a_lost_cluster_comes_back_from_its_tier(tmp_path: Path) -> None:
    folder = tmp_path / "tier"
    folder.mkdir()
    url, store = f"file://{folder}", open_store(f"file://{folder}")
    up = UpProcess(tmp_path / "old", "--brokers", "1", "--groups", "2", "--tier", url)
    with up, connect(up.bootstrap) as client:
        console = Console(up.bootstrap)
        client.admin.create_topic("orders", queues=3, **TIERED)
        client.admin.create_topic("audit", queues=1, **TIERED)
        client.admin.create_topic("part", queues=1, **TIERED)
        client.admin.create_topic("late", queues=1, tier_after_ms=NEVER_MS)
        client.admin.create_topic("empty", queues=2, **TIERED)
        client.admin.create_topic("gone", queues=1, **TIERED)
        produce(console, "orders", 500, tmp_path)
        produce(console, "audit", 100, tmp_path)
        until(lambda: tiered(client, "audit"), what="messages in the object store")
        client.admin.split_queue("audit", 0)
        produce(console, "audit", 200, tmp_path)
        produce(console, "part", 100, tmp_path)
        with client.consumer("billing", ["orders"]) as consumer:
            mine = until(lambda: consumer.poll(max_messages=150, timeout=0.2), what="messages")
            consumer.commit()
        position = {
            lag.queue: lag.committed_offset for lag in client.admin.describe_group("billing").queues
        }
        until(lambda: tiered(client, "orders", "audit", "part"), 30, "messages in the store")
        before = rows(client, "orders", "audit", "part")
        assert len(before) == 500 + 200 + 100
        client.admin.delete_topic("gone")
        client.admin.alter_topic("part", tier_after_ms=NEVER_MS, local_retention_ms=-1)
        produce(console, "part", 137, tmp_path)
        produce(console, "late", 30, tmp_path)

        def all_noted() -> bool:
            for topic, queue, wanted in (
                *(("orders", number, -1) for number in position),
                *(("audit", number, -1) for number in range(3)),
                *(("part", 0, 137), ("late", 0, 30), ("empty", 0, 0), ("empty", 1, 0)),
            ):
                facts = facts_of(store, client, topic, queue)
                if facts is None or (wanted >= 0 and facts.log_end_offset != wanted):
                    return False
                if topic == "orders":
                    groups = read_slice(facts.slice).groups
                    state = groups.lookup("billing", facts.queue)
                    if (-1 if state is None else state.committed_offset) != position[queue]:
                        return False
            return True

        until(all_noted, 30, "the facts of all queues")
        until(lambda: _deleted_noted(folder), 30, "the note of the deleted topic")
        ids = {name: client.admin.describe_topic(name).topic_id for name in ("orders", "late")}
        old_id = owner_of(store)
        up.stop(signal.SIGKILL)
    shutil.rmtree(up.directory)  # all machines are lost

    new = UpProcess(tmp_path / "new", "--brokers", "1", "--tier", url, "--tier-restore")
    with new, connect(new.bootstrap) as client:
        console = Console(new.bootstrap)
        _refusals(console, client, url, tmp_path)
        plan = console.json("cluster", "restore", "--from", url, "--dry-run")
        assert owner_of(store) == old_id
        assert client.admin.list_topics() == []
        for seconds in (0.1, 0.5, 1.0):  # the command is interrupted, and goes on
            with contextlib.suppress(TimedOut):
                client.admin.restore_cluster(url, timeout=seconds)
        began = time.monotonic()
        done = console.json("cluster", "restore", "--from", url, "--yes")
        print(f"restored in {time.monotonic() - began:.1f} s")
        assert identity_of(store).folder == old_id != owner_of(store)
        _check_report(plan, done)

        topics = client.admin.list_topics()
        assert sorted(topic.name for topic in topics) == [
            "audit", "empty", "late", "orders", "part",
        ]  # fmt: skip
        for name, number in ids.items():
            assert client.admin.describe_topic(name).topic_id == number
        after = rows(client, "orders", "audit", "part", "late", "empty")
        assert differences(before, after) == []

        # The check bites: a message less, and one with another body, are found.
        place = next(iter(after))
        assert differences(before, {k: v for k, v in after.items() if k != place}) == [place]
        assert differences(before, {**after, place: (None, b"?")}) == [place]

        # The group goes on where it was.
        with client.consumer("billing", ["orders"]) as consumer:
            rest = take(consumer, 500 - len(mine))
            consumer.commit()
        seen = [(each.queue, each.offset) for each in (*mine, *rest)]
        assert len(seen) == len(set(seen)) == 500

        # A producer that sends everything again stores what is lost, and nothing twice.
        for topic, lines, lost in (("part", 137, 37), ("late", 30, 30), ("orders", 500, 0)):
            end = _ends(client, topic)
            produce(console, topic, lines, tmp_path)
            assert _ends(client, topic) - end == lost, topic
            values = sorted(int((v or b"").split()[0]) for _, v in rows(client, topic).values())
            assert values == list(range(lines)), topic

        # The cluster goes on tiering into the same place, and readers notice nothing.
        produce(console, "orders", 700, tmp_path)
        until(lambda: tiered(client, "orders"), 30, "new messages in the object store")
        assert len(rows(client, "orders")) == 700
        for topic in ("orders", "audit", "part"):
            verified = client.admin.verify(topic, tier=True)
            assert verified.ok, verified
        again = console.json("cluster", "restore", "--from", url, "--yes")
        assert again["stage"] == "ended"
        assert again["topics"] == done["topics"]


def _deleted_noted(folder: Path) -> bool:
    return bool(list(folder.glob("*/topics/*/*/deleted.json")))


def _ends(client: Client, topic: str) -> int:
    return sum(queue.log_end_offset for queue in client.admin.describe_topic(topic).queues)


def _refusals(console: Console, client: Client, url: str, folder: Path) -> None:
    """One clear error each, and nothing is changed."""
    restore: Callable[..., str] = lambda *more: console.fails("cluster", "restore", *more)  # noqa: E731
    other = folder / "other"
    other.mkdir()
    assert "were started with --tier" in restore("--from", f"file://{other}", "--yes")
    client.admin.create_topic("mine", queues=1)
    assert "not empty" in restore("--from", url, "--yes")
    client.admin.delete_topic("mine")
    assert "name a GROUP" in console.fails("cluster", "restore", status=2)
    assert client.admin.list_topics() == []


def _check_report(plan: dict[str, Any], done: dict[str, Any]) -> None:
    """The report says exactly what is missing."""
    assert json.dumps(plan["topics"]) == json.dumps(done["topics"])
    lost = {
        (topic["name"], queue["queue"]): (queue["end"], queue["known_end"])
        for topic in done["topics"]
        for queue in topic["queues"]
        if queue["lost"]
    }
    assert lost == {("part", 0): (100, 137), ("late", 0): (0, 30)}
    assert done["lost"] == 67
    assert all(q["reopened"] == 0 for topic in done["topics"] for q in topic["queues"])
