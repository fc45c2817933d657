"""The programs in examples/ do what they say, started as a user starts them, on a real cluster."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semel.client import Client
from tests.kit.cluster import Cluster
from tests.kit.waiting import until
from tools.source_tree import ROOT

EXAMPLES = ROOT / "examples"
MINUTE_US = 60_000_000


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]


def environment(cluster: Cluster) -> dict[str, str]:
    return {**os.environ, "SEMEL_BOOTSTRAP": cluster.bootstrap, "PYTHONUNBUFFERED": "1"}


def run(cluster: Cluster, name: str, *arguments: str) -> str:
    """The output of an example that ends by itself."""
    ended = subprocess.run(
        command(name, *arguments),
        env=environment(cluster),
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@contextmanager
def running(cluster: Cluster, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """An example that runs until the block ends, or until the test ends it."""
    process = subprocess.Popen(
        command(name, *arguments), env=environment(cluster), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_all(client: Client, topic: str) -> list[bytes | None]:
    with client.reader(topic, end="latest") as reader:
        return [message.value for message in reader]


def test_every_example_is_listed_and_tells_its_options() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    listed = (EXAMPLES / "README.md").read_text()
    assert len(names) == 7
    for name in names:
        assert f"[{name}]({name})" in listed
        told = subprocess.run(
            [sys.executable, str(EXAMPLES / name), "--help"], capture_output=True, text=True
        )
        assert told.returncode == 0, told.stderr
        assert "usage:" in told.stdout


def test_each_order_counts_once_though_the_service_is_killed(
    shared_cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    client.admin.create_topic("orders", queues=2)
    orders = [json.dumps({"customer": f"c{n % 3}", "cents": n}).encode() for n in range(3_000)]
    path = tmp_path / "totals.db"

    def counted() -> int:
        if not path.exists():
            return 0
        with closing(sqlite3.connect(path)) as database:
            try:
                return int(database.execute("SELECT sum(orders) FROM totals").fetchone()[0] or 0)
            except sqlite3.OperationalError:  # the table is not made yet
                return 0

    with client.producer() as producer:
        producer.send_many("orders", [*orders[:1_000], b"no order"])
        producer.flush()
        with running(shared_cluster, "order_service", "--database", str(path)) as service:
            until(lambda: counted() >= 1, what="the first orders to be counted")
            producer.send_many("orders", orders[1_000:])
            producer.flush()
            service.send_signal(signal.SIGKILL)
            service.wait()
    run(shared_cluster, "order_service", "--database", str(path), "--idle-stop", "15")
    with closing(sqlite3.connect(path)) as database:
        totals = {
            customer: (count, cents)
            for customer, count, cents in database.execute("SELECT * FROM totals")
        }
    assert totals == {
        f"c{c}": (1_000, sum(n for n in range(3_000) if n % 3 == c)) for c in range(3)
    }
    assert read_all(client, "order-service.dead-letters") == [b"no order"]


def post(address: str, body: bytes, **headers: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(address.removeprefix("http://").strip("/"), timeout=30)
    with closing(connection):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/", body, named)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_a_web_hook_that_is_repeated_is_stored_once(
    shared_cluster: Cluster, client: Client
) -> None:
    addresses = []
    listen = ("--listen", "127.0.0.1:0")
    with (
        running(shared_cluster, "webhook_receiver", *listen) as one,
        running(shared_cluster, "webhook_receiver", *listen) as other,
    ):
        for process in (one, other):
            assert process.stdout is not None
            addresses.append(process.stdout.readline().split()[-1])
        status, first = post(addresses[0], b"paid", Webhook_Id="evt-1")
        assert (status, first["duplicate"]) == (200, False)
        status, again = post(addresses[1], b"paid", Webhook_Id="evt-1")
        assert (status, again) == (200, {**first, "duplicate": True})
        assert post(addresses[1], b"paid twice", Webhook_Id="evt-1")[0] == 409
        assert post(addresses[0], b"who")[0] == 400
        assert post(addresses[0], b"x", Webhook_Id="i" * 129)[0] == 400
    assert read_all(client, "hooks") == [b"paid"]


def test_a_reminder_comes_at_its_time_unless_it_was_taken_back(shared_cluster: Cluster) -> None:
    assert "in 3 s" in run(
        shared_cluster, "reminders", "add", "tea", "tea is ready", "--after", "3"
    )
    run(shared_cluster, "reminders", "add", "cake", "cake is burnt", "--after", "3600")
    again = run(shared_cluster, "reminders", "add", "cake", "cake is burnt", "--after", "3600")
    assert "known already" in again
    assert "cancelled" in run(shared_cluster, "reminders", "cancel", "cake")
    assert "unknown" in run(shared_cluster, "reminders", "cancel", "bread")
    assert run(shared_cluster, "reminders", "show", "--count", "1").endswith("  tea is ready\n")


def test_each_line_is_shipped_once_though_the_shipper_is_killed(
    shared_cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    lines = [b"line %d" % n for n in range(20_000)]
    log.write_bytes(b"\n".join(lines[:10_000]) + b"\n")
    with running(shared_cluster, "log_shipper", str(log), "--name", "web-3") as shipper:
        assert shipper.stdout is not None
        assert "stored up to byte" in shipper.stdout.readline()
        with log.open("ab") as file:
            file.write(b"\n".join(lines[10_000:]) + b"\nno end yet")
        shipper.send_signal(signal.SIGKILL)
    run(shared_cluster, "log_shipper", str(log), "--name", "web-3", "--once")
    assert sorted(read_all(client, "logs"), key=str) == sorted(lines, key=str)
    log.write_bytes(b"another file\n")
    refused = subprocess.run(
        command("log_shipper", str(log), "--name", "web-3", "--once"),
        env=environment(shared_cluster),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert "use a new --name" in refused.stderr


def test_mails_that_fail_become_dead_letters_and_come_back(
    shared_cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "anna").mkdir()
    client.admin.create_topic("mails", queues=2)
    with client.producer() as producer:
        producer.send("mails", b"hello", key=b"anna")
        producer.send("mails", b"lost", key=b"ben")
    arguments = ("run", "--outbox", str(tmp_path), "--idle-stop", "12")
    run(shared_cluster, "mail_sender", *arguments)
    assert [path.read_bytes() for path in (tmp_path / "anna").iterdir()] == [b"hello"]
    assert run(shared_cluster, "mail_sender", "letters") == (
        "ben: 3 attempts, no such recipient: ben\n"
    )
    (tmp_path / "ben").mkdir()
    assert run(shared_cluster, "mail_sender", "bring-back").startswith("brought back 1,")
    run(shared_cluster, "mail_sender", *arguments)
    assert [path.read_bytes() for path in (tmp_path / "ben").iterdir()] == [b"lost"]
    assert run(shared_cluster, "mail_sender", "bring-back").startswith("brought back 0,")


def test_pictures_are_made_smaller_though_a_worker_is_killed(
    shared_cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    pictures = [tmp_path / f"{number}.ppm" for number in range(20)]
    for picture in pictures:
        picture.write_bytes(b"P6\n4 2\n255\n" + bytes(range(24)))
    wrong = tmp_path / "wrong.ppm"
    wrong.write_bytes(b"no picture")
    small = tmp_path / "small"
    work = [str(path) for path in (*pictures, wrong)]
    assert run(shared_cluster, "thumbnails", "send", *work) == "sent 21 pictures\n"
    where = ("worker", "--output", str(small))
    with running(shared_cluster, "thumbnails", *where, "--name", "one@test") as worker:
        until(lambda: small.exists() and any(small.glob("*.ppm")), 30, "the first picture")
        worker.send_signal(signal.SIGKILL)
    with running(shared_cluster, "thumbnails", *where, "--name", "two@test"):
        until(lambda: len(list(small.glob("*.ppm"))) == len(pictures), 60, "all of them")
        until(lambda: client.admin.describe_group("thumbnails").lag == 0, 30, "the last one")
    assert (small / "0.ppm").read_bytes() == b"P6\n2 1\n255\n" + bytes([0, 1, 2, 6, 7, 8])
    [letter] = client.admin.dead_letters("thumbnails")
    assert str(wrong).encode() in letter.value


@pytest.mark.timeout(600)
def test_spark_adds_up_the_sales_of_each_minute(
    shared_cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    client.admin.create_topic("sales", queues=3)
    begin = 29_000_000 * MINUTE_US
    sales = [(n % 2, n % 7, begin + n * MINUTE_US // 100) for n in range(1_000)]
    with client.producer() as producer:
        for shop, cents, time_us in sales:
            value = json.dumps({"shop": f"s{shop}", "cents": cents}).encode()
            producer.send("sales", value, timestamp_us=time_us)
    # The watermark passes a window when a later sale was seen by an earlier trigger.
    paths = ("--output", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint"))
    where = ("--bootstrap", shared_cluster.bootstrap)
    run(shared_cluster, "sales_by_minute", "sales", *where, *paths, "--once")
    rows = pq.read_table(tmp_path / "table").to_pylist()
    expected: dict[tuple[int, str], tuple[int, int]] = {}
    for shop, cents, time_us in sales:
        place = (time_us // MINUTE_US, f"s{shop}")
        count, total = expected.get(place, (0, 0))
        expected[place] = (count + 1, total + cents)
    found = {
        (int(row["minute"].timestamp()) // 60, row["shop"]): (row["sales"], row["cents"])
        for row in rows
    }
    assert len(found) == len(rows)
    assert found.items() <= expected.items()
    complete = {place for place in expected if place[0] < 29_000_008}
    assert complete <= found.keys()
