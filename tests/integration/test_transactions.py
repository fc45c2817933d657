"""Transactions over two broker groups of real processes: all or nothing, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.client import Client, StageReceipt, connect, connect_async
from semel.client.transactions.commit import TransactionCore, _pins
from semel.protos import errors
from semel.protos.v1 import common_pb2, transaction_records_pb2, transactions_pb2
from tests.kit.cluster import Cluster
from tests.kit.console_inside import InsideConsole

PIN_MS = 6_000
"""Far longer than a commit takes on a busy machine: one that takes longer is aborted. Yet what a
dead program has pinned is to end within a test."""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[Cluster]:
    """Two broker groups of one node each, impatient about pins."""
    flags = ["--transaction-pin-ms", str(PIN_MS)]
    directory = module_path / "cluster"
    with Cluster(directory, brokers=1, groups=2, broker_flags=flags) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """Four queues over both groups."""
    name = str(request.node.name).replace("[", "-").replace("]", "")[:200]
    client.admin.create_topic(name, queues=4)
    groups = {queue.group for queue in client.admin.describe_topic(name).queues}
    assert groups == {1, 2}, "the transaction is to need both groups"
    return name


def stored(client: Client, topic: str) -> Counter[bytes]:
    """Every visible value; asserts that offsets are dense and that the brokers find it whole."""
    found: Counter[bytes] = Counter()
    with client.reader(topic, end="latest") as reader:
        ends: dict[int, int] = {}
        for message in reader:
            assert message.offset == ends.get(message.queue, 0)
            ends[message.queue] = message.offset + 1
            found[message.value] += 1
    result = client.admin.verify(topic)
    assert result.ok, result.problems
    assert result.messages == sum(found.values())
    return found


def values(name: str, count: int = 40) -> list[bytes]:
    return [f"{name}:{number}".encode() for number in range(count)]


def keys(count: int = 40) -> list[bytes]:
    """Enough different keys that every queue gets some."""
    return [b"k%d" % number for number in range(count)]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_quiet(client: Client, name: str) -> bool:
    """Nothing of the transaction is open anywhere."""
    info = client.transactions.describe(name)
    return info is None or info.state == "idle"


def staged(client: Client, topic: str, name: str, epoch: int, writer: int = 0) -> StageReceipt:
    with client.transactions.stage(name, epoch, writer=writer) as stage:
        stage.send_many(topic, values(f"{name}-{writer}"), keys=keys())
        return stage.receipt()


# --- one program --------------------------------------------------------------------------------


def test_everything_is_visible_after_the_context_and_nothing_before(
    client: Client, topic: str
) -> None:
    with client.producer() as producer:
        with producer.transaction(topic) as t:
            t.send_many(topic, values("a"), keys=keys())
            t.send(topic, b"one", key=b"k", headers={"h": b"1"})
            assert (t.epoch, t.last_epoch, t.committed) == (0, -1, False)
            producer.send(topic, b"plain").result()
            assert list(stored(client, topic)) == [b"plain"]
        assert t.committed
        assert t.commit().messages == 41, "the same answer again"
        with producer.transaction(topic) as t:
            assert (t.epoch, t.last_epoch) == (1, 0)
            t.send(topic, b"two")
    assert stored(client, topic) == Counter([*values("a"), b"one", b"two", b"plain"])
    assert is_quiet(client, topic)


def test_an_exception_or_an_abort_leaves_nothing(client: Client, topic: str) -> None:
    with client.producer() as producer:
        with suppress(ZeroDivisionError), producer.transaction(topic) as t:
            t.send_many(topic, values("a"), keys=keys())
            raise ZeroDivisionError
        assert not t.committed
        with producer.transaction(topic) as t:
            t.send(topic, b"b")
            t.abort()
        with pytest.raises(errors.InvalidRequest):
            t.commit()
        with producer.transaction(topic) as t:
            assert t.epoch == 0, "nothing was committed so far"
            t.send(topic, b"c")
    assert stored(client, topic) == Counter([b"c"])
    assert is_quiet(client, topic)


def test_a_second_program_under_the_id_ends_the_first_ones_transaction(
    client: Client, topic: str
) -> None:
    with client.producer() as one, client.producer() as two:
        zombie = one.transaction(topic)
        zombie.__enter__()
        zombie.send(topic, b"zombie")
        with two.transaction(topic) as t:
            t.send(topic, b"mine")
        with pytest.raises(errors.TransactionFenced):
            zombie.__exit__(None, None, None)
    assert stored(client, topic) == Counter([b"mine"])
    assert is_quiet(client, topic)


@pytest.mark.parametrize("how", ["again", "aborted"])
def test_a_commit_whose_reply_is_lost_is_a_commit(
    client: Client, topic: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = TransactionCore._call
    lost: list[str] = []

    async def losing(self: TransactionCore, group: Any, method: str, *rest: Any) -> Any:
        reply = await call(self, group, method, *rest)
        if method == "Decide" and not lost:
            lost.append(method)
            raise errors.Unavailable("the reply was lost")
        return reply

    monkeypatch.setattr(TransactionCore, "_call", losing)
    with client.producer() as producer:
        t = producer.transaction(topic)
        t.__enter__()
        t.send_many(topic, values("a"), keys=keys())
        with pytest.raises(errors.Unavailable):
            t.commit()
        assert lost
        if how == "aborted":  # as leaving the context with the error does
            t.abort()
        assert t.commit().messages == 40
        with producer.transaction(topic) as after:
            assert after.last_epoch == 0
    assert stored(client, topic) == Counter(values("a"))


def test_an_epoch_of_the_callers_own_is_stored_once(client: Client, topic: str) -> None:
    with client.producer() as producer:
        for _ in range(2):
            with producer.transaction(topic, epoch=7, query_id="q") as t:
                if not t.committed:
                    t.send(topic, b"seven")
        with (
            pytest.raises(errors.InvalidRequest),
            producer.transaction(topic, epoch=7, query_id="q") as t,
        ):
            t.send(topic, b"again")
        with (
            pytest.raises(errors.TransactionConflict) as refused,
            producer.transaction(topic, query_id="other"),
        ):
            pass
        assert refused.value.owner == "q"
    assert stored(client, topic) == Counter([b"seven"])


def test_a_queue_that_is_split_meanwhile_aborts_and_the_next_attempt_commits(
    client: Client, topic: str
) -> None:
    with client.producer() as producer:
        t = producer.transaction(topic)
        t.__enter__()
        t.send_many(topic, values("a"), keys=keys())
        stage = t._work.stage
        assert stage is not None
        client._session.run(stage.flush())
        client.admin.split_queue(topic, 0)
        t.send_many(topic, values("b"), keys=keys())
        with pytest.raises(errors.TransactionAborted, match="split"):
            t.__exit__(None, None, None)
        with producer.transaction(topic) as t:
            t.send_many(topic, values("c"), keys=keys())
    assert stored(client, topic) == Counter(values("c"))


def test_a_message_that_cannot_be_sent_aborts_the_commit(client: Client, topic: str) -> None:
    with client.producer() as producer:
        with producer.transaction(topic) as t:
            t.send(topic, b"a")
            t.send(topic, b"b", queue=99)
            with pytest.raises(errors.TransactionAborted):
                t.commit()
        with pytest.raises(errors.InvalidRequest):
            producer.transaction("")
        with pytest.raises(errors.InvalidRequest):
            t.send(topic, b"outside")
    assert not stored(client, topic)


async def test_the_same_with_asyncio(cluster: Cluster, client: Client, topic: str) -> None:
    async with connect_async(cluster.bootstrap) as connected, connected.producer() as producer:
        async with producer.transaction(topic) as t:
            await t.send_many(topic, pa.array(values("a"), pa.binary()), keys=keys())
            await t.send(topic, b"one")
        assert t.committed
        with suppress(ZeroDivisionError):
            async with producer.transaction(topic) as t:
                await t.send(topic, b"never")
                raise ZeroDivisionError
        assert not t.committed
    found = await asyncio.to_thread(stored, client, topic)
    assert found == Counter([*values("a"), b"one"])


async def test_many_writers_with_asyncio(cluster: Cluster, client: Client, topic: str) -> None:
    async with connect_async(cluster.bootstrap) as connected:
        transactions = connected.transactions
        async with transactions.stage(topic, 0, writer=1) as given_up:
            await given_up.send(topic, b"given up")
        async with transactions.stage(topic, 0) as stage:
            await stage.send_many(topic, values("a"), keys=keys())
            await stage.send(topic, b"one")
            receipt = await stage.receipt()
        late = await transactions.describe(topic)
        assert late is not None
        assert (late.state, late.messages) == ("staging", 41), "what was given up is gone"
        assert (await transactions.commit(topic, "q", 0, [receipt])).messages == 41
        assert (await transactions.commit(topic, "q", 0, [receipt])).replayed
        await transactions.abort([receipt])
        assert topic in [one.transaction_id for one in await transactions.list()]
        ended = await transactions.end(topic)
        assert ended is not None
        assert (ended.state, ended.last_epoch) == ("idle", 0)
    found = await asyncio.to_thread(stored, client, topic)
    assert found == Counter([*values("a"), b"one"])


# --- many writers -------------------------------------------------------------------------------


def test_what_the_winners_staged_is_published_in_their_order(client: Client, topic: str) -> None:
    receipts = [staged(client, topic, topic, 0, writer) for writer in (2, 0, 1)]
    staged(client, topic, topic, 0, 5)  # a speculative attempt that did not win
    receipts = pickle.loads(pickle.dumps(receipts))
    done = client.transactions.commit(topic, "q", 0, receipts)
    assert (done.epoch, done.messages, done.replayed) == (0, 120, False)
    again = client.transactions.commit(topic, "q", 0, receipts)
    assert again.replayed
    retried = [staged(client, topic, topic, 0, writer) for writer in (0, 1)]
    assert client.transactions.commit(topic, "q", 0, retried).replayed
    with pytest.raises(errors.TransactionConflict):
        client.transactions.commit(topic, "fresh", 0, [])
    expected = [value for writer in range(3) for value in values(f"{topic}-{writer}")]
    assert stored(client, topic) == Counter(expected)
    with client.reader(topic, queues=[0], end="latest") as reader:
        writers = [int(m.value.split(b":")[0].rsplit(b"-", 1)[1]) for m in reader]
    assert writers == sorted(writers)
    assert set(writers) == {0, 1, 2}


def test_a_receipt_that_names_too_much_aborts(client: Client, topic: str) -> None:
    receipt = staged(client, topic, topic, 0)
    part = receipt.parts[0]
    forged = part._replace(messages=part.messages + 1)
    lied = StageReceipt(
        transaction_id=topic,
        epoch=0,
        writer=0,
        stager_id=receipt.stager_id,
        parts=(forged, *receipt.parts[1:]),
    )
    with pytest.raises(errors.TransactionAborted):
        client.transactions.commit(topic, "q", 0, [lied])
    assert not stored(client, topic)
    until(lambda: is_quiet(client, topic), "what was staged is given up")


def test_an_operator_ends_what_is_open(client: Client, topic: str) -> None:
    staged(client, topic, topic, 0)
    info = client.transactions.describe(topic)
    assert info is not None
    assert (info.state, info.messages, info.participants) == ("staging", 40, [1, 2])
    assert topic in [one.transaction_id for one in client.transactions.list()]
    ended = client.transactions.end(topic)
    assert ended is not None
    assert client.transactions.describe(topic) is None
    assert client.transactions.end(topic) is None


def test_the_console_shows_and_ends_them(client: Client, cluster: Cluster, topic: str) -> None:
    semel = InsideConsole(cluster.bootstrap)
    receipt = staged(client, topic, topic, 0)
    [row] = [
        row
        for row in semel.json("transaction", "list", "--open")["transactions"]
        if row["transaction_id"] == topic
    ]
    assert (row["state"], row["messages"], row["participants"]) == ("staging", 40, [1, 2])
    client.transactions.commit(topic, "q", 0, [receipt])
    staged(client, topic, topic, 1)
    shown = semel.json("transaction", "describe", topic)
    assert (shown["query_id"], shown["last_epoch"], shown["state"]) == ("q", 0, "staging")
    assert "query q" in semel("transaction", "describe", topic).out
    assert topic in semel("transaction", "list").out
    assert "--yes" in semel.fails("transaction", "abort", topic, status=2)
    ended = semel.json("transaction", "abort", topic, "--yes")
    assert (ended["before"]["messages"], ended["after"]["state"]) == (40, "idle")
    assert "last committed epoch is 0" in semel("transaction", "abort", topic).out
    for verb in ("describe", "abort"):
        assert "no broker knows" in semel.fails("transaction", verb, "nobody")
    assert stored(client, topic) == Counter(values(f"{topic}-0"))


# --- kills --------------------------------------------------------------------------------------

DYING = """
import json, os, signal, sys
from semel.client import connect
from semel.client.transactions.commit import TransactionCore

