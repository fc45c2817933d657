"""One copy of a topic by a real Spark, somebody killed in its middle, and the proof.

How it works. `Crash` names a point of the write (`points.py`) and who dies there. The application
(`copying.py`) is a process of its own, so it can be killed like any; it is started again on its
checkpoint until it ends in good order. Then both topics are compared by their digests, and the
brokers verify the copy. A case that did not kill whom it names fails.

Executors live in processes of their own on a standalone Spark of one master and two workers, which
have different addresses: Spark gives no second attempt of a task to the host of the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from semel.client import Client
from semel.spark_connector.java import java_home
from tests.kit.cluster import Cluster
from tests.kit.ports import free_ports
from tests.kit.waiting import until
from tests.spark.points import Points

ROOT: Final = Path(__file__).parents[2]
LIVES_MAX: Final = 10
STARTED_S: Final = 180.0
SLOW_PYTHON: Final = "Python worker failed to connect back"
"""Spark allows a stream's Python 10 s to start, whatever else the machine has to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """What happens to whom."""

    name: str
    text: str
    at: str
    """A point of the write."""
    victim: str
    """worker, driver, executor, straggler, master, split or controllers."""
    restarts: bool = False
    """The application ends with it, and somebody starts it again."""
    planted: bool = False
    """Each life writes under another transaction id: the copy must be found to be another."""


