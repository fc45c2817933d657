"""Floors that no broker here can beat: the bare prototype, `fdatasync` alone, a copy in memory.

How it works. Each floor moves the bytes of a workload in the simplest way, and its figures are
converted to the workload's terms: a 64 KiB batch counts as the messages of 100 B that fit in it.

    prototype    three processes, gRPC, `fdatasync`, a majority; no broker's logic (`floor.py`)
    fdatasync    one process, one file of allocated pages: write 64 KiB (W3: 1 KiB), sync
    memcpy       the same bytes copied in memory, 64 KiB at a time

CPU is that of all processes of a floor, its client included. Memory is the prototype's three nodes.

Not here: the prototype itself (`floor.py`, `floor_node.py`, `floor_client.py`).
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.figures import Cell, Figures
from benchmarks.floor import Floor
from benchmarks.goals import FLOOR
from benchmarks.harness import percentile, temporary_directory
from benchmarks.workloads import RATE

BATCH_BYTES = 64 << 10
AWAITED_BYTES = 1 << 10
FILE_BYTES = 64 << 20
MIB = 1 << 20
SIZES: Mapping[str, int] = {"W1": 100, "W2": 1_024, "W2b": 100, "W5": 100}
"""Bytes of a message, by workload."""


def write_pages(path: Path) -> Path:
    """A file of FILE_BYTES whose pages are allocated and cached."""
    with path.open("wb") as file:
        for _ in range(0, FILE_BYTES, MIB):
            file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())
    return path


def synced_writes(path: Path, size: int, seconds: float) -> list[float]:
    """Seconds of each write of `size` bytes with its `fdatasync`, one after the other."""
    data = os.urandom(size)
    taken = []
    places = itertools.cycle(range(0, FILE_BYTES, BATCH_BYTES))
    with path.open("rb+", buffering=0) as file:
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            os.pwrite(file.fileno(), data, next(places))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - start)
    return taken


def copies(size: int, seconds: float) -> tuple[int, float]:
    """The number of copies of `size` bytes into the same 64 MiB, and the seconds they took."""
    source = memoryview(os.urandom(size))
    target = memoryview(bytearray(FILE_BYTES))
    places = range(0, FILE_BYTES, size)
    done = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for place in places:
            target[place : place + size] = source
        done += len(places)
    return done, time.perf_counter() - start


def rate(mb_s: float, seconds: float, cpu_s: float, size: int) -> dict[str, float]:
    """A rate in bytes, converted to messages of `size` bytes."""
    messages_s = mb_s * 1e6 / size
    return {
        "msg_s": messages_s,
        "mb_s": mb_s,
        "cpu_s_per_million": cpu_s / (messages_s * seconds) * 1e6,
    }


class RawFloors:
    """Runs rounds of all floors of some workloads."""

    def __init__(self, workloads: Sequence[str], seconds: float, data: Path) -> None:
        self._workloads = [name for name in workloads if name in {*SIZES, "W3", "W4"}]
        self._seconds = seconds
        self._data = data

    def run(self) -> Figures:
        """Runs one round; returns no figures when no workload has a floor."""
        found: Figures = {}
        if not self._workloads:
            return found
        with temporary_directory(self._data) as data, Floor(data) as floor:
            pages = write_pages(data / "pages")
            if "W3" in self._workloads:
                found |= self._awaited(floor, pages)
            if "W4" in self._workloads:
                found |= self._paced(floor)
            if {"W1", "W2", "W2b"} & set(self._workloads):
                run = lambda: floor.append(BATCH_BYTES, self._seconds)["mb_s"]  # noqa: E731
                found |= self._moved(floor, run, ("W1", "W2", "W2b"), "prototype")
                found |= self._moved(floor, lambda: self._synced(pages), ("W1", "W2", "W2b"))
            if "W5" in self._workloads:
                run = lambda: floor.read(256 << 10, self._seconds)["mb_s"]  # noqa: E731
                found |= self._moved(floor, run, ("W5",), "prototype")
            found |= self._moved(floor, self._copied, tuple(SIZES), "memcpy")
        return found

    def _synced(self, pages: Path) -> float:
        taken = synced_writes(pages, BATCH_BYTES, self._seconds)
        return len(taken) * BATCH_BYTES / sum(taken) / 1e6

    def _copied(self) -> float:
        done, seconds = copies(BATCH_BYTES, self._seconds)
        return done * BATCH_BYTES / seconds / 1e6

    def _moved(
        self,
        floor: Floor,
        run: Callable[[], float],
        workloads: tuple[str, ...],
        variant: str = "fdatasync",
    ) -> Figures:
        """Measures `run`, which gives MB/s; converts the figures to each wanted workload."""
        before = cpu_s(floor)
        mb_s = run()
        used = cpu_s(floor) - before
        memory = resident(floor) if variant == "prototype" else {}
        return {
            Cell(FLOOR, name, variant): rate(mb_s, self._seconds, used, SIZES[name]) | memory
            for name in workloads
            if name in self._workloads
        }

    def _awaited(self, floor: Floor, pages: Path) -> Figures:
        before = cpu_s(floor)
        trips = floor.round_trip(AWAITED_BYTES, self._seconds)
        used = cpu_s(floor) - before
        count = trips["messages_s"] * self._seconds
        synced = synced_writes(pages, AWAITED_BYTES, self._seconds)
        return {
            Cell(FLOOR, "W3", "prototype"): {
                "p50_ms": trips["p50_ms"],
                "p99_ms": trips["p99_ms"],
                "cpu_s_per_million": used / count * 1e6,
                **resident(floor),
            },
            Cell(FLOOR, "W3", "fdatasync"): {
                "p50_ms": percentile(synced, 50) * 1e3,
                "p99_ms": percentile(synced, 99) * 1e3,
            },
        }

    def _paced(self, floor: Floor) -> Figures:
        before = cpu_s(floor)
        trips = floor.paced_and_read(AWAITED_BYTES, self._seconds, RATE)
        used = cpu_s(floor) - before - trips["tail_cpu_s"]
        return {
            Cell(FLOOR, "W4", "prototype"): {
                "ack_p50_ms": trips["p50_ms"],
                "ack_p99_ms": trips["p99_ms"],
                "end_to_end_p50_ms": trips["tail_p50_ms"],
                "end_to_end_p99_ms": trips["tail_p99_ms"],
                "cpu_s_per_million_no_consumer": used / trips["messages"] * 1e6,
                **resident(floor),
            }
        }


def cpu_s(floor: Floor) -> float:
    """CPU seconds of the nodes, of this process, and of its ended clients."""
    nodes = [psutil.Process(pid).cpu_times() for pid in floor.pids]
    mine = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.user + each.system for each in nodes) + sum(
        each.ru_utime + each.ru_stime for each in mine
    )


def resident(floor: Floor) -> dict[str, float]:
    """Resident MiB of all nodes together, and of each."""
    each = {
        f"rss_mib_node_{place}": psutil.Process(pid).memory_info().rss / MIB
        for place, pid in enumerate(floor.pids, 1)
    }
    return {"rss_mib": sum(each.values()), **each}