bootstrap, topic, name, step = sys.argv[1:]
call = TransactionCore._call

async def dying(self, group, method, request, timeout_s=None):
    if step == "before " + method:
        os.kill(os.getpid(), signal.SIGKILL)
    reply = await call(self, group, method, request, timeout_s)
    if step == "after " + method:
        os.kill(os.getpid(), signal.SIGKILL)
    return reply

TransactionCore._call = dying
with connect(bootstrap) as client, client.producer() as producer:
    with producer.transaction(name) as t:
        t.send_many(topic, [b"%s:%d" % (name.encode(), n) for n in range(40)],
                    keys=[b"k%d" % n for n in range(40)])
print("survived")
"""
STEPS = ["after Begin", "before Pin", "after Pin", "before Decide", "after Decide"]


def test_a_program_that_is_killed_at_any_step_leaves_all_or_nothing(
    cluster: Cluster, client: Client, topic: str, tmp_path: Path
) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    running = {
        step: subprocess.Popen(
            [sys.executable, str(script), cluster.bootstrap, topic, step.replace(" ", "-"), step],
            stdout=subprocess.PIPE,
        )
        for step in STEPS
    }
    for step, process in running.items():
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, output) == (-signal.SIGKILL, b""), step
    with client.producer() as producer, producer.transaction("after-Pin") as t:
        t.send(topic, b"at once")  # what the dead program has pinned is in nobody's way
    names = [step.replace(" ", "-") for step in STEPS]
    for name in names:
        # What was pinned ends by itself. What was only staged or begun holds up nobody, and ends by
        # its time, or when the program comes back.
        until(
            lambda name=name: (
                (info := client.transactions.describe(name)) is None  # type: ignore[misc]
                or info.state in ("idle", "open", "staging")
            ),
            f"{name} hangs: {client.transactions.describe(name)}",
        )
    assert stored(client, topic) == Counter([*values("after-Decide"), b"at once"])
    with client.producer() as producer:
        for name in names:
            with producer.transaction(name) as t:  # the program starts again
                assert (t.last_epoch == 0) == (name in ("after-Decide", "after-Pin"))
                t.send(topic, f"{name} again".encode())
    expected = [*values("after-Decide"), b"at once", *(f"{name} again".encode() for name in names)]
    assert stored(client, topic) == Counter(expected)


@pytest.mark.parametrize("group", [1, 2], ids=["coordinator", "participant"])
def test_a_commit_survives_the_kill_of_a_master_at_any_moment(
    cluster: Cluster, client: Client, topic: str, group: int
) -> None:
    """The whole group at once: one node is a group here, so nothing but its log survives."""
    (node,) = [node for node in cluster.brokers if node.group == group]
    receipts = [staged(client, topic, topic, 0, writer) for writer in (0, 1)]
    cluster.kill(node)
    cluster.start_node(node)
    committed = client.transactions.commit(topic, "q", 0, receipts)
    assert not committed.replayed
    cluster.kill(node)
    cluster.start_node(node)
    assert client.transactions.commit(topic, "q", 0, receipts).replayed
    expected = [value for writer in (0, 1) for value in values(f"{topic}-{writer}")]
    assert stored(client, topic) == Counter(expected)


def test_a_decided_epoch_is_published_where_the_participant_was_away(
    cluster: Cluster, client: Client, topic: str
) -> None:
    """The participant dies between its pin and the publication; nobody comes back to ask."""
    (node,) = [node for node in cluster.brokers if node.group == 2]
    receipt = staged(client, topic, topic, 0)
    session = client._session
    core = TransactionCore(session.cluster)
    begun = session.run(core.begin(topic, "q", 0))
    pins = _pins(topic, begun, 1, [receipt])  # type: ignore[arg-type]
    for participant, pin in pins.items():
        session.run(core._call(participant, "Pin", transactions_pb2.PinRequest(pin=pin)))
    cluster.pause(node)
    decide = transaction_records_pb2.DecideTransaction(
        transaction_id=topic, epoch=0, attempt=begun.attempt, participants=sorted(pins)
    )
    request = transactions_pb2.DecideRequest(decide=decide)
    try:
        with suppress(errors.SemelError):  # nobody waits longer for one that does not answer
            reply = session.run(core._call(1, "Decide", request, 1.0))  # type: ignore[arg-type]
            assert not reply.published
    finally:
        cluster.resume(node)
    cluster.kill(node)
    cluster.start_node(node)
    until(lambda: is_quiet(client, topic), "the brokers finish it by themselves")
    assert stored(client, topic) == Counter(values(f"{topic}-0"))


def test_bad_requests_are_refused_and_crash_nothing(cluster: Cluster, client: Client) -> None:
    core = TransactionCore(client._session.cluster)
    queue = common_pb2.QueueRef(topic_id=1, queue_id=1)
    stager = 1 << 62
    bad = [
        ("Open", transaction_records_pb2.OpenStager()),
        (
            "Open",
            transaction_records_pb2.OpenStager(
                transaction_id="x", stager_id=5, ttl_ms=5_000, queues=[queue]
            ),
        ),
        (
            "Open",
            transaction_records_pb2.OpenStager(
                transaction_id="x", stager_id=stager, ttl_ms=1 << 63, queues=[queue]
            ),
        ),
        (
            "Open",
            transaction_records_pb2.OpenStager(
                transaction_id="x", stager_id=stager, ttl_ms=5_000, queues=[queue, queue]
            ),
        ),
        ("Drop", transaction_records_pb2.DropStagers(stager_ids=[1])),
        ("Pin", transactions_pb2.PinRequest()),
        ("Publish", transaction_records_pb2.PublishTransaction()),
        ("Settle", transactions_pb2.SettleRequest(transaction_id="\n")),
        ("Begin", transaction_records_pb2.BeginTransaction(transaction_id="x" * 300)),
        (
            "Begin",
            transaction_records_pb2.BeginTransaction(transaction_id="x", epoch=(1 << 64) - 1),
        ),
        ("Decide", transactions_pb2.DecideRequest()),
        ("Abort", transaction_records_pb2.AbortTransaction()),
    ]
    for method, request in bad:
        with pytest.raises(errors.InvalidRequest):
            client._session.run(core._call(1, method, request))  # type: ignore[arg-type]
    unknown = transaction_records_pb2.OpenStager(
        transaction_id="x", stager_id=stager, ttl_ms=5_000, queues=[queue]
    )
    with pytest.raises(errors.UnknownQueue):
        client._session.run(core._call(1, "Open", unknown))  # type: ignore[arg-type]
    assert all(node.running for node in cluster.brokers)
    assert json.dumps([one.as_dict() for one in client.transactions.list()])
