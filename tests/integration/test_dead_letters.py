"""Dead letters looked at and brought back: one, some, all; once, also when a run is cut short."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from semel.client import Client, LetterFilter, Message, RetryPolicy, connect_async
from semel.client.core import letters
from semel.client.redriving import DeadLetters
from semel.client.relay import Relay
from semel.console.main import run
from semel.protos.errors import ProducerFenced, UnknownTopic
from tests.integration.cluster import Cluster
from tests.integration.test_client_consumers import fill, take, values_of


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", str(request.node.name))
    client.admin.create_topic(name, queues=4)
    return name


def give_up(client: Client, topic: str, group: str, count: int) -> list[bytes]:
    """So many messages become dead letters of the group."""
    values = fill(client, topic, count)
    with client.consumer(group, topic, retry=RetryPolicy(steps_ms=(200,))) as consumer:
        for message in take(consumer, count):
            consumer.reject(message, f"reason {int(message.value) % 3}")
        consumer.commit()
    return values


def back(client: Client, topic: str) -> list[Message]:
    """What was brought back to a topic."""
    with client.reader(topic, end="latest") as reader:
        return [message for message in reader if letters.read(message.headers).redriven]


def test_one_some_and_all_come_back_once(client: Client, topic: str) -> None:
    values = give_up(client, topic, "redrive", 30)
    name = "redrive.dead-letters"
    found = client.admin.dead_letters("redrive")
    assert sorted(letter.value for letter in found) == values
    assert not any(letter.redriven for letter in found)
    first = found[0]
    assert first.topic == name
    assert first.origin is not None
    assert (first.origin.topic, first.group, first.attempts, first.cause) == (
        topic,
        "redrive",
        1,
        letters.REJECTED,
    )
    one = LetterFilter(places=((first.queue, first.offset),))
    plan = client.admin.redrive(name, one, dry_run=True)
    assert (plan.matched, plan.redriven, plan.targets) == (1, 1, {topic: 1})
    assert back(client, topic) == []
    assert client.admin.redrive(name, one).redriven == 1
    assert values_of(back(client, topic)) == [first.value]
    some = LetterFilter(reason="reason 1")
    result = client.admin.redrive(name, some)
    assert (result.matched, result.redriven + result.already) == (10, 10)
    told: list[int] = []
    result = client.admin.redrive(name, on_progress=lambda p: told.append(p.redriven))
    assert (result.matched, result.redriven + result.already) == (30, 30)
    assert told[-1] == result.redriven
    assert values_of(back(client, topic)) == values
    again = client.admin.redrive(name)
    assert (again.redriven, again.already, again.recovered) == (0, 30, 0)
    assert values_of(back(client, topic)) == values
    assert all(letter.redriven for letter in client.admin.dead_letters("redrive"))
    with client.consumer("redrive", topic) as consumer:
        (message, *_) = take(consumer, 30)
    assert message.attempt == 1
    assert message.origin.topic == topic


@pytest.mark.parametrize("step", ["ledger", "mark"])
def test_a_run_that_was_cut_short_is_finished_by_the_next(
    client: Client, topic: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"cut-{step}"
    name = f"{group}.dead-letters"
    values = give_up(client, topic, group, 12)

    class Cut(Exception):
        pass

    calls = [0]

    async def cut(*_: Any, **__: Any) -> None:
        calls[0] += 1
        raise Cut

    with monkeypatch.context() as patched:
        if step == "ledger":
            patched.setattr("semel.client.redriving._Run._write_down", cut)
        else:
            patched.setattr(Relay, "resolve", _second(Relay.resolve, cut))
        with pytest.raises(Cut):
            client.admin.redrive(name)
    assert calls == [1]
    assert values_of(back(client, topic)) == values, "the copies were durable"
    # Told to go elsewhere, the next run must not bring the same letters there.
    result = client.admin.redrive(name, to="group")
    assert (result.redriven, result.already) == (0, 12)
    assert result.recovered == (12 if step == "ledger" else 0)
    assert values_of(back(client, topic)) == values
    assert client.admin.redrive(name).already == 12


def _second(real: Any, instead: Any) -> Any:
    """The first call does the real thing, the second something else."""
    calls = [0]

    async def call(*arguments: Any) -> None:
        calls[0] += 1
        await (real if calls[0] == 1 else instead)(*arguments)

    return call


def test_a_run_that_remembers_nothing_would_be_noticed(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug for the test above."""
    values = give_up(client, topic, "forgets", 12)

    async def nothing(*_: Any) -> set[tuple[int, int]]:
        return set()

    client.admin.redrive("forgets")
    monkeypatch.setattr(DeadLetters, "_ledger", nothing)
    client.admin.redrive("forgets")
    assert Counter(values_of(back(client, topic))) != Counter(values)


