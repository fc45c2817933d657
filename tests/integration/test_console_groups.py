"""`semel group` on a real cluster: resets, refusals, watching, completion, questions."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import BashComplete

from semel.client import Client, Shift, connect
from semel.console.main import semel as command
from semel.protos.errors import InvalidRequest, UnknownGroup
from tests.kit.console_inside import InsideConsole
from tests.kit.up_process import UpProcess


@pytest.fixture(scope="module")
def up(module_path: Path) -> Iterator[UpProcess]:
    with UpProcess(module_path / "cluster", "--brokers", "1") as process:
        yield process


@pytest.fixture(scope="module")
def semel(up: UpProcess) -> InsideConsole:
    return InsideConsole(up.bootstrap)


@pytest.fixture(scope="module")
def client(up: UpProcess) -> Iterator[Client]:
    with connect(up.bootstrap) as found:
        yield found


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """100 messages in two queues, ten of them read by a group of the topic's name."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
    client.admin.create_topic(name, queues=2)
    values = [str(number).encode() for number in range(100)]
    with client.producer() as producer:
        producer.send_many(name, values, keys=values)
        producer.flush()
    client.admin.reset_offsets(name, name, {0: 4, 1: 6})
    return name


def committed(client: Client, group: str) -> dict[int, int]:
    return {q.queue: q.committed_offset for q in client.admin.describe_group(group).queues}


def ends(client: Client, topic: str) -> dict[int, int]:
    return {q.queue: q.log_end_offset for q in client.admin.describe_topic(topic).queues}


def resets(found: Any) -> dict[int, tuple[int, int]]:
    return {row["queue"]: (row["committed_offset"], row["new_offset"]) for row in found["resets"]}


def test_a_reset_is_shown_and_only_then_done(
    semel: InsideConsole, client: Client, topic: str
) -> None:
    reset = ("group", "reset-offsets", topic)
    end = ends(client, topic)
    found = semel.json(*reset, "--to-latest")
    assert (found["executed"], found["active"]) == (False, [])
    assert resets(found) == {0: (4, end[0]), 1: (6, end[1])}
    assert committed(client, topic) == {0: 4, 1: 6}
    assert "nothing changed" in semel(*reset, "--to-latest").out
    assert semel.json(*reset, "--to-latest", "--execute")["executed"] is True
    assert committed(client, topic) == end
    semel.json(*reset, "--to-earliest", "--topic", f"{topic}:1", "--execute")
    assert committed(client, topic) == {0: end[0], 1: 0}
    semel.json(*reset, "--shift-by", "-3", "--execute")
    assert committed(client, topic) == {0: end[0] - 3, 1: 0}
    semel.json(*reset, "--shift-by", "999", "--execute")
    assert committed(client, topic) == end
    semel.json(*reset, "--to-offset", "2", "--execute")
    assert committed(client, topic) == {0: 2, 1: 2}
    semel.json(*reset, "--to-datetime", "2001-01-01", "--execute")
    assert committed(client, topic) == {0: 0, 1: 0}
    semel.json(*reset, "--to-datetime", "2101-01-01", "--execute")
    assert committed(client, topic) == end
    assert "outside queue" in semel.fails(*reset, "--to-offset", "1000")
    assert "no queue 7" in semel.fails(*reset, "--to-earliest", "--topic", f"{topic}:7")


def test_another_group_has_nothing_to_shift_and_needs_a_topic(
    semel: InsideConsole, client: Client, topic: str
) -> None:
    other = ("group", "reset-offsets", f"{topic}-other")
    assert "name a topic" in semel.fails(*other, "--to-earliest")
    assert semel.json(*other, "--shift-by", "1", "--topic", topic)["resets"] == []
    found = semel.json(*other, "--to-offset", "1", "--topic", topic, "--execute")
    assert resets(found) == {0: (-1, 1), 1: (-1, 1)}
    assert committed(client, f"{topic}-other") == {0: 1, 1: 1}


def test_a_group_that_never_had_a_member_can_be_deleted(client: Client, topic: str) -> None:
    client.admin.delete_group(topic)
    assert topic not in client.admin.list_groups()
    with pytest.raises(UnknownGroup):
        client.admin.delete_group(topic)


