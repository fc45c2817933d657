"""Rounds of real loads under random kills and pauses, each round proven: `./run soak kills`.

How it works. One cluster lives through all rounds. Each round loads a file from a seed with
`semel produce --producer` into a topic of its own, while a seed chooses every second or so what
happens next: the master, a slave or all brokers are killed or paused, the controller is killed, the
loader is killed and started again. A round ends with `semel verify --exactly-once` and a comparison
with the file, and counts the faults that fell into its load: a round without any is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.kit.loading import (
    create_topic,
    done,
    finish,
    make_source,
    prove,
    staged,
    start_loader,
)
from tests.kit.up_process import UpNode, UpProcess
from tools.demo.source import Source
from tools.demo.stage import Actor, Stage

FAULTS = ("master", "slave", "all", "pause master", "pause slave", "controller", "loader")
PAUSE_S = (0.1, 5.0)


class Round:
    """One load and the faults that fall into it."""

    def __init__(self, up: UpProcess, stage: Stage, seed: int, lines: int, directory: Path) -> None:
        self._up = up
        self._stage = stage
        self._rng = random.Random(seed)
        self._topic = f"soak-{seed}"
        self._directory = directory
        self._source: Source = make_source(directory / f"file-{seed}", lines=lines, seed=seed)
        self._lives = 0
        self.faults: Counter[str] = Counter()

    def run(self) -> None:
        """The whole round. Raises AssertionError or DemoFailed when something is not right."""
        create_topic(self._up.bootstrap, topic=self._topic)
        loader = self._start_loader()
        while loader.running:
            time.sleep(self._rng.uniform(0.3, 1.5))
            if not loader.running or done(loader) >= self._source.lines:
                break
            loader = self._strike(self._rng.choice(FAULTS), loader)
        result = finish(loader)
        assert result["read"] == self._source.lines
        self._up.wait_all_alive()
        prove(
            self._up.bootstrap,
            self._source,
            nodes=len(self._up.brokers),
            scratch=self._directory / "rebuilt",
            topic=self._topic,
        )

    def _start_loader(self) -> Actor:
        self._lives += 1
        return start_loader(
            self._stage,
            self._up.bootstrap,
            self._source,
            seconds=10,
            name=f"{self._topic}-{self._lives}",
            topic=self._topic,
        )

    def _strike(self, fault: str, loader: Actor) -> Actor:
        """One fault; returns the loader that goes on."""
        self.faults[fault] += 1
        if fault == "loader":
            loader.kill()
            return self._start_loader()
        if fault == "controller":
            self._signal([self._up.node(1, "controller")], signal.SIGKILL)
            return loader
        master = self._up.master()
        slaves = [node for node in self._up.brokers if node.id != master]
        victims = {
            "master": [self._up.node(master)],
            "slave": [self._rng.choice(slaves)],
            "all": self._up.brokers,
        }[fault.removeprefix("pause ")]
        if fault.startswith("pause"):
            self._signal(victims, signal.SIGSTOP)
            time.sleep(self._rng.uniform(*PAUSE_S))
            self._signal(victims, signal.SIGCONT)
        else:
            self._signal(victims, signal.SIGKILL)
        return loader

    def _signal(self, nodes: list[UpNode], number: signal.Signals) -> None:
        self._up.drain()
        for node in nodes:
            if node.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(node.pid, number)


def main(arguments: list[str] | None = None) -> int:
    """Runs rounds until the time is over; returns 1 when one fails."""
    parser = argparse.ArgumentParser(prog="./run soak kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--lines", type=int, default=200_000, help="of each file")
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.lines < 1000:
        parser.error("want --minutes above 0 and --lines of 1000 or more")
    deadline = time.monotonic() + options.minutes * 60
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="semel-soak-") as scratch:
        directory = Path(scratch)
        with UpProcess(directory / "cluster") as up, staged(directory / "stage") as stage:
            seed = options.seed
            while time.monotonic() < deadline:
                one = Round(up, stage, seed, options.lines, directory)
                one.run()
                total += one.faults
                shown = ", ".join(f"{count} {name}" for name, count in one.faults.items())
                print(f"round with seed {seed} proven: {shown or 'no fault fell into it'}")
                seed += 1
    print(f"{seed - options.seed} rounds proven; faults: {dict(total)}")
    return 0 if total else 1
