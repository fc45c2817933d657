"""Half an hour of steady load, after which no process may have grown: `./run soak steady`.

How it works. A cluster of processes takes messages at a steady rate, a consumer group reads them,
retention throws the oldest away. Every few seconds the resident memory, the file descriptors and
the threads of every process are written down, after the first minutes, in which caches and the log
reach their size. Then the medians of the first and the last third are compared: memory may differ
by 5 %, the others not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from semel.client import Client, connect
from tests.kit.cluster import Cluster

TOPIC = "steady"
MESSAGE_BYTES = 1 << 10
CALL_MESSAGES = 1_000
SAMPLE_S = 5.0
RETAINED_BYTES = 128 << 20
"""Per queue."""
MEMORY_TOLERANCE = 0.05
_KIND = re.compile(r"(?:anon_inode:\[)?([A-Za-z_]+)")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process held at one moment."""

    resident_bytes: int
    threads: Counter[str]
    """By the name that the kernel has for them: event_engine is gRPC's, python ours."""
    descriptors: Counter[str]
    """By what they are open on: socket, segment, eventpoll, …"""


@dataclass(slots=True)
class Watched:
    """One process and what it held, sample by sample."""

    name: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    def take(self) -> None:
        """One more sample, from /proc."""
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
        )
        self.samples.append(
            Sample(
                resident_bytes=int(status["VmRSS"].split()[0]) << 10,
                threads=Counter(_names(Path(f"/proc/{self.pid}/task"))),
                descriptors=Counter(_kinds(Path(f"/proc/{self.pid}/fd"))),
            )
        )


def _kinds(directory: Path) -> Iterator[str]:
    """What kind of file each descriptor is open on."""
    for descriptor in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            # "socket:[17]", "anon_inode:[eventpoll]", "/data/log/segment-4"
            found = _KIND.match(descriptor.readlink().name)
            yield found[1] if found else "other"


def _names(directory: Path) -> Iterator[str]:
    """What each thread is called."""
    for thread in directory.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield (thread / "comm").read_text().strip()


def findings(name: str, samples: list[Sample]) -> list[str]:
    """All that is not steady, in words; empty if all is. Asserts that there are samples enough."""
    assert len(samples) >= 9, f"{len(samples)} samples say nothing"
    first, last = _medians([one.resident_bytes for one in samples])
    found = []
    if abs(last / first - 1) > MEMORY_TOLERANCE:
        found.append(f"{name}: memory went from {first / 2**20:.1f} to {last / 2**20:.1f} MiB")
    for what in ("descriptors", "threads"):
        held: list[Counter[str]] = [getattr(one, what) for one in samples]
        # One comes and goes with a call to a controller; what stays is a leak.
        early, late = _medians([one.total() for one in held])
        if early != late:
            found.append(f"{name}: {what} went from {early:g} to {late:g}")
            for kind in sorted(set().union(*held)):
                early, late = _medians([one[kind] for one in held])
                if early != late:
                    found.append(f"    {kind} from {early:g} to {late:g}")
    return found


def _medians(numbers: list[int]) -> tuple[float, float]:
    """The medians of the first and of the last third."""
    third = len(numbers) // 3
    return statistics.median(numbers[:third]), statistics.median(numbers[-third:])


class Load:
    """One producer at a steady rate and one consumer, each in a thread of this process."""

    def __init__(self, client: Client, bytes_per_second: float) -> None:
        self.sent = self.read = 0
        self._client = client
        self._pause = CALL_MESSAGES * MESSAGE_BYTES / bytes_per_second
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._produce, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            self._errors.append(error)

    def _produce(self) -> None:
        values = [os.urandom(MESSAGE_BYTES) for _ in range(CALL_MESSAGES)]
        due = time.monotonic()
        with self._client.producer() as producer:
            while not self._stop.is_set():
                producer.send_many(TOPIC, values)
                self.sent += len(values)
                due = max(due + self._pause, time.monotonic() - 1.0)
                self._stop.wait(max(0.0, due - time.monotonic()))
            producer.flush(60)

    def _consume(self) -> None:
        with self._client.consumer("steady", [TOPIC]) as consumer:
            while not (self._stop.is_set() and self.read >= self.sent):
                batch = consumer.poll_arrow(0.5)
                if batch is not None:
                    self.read += batch.num_rows
                    consumer.commit()
                elif self._stop.is_set():
                    break

    def check(self) -> None:
        """Raises what a thread has failed with."""
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """Ends both; everything that was sent is read before."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        self.check()


def main(arguments: list[str] | None = None) -> int:
    """Runs the load; returns 1 when something grew or a message is missing."""
    parser = argparse.ArgumentParser(
        prog="./run soak steady",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="for how long")
    parser.add_argument("--settle", type=float, default=5.0, help="minutes before samples count")
    parser.add_argument("--mb-s", type=float, default=30.0, help="rate of the load")
    options = parser.parse_args(arguments)
    if not 0 < options.settle < options.minutes or options.mb_s <= 0:
        parser.error("want 0 < --settle < --minutes and --mb-s above 0")
    with (
        tempfile.TemporaryDirectory(prefix="semel-steady-") as scratch,
        Cluster(Path(scratch) / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic(TOPIC, queues=4, retention_bytes=RETAINED_BYTES)
        watched = [Watched(f"{node.kind} {node.id}", node.pid) for node in cluster.nodes]
        watched.append(Watched("clients", os.getpid()))
        load = Load(client, options.mb_s * 1e6)
        begin = time.monotonic()
        while (elapsed := time.monotonic() - begin) < options.minutes * 60:
            time.sleep(SAMPLE_S)
            load.check()
            if elapsed >= options.settle * 60:
                for one in watched:
                    one.take()
            if int(elapsed) % 60 < SAMPLE_S:
                rate = load.sent * MESSAGE_BYTES / 1e6 / max(elapsed, 1)
                print(
                    f"{elapsed / 60:5.1f} min  {rate:5.1f} MB/s  behind {load.sent - load.read:,}  "
                    + "  ".join(
                        f"{one.name} {one.samples[-1].resident_bytes >> 20} MiB"
                        for one in watched
                        if one.samples
                    ),
                    flush=True,
                )
        load.close()
        found = [text for one in watched for text in findings(one.name, one.samples)]
    for one in watched:
        sizes = [sample.resident_bytes / 2**20 for sample in one.samples]
        last = one.samples[-1]
        print(
            f"{one.name:13} {min(sizes):6.1f} to {max(sizes):6.1f} MiB, median "
            f"{statistics.median(sizes):6.1f}; {last.descriptors.total()} descriptors, "
            f"{last.threads.total()} threads"
        )
    print(f"{load.sent:,} messages sent, {load.read:,} read")
    if load.read != load.sent:
        found.append(f"{load.sent - load.read:,} messages were sent and not read")
    for text in found:
        print(f"NOT STEADY {text}")
    if not found:
        print(f"steady for {options.minutes - options.settle:g} minutes")
    return 1 if found else 0