def test_of_two_runs_the_later_one_ends_the_earlier(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = give_up(client, topic, "race", 12)
    session = client._session
    real = Relay.send
    other: list[int] = []

    async def send(self: Relay, copies: Any) -> Any:
        if not other:
            other.append(0)
            monkeypatch.setattr(Relay, "send", real)
            run_ = DeadLetters(session.cluster, session.runtime, "race").redrive(
                LetterFilter(), to="origin", dry_run=False, note=lambda _: None
            )
            other[0] = (await run_).redriven
        return await real(self, copies)

    monkeypatch.setattr(Relay, "send", send)
    with pytest.raises(ProducerFenced, match="later redrive"):
        client.admin.redrive("race")
    assert other == [12]
    assert values_of(back(client, topic)) == values
    assert client.admin.redrive("race").redriven == 0


async def test_only_the_group_gets_what_is_brought_back_to_it(
    shared_cluster: Cluster, client: Client, topic: str
) -> None:
    values = give_up(client, topic, "only", 8)
    async with connect_async(shared_cluster.bootstrap) as other:
        assert len(await other.admin.dead_letters("only", limit=5)) == 5
        result = await other.admin.redrive("only", to="group")
        assert result.targets == {"only.retry-1": 8}
    assert back(client, topic) == []
    with client.consumer("only", topic, retry=RetryPolicy(steps_ms=(200,))) as consumer:
        messages = take(consumer, 8)
        assert values_of(messages) == values
        assert {(m.attempt, m.topic, m.origin.topic) for m in messages} == {
            (1, "only.retry-1", topic)
        }
    with pytest.raises(UnknownTopic, match="dead letters of a group"):
        client.admin.redrive("nobody")


def test_the_console_lists_shows_and_brings_back(
    shared_cluster: Cluster,
    client: Client,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SEMEL_BOOTSTRAP", shared_cluster.bootstrap)
    give_up(client, topic, "console", 9)

    def semel(*arguments: str) -> Any:
        assert run([*arguments, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    topics = semel("dlq", "list")["topics"]
    assert {"topic": "console.dead-letters", "letters": 9} in topics
    found = semel("dlq", "list", "console", "--reason", "reason 2", "--origin", topic)["letters"]
    assert len(found) == 3
    place = f"{found[0]['queue']}/{found[0]['offset']}"
    assert semel("dlq", "show", "console", place) == found[0]
    assert found[0]["value"].isdecimal()
    plan = semel("dlq", "redrive", "console", "--all", "--dry-run")
    assert (plan["redriven"], plan["dry_run"]) == (9, True)
    assert semel("dlq", "redrive", "console", "--letter", place, "--yes")["redriven"] == 1
    assert semel("dlq", "redrive", "console", "--all", "--yes")["redriven"] == 8
    done = semel("dlq", "redrive", "console", "--all", "--yes")
    assert (done["redriven"], done["already"]) == (0, 9)
    for arguments, status, message in (
        (("redrive", "console"), 2, "which letters"),
        (("redrive", "console", "--all", "--key", "k"), 2, "not both"),
        (("redrive", "console", "--letter", "x"), 2, "no dead letter such as 0/17"),
        (("show", "console", "0/999"), 1, "no message 0/999"),
        (("list", "nowhere"), 1, "there is no topic 'nowhere'"),
    ):
        assert run(["dlq", *arguments]) == status
        assert message in capfd.readouterr().err
    for arguments in (("list",), ("list", "console"), ("show", "console", place)):
        assert run(["dlq", *arguments]) == 0
        assert "console" in capfd.readouterr().out
