"""Every noun of the console against a real cluster: the contract for scripts, bytes, exit codes.

One cluster for the whole module; nobody here kills any of it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semel.console.main import run
from tests.kit.console import Console, read_json
from tests.kit.loading import landed
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until

ODD = [b"plain", b"", b"\r", b"tab\tand\x00nul", b"\xff\xfe", "größe".encode(), b" " * 3, b"last"]


@pytest.fixture(scope="module")
def up(module_path: Path) -> Iterator[UpProcess]:
    with UpProcess(module_path / "cluster", "--brokers", "1") as process:
        yield process


@pytest.fixture(scope="module")
def semel(up: UpProcess) -> Console:
    return Console(up.bootstrap)


Inside = Callable[..., tuple[int, str]]


@pytest.fixture
def inside(
    up: UpProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Inside:
    """Calls the console without a process of its own; for calls that fail with one line."""
    monkeypatch.setenv("SEMEL_BOOTSTRAP", up.bootstrap)

    def call(*arguments: str) -> tuple[int, str]:
        status = run(list(arguments))
        written = capfd.readouterr()
        assert written.out == ""
        [line] = written.err.splitlines()
        assert line.startswith("error: ")
        return status, line

    return call


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this test's own."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]


@pytest.fixture
def topic(semel: Console, name: str) -> str:
    semel.json("topic", "create", name, "--queues", "3")
    return name


def test_lines_are_bytes_and_pass_unchanged(semel: Console, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\n".join(ODD))
    result = semel.json("produce", topic, file, "--producer", "bytes")
    assert result["seconds"] > 0
    result.pop("seconds")
    count = len(ODD)
    assert (result.pop("conflicts"), result.pop("conflict_lines")) == (0, [])
    assert result == {"read": count, "sent": count, "stored": count, "duplicates": 0, "skipped": 0}
    written = semel("consume", topic, "--until-end", "--format", "value")
    assert sorted(written.stdout.split(b"\n")[:-1]) == sorted(ODD)
    rows = read_json(semel("consume", topic, "--until-end", "--format", "json"))
    assert set(rows[0]) == {
        *("topic", "queue", "offset", "timestamp", "key", "value"),
        *("headers", "producer", "sequence"),
    }
    by_sequence = sorted(rows, key=lambda row: int(row["sequence"]))
    assert [row["sequence"] for row in by_sequence] == list(range(count))
    values = [
        base64.b64decode(row["value_base64"]) if "value_base64" in row else row["value"].encode()
        for row in by_sequence
    ]
    assert values == ODD
    assert {row["producer"] for row in rows} == {"bytes"}


def test_the_same_load_again_stores_nothing(semel: Console, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one\ntwo\nthree\n")
    assert landed(semel.json("produce", topic, file, "--producer", "again")) == 3
    result = semel.json("produce", topic, file, "--producer", "again")
    assert (result["read"], landed(result), result["skipped"]) == (3, 0, 3)
    file.write_bytes(b"one\ntwo\nthree\nfour\n")
    result = semel.json("produce", topic, file, "--producer", "again")
    assert (result["read"], landed(result), result["skipped"]) == (4, 1, 3)


def test_stdin_without_a_name_is_stored_as_it_comes(semel: Console, topic: str) -> None:
    assert landed(semel.json("produce", topic, stdin=b"a\nb")) == 2
    assert landed(semel.json("produce", topic, "-", stdin=b"a\nb")) == 2
    assert semel.json("produce", topic, stdin=b"")["read"] == 0


def test_keys_of_lines_choose_the_queue(semel: Console, topic: str) -> None:
    lines = b"".join(b"k%d:v%d\n" % (n % 5, n) for n in range(40)) + b"no key here\n"
    result = semel.json("produce", topic, "--key-separator", ":", "--producer", "keys", stdin=lines)
    assert landed(result) == 41
    rows = read_json(semel("consume", topic, "--until-end", "--json"))
    queues: dict[str, set[int]] = {}
    for row in rows:
        if row["key"] is not None:
            queues.setdefault(row["key"], set()).add(row["queue"])
            assert row["value"].startswith("v")
    assert len(queues) == 5
    assert all(len(found) == 1 for found in queues.values())
    assert [row["value"] for row in rows if row["key"] is None] == ["no key here"]


def test_json_lines_carry_key_and_headers(semel: Console, topic: str) -> None:
    text = json.dumps({"value": "v", "key": "k", "headers": {"trace": "ä"}}).encode() + b"\n"
    text += json.dumps({"value_base64": "/wA="}).encode()
    assert landed(semel.json("produce", topic, "--format", "jsonl", stdin=text)) == 2
    rows = read_json(semel("consume", topic, "--until-end", "--json"))
    [plain] = [row for row in rows if "value" in row]
    [coded] = [row for row in rows if "value_base64" in row]
    assert (plain["key"], plain["headers"]) == ("k", {"trace": "ä"})
    assert (coded["key"], coded["value_base64"], coded["headers"]) == (None, "/wA=", {})


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_batches_come_back(semel: Console, topic: str, codec: str) -> None:
    text = b"the same again\n" * 1000
    semel.json("produce", topic, "--compression", codec, stdin=text)
    assert semel("consume", topic, "--until-end").stdout == text


def test_a_line_too_long_stops_the_load_before_anything_after_it(
    semel: Console, tmp_path: Path
) -> None:
    semel.json("topic", "create", "short", "--message-bytes-max", "100")
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100 + b"\n" + b"y\n" + b"z" * 101 + b"\nafter\n")
    error = semel.fails("produce", "short", file, "--producer", "p", "--json")
    assert "line 3 " in error
    assert "100 bytes" in error
    assert sorted(semel("consume", "short", "--until-end").stdout.split()) == [b"x" * 100, b"y"]


def test_consume_stops_where_it_is_told(semel: Console, topic: str) -> None:
    semel.json("produce", topic, stdin=b"".join(b"%d\n" % n for n in range(50)))
    assert len(semel("consume", topic, "--max", "7").stdout.splitlines()) == 7
    assert len(semel("consume", topic, "--until-end").stdout.splitlines()) == 50
    assert semel("consume", topic, "--from", "latest", "--until-end").stdout == b""
    later = semel("consume", topic, "--from", "2099-01-01T00:00:00Z", "--until-end")
    assert later.stdout == b""
    earlier = semel("consume", topic, "--from", "2001-01-01", "--until-end")
    assert len(earlier.stdout.splitlines()) == 50


def test_a_group_commits_what_it_wrote(semel: Console, topic: str) -> None:
    lines = [b"%d" % n for n in range(60)]
    semel.json("produce", topic, stdin=b"\n".join(lines))
    first = semel("consume", topic, "--group", topic, "--max", "20").stdout.splitlines()
    rest = semel("consume", topic, "--group", topic, "--until-end").stdout.splitlines()
    assert len(first) == 20
    assert sorted(first + rest) == sorted(lines)
    assert semel("consume", topic, "--group", topic, "--until-end").stdout == b""
    found = semel.json("group", "describe", topic)
    assert (found["group"], found["lag"]) == (topic, 0)
    [listed] = [g for g in semel.json("group", "list")["groups"] if g["group"] == topic]
    assert (listed["lag"], listed["members"], listed["topics"]) == (0, 0, [topic])
    dry = semel.json("group", "reset-offsets", topic, "--to-earliest")
    assert {reset["new_offset"] for reset in dry["resets"]} == {0}
    assert semel.json("group", "describe", topic)["lag"] == 0
    semel.json("group", "reset-offsets", topic, "--to-earliest", "--execute")
    assert semel.json("group", "describe", topic)["lag"] == 60
    assert len(semel("consume", topic, "--group", topic, "--until-end").stdout.splitlines()) == 60


def test_topics_are_described_altered_and_deleted(semel: Console, topic: str) -> None:
    found = semel.json("topic", "describe", topic)
    assert [queue["queue"] for queue in found["queues"]] == [0, 1, 2]
    assert found["queues"][0].keys() >= {
        *("queue", "group", "slot_start", "slot_end", "log_start_offset", "log_end_offset")
    }
    assert found["queues"][0]["slot_start"] == 0
    assert found["queues"][-1]["slot_end"] == 65_536
    altered = semel.json("topic", "alter", topic, "--retention", "12h")
    assert altered["settings"]["retention_ms"] == 12 * 3_600_000
    assert topic in {found["name"] for found in semel.json("topic", "list")["topics"]}
    assert "exists" in semel.fails("topic", "create", topic, "--queues", "5")
    again = ("topic", "create", topic, "--queues", "3", "--if-not-exists")
    assert semel.json(*again)["created"] is False
    assert semel.json("topic", "delete", topic, "--yes")["deleted"] is True
    assert topic in semel.fails("topic", "delete", topic, "--yes")
    assert semel.json("topic", "delete", topic, "--if-exists", "--yes")["deleted"] is False


def test_dedup_by_id_is_set_altered_and_ended(semel: Console) -> None:
    name = "deduplicated"
    create = ("topic", "create", name, "--queues", "2", "--dedup-by-id", "4MiB")
    assert semel.json(*create)["created"] is True
    assert semel.json(*create, "--if-not-exists")["created"] is False
    dedup = {"window_bytes": 4 << 20, "keep_ms": -1, "on_conflict": "refuse"}
    assert semel.json("topic", "describe", name)["settings"]["dedup"] == dedup
    altered = semel.json("topic", "alter", name, "--dedup-for", "28d", "--retention", "12h")
    assert altered["settings"]["dedup"] == {**dedup, "keep_ms": 28 * 86_400_000}
    altered = semel.json("topic", "alter", name, "--on-conflict", "keep-first")
    assert altered["settings"]["dedup"]["on_conflict"] == "keep-first"
    altered = semel.json(
        "topic", "alter", name, "--dedup-by-id", "2MiB", "--dedup-for", "unlimited"
    )
    ended = {"window_bytes": 2 << 20, "keep_ms": -1, "on_conflict": "keep-first"}
    assert altered["settings"]["dedup"] == ended
    assert b"dedup by id within 2.0 MiB" in semel("topic", "describe", name).stdout
    altered = semel.json("topic", "alter", name, "--retention", "1d")
    assert altered["settings"]["dedup"] == ended, "other settings leave it as it is"
    assert semel.json("topic", "alter", name, "--dedup-by-id", "none")["settings"]["dedup"] is None
    assert "--dedup-by-id" in semel.fails("topic", "alter", name, "--dedup-for", "1d", status=2)
    for size, wrong in (("1023KiB", "1,048,576"), ("1000TiB", "disk")):
        assert wrong in semel.fails("topic", "create", "wrong", "--dedup-by-id", size)
        assert wrong in semel.fails("topic", "alter", name, "--dedup-by-id", size)
    assert "wrong" not in {found["name"] for found in semel.json("topic", "list")["topics"]}


def test_produce_and_describe_tell_duplicates_and_conflicts(semel: Console, tmp_path: Path) -> None:
    name = "told"
    semel.json("topic", "create", name, "--queues", "2", "--dedup-by-id", "1MiB")
    file = tmp_path / "events.jsonl"
    rows = [{"value": f"v{number}", "message_id": f"id {number}"} for number in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    produce = ("produce", name, file, "--format", "jsonl")
    result = semel.json(*produce)
    assert (result["stored"], result["duplicates"], result["conflicts"]) == (20, 0, 0)
    assert b"20 recognised as duplicates" in semel(*produce).stdout
    for row in rows[5:17]:
        row["value"] = "other"
    rows[0]["message_id"] = "new"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = semel(*produce, "--json")
    assert (done.returncode, done.stderr) == (1, b"")
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["stored"], result["duplicates"], result["conflicts"]) == (1, 7, 12)
    assert result["conflict_lines"] == list(range(6, 16))
    done = semel(*produce)
    assert done.returncode == 1
    assert b"0 messages stored" in done.stdout
    assert b"lines 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, " in done.stderr
    assert b"12 messages are not stored" in done.stderr
    dedup = semel.json("topic", "describe", name)["dedup"]
    assert 0 <= dedup.pop("oldest_age_s") < 60
    assert dedup == {
        "ids": 21,
        "bytes": 21 * 40,
        "hits": 20 + 7 + 8,
        "conflicts": 24,
        "lookups": 21 + 35 + 24,
        "evictions": 0,
        "window_bytes": 1 << 20,
        "keep_ms": -1,
        "on_conflict": "refuse",
    }
    shown = semel("topic", "describe", name).stdout
    assert b"21 ids, 840 B of 1.0 MiB" in shown
    assert b"35 duplicates, 24 conflicts" in shown


def test_queues_are_listed_and_split(semel: Console, topic: str) -> None:
    split = ("queue", "split", f"{topic}/0", "--into", "3")
    assert semel.json(*split) == {"topic": topic, "queue": 0, "children": [3, 4, 5]}
    assert semel.json(*split)["children"] == [3, 4, 5], "asked for again it is done already"
    queues = {queue["queue"]: queue for queue in semel.json("queue", "list", topic)["queues"]}
    assert (queues[0]["sealed"], queues[1]["sealed"]) == (True, False)
    assert [queues[number]["parent"] for number in (1, 3, 5)] == [None, 0, 0]
    assert b"split into 3, 4, 5" in semel("queue", "list", topic).stdout
    altered = semel.json("topic", "alter", topic, "--queues", "7")
    assert sum(not queue["sealed"] for queue in altered["queues"]) == 7
    assert "not merged" in semel.fails("topic", "alter", topic, "--queues", "2")
    assert "no queue 99" in semel.fails("queue", "split", f"{topic}/99")


def test_what_cannot_be_moved_is_told(semel: Console, topic: str) -> None:
    assert "no broker group 9" in semel.fails("queue", "move", f"{topic}/1", "--to", "9")
    assert "already" in semel.fails("queue", "move", f"{topic}/1", "--to", "1")
    assert "not being moved" in semel.fails("queue", "move", f"{topic}/1", "--cancel")
    assert semel.json("queue", "list", topic)["moves"] == []


def test_cluster_status_keeps_its_contract(semel: Console, up: UpProcess) -> None:
    found = semel.json("cluster", "status")
    [group] = found["groups"]
    assert group.keys() >= {"id", "term", "master", "commit_index", "nodes"}
    [node] = group["nodes"]
    assert node.keys() >= {"id", "address", "role", "log_end_index", "alive"}
    assert (node["id"], node["alive"], group["master"]) == (1, True, 1)
    assert node["address"] == up.node(1).address
    [controller] = found["controllers"]
    assert controller["address"] == up.bootstrap


def test_verify_and_outcome_keep_their_contract(semel: Console, topic: str) -> None:
    semel.json("produce", topic, "--producer", topic, stdin=b"a\nb\nc\nd\n")
    found = semel.json("verify", "--exactly-once", topic)
    keys = {"ok", "messages", "duplicates", "missing", "queues", "nodes_compared"}
    assert found.keys() >= keys
    assert (found["ok"], found["messages"], found["duplicates"], found["missing"]) == (
        *(True, 4, 0, 0),
    )
    wanted = {"queue", "log_start_offset", "log_end_offset", "digest"}
    assert all(queue.keys() >= wanted for queue in found["queues"])
    rows = read_json(semel("consume", topic, "--until-end", "--json"))
    row = rows[0]
    name = ("producer", "outcome", topic, topic, str(row["queue"]))
    committed = semel.json(*name, str(row["sequence"]))
    assert (committed["outcome"], committed["offset"]) == ("committed", row["offset"])
    assert semel.json(*name, "99")["outcome"] == "not_committed"
    assert topic in {found["name"] for found in semel.json("producer", "list")["producers"]}
    described = semel.json("producer", "describe", topic)
    assert {queue["queue"] for queue in described["queues"]} == {0, 1, 2}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["topic", "describe", "nowhere"], "nowhere"),
        (["produce", "nowhere", __file__], "nowhere"),
        (["consume", "nowhere"], "nowhere"),
        (["consume", "nowhere", "--group", "g"], "nowhere"),
        (["verify", "--exactly-once", "nowhere"], "nowhere"),
        (["group", "describe", "nobody"], "nobody"),
        (["group", "delete", "nobody", "--yes"], "nobody"),
        (["producer", "describe", "nobody"], "nobody"),
        (["producer", "outcome", "nobody", "t", "0", "0"], "nobody"),
        (["topic", "create", "bad name"], "bad name"),
        (["produce", "t", "/does/not/exist"], "/does/not/exist: no such file"),
        (["produce", "t", "/tmp"], "/tmp: is a directory"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_bad_input_is_one_clear_line(
    inside: Inside, arguments: list[str], what: str, as_json: bool
) -> None:
    status, error = inside(*arguments, *(["--json"] if as_json else []))
    assert status == 1
    assert what in error


def test_an_empty_and_an_unreadable_file_are_named(semel: Console, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert f"{empty} is empty" in semel.fails("produce", "t", empty)
    if os.getuid() != 0:
        empty.chmod(0)
        assert "permission denied" in semel.fails("produce", "t", empty)


@pytest.mark.parametrize(
    "arguments",
    [
        ["prodcue", "t"],
        ["topic"],
        ["produce"],
        ["produce", "t", "--produser", "x"],
        ["produce", "t", "--producer", ""],
        ["produce", "t", "--key-separator", ""],
        ["produce", "t", "--format", "jsonl", "--key-separator", ":"],
        ["produce", "t", "--rate", "fast"],
        ["consume", "t", "--from", "yesterday"],
        ["consume", "t", "--max", "0"],
        ["consume", "t", "--group", "g", "--from", "7"],
        ["consume", "t", "--format", "value", "--json"],
        ["topic", "create", "t", "--queues", "0"],
        ["topic", "create", "t", "--retention", "7"],
        ["topic", "create", "t", "--dedup-by-id", "none"],
        ["topic", "create", "t", "--dedup-for", "28d"],
        ["topic", "create", "t", "--on-conflict", "keep-first"],
        ["topic", "create", "t", "--dedup-by-id", "4GiB", "--on-conflict", "keep-last"],
        ["topic", "alter", "t", "--dedup-by-id", "none", "--dedup-for", "28d"],
        ["topic", "alter", "t"],
        ["topic", "delete", "t"],
        ["topic", "alter", "t", "--queues", "0"],
        ["queue", "split", "t"],
        ["queue", "split", "t/x"],
        ["queue", "split", "t/1", "--into", "1"],
        ["queue", "move", "t", "--to", "2"],
        ["queue", "move", "t/1"],
        ["queue", "move", "t/1", "--to", "2", "--cancel"],
        ["group", "delete", "g"],
        ["node", "remove", "3"],
        ["group", "reset-offsets", "g"],
        ["group", "reset-offsets", "g", "--to-earliest", "--to-latest"],
        ["group", "reset-offsets", "g", "--to-datetime", "7"],
        ["group", "reset-offsets", "g", "--to-offset", "-1"],
        ["group", "reset-offsets", "g", "--to-earliest", "--topic", "t:x"],
        ["verify", "t"],
        ["producer", "outcome", "p", "t", "0", "-1"],
        ["cluster", "status", "--bootstrap", "nonsense"],
        ["up", "--brokers", "2"],
        ["up", "--controllers", "2"],
        ["completion", "tcsh"],
    ],
)
def test_wrong_usage_is_status_2(inside: Inside, arguments: list[str]) -> None:
    status, _ = inside(*arguments)
    assert status == (1 if "nonsense" in arguments else 2)


def test_offsets_outside_the_queue_are_refused(semel: Console, topic: str) -> None:
    assert "99" in semel.fails("consume", topic, "--from", "99", "--until-end")


def test_no_cluster_is_one_clear_line() -> None:
    nowhere = Console("127.0.0.1:9")
    assert "127.0.0.1:9" in nowhere.fails("cluster", "status", "--json")


def test_a_reader_that_goes_away_is_no_error(semel: Console, topic: str, up: UpProcess) -> None:
    semel.json("produce", topic, stdin=b"a line of some length\n" * 100_000)
    command = f"({sys.executable} -m semel.console consume {topic}; echo $? >&2) | head -n 1"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        env={**os.environ, "SEMEL_BOOTSTRAP": up.bootstrap},
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"a line of some length\n", b"141\n")


@contextmanager
def unread(up: UpProcess, topic: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A member of a group of the topic's name, and its output: a pipe that nobody has read, and
    that is full."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "semel.console", "consume", topic, "--group", topic],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "SEMEL_BOOTSTRAP": up.bootstrap},
    )
    with process:
        until(lambda: select.select([], [writing], [], 0)[1] == [], 60)
        os.close(writing)
        yield process, reading


NUMBERS = [b"%09d" % number for number in range(50_000)]


def produce_numbers(semel: Console, topic: str) -> None:
    semel.json("topic", "create", topic, "--queues", "1")
    semel.json("produce", topic, stdin=b"\n".join(NUMBERS))


def rest_of(semel: Console, topic: str) -> list[bytes]:
    """What the group had not committed."""
    return semel("consume", topic, "--group", topic, "--until-end").stdout.splitlines()


def test_ctrl_c_at_a_full_pipe_commits_what_the_pipe_has_taken(
    semel: Console, name: str, up: UpProcess
) -> None:
    produce_numbers(semel, name)
    with unread(up, name) as (process, reading):
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(60)) == (b"\n", 130)
    with os.fdopen(reading, "rb") as pipe:
        *whole, _ = pipe.read().split(b"\n")
    assert 0 < len(whole) < len(NUMBERS)
    assert whole + rest_of(semel, name) == NUMBERS


def test_a_reader_that_goes_away_gets_no_message_committed_that_its_pipe_did_not_take(
    semel: Console, name: str, up: UpProcess
) -> None:
    produce_numbers(semel, name)
    with unread(up, name) as (process, reading):
        room = fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ)
        assert os.read(reading, 25) == b"000000000\n000000001\n00000"
        os.close(reading)
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(60)) == (b"", 141)
    rest = rest_of(semel, name)
    assert rest == NUMBERS[-len(rest) :]
    assert 2 < len(NUMBERS) - len(rest) <= (room + 25) // 10


def test_progress_lines_come_before_the_result(semel: Console, topic: str) -> None:
    text = b"0123456789\n" * 2000
    done = semel(*("produce", topic, "--json", "--progress", "0.02", "--rate", "20k"), stdin=text)
    rows = read_json(done)
    assert [row.get("event") for row in rows[:-1]] == ["progress"] * (len(rows) - 1)
    assert len(rows) > 5
    assert "event" not in rows[-1]
    assert landed(rows[-1]) == 2000
    assert rows[-1]["seconds"] >= 0.9


def test_bench_measures(semel: Console) -> None:
    produced = semel.json("bench", "produce", "--total", "4M", "--size", "1k")
    assert (produced["messages"], produced["bytes"]) == (4096, 4 << 20)
    consumed = semel.json("bench", "consume", "--total", "2M", "--size", "100")
    assert consumed["messages"] == (2 << 20) // 100
    latency = semel.json("bench", "latency", "--count", "20")
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    names = {found["name"] for found in semel.json("topic", "list")["topics"]}
    assert not any(name.startswith("bench-") for name in names)


def test_completion_knows_the_nouns(semel: Console) -> None:
    script = semel("completion", "bash").stdout.decode()
    assert "_SEMEL_COMPLETE" in script
    environment = {"_SEMEL_COMPLETE": "bash_complete", "COMP_WORDS": "semel to", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "semel.console"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert "topic" in done.stdout
