"""A file loaded by a real loader process, and the proof that a topic holds exactly that file.

How it works. The source is made from a seed: lines of any bytes, empty ones, repeated ones. The
loader is `semel produce --producer`, slowed so that something can be killed in its middle. `prove`
runs `semel verify --exactly-once` and puts the file together again from the topic's messages.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semel.client import connect
from tools.demo.rebuild import Rebuild
from tools.demo.source import Source, survey
from tools.demo.stage import Actor, Stage

TOPIC = "lines"
PRODUCER = "loader"


def make_source(path: Path, *, lines: int, seed: int) -> Source:
    """A file of that many lines, the last one without a newline."""
    rng = random.Random(seed)
    parts = []
    for number in range(lines):
        size = rng.choice([0, 1, 10, 80, 80, 80, 400])
        line = rng.randbytes(size).replace(b"\n", b"\r")
        parts.append(b"%d " % number + line if rng.random() < 0.9 else line)
    path.write_bytes(b"\n".join(parts) + b"!")
    source = survey(path)
    assert source.lines == lines
    return source


def semel(bootstrap: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """One command of the console."""
    return subprocess.run(
        [sys.executable, "-m", "semel.console", *arguments, "--bootstrap", bootstrap],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def create_topic(bootstrap: str, *, queues: int = 4, topic: str = TOPIC) -> None:
    """The topic that the loader writes to."""
    done = semel(bootstrap, "topic", "create", topic, "--queues", str(queues))
    assert done.returncode == 0, done.stderr


@contextmanager
def staged(directory: Path) -> Iterator[Stage]:
    """A stage whose processes are ended."""
    directory.mkdir(exist_ok=True)
    stage = Stage(directory)
    try:
        yield stage
    finally:
        stage.end_actors()


def start_loader(
    stage: Stage,
    bootstrap: str,
    source: Source,
    *,
    seconds: float,
    name: str = "loader",
    topic: str = TOPIC,
) -> Actor:
    """A loader that takes that long for the whole file when nothing is in its way."""
    return stage.start(
        name,
        *("semel.console", "produce", topic, str(source.path), "--producer", PRODUCER),
        *("--bootstrap", bootstrap, "--json", "--progress", "0.025"),
        *("--rate", str(max(1, round(source.size / seconds)))),
    )


def done(loader: Actor) -> int:
    """Messages that the loader knows to be stored."""
    if not loader.said:
        return 0
    return done_of(loader.said[-1].line)


def done_of(line: dict[str, Any]) -> int:
    """Number of stored messages in a line of a loader's output."""
    return landed(line) + int(line["skipped"])


def landed(result: dict[str, Any]) -> int:
    """Number of stored messages of this very run: messages whose acknowledgement was lost, so that
    they were sent again, count as duplicates in it."""
    return int(result["stored"]) + int(result["duplicates"])


def wait_share(loader: Actor, source: Source, share: float, timeout: float = 60) -> None:
    """Waits until that share is acknowledged; the loader must still run then."""
    deadline = time.monotonic() + timeout
    while done(loader) < share * source.lines:
        assert loader.running, f"the loader ended early{loader.tail()}"
        assert time.monotonic() < deadline, f"stuck at {done(loader)} of {source.lines}"
        time.sleep(0.01)
    assert loader.running, f"the loader ended before anything was killed{loader.tail()}"


def finish(loader: Actor, timeout: float = 90) -> dict[str, Any]:
    """The loader's result."""
    said = loader.wait_for(
        lambda said: said.line.get("event") != "progress", timeout, "the loader's result"
    )
    return said.line


def prove(bootstrap: str, source: Source, *, nodes: int, scratch: Path, topic: str = TOPIC) -> None:
    """Checks that every node holds each line of the file once, in order, with its own bytes."""
    verified = semel(bootstrap, "verify", "--exactly-once", topic, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    verdict = json.loads(verified.stdout)
    assert verdict["ok"] is True
    assert (verdict["messages"], verdict["duplicates"], verdict["missing"]) == (source.lines, 0, 0)
    assert verdict["nodes_compared"] == nodes
    with (
        Rebuild.on_disk(source, scratch) as rebuilt,
        connect(bootstrap) as client,
        client.reader(topic, end="latest") as reader,
    ):
        while (batch := reader.poll_arrow(timeout=10)) is not None:
            take_in(rebuilt, batch)
        found = (rebuilt.lost, rebuilt.duplicates, rebuilt.invented, rebuilt.out_of_order)
        assert found == (0, 0, 0, 0)
        assert rebuilt.messages == source.lines
        assert rebuilt.digest() == source.digest


def take_in(rebuilt: Rebuild, batch: pa.RecordBatch) -> None:
    """Messages of several queues, in the order in which they were delivered."""
    queues = batch.column("queue").to_numpy()
    offsets = batch.column("offset").to_numpy()
    sequences = batch.column("sequence").to_numpy()
    values = batch.column("value")
    cuts = [0, *(np.flatnonzero(np.diff(queues)) + 1).tolist(), len(queues)]
    for start, end in pairwise(cuts):
        rebuilt.add(int(queues[start]), offsets[start:end], sequences[start:end], values[start:end])
