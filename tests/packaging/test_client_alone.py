"""`pip install semel`, without extras: it is small, it has no Arrow, and it does all of the client.

The wheel and the packages that it asks for, as this environment has them, are the whole of another
one. A cluster runs from this tree; programs and the console run there.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.needed_packages import link, needed
from tests.kit.up_process import UpProcess
from tools.release.trial import INSTALLED_BYTES_MAX
from tools.source_tree import ROOT

MB = 1_000_000

PROGRAM = """
import sys, time
from importlib.util import find_spec
assert find_spec("pyarrow") is None
import numpy as np
from semel.client import ARROW_SCHEMA, IdDedup, connect
from semel.protos.errors import InvalidRequest

class SpeaksArrow:
    def __arrow_c_array__(self, schema=None):
        raise AssertionError("nobody can read it here")

def refused(call):
    try:
        call()
    except InvalidRequest as error:
        assert "pip install 'semel[arrow]'" in error.message, error
    else:
        raise AssertionError("it was taken")

assert ARROW_SCHEMA is None
with connect(sys.argv[1]) as client:
    client.admin.create_topic("t", queues=3)
    client.admin.create_topic("ids", queues=2, dedup=IdDedup(window_bytes=1 << 26))
    sent = {}
    for codec in ("none", "lz4", "zstd"):
        with client.producer(compression=codec) as producer:
            for number in range(300):
                key = b"%d" % (number % 7)
                producer.send("t", b"one %d" % number, key=key, headers={"n": b"1"})
            values = [codec.encode() + b" many %d " % n + b"x" * (n % 50) for n in range(3_000)]
            keys = [None if n % 3 else b"%d" % n for n in range(3_000)]
            producer.send_many("t", values, keys=keys, headers=[{"é": b"2"}] * 3_000,
                               timestamps_us=np.arange(1, 3_001))
            late = [b"late " + value for value in values]
            producer.send_many("t", late, deliver_at=int(time.time() * 1e6) + 1_000_000)
            producer.flush()
            refused(lambda: producer.send_many("t", SpeaksArrow()))
    with client.producer() as producer:
        outcomes = [producer.send("ids", b"same", message_id=b"m").result() for _ in range(2)]
        assert [each.duplicate for each in outcomes] == [False, True], outcomes
        summary = producer.send_many("ids", [b"a", b"b"], message_ids=[b"a", b"a"]).result()
        assert summary.conflict_rows == [1], summary
        with producer.transaction("booking") as transaction:
            transaction.send("t", b"booked", key=b"k")
            transaction.send_many("t", [b"booked too", b"and this"])
    expected = 3 * (300 + 3_000 + 3_000) + 3
    found = []
    with client.consumer("g", "t") as consumer:
        refused(lambda: consumer.poll_arrow(5.0))
        until = time.monotonic() + 60
        while len(found) < expected and time.monotonic() < until:
            found += consumer.poll(1_000, 1.0)
        consumer.commit()
        assert len(found) == expected, len(found)
        assert consumer.poll(1, 1.0) == []
    keyed = {message.value: message for message in found if message.value.startswith(b"zstd many")}
    message = keyed[b"zstd many 3 xxx"]
    assert (message.key, message.headers) == (b"3", [("é", b"2")]), message.as_dict()
    assert message.timestamp_us == 4
    with client.reader("t", end="latest") as reader:
        assert len(list(reader)) == expected
    with client.reader("t", end="latest") as reader:
        refused(lambda: reader.poll_arrow(5.0))
    assert len(client.admin.describe_topic("t").queues) == 3
print("sent and read")
"""


class Alone:
    """The environment."""

    def __init__(self, home: Path, size: int) -> None:
        self.home = home
        self.size = size
        """Bytes of all packages, the wheel's own files included."""

    def run(self, *command: str, text: str = "") -> str:
        """What a program of the environment prints; the first word is its name."""
        done = subprocess.run(
            [str(self.home / "bin" / command[0]), *command[1:]],
            cwd=self.home,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home)},
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    home = tmp_path_factory.mktemp("alone")
    venv.create(home, symlinks=True, with_pip=False)
    [packages] = home.glob("lib/python*/site-packages")
    size = link(needed(()), packages)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"),
            *("--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)),
        ],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    own = [path for path in packages.rglob("*") if path.is_file() and not path.is_symlink()]
    return Alone(home, size + sum(path.stat().st_size for path in own))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("cluster")) as up:
        yield up


def test_it_is_small(alone: Alone) -> None:
    assert alone.size <= INSTALLED_BYTES_MAX, f"{alone.size / MB:.1f} MB"
    assert alone.size > 100 * MB, "packages are missing from the sum"


def test_a_program_does_all_without_arrow(alone: Alone, cluster: UpProcess) -> None:
    assert alone.run("python", "-c", PROGRAM, cluster.bootstrap) == "sent and read\n"


def test_the_console_does_all_without_arrow(alone: Alone, cluster: UpProcess) -> None:
    def semel(*words: str, text: str = "") -> str:
        return alone.run("semel", *words, "--bootstrap", cluster.bootstrap, text=text)

    semel("topic", "create", "lines")
    semel("produce", "lines", "--key-separator", ":", text="a:1\nb:2\n3\n")
    semel("produce", "lines", "--format", "jsonl", text='{"value": "4", "headers": {"n": "1"}}\n')
    semel("produce", "lines", "--compression", "zstd", text="5\n" * 1_000)
    found = sorted(semel("consume", "lines", "--until-end").split())
    assert found == ["1", "2", "3", "4", *["5"] * 1_000]
    for bench in ("produce", "consume"):
        assert "MB/s" in semel("bench", bench, "--total", "4M")
    semel("bench", "latency", "--count", "10")