CRASHES: Final = {
    crash.name: crash
    for crash in (
        Crash(
            name="task-writing",
            text="the Python of a task, some rows staged",
            at="writing",
            victim="worker",
        ),
        Crash(
            name="task-staged",
            text="the Python of a task, all rows staged",
            at="staged",
            victim="worker",
        ),
        Crash(
            name="driver-writing",
            text="driver and tasks, some rows staged",
            at="writing",
            victim="driver",
            restarts=True,
        ),
        Crash(
            name="driver-begun",
            text="the driver before our commit",
            at="begun",
            victim="driver",
            restarts=True,
        ),
        Crash(
            name="driver-committed",
            text="the driver between our commit and Spark's",
            at="committed",
            victim="driver",
            restarts=True,
        ),
        Crash(
            name="planted",
            text="the same, and its successor writes under another id: a bug, which must be found",
            at="committed",
            victim="driver",
            restarts=True,
            planted=True,
        ),
        Crash(
            name="commit-begun",
            text="the Python that commits, before it does",
            at="begun",
            victim="worker",
            restarts=True,
        ),
        Crash(
            name="commit-lost",
            text="the Python that commits, its reply with it",
            at="committed",
            victim="worker",
            restarts=True,
        ),
        Crash(
            name="executor-writing",
            text="an executor, some rows staged",
            at="writing",
            victim="executor",
        ),
        Crash(
            name="executor-staged",
            text="an executor, all rows staged",
            at="staged",
            victim="executor",
        ),
        Crash(
            name="speculation",
            text="nobody: a slow task is attempted again elsewhere, and loses",
            at="staged",
            victim="straggler",
        ),
        Crash(
            name="master-writing",
            text="the brokers' master, some rows staged",
            at="writing",
            victim="master",
        ),
        Crash(
            name="master-begun",
            text="the brokers' master, before our commit",
            at="begun",
            victim="master",
        ),
        Crash(
            name="split-begun",
            text="nobody: a queue of the target is split, all rows staged",
            at="begun",
            victim="split",
        ),
        Crash(
            name="controllers-writing",
            text="all controllers, from the first rows to the end",
            at="writing",
            victim="controllers",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a case has shown."""

    messages: int
    digest: str
    lives: int
    """Times that the application was started."""
    query: str


class AnotherCopy(AssertionError):
    """The copy is not what was copied."""


class Copy:
    """One source, one target, one checkpoint."""

    def __init__(self, cluster: Cluster, client: Client, source: str, place: Path) -> None:
        self._cluster = cluster
        self._client = client
        self._source = source
        self._target = f"copy-{place.name}"
        self._place = place
        self._lives = 0
        place.mkdir(parents=True)
        client.admin.create_topic(self._target, queues=2)

    def under(self, crash: Crash) -> Copied:
        """Raises AnotherCopy, and AssertionError when nobody was killed."""
        directory = self._place / "points"
        directory.mkdir()
        points = Points(directory, crash.at)
        flags = ["--points", str(directory), "--at", crash.at]
        if crash.planted:
            flags.append("--forgets-its-id")
        with ExitStack() as stack:
            if crash.victim in ("executor", "straggler"):
                flags += stack.enter_context(standalone(self._place / "standalone"))
            if crash.victim == "straggler":
                flags += _settings(
                    **{
                        "spark.speculation": "true",
                        "spark.speculation.interval": "50ms",
                        "spark.speculation.minTaskRuntime": "50ms",
                        "spark.speculation.quantile": "0.5",
                    }
                )
            with self._application(flags) as application:
                waiting = until(
                    lambda: points.waiting() or _ended(application), STARTED_S, "the point"
                )
                assert points.waiting() == waiting, self.said()
                self._strike(crash, points, waiting, application)
                ended = application.wait(STARTED_S)
            assert (ended != 0) == crash.restarts, f"ended with {ended}\n{self.said()}"
            if crash.restarts:
                points.let_go()
                self._finish(flags)
        for node in self._cluster.nodes:
            if not node.running:
                self._cluster.start_node(node)
        self._cluster.wait_ready()
        return self._compare(starts=2 if crash.victim == "split" else 1)

    def _strike(
        self,
        crash: Crash,
        points: Points,
        waiting: int,
        application: subprocess.Popen[bytes],
    ) -> None:
        cluster = self._cluster
        if crash.victim == "worker":
            os.kill(waiting, signal.SIGKILL)
        elif crash.victim == "executor":
            os.kill(_java_above(waiting), signal.SIGKILL)
        elif crash.victim == "driver":
            for victim in (_java_above(waiting), application.pid):
                os.kill(victim, signal.SIGKILL)
        elif crash.victim == "straggler":
            until(lambda: _ended(application) or not _alive(waiting), STARTED_S, "the other's end")
        elif crash.victim == "master":
            cluster.kill(cluster.master())
        elif crash.victim == "controllers":
            for controller in cluster.controllers:
                cluster.kill(controller)
        elif crash.victim == "split":
            self._client.admin.split_queue(self._target, 0)
        if crash.victim in ("master", "controllers", "split"):
            points.let_go()
        else:
            until(lambda: not _alive(waiting), what=f"the end of {waiting}")

    def _finish(self, flags: Sequence[str]) -> None:
        while True:
            assert self._lives < LIVES_MAX, f"no end after {LIVES_MAX} lives\n{self.said()}"
            with self._application(flags) as application:
                if application.wait(STARTED_S) == 0:
                    return
            assert SLOW_PYTHON in self.said(), self.said()

    @contextmanager
    def _application(self, flags: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        self._lives += 1
        command = [sys.executable, "-m", "tests.spark.copying", *flags]
        command += ["--bootstrap", self._cluster.bootstrap, "--source", self._source]
        command += ["--target", self._target, "--checkpoint", str(self._place / "checkpoint")]
        with self._file("out").open("wb") as out, self._file("err").open("wb") as err:
            application = subprocess.Popen(
                command,
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "SEMEL_ROUTES_DIRECTORY": str(self._place / "routes"),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            yield application
        finally:
            if application.poll() is None:
                os.killpg(application.pid, signal.SIGKILL)
                application.wait()

    def _file(self, kind: str) -> Path:
        return self._place / f"life-{self._lives}.{kind}"

    def said(self) -> str:
        """The last lines of the application's newest life."""
        return self._file("err").read_text(errors="replace")[-4_000:]

    def _compare(self, *, starts: int) -> Copied:
        told = json.loads(self._file("out").read_text().splitlines()[-1])
        assert told["starts"] == starts, f"started {told['starts']} times in one life"
        count, digest = digest_of(self._client, self._source)
        if digest_of(self._client, self._target) != (count, digest):
            raise AnotherCopy(self._target)
        info = self._client.transactions.describe(told["query"])
        assert info is not None
        assert info.query_id == told["query"]
        return Copied(messages=count, digest=digest, lives=self._lives, query=told["query"])


def digest_of(client: Client, topic: str) -> tuple[int, str]:
    """Number and digest of all (key, value), in an order of their own; verified by the brokers."""
    with client.reader(topic, end="latest") as reader:
        rows = sorted((message.key or b"-", message.value) for message in reader)
    result = client.admin.verify(topic)
    assert result.ok, result.problems
    return len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()


def _settings(**values: str) -> list[str]:
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


def _ended(application: subprocess.Popen[bytes]) -> int:
    """-1 when it has ended, as no process's number is."""
    return 0 if application.poll() is None else -1


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _java_above(pid: int) -> int:
    """The nearest ancestor that is a Java."""
    while pid > 1:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        if name.endswith("(java"):
            return pid
        pid = int(rest.split()[1])
    raise AssertionError("no Java above")


@contextmanager
def standalone(directory: Path) -> Iterator[list[str]]:
    """Flags of an application that runs on a Spark of one master and two workers in this block."""
    home = Path(pyspark.__file__).parent
    directory.mkdir()
    port = free_ports(1)[0]
    address = f"spark://127.0.0.1:{port}"
    worker = ["--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
    commands = [
        ("127.0.0.1", "master.Master", ["--port", str(port), "--webui-port", "0"]),
        ("127.0.0.2", "worker.Worker", [*worker, "--work-dir", str(directory / "2"), address]),
        ("127.0.0.3", "worker.Worker", [*worker, "--work-dir", str(directory / "3"), address]),
    ]
    processes = []
    try:
        for host, name, flags in commands:
            environment = {
                **os.environ,
                "JAVA_HOME": str(java_home()),
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": host,
                "SPARK_DAEMON_MEMORY": "256m",
                "PYTHONPATH": str(ROOT),
            }
            with (directory / f"{host}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [
                            str(home / "bin" / "spark-class"),
                            f"org.apache.spark.deploy.{name}",
                            *("--host", host),
                            *flags,
                        ],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        master = directory / "127.0.0.1.log"
        until(lambda: master.read_text().count("Registering worker") == 2, STARTED_S, "Spark")
        yield [
            *("--master", address),
            *_settings(
                **{
                    "spark.executor.memory": "512m",
                    "spark.executor.cores": "1",
                    "spark.executorEnv.PYTHONPATH": str(ROOT),
                }
            ),
        ]
    finally:
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGTERM)  # a worker ends its executors
        for process in processes:
            process.wait(30)