def test_progress_in_one_topic_is_deleted(semel: InsideConsole, client: Client, topic: str) -> None:
    group, other = f"{topic}-two", f"{topic}-second"
    client.admin.create_topic(other, queues=1)
    with client.producer() as producer:
        producer.send_many(other, [b"1", b"2"])
        producer.flush()
    client.admin.reset_offsets(group, topic, {0: 4, 1: 6})
    client.admin.reset_offsets(group, other, {0: 1})
    delete = ("group", "delete", group, "--topic", topic, "--yes")
    assert semel.json(*delete) == {"group": group, "deleted": True, "topic": topic}
    left = client.admin.describe_group(group).queues
    assert {(queue.topic, queue.committed_offset) for queue in left} == {(other, 1)}
    assert "no progress in topic" in semel.fails(*delete)
    assert not semel.json(*delete, "--if-exists")["deleted"]


def test_an_active_group_is_not_moved(semel: InsideConsole, client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        while not consumer.poll(timeout=0.2, max_messages=1):
            pass
        done = semel("group", "reset-offsets", topic, "--to-earliest", "--json")
        line = json.loads(done.out)
        assert len(line["active"]) == 1
        assert "would be refused" in done.errors
        refused = semel.fails("group", "reset-offsets", topic, "--to-earliest", "--execute")
        assert "is active" in refused
        assert line["active"][0] in refused
        plan, active = client.admin.plan_offset_resets(topic, to=Shift(messages=-1))
        assert active
        with pytest.raises(InvalidRequest, match="is active"):
            client.admin.carry_out_resets(topic, plan)
        assert min(committed(client, topic).values()) >= 4
        listed = {g["group"]: g for g in semel.json("group", "list")["groups"]}[topic]
        assert (listed["members"], listed["locks"] > 0) == (1, True)
        assert "has members" in semel.fails("group", "delete", topic, "--yes")
    client.admin.carry_out_resets(topic, plan)  # its consumer has left
    assert committed(client, topic) == {reset.queue: reset.new_offset for reset in plan}
    assert semel.json("group", "delete", topic, "--yes")["deleted"] is True
    assert semel.json("group", "delete", topic, "--yes", "--if-exists")["deleted"] is False


def test_watching_goes_on_until_it_is_interrupted(up: UpProcess, topic: str) -> None:
    watch = [sys.executable, "-m", "semel.console", "group", "describe", topic, "--json"]
    watching = subprocess.Popen(
        [*watch, "--watch", "--every", "50ms", "--bootstrap", up.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert watching.stdout is not None
    seen = [json.loads(watching.stdout.readline()) for _ in range(3)]
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert (watching.returncode, errors) == (0, b"")
    assert [look["group"] for look in seen] == [topic] * 3


def completed(bootstrap: str, *words: str) -> list[str]:
    """What Tab would offer for the last word."""
    shell = BashComplete(command, {}, "semel", "_SEMEL_COMPLETE")
    arguments = [*words[:2], "--bootstrap", bootstrap, *words[2:-1]]
    return [found.value for found in shell.get_completions(arguments, words[-1])]


def test_names_are_completed_from_the_cluster(up: UpProcess, client: Client, topic: str) -> None:
    client.producer(f"{topic}-loader").send(topic, b"x").result()
    where = up.bootstrap
    assert completed(where, "topic", "describe", topic[:12]) == [topic]
    assert completed(where, "group", "describe", topic[:12]) == [topic]
    assert completed(where, "producer", "describe", f"{topic}-lo") == [f"{topic}-loader"]
    assert completed(where, "group", "reset-offsets", "x", "--topic", topic[:9]) == [topic]
    assert completed("127.0.0.1:9", "topic", "describe", "t") == []


class _Person(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_is_asked_before_a_topic_is_deleted(
    semel: InsideConsole, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "pass --yes" in semel.fails("topic", "delete", topic, status=2)
    for answer, status, left in (("n\n", 130, True), ("y\n", 0, False)):
        monkeypatch.setattr("sys.stdin", _Person(answer))
        done = semel("topic", "delete", topic)
        assert done.status == status
        assert f"Delete topic {topic}" in done.errors
        assert done.out == ("" if left else f"topic {topic} deleted\n")
        assert (topic in {found.name for found in client.admin.list_topics()}) is left
