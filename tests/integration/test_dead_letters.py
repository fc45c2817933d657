"""Dead letters looked at and brought back: one, some, all; once, also when a run is cut short."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from semel.client import Client, LetterFilter, Message, RetryPolicy, connect, connect_async
from semel.client.core import letters
from semel.client.dead_letters.listing import DeadLetters
from semel.client.dead_letters.redrive import _Run, redrive_letters
from semel.client.dead_letters.redrive_lock import RedriveLock
from semel.console.diagnosis import diagnose
from semel.console.main import run
from semel.protos import compat
from semel.protos.errors import (
    InvalidRequest,
    LockLost,
    ProducerFenced,
    TimedOut,
    Unavailable,
    UnknownTopic,
)
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2, controller_pb2
from tests.kit.cluster import Cluster
from tests.kit.console_inside import InsideConsole
from tests.kit.consuming import fill, take, values_of


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", str(request.node.name))
    client.admin.create_topic(name, queues=4)
    return name


def give_up(client: Client, topic: str, group: str, count: int) -> list[bytes]:
    """Makes `count` messages dead letters of the group, and returns their values."""
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


def test_a_commit_between_a_seek_back_and_the_next_message_loses_no_letter(
    client: Client, topic: str
) -> None:
    """The note to reject the message is void then, so a commit past it would lose it."""
    (value,) = fill(client, topic, 1)
    with client.consumer("seeks", topic, retry=RetryPolicy()) as consumer:
        (message,) = take(consumer, 1)
        consumer.reject(message, "first")
        consumer.seek(topic, message.queue, message.offset)
        consumer.commit()
    with client.consumer("seeks", topic, retry=RetryPolicy()) as consumer:
        (message,) = take(consumer, 1)
        consumer.reject(message, "second")
        consumer.commit()
    assert [(one.value, one.reason) for one in client.admin.dead_letters("seeks")] == [
        (value, "second")
    ]


def test_a_group_that_is_called_like_its_topic_has_its_own_letters(
    client: Client, topic: str
) -> None:
    values = give_up(client, topic, topic, 3)
    found = client.admin.dead_letters(topic)
    assert sorted(letter.value for letter in found) == values
    assert {letter.topic for letter in found} == {f"{topic}.dead-letters"}
    assert client.admin.dead_letters(f"{topic}.dead-letters") == found
    assert client.admin.redrive(topic).redriven == 3
    assert sorted(message.value for message in back(client, topic)) == values


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


def test_dead_letters_in_a_topic_of_another_name_are_listed_once_some_came_back(
    shared_cluster: Cluster, client: Client, topic: str
) -> None:
    semel = InsideConsole(shared_cluster.bootstrap)
    fill(client, topic, 3)
    policy = RetryPolicy(steps_ms=(200,), dead_letter="morgue")
    with client.consumer("undertaker", topic, retry=policy) as consumer:
        for message in take(consumer, 3):
            consumer.reject(message, "dead")
        consumer.commit()
    assert len(semel.json("dlq", "list", "morgue")["letters"]) == 3
    assert "pass such a name as TOPIC" in " ".join(semel("dlq", "list", "--help").out.split())
    client.admin.redrive("morgue")
    found = semel.json("dlq", "list")["topics"]
    assert {"topic": "morgue", "letters": 3} in found
    assert "morgue.redriven" not in {each["topic"] for each in found}


def test_a_list_reads_only_what_it_shows(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters may be large, and many."""
    give_up(client, topic, "many", 30)
    every = client.admin.dead_letters("many")
    assert [(letter.queue, letter.offset) for letter in every] == sorted(
        (letter.queue, letter.offset) for letter in every
    )
    looked_at: list[tuple[int, int]] = []
    fits = LetterFilter.fits

    def looking(which: LetterFilter, message: Message) -> bool:
        looked_at.append((message.queue, message.offset))
        return fits(which, message)

    monkeypatch.setattr(LetterFilter, "fits", looking)
    assert client.admin.dead_letters("many", limit=5) == every[:5]
    assert looked_at == [(letter.queue, letter.offset) for letter in every[:5]]
    looked_at.clear()
    some = [every[2], every[3], every[25], every[29]]
    places = tuple((letter.queue, letter.offset) for letter in reversed(some))
    nowhere = ((0, 10_000), (99, 0))
    assert client.admin.dead_letters("many", LetterFilter(places=places + nowhere)) == some
    assert looked_at == sorted(places)
    result = client.admin.redrive("many", LetterFilter(places=places))
    assert (result.matched, result.redriven) == (4, 4)
    assert set(looked_at) == set(places)


