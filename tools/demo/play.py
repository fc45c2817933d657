"""The demo, scene by scene, and the figures that it measures.

How it works. The first load is slowed to some seconds, so that both kills fall into its middle and
can be watched. The loader itself reports every 10 ms how many messages are acknowledged; these
lines give the shares at which the kills fell and the seconds without a master. Spark's Java starts
in the background while the cluster works.

Not here: processes (`stage.py`), the verdict (`proof.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from semel.protos.errors import InvalidRequest
from semel.protos.security.identity import ADMIN
from tools.demo.acks import AckWatch, await_master
from tools.demo.people import (
    COPY,
    GROUP,
    LOADER,
    PRODUCER,
    READERS,
    RULES,
    SPARK,
    STRANGER,
    TOPIC,
    People,
    refusals,
)
from tools.demo.proof import Copied, Figures
from tools.demo.rebuild import Rebuild
from tools.demo.source import Source, standard_library, survey
from tools.demo.spark_copy import TABLE
from tools.demo.stage import Actor, DemoFailed, Stage

if TYPE_CHECKING:
    from semel.client import Client
    from semel.client.admin.descriptions import BrokerGroupDescription

QUEUES: Final = 4
LOAD_S: Final = 8.0
"""Duration of the load if there were no failures."""
MASTER_DIES_AT: Final = 0.3
LOADER_DIES_AT: Final = 0.65
PROGRESS_S: Final = 0.01
LINES_MIN: Final = 20
"""A file of fewer lines has no middle in which a process could be killed."""


class Screen:
    """Shows what happens: one line per scene, and a bar during a load or a read."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False)
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        """Prints one line with the seconds since the start."""
        seconds = time.monotonic() - self._began
        self.console.print(f"[dim]{seconds:5.1f} s[/]  {text}")

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Any]:
        """Shows a bar on a terminal; yields a function that takes the amount done."""
        if not self.console.is_terminal:
            yield lambda done: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("        {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self.console,
            transient=True,
        )
        with bar:
            task = bar.add_task(text, total=total)
            yield lambda done: bar.update(task, completed=done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The figures of the scenes of the load."""

    killed_master: int
    killed_at: float
    next_master: int
    term_before: int
    term_after: int
    outage: float
    loader_killed_at: float
    skipped: int
    retried: int
    seconds: float


def play(stage: Stage, file: Path | None) -> Figures:
    """Plays the whole demo. Raises DemoFailed, SemelError or OSError when it cannot go on."""
    screen = Screen()
    if file is None:
        file = stage.scratch / "library.txt"
        standard_library(file)
    source = survey(file)
    if source.lines < LINES_MIN:
        raise InvalidRequest(
            f"{file} has {source.lines} lines: the demo needs {LINES_MIN}, to kill in their midst"
        )
    screen.tell(f"{source.lines:,} lines, {source.size / 1e6:,.1f} MB: {_name(file, stage)}")
    cluster = stage.start(
        *("cluster", "semel.console", "up", "--data", str(stage.scratch / "cluster")),
        *("--port", "0", "--secure", "--authorization", "--json"),
    )
    ready = cluster.wait_for(lambda said: said.line.get("event") == "ready", 60, "its ready line")
    bootstrap = str(ready.line["bootstrap"])
    nodes = [node for node in ready.line["nodes"] if node["kind"] == "broker"]
    people = People(Path(ready.line["ca"]).parent, bootstrap)
    screen.tell(
        f"a controller and {len(nodes)} brokers serve at {bootstrap}: TLS everywhere, and what no"
        " rule allows is denied"
    )
    with people.connect(ADMIN) as admin, people.connect(READERS) as client:
        admin.admin.create_topic(TOPIC, queues=QUEUES)
        admin.admin.create_topic(COPY, queues=QUEUES)
        admin.admin.change_access_rules(add=RULES)
        place = stage.scratch / "spark"
        spark = stage.start(
            *("spark", "tools.demo.spark_copy", bootstrap, TOPIC, COPY, str(place)),
            environment=people.environment(SPARK),
        )
        loaded = _load(screen, stage, cluster, admin, source, people)
        with people.connect(STRANGER) as stranger:
            refused, tried = refusals(stranger)
        screen.tell(
            f"a stranger reads, writes, fences, consumes and deletes: {refused} of {tried} refused"
        )
        screen.tell("a consumer group reads everything back")
        stored = sum(
            queue.log_end_offset - queue.log_start_offset
            for queue in admin.admin.describe_topic(TOPIC).queues
        )
        with Rebuild.on_disk(source, stage.scratch / "rebuilt") as rebuilt:
            _read_back(screen, client, rebuilt, stored)
            digest = rebuilt.digest()
        spark.wait_for(lambda said: said.line.get("event") == "ready", 120, "its ready line")
        screen.tell("Spark streams the topic into a Parquet table and into another topic")
        spark.say("copy")
        copied = spark.wait_for(lambda said: said.line.get("event") == "copied", 300, "its copies")
        screen.tell(f"both are there after {copied.line['seconds']:.1f} s, and are read back")
        with Rebuild.on_disk(source, stage.scratch / "tabled") as tabled:
            _read_table(place / TABLE, tabled)
            table = Copied.of(tabled)
        with Rebuild.on_disk(source, stage.scratch / "copied") as second:
            _read_copy(client, second)
            copy = Copied.of(second)
    screen.tell("every broker's log is read and compared")
    verdict, copy_verdict = _verify(people, TOPIC), _verify(people, COPY)
    return Figures(
        lines=source.lines,
        stored=stored,
        delivered=rebuilt.messages,
        lost=rebuilt.lost,
        duplicates=rebuilt.duplicates,
        invented=rebuilt.invented,
        out_of_order=rebuilt.out_of_order,
        queues=rebuilt.queues,
        file_digest=source.digest,
        topic_digest=digest,
        table=table,
        copy=copy,
        verified=all(
            each["ok"] and each["messages"] == source.lines for each in (verdict, copy_verdict)
        ),
        nodes_compared=min(int(each["nodes_compared"]) for each in (verdict, copy_verdict)),
        nodes=len(nodes),
        killed_master=loaded.killed_master,
        killed_at=loaded.killed_at,
        next_master=loaded.next_master,
        term_before=loaded.term_before,
        term_after=loaded.term_after,
        seconds_without_master=loaded.outage,
        loader_killed_at=loaded.loader_killed_at,
        skipped=loaded.skipped,
        retried=loaded.retried,
        seconds=loaded.seconds,
        tried=tried,
        refused=refused,
    )


def _name(file: Path, stage: Stage) -> str:
    return "Python's own standard library" if file.is_relative_to(stage.scratch) else str(file)


def _load(
    screen: Screen, stage: Stage, cluster: Actor, client: Client, source: Source, people: People
) -> Loaded:
    """Plays the load with both loaders and both kills."""
    began = time.monotonic()
    command = ["semel.console", "produce", TOPIC, str(source.path), "--producer", PRODUCER]
    command += ["--json", "--progress", str(PROGRESS_S)]
    loading = people.environment(LOADER)
    slowed = ["--rate", str(max(1, round(source.size / LOAD_S)))]
    before = client.admin.cluster_status().groups[0]
    loader = stage.start("loader", *command, *slowed, environment=loading)
    with screen.bar("loading", source.lines) as show:
        _until(loader, source, MASTER_DIES_AT, show)
        pid = _pid(cluster, before.master)
        seen, acknowledged = len(loader.said), _done(_last(loader))
        killed = _kill_node(pid, loader)
        share = acknowledged / source.lines
        screen.tell(
            f"[bold]SIGKILL to the master[/], broker {before.master}, with {share:.0%} acknowledged"
        )
        after = await_master(
            _survivors(before),
            newer_than=before.term,
            timeout=30,
            security=people.security(ADMIN),
        )
        if after is None:
            raise DemoFailed(f"no other broker became master after term {before.term}")
        watch = AckWatch(killed=killed, elected=after.time, done=acknowledged)
        loader.wait_for(
            lambda said: watch.on_progress(said.time, _done(said.line)),
            30,
            "an acknowledgement by the new master",
            since=seen,
        )
        cluster.wait_for(
            lambda said: (said.line.get("event"), said.line.get("pid")) == ("exited", pid),
            10,
            f"the end of broker {before.master}",
        )
        screen.tell(
            f"broker {after.node} is master, term {before.term} → {after.term}:"
            f" {watch.outage:.2f} s without acknowledgement"
        )
        _until(loader, source, LOADER_DIES_AT, show)
        if not loader.running:
            raise DemoFailed("the loader ended before it could be killed: use a larger file")
        loader.kill()
        first = _last(loader)
        loader_share = _done(first) / source.lines
        screen.tell(f"[bold]SIGKILL to the loader[/] with {loader_share:.0%} acknowledged")
        second = stage.start("loader-2", *command, environment=loading)
        result = _follow(second, show)
    screen.tell(
        f"the same command again: {result['skipped']:,} lines skipped, {result['stored']:,} stored"
    )
    return Loaded(
        killed_master=before.master,
        killed_at=share,
        next_master=after.node,
        term_before=before.term,
        term_after=after.term,
        outage=watch.outage,
        loader_killed_at=loader_share,
        skipped=result["skipped"],
        retried=first["duplicates"] + result["duplicates"],
        seconds=time.monotonic() - began,
    )


def _done(line: dict[str, Any]) -> int:
    """Number of messages that are known to be stored."""
    return int(line["stored"]) + int(line["duplicates"]) + int(line["skipped"])


def _last(loader: Actor) -> dict[str, Any]:
    return loader.said[-1].line if loader.said else {"stored": 0, "duplicates": 0, "skipped": 0}


def _until(loader: Actor, source: Source, share: float, show: Any) -> None:
    """Waits until that share of the lines is acknowledged."""
    while loader.running and _done(_last(loader)) < share * source.lines:
        show(_done(_last(loader)))
        time.sleep(PROGRESS_S)


def _pid(cluster: Actor, node: int) -> int:
    """Process id of a broker, after all restarts so far."""
    pid = 0
    for said in cluster.said:
        for line in said.line.get("nodes", [said.line]):
            if line.get("kind") == "broker" and line.get("id") == node:
                pid = 0 if said.line["event"] == "exited" else int(line["pid"])
    if not pid:
        raise DemoFailed(f"broker {node} does not run")
    return pid


def _kill_node(pid: int, loader: Actor) -> float:
    """Sends SIGKILL while the loader runs; returns the time, in monotonic seconds."""
    if not loader.running:
        raise DemoFailed(f"the loader ended before the master was killed{loader.tail()}")
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def _survivors(group: BrokerGroupDescription) -> list[str]:
    """Addresses of the group's nodes except its master."""
    return [node.address for node in group.nodes if node.id != group.master]


def _follow(loader: Actor, show: Any) -> dict[str, Any]:
    """Shows a loader's progress until its result."""
    seen = 0
    while True:
        for said in loader.said[seen:]:
            seen += 1
            show(_done(said.line))
            if said.line.get("event") != "progress":
                return said.line
        if not loader.running and seen == len(loader.said):
            loader.wait_for(lambda said: said.line.get("event") != "progress", 2, "its result")
        time.sleep(PROGRESS_S)


def _read_back(screen: Screen, client: Client, rebuilt: Rebuild, stored: int) -> None:
    """Reads all stored messages as a consumer group, and any that arrive within a second more."""
    deadline = time.monotonic() + 60
    with (
        client.consumer(GROUP, [TOPIC]) as consumer,
        screen.bar("reading", stored) as show,
    ):
        while True:
            batch = consumer.poll_arrow(timeout=1.0)
            if batch is not None and batch.num_rows:
                _take_in(rebuilt, batch)
                show(rebuilt.messages)
            elif rebuilt.messages >= stored:
                break
            if time.monotonic() > deadline:
                break  # the figures show what is missing
        consumer.commit()


def _take_in(rebuilt: Rebuild, batch: pa.RecordBatch) -> None:
    queues = batch.column("queue").to_numpy()
    offsets = batch.column("offset").to_numpy()
    sequences = batch.column("sequence").to_numpy()
    values = batch.column("value")
    cuts = [0, *(np.flatnonzero(np.diff(queues)) + 1).tolist(), len(queues)]
    for start, end in pairwise(cuts):
        rebuilt.add(
            int(queues[start]),
            offsets[start:end],
            sequences[start:end],
            values[start:end],
        )


def _read_table(directory: Path, rebuilt: Rebuild) -> None:
    """Reads the table's files as listed in Spark's own log of the table, without Spark."""
    written: set[str] = set()
    for log in (directory / "_spark_metadata").iterdir():
        if not log.name.startswith("."):
            actions = [json.loads(line) for line in log.read_text().splitlines()[1:]]
            written |= {action["path"] for action in actions if action["action"] == "add"}
    for path in sorted(written):
        rows = parquet.read_table(path.removeprefix("file://")).combine_chunks()
        for batch in rows.to_batches():
            _take_in(rebuilt, batch)


def _read_copy(client: Client, rebuilt: Rebuild) -> None:
    """Reads the copy; keys are line numbers. Tasks stage in parallel, so it has no order."""
    with client.reader(COPY, end="latest") as reader:
        while (batch := reader.poll_arrow(timeout=10)) is not None:
            lines = pc.cast(pc.cast(batch.column("key"), pa.string()), pa.int64())
            rebuilt.add_unordered(lines.to_numpy(), batch.column("value"))


def _verify(people: People, topic: str) -> dict[str, Any]:
    """The verdict of `semel verify`, good or bad. Raises DemoFailed when there is none."""
    command = [sys.executable, "-m", "semel.console", "verify", "--exactly-once", topic, "--json"]
    environment = {**os.environ, **people.environment(ADMIN)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise DemoFailed(f"semel verify failed: {done.stderr.strip()}") from None
    return verdict
