"""The index of message ids by itself: adding ids, writing runs, looking up, opening it again.

    python -m benchmarks.id_index [--ids 10000000] [--plain 500000]

Processor and wall time of one node's index, without a broker, and beside it RocksDB with one key
for each id, as a raw floor (`--plain`). Ids come in batches of 10,000, 0.6 % of those that are
looked up are in the window. Figures of time are per id.
"""

from __future__ import annotations

import semel.broker.numpy_features  # noqa: F401  as in a broker, before numpy is imported

# isort: split
import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rocksdict import Options, Rdict, WriteBatch

from semel.broker import c_malloc
from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.rocks_store import RocksIdStore

BATCH = 10_000
DUPLICATES = 60
"""In each batch that is looked up: 0.6 %."""
LOOK_UPS = 100
TOPIC = 1
SEED = bytes(16)


def keys_of(arrivals: npt.NDArray[np.int64]) -> U64:
    """Keys that look random, and follow from the arrival (splitmix64)."""
    mixed = (arrivals.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    first = mixed ^ (mixed >> np.uint64(31))
    second = first * np.uint64(0xD6E8FEB86659FD93)
    return np.stack([first, second ^ (second >> np.uint64(32))], axis=1)


class Clock:
    """Sums of wall and processor time, by name."""

    def __init__(self) -> None:
        self.spent: dict[str, tuple[float, float]] = {}

    def run(self, name: str, work: Callable[[], object]) -> object:
        """Runs `work` and counts its time."""
        wall, cpu = time.perf_counter(), time.process_time()
        found = work()
        before = self.spent.get(name, (0.0, 0.0))
        self.spent[name] = (
            before[0] + time.perf_counter() - wall,
            before[1] + time.process_time() - cpu,
        )
        return found

    def show(self, name: str, ids: int) -> None:
        """Prints both times per id."""
        wall, cpu = (seconds / ids * 1e9 for seconds in self.spent[name])
        print(f"  {name:28}{wall:8.0f} ns{cpu:8.0f} ns of processor", flush=True)


def settle(index: IdIndex) -> None:
    """Writes what is in memory, and merges."""
    index.freeze(index.end_arrival)
    while index.maintain(0):
        pass


def look_up(index: IdIndex, ids: int, clock: Clock) -> None:
    """Looks batches up, most of whose ids are new."""
    rng = np.random.default_rng(1)
    found = 0
    for number in range(LOOK_UPS):
        keys = keys_of(np.arange(ids + number * BATCH, ids + (number + 1) * BATCH))
        chosen = rng.choice(BATCH, DUPLICATES, replace=False)
        keys[chosen] = keys_of(rng.integers(0, ids, DUPLICATES))

        def whole(keys: U64 = keys) -> int:
            hits = index.search_disk(index.search_memory(keys, 0), keys, 0).hits
            return len(index.places_of(hits.arrivals).offsets)

        found += int(clock.run("look up", whole))  # type: ignore[call-overload]
    if found != LOOK_UPS * DUPLICATES:
        raise RuntimeError(f"{found} ids were found; {LOOK_UPS * DUPLICATES} are in the index")


def measure(directory: Path, ids: int) -> None:
    """Our index."""
    clock = Clock()
    store = RocksIdStore(directory)
    index = IdIndex(store, TOPIC, SEED)
    shown = time.monotonic()
    for start in range(0, ids, BATCH):
        keys = keys_of(np.arange(start, start + BATCH))
        places = Places.of(start, 0, start, np.arange(BATCH))
        clock.run("add", partial(index.add, keys, keys[:, 0], places, start))
        if index.is_full:
            clock.run("write and merge", lambda: settle(index))
        if time.monotonic() - shown > 1:
            shown = time.monotonic()
            print(f"\r  {start / ids:4.0%}", end="", file=sys.stderr, flush=True)
    clock.run("write and merge", lambda: settle(index))
    print("\r", end="", file=sys.stderr)
    clock.show("add", ids)
    clock.show("write and merge", ids)
    look_up(index, ids, clock)
    clock.show("look up", LOOK_UPS * BATCH)
    one = keys_of(np.array([ids]))
    for _ in range(1_000):
        clock.run("look one new id up", lambda: index.search_memory(one, 0))
    clock.show("look one new id up", 1_000)
    print(f"  {index.run_count} runs")
    store.close()
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"  {size / ids:.1f} bytes an id on disk")

    def reopen() -> None:
        store = RocksIdStore(directory)
        if IdIndex(store, TOPIC, SEED).end_arrival != ids:
            raise RuntimeError("the index lost ids")
        store.close()

    clock.run("open", reopen)
    print(f"  opened in {clock.spent['open'][0]:.2f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  {peak:.0f} MiB of memory at most, with Python and its packages", flush=True)


def measure_plain(directory: Path, ids: int) -> None:
    """RocksDB with one key for each id."""
    clock = Clock()
    table = Rdict(str(directory), Options(raw_mode=True))
    for start in range(0, ids, BATCH):
        keys = [key.tobytes() for key in keys_of(np.arange(start, start + BATCH))]

        def put(keys: list[bytes] = keys) -> None:
            batch = WriteBatch(raw_mode=True)
            for key in keys:
                batch.put(key, key)
            table.write(batch)

        clock.run("put", put)
    clock.run("put", table.flush)
    clock.show("put", ids)
    for number in range(20):
        keys = [
            key.tobytes()
            for key in keys_of(np.arange(ids + number * BATCH, ids + number * BATCH + BATCH))
        ]
        clock.run("look up", partial(table.get, keys))
    clock.show("look up", 20 * BATCH)
    table.close()


def main() -> None:
    """Runs both, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ids", type=int, default=10_000_000, help="ids in the window")
    parser.add_argument("--plain", type=int, default=500_000, help="ids of the raw floor; 0: none")
    options = parser.parse_args()
    if options.ids < BATCH or options.ids % BATCH or options.plain % BATCH or options.plain < 0:
        parser.error(f"numbers of ids are multiples of {BATCH:,}")
    c_malloc.tune()
    with tempfile.TemporaryDirectory(prefix="semel-ids-") as directory:
        print(f"index of {options.ids:,} ids")
        measure(Path(directory) / "index", options.ids)
        if options.plain:
            print(f"RocksDB with {options.plain:,} keys")
            measure_plain(Path(directory) / "plain", options.plain)


if __name__ == "__main__":
    main()