def test_letters_of_a_topic_that_was_made_again_come_back_too(client: Client, topic: str) -> None:
    """They lie where others lay that were brought back."""
    give_up(client, topic, "again", 8)
    assert client.admin.redrive("again").redriven == 8
    client.admin.delete_topic("again.dead-letters")
    client.admin.reset_offsets("again", topic, "earliest")
    with client.consumer("again", topic, retry=RetryPolicy(steps_ms=(200,))) as consumer:
        for message in take(consumer, 16)[:16]:
            consumer.reject(message)
        consumer.commit()
    assert not any(letter.redriven for letter in client.admin.dead_letters("again"))
    result = client.admin.redrive("again")
    assert (result.redriven, result.already) == (16, 0)


@pytest.mark.parametrize("step", ["ledger", "record"])
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
            patched.setattr("semel.client.dead_letters.redrive._Run._write_down", cut)
        else:
            patched.setattr(RedriveLock, "release", cut)
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


def redrive_without_an_end(client: Client, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies all letters, and is cut short before the ledger says so."""

    class Cut(Exception):
        pass

    async def cut(*_: Any, **__: Any) -> None:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr("semel.client.dead_letters.redrive._Run._write_down", cut)
        with pytest.raises(Cut):
            client.admin.redrive(group)


def _delete_by_protocol(client: Client, _: str) -> None:
    """What a client does that is older than the check of its own."""
    session = client._session
    request = broker_pb2.DeleteGroupRequest(group="semel.redrive")
    session.run(session.cluster.call_master(GroupId(1), "DeleteGroup", request))


def _forget_by_protocol(client: Client, _: str) -> None:
    session = client._session
    request = controller_pb2.ForgetGroupRequest(group="semel.redrive")
    session.run(session.cluster.controller("ForgetGroup", request))


def _reset(client: Client, topic: str) -> None:
    client.admin.reset_offsets("semel.redrive", topic, "earliest")


def _publish(client: Client, topic: str) -> None:
    client.admin.publish_progress("semel.redrive", {(topic, 0): 0})


def _join(client: Client, topic: str) -> None:
    with client.consumer("semel.redrive", topic):
        pass


def test_nobody_is_led_to_delete_what_a_redrive_that_was_cut_short_must_remember(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = give_up(client, topic, "remembers", 6)
    redrive_without_an_end(client, "remembers", monkeypatch)
    [summary] = [g for g in client.admin.group_summaries() if g.group == "semel.redrive"]
    assert (summary.members, summary.joined) == (0, False)
    ended = dataclasses.replace(summary, lag=9, locks=0)
    found = dataclasses.replace(client.admin.inspect_cluster(deep=True), consumers=[ended])
    assert "group-idle" not in {finding.check for finding in diagnose(found)}
    with pytest.raises(InvalidRequest, match="come back twice"):
        client.admin.delete_group("semel.redrive")
    for ask in (_delete_by_protocol, _forget_by_protocol, _reset, _publish, _join):
        with pytest.raises(InvalidRequest, match=r"'semel.redrive' is Semel's own"):
            ask(client, topic)
    result = client.admin.redrive("remembers")
    assert (result.redriven, result.already, result.recovered) == (0, 6, 6)
    assert values_of(back(client, topic)) == values


def test_a_run_that_was_cut_short_is_over_when_the_letters_were_made_again(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies are of other letters, which lay at the same places."""
    values = give_up(client, topic, "anew", 6)
    redrive_without_an_end(client, "anew", monkeypatch)
    assert values_of(back(client, topic)) == values
    client.admin.delete_topic("anew.dead-letters")
    with client.consumer("anew", topic, retry=RetryPolicy(steps_ms=(200,))) as consumer:
        for message in take(consumer, 6):
            consumer.reject(message)
        consumer.commit()
    result = client.admin.redrive("anew")
    assert (result.redriven, result.already, result.recovered) == (6, 0, 0)


def test_a_run_that_remembers_nothing_would_be_noticed(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug for the test above."""
    values = give_up(client, topic, "forgets", 12)

    async def nothing(*_: Any) -> set[tuple[int, int]]:
        return set()

    client.admin.redrive("forgets")
    monkeypatch.setattr(DeadLetters, "ledger", nothing)
    client.admin.redrive("forgets")
    assert Counter(values_of(back(client, topic))) != Counter(values)


def test_of_two_runs_the_later_one_ends_the_earlier(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = give_up(client, topic, "race", 12)
    later = Later(client, "race")
    real = RedriveLock.store

    async def store(lock: RedriveLock, record: bytes) -> None:
        await real(lock, record)
        if record:
            await later.run(monkeypatch, "store", real)

    monkeypatch.setattr(RedriveLock, "store", store)
    with pytest.raises(ProducerFenced, match="later redrive"):
        client.admin.redrive("race")
    assert later.redriven == [12]
    assert values_of(back(client, topic)) == values
    assert client.admin.redrive("race").redriven == 0


@pytest.mark.parametrize("when", ["before the record", "behind the copies", "unawaited"])
def test_a_run_whose_ledger_moves_goes_on(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move ends the lock of the run, and keeps it from another one until it is over."""
    monkeypatch.setattr("semel.client.dead_letters.redrive.ROUND_LETTERS", 2)
    with Cluster(tmp_path, brokers=1, groups=2) as cluster, connect(cluster.bootstrap) as client:
        client.admin.create_topic("t", queues=4, groups=[1])
        values = give_up(client, "t", "g", 6)
        client.admin.create_topic("g.dead-letters.redriven", queues=1, groups=[1])
        admin = client._session.admin
        calls = 0

        async def move() -> None:
            nonlocal calls
            calls += 1
            if calls != 2:
                return
            await admin.move_queue("g.dead-letters.redriven", 0, 2)
            async with compat.timeout(60):
                while await admin.list_moves("") and when != "unawaited":
                    await asyncio.sleep(0.05)

        if when == "behind the copies":
            write_down = _Run._write_down

            async def moved(run: _Run, *about: Any) -> None:
                await move()
                await write_down(run, *about)
                if calls == 2:
                    raise LockLost("noticed before the round is over")

            monkeypatch.setattr(_Run, "_write_down", moved)
        else:
            store = RedriveLock.store

            async def stored(lock: RedriveLock, record: bytes) -> None:
                await move()
                await store(lock, record)

            monkeypatch.setattr(RedriveLock, "store", stored)
        told: list[int] = []
        result = client.admin.redrive("g", on_progress=lambda p: told.append(p.redriven))
        assert calls > 2
        assert (result.matched, result.redriven, result.already, result.recovered) == (6, 6, 0, 0)
        assert result.targets == {"t": 6}
        assert told == sorted(told)
        assert values_of(back(client, "t")) == values
        assert client.admin.redrive("g").already == 6


def test_a_run_that_cannot_learn_why_its_lock_is_lost_says_what_to_do(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = give_up(client, topic, "unsure", 6)

    async def lost(*_: Any) -> None:
        raise LockLost("lost")

    async def unknown(*_: Any) -> bool:
        raise Unavailable("no broker answers")

    with monkeypatch.context() as patched:
        patched.setattr(RedriveLock, "store", lost)
        patched.setattr(RedriveLock, "passed_on", unknown)
        with pytest.raises(LockLost, match=r"later redrive has begun, or .* moved.* repeat it"):
            client.admin.redrive("unsure")
    assert client.admin.redrive("unsure").redriven == 6
    assert values_of(back(client, topic)) == values


def test_a_run_that_is_not_done_in_time_says_what_to_do(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = give_up(client, topic, "slow", 6)
    real = RedriveLock.store
    monkeypatch.setattr("semel.client.api.telling.GRACE_S", 0.0)

    async def store(lock: RedriveLock, record: bytes) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(RedriveLock, "store", store)
        with pytest.raises(TimedOut, match=r"within 0\.5 s: what came back stays, repeat it"):
            client.admin.redrive("slow", timeout=0.5)
    assert RedriveLock.store is real
    assert client.admin.redrive("slow").redriven == 6
    assert values_of(back(client, topic)) == values


class Later:
    """Another redrive of the same letters, in the middle of the first."""

    def __init__(self, client: Client, group: str) -> None:
        self._session = client._session
        self._group = group
        self.redriven: list[int] = []

    async def run(self, monkeypatch: pytest.MonkeyPatch, name: str, real: Any) -> None:
        """Once; the first run's interruption is taken away before it begins."""
        monkeypatch.setattr(RedriveLock, name, real)
        session = self._session
        done = await redrive_letters(
            session.cluster,
            session.runtime,
            self._group,
            LetterFilter(),
            to="origin",
            dry_run=False,
            note=lambda _: None,
        )
        self.redriven.append(done.redriven)


def test_the_ledger_is_read_when_no_earlier_run_can_add_to_it(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has counted what is to do, and is slow to begin, meets another one's work."""
    values = give_up(client, topic, "ledger", 12)
    other = Later(client, "ledger")
    real = RedriveLock.acquire

    async def acquire(lock: RedriveLock) -> bytes:
        await other.run(monkeypatch, "acquire", real)
        return await real(lock)

    monkeypatch.setattr(RedriveLock, "acquire", acquire)
    result = client.admin.redrive("ledger")
    assert (other.redriven, result.redriven, result.already) == ([12], 0, 12)
    assert values_of(back(client, topic)) == values


def test_an_older_run_that_wakes_up_brings_nothing_back(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps between taking its lock and its first record."""
    values = give_up(client, topic, "sleeper", 12)
    other = Later(client, "sleeper")
    real = RedriveLock.acquire

    async def acquire(lock: RedriveLock) -> bytes:
        record = await real(lock)
        await other.run(monkeypatch, "acquire", real)
        return record

    monkeypatch.setattr(RedriveLock, "acquire", acquire)
    with monkeypatch.context() as patched:
        ledger = DeadLetters.ledger

        async def of_before(*_: Any) -> set[tuple[int, int]]:
            return set()

        # Whatever the older one read of the ledger, its lock is gone.
        patched.setattr(DeadLetters, "ledger", _first_two(of_before, ledger))
        with pytest.raises(ProducerFenced, match="later redrive"):
            client.admin.redrive("sleeper")
    assert other.redriven == [12]
    assert values_of(back(client, topic)) == values


def _first_two(instead: Any, real: Any) -> Any:
    """The first call and the last of three are exchanged: those of the outer run."""
    calls = [0]

    async def call(*arguments: Any) -> Any:
        calls[0] += 1
        return await (real if calls[0] in (2, 3) else instead)(*arguments)

    return call


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
    assert (done["redriven"], done["already"], done["dry_run"]) == (0, 9, False)
    plan = semel("dlq", "redrive", "console", "--all", "--dry-run")
    assert (plan["redriven"], plan["dry_run"]) == (0, True)
    for arguments, status, message in (
        (("redrive", "console"), 2, "which letters"),
        (("redrive", "console", "--all", "--key", "k"), 2, "not both"),
        (("redrive", "console", "--letter", "x"), 2, "no dead letter such as 0/17"),
        (("show", "console", "0/999"), 1, "no message 0/999"),
        (("list", "--reason", "x"), 2, "need a TOPIC"),
        (("list", "--letter", "0/1"), 2, "need a TOPIC"),
        (("list", "--limit", "100"), 2, "need a TOPIC"),
        (("list", "nowhere"), 1, "there is no topic 'nowhere'"),
    ):
        assert run(["dlq", *arguments]) == status
        assert message in capfd.readouterr().err
    for good in (("list",), ("list", "console"), ("show", "console", place)):
        assert run(["dlq", *good]) == 0
        assert "console" in capfd.readouterr().out
