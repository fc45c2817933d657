"""Appends to the log against the floor: plain pwrite and fdatasync of the same bytes.

    python benchmarks/log_append.py [--directory DIR] [--rounds N] [--json]

Both run in turns in one process, so that the ratio means something on a machine that others use.
*Round* is one frame at a time, awaited: append until `on_synced` has been called. *Stream* appends
without waiting (at most 8 MiB ahead) until all is durable; its floor writes and syncs frame by
frame, and once more in groups as large as the log happened to make. *Fresh* segments are
preallocated; *recycled* ones were written before, as after the first retention. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from semel.broker.log import Log, LogConfig
from semel.protos.frames import RecordKind, build_frame

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB)
AHEAD_BYTES = 8 * MIB
STREAM_BYTES = 64 * MIB
STREAM_FRAMES = 1_000
AWAITED = 100


class Frames:
    """Frames of one size, built outside the measured time."""

    def __init__(self, size: int) -> None:
        self._payload = os.urandom(size - 64)
        self.next_index = 1

    def make(self, count: int) -> list[bytes]:
        made = [
            build_frame(index, 1, 0, [(RecordKind.BATCH, [self._payload])])[0]
            for index in range(self.next_index, self.next_index + count)
        ]
        self.next_index += count
        return made


class Floor:
    """A preallocated file, written from the front again and again, or renewed each time."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._descriptor = -1
        self.renew()

    def renew(self) -> None:
        """Makes a fresh file, whose blocks have no contents yet."""
        if self._descriptor >= 0:
            self.close()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._descriptor, 0, self._size)
        self._at = 0

    def write(self, parts: list[bytes]) -> None:
        length = sum(map(len, parts))
        if self._at + length > self._size:
            self._at = 0
        os.pwritev(self._descriptor, parts, self._at)
        os.fdatasync(self._descriptor)
        self._at += length

    def close(self) -> None:
        os.close(self._descriptor)
        self._path.unlink()


def awaited_log(log: Log, frames: list[bytes]) -> list[float]:
    done = threading.Event()
    log.on_synced = lambda index, term: done.set()
    times = []
    for frame in frames:
        done.clear()
        start = time.perf_counter()
        log.append([frame])
        done.wait()
        times.append(time.perf_counter() - start)
    return times


def awaited_floor(floor: Floor, frames: list[bytes]) -> list[float]:
    times = []
    for frame in frames:
        start = time.perf_counter()
        floor.write([frame])
        times.append(time.perf_counter() - start)
    return times


def stream_log(log: Log, frames: list[bytes]) -> tuple[float, int]:
    """Seconds of the stream, and frames per sync."""
    ahead = max(1, AHEAD_BYTES // len(frames[0]))
    syncs = log.stats().syncs
    start = time.perf_counter()
    for frame in frames:
        if log.last_index - log.synced_index >= ahead:
            log.wait_synced(log.last_index - ahead + 1)
        log.append([frame])
    log.wait_synced(log.last_index)
    seconds = time.perf_counter() - start
    return seconds, max(1, len(frames) // max(1, log.stats().syncs - syncs))


def stream_floor(floor: Floor, frames: list[bytes], group: int) -> float:
    start = time.perf_counter()
    for at in range(0, len(frames), group):
        floor.write(frames[at : at + group])
    return time.perf_counter() - start


def measure(directory: Path, size: int, rounds: int, *, recycled: bool) -> dict[str, object]:
    frames = Frames(size)
    count = min(STREAM_FRAMES, STREAM_BYTES // size)
    log = Log.open(directory / "log", LogConfig(recycle_max=4))
    floor = Floor(directory / "floor", (count + AWAITED) * size)
    found: dict[str, list[float]] = {}
    group = 1
    try:
        if recycled:
            for _ in range(3):
                stream_log(log, frames.make(count))
                recycle(log)
            stream_floor(floor, [bytes(size)] * (count + AWAITED), count)
        for _ in range(rounds):
            if recycled:
                recycle(log)
            else:
                floor.renew()
            made = frames.make(AWAITED)
            found.setdefault("log_round_us", []).extend(t * 1e6 for t in awaited_log(log, made))
            found.setdefault("floor_round_us", []).extend(
                t * 1e6 for t in awaited_floor(floor, made)
            )
            made = frames.make(count)
            seconds, group = stream_log(log, made)
            found.setdefault("log_mb_s", []).append(count * size / seconds / 1e6)
            for name, together in (("floor_mb_s", 1), ("floor_grouped_mb_s", group)):
                if not recycled:
                    floor.renew()
                seconds = stream_floor(floor, made, together)
                found.setdefault(name, []).append(count * size / seconds / 1e6)
    finally:
        log.close()
        floor.close()
        shutil.rmtree(directory / "log")
    result: dict[str, object] = {
        "bytes": size,
        "segments": "recycled" if recycled else "fresh",
        "frames_a_sync": group,
    }
    result |= {name: round(statistics.median(values), 1) for name, values in found.items()}
    rounds_us = sorted(found["log_round_us"])
    result["log_round_p99_us"] = round(rounds_us[len(rounds_us) * 99 // 100], 1)
    return result


def recycle(log: Log) -> None:
    """Frees all whole segments."""
    for _ in range(2):
        log.save_checkpoint(log.last_index, 1, [b""])
    log.compact(log.last_index + 1, lambda lo, hi: [])


def show(row: dict[str, object]) -> str:
    log_us, floor_us = float(str(row["log_round_us"])), float(str(row["floor_round_us"]))
    log_rate, floor_rate = float(str(row["log_mb_s"])), float(str(row["floor_mb_s"]))
    grouped = float(str(row["floor_grouped_mb_s"]))
    return (
        f"{int(str(row['bytes'])) // KIB:>5} KiB {row['segments']:<9}"
        f" round {log_us:7.0f} µs (floor {floor_us:6.0f}, +{log_us - floor_us:5.0f},"
        f" p99 {float(str(row['log_round_p99_us'])):7.0f})"
        f"  stream {log_rate:6.0f} MB/s (floor {floor_rate:6.0f}, ×{log_rate / floor_rate:4.2f};"
        f" grouped {grouped:6.0f}, ×{log_rate / grouped:4.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: a new one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)  # as a node does
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for size in SIZES:
            for recycled in (False, True):
                row = measure(Path(directory), size, options.rounds, recycled=recycled)
                print(json.dumps(row) if options.json else show(row), flush=True)


if __name__ == "__main__":
    main()
