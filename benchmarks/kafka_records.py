"""Kafka's record batches: the gateway's reading and writing beside kafka-python's and aiokafka's.

How it works. Batches of 1,000 records are made once, by aiokafka. In each round each contender
reads or writes them again and again. Reading ends with Arrow columns, which the gateway stores: the
peers' records go into lists and then into Arrow arrays, and *objects* is what they take up to the
records. Writing begins with Arrow columns or, at the peers, with lists. Processor time for 1,000
records, of one thread.

    python -m benchmarks.kafka_records              # a minute
    python -m benchmarks.kafka_records --records 10 # small batches

Not here: the gateway as a whole.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from aiokafka.record import default_records as aiokafka  # type: ignore[import-untyped]
from kafka.record import default_records as kafka_python  # type: ignore[import-untyped]

from benchmarks.commands import guarded
from benchmarks.harness import Contender, Target, arguments, compare, number, report
from semel.gateway.records import DecodedBatch, decode_produced, encode

GOAL_US = 271
"""For 1,000 records of 100 B, with or without keys."""
TIME_MS = 1_700_000_000_000
VALUE_BYTES = 100
BATCH_BYTES = 64 << 20

Row = tuple[int, bytes | None, bytes, list[tuple[str, bytes]]]


def shapes(count: int) -> dict[str, list[Row]]:
    """Returns the records of each kind of batch."""
    rng = random.Random(1)
    values = [rng.randbytes(VALUE_BYTES) for _ in range(count)]
    uneven = [rng.randbytes(rng.randrange(VALUE_BYTES // 2, VALUE_BYTES * 3 // 2)) for _ in values]
    keys = [b"key-%06d" % rng.randrange(1_000_000) for _ in values]
    times = [TIME_MS + row // 10 for row in range(count)]
    headers = [("trace", b"0123456789abcdef"), ("kind", b"order")]
    return {
        "values": [(TIME_MS, None, value, []) for value in values],
        "keys": [(at, key, value, []) for at, key, value in zip(times, keys, values, strict=True)],
        "uneven": [
            (at, key, value, []) for at, key, value in zip(times, keys, uneven, strict=True)
        ],
        "headers": [
            (at, key, value, headers) for at, key, value in zip(times, keys, uneven, strict=True)
        ],
    }


def built(builder: Any, rows: list[Row]) -> bytes:
    """Returns the batch that a peer's builder makes."""
    made = builder(2, 0, False, -1, -1, -1, BATCH_BYTES)
    for offset, (stamp, key, value, headers) in enumerate(rows):
        made.append(offset, stamp, key, value, headers)
    return bytes(made.build())


def objects(reader: Any, batch: bytes) -> list[Any]:
    """Returns a peer's records."""
    return list(reader(batch))


def columns(reader: Any, batch: bytes) -> list[pa.Array]:
    """Returns a peer's records as columns."""
    records = objects(reader, batch)
    return [
        pa.array([each.key for each in records], pa.binary()),
        pa.array([each.value for each in records], pa.binary()),
        pa.array([each.timestamp for each in records], pa.int64()),
        pa.array(
            [each.headers for each in records],
            pa.map_(pa.string(), pa.binary()),
        ),
    ]


def given(found: DecodedBatch) -> bytes:
    """Returns the gateway's batch for consumers."""
    return encode(
        found.columns, base_offset=0, next_offset=len(found), timestamp_us=found.timestamp_us
    )


def timed(call: Callable[[], object], records: int, seconds: float) -> Mapping[str, float]:
    """Calls for some time; the processor time for 1,000 records."""
    call()
    calls = 0
    began = time.process_time()
    while (took := time.process_time() - began) < seconds:
        call()
        calls += 1
    return {"us_per_1000": took / (calls * records) * 1e9}


def contenders(options: argparse.Namespace) -> list[Contender]:
    """Returns what is run in turn."""
    found = []
    for shape, rows in shapes(options.records).items():
        batch = built(aiokafka.DefaultRecordBatchBuilder, rows)
        decoded = decode_produced(batch, bytes_max=BATCH_BYTES)
        calls: dict[str, Callable[[], object]] = {
            "read, gateway": partial(decode_produced, batch, bytes_max=BATCH_BYTES),
            "write, gateway": partial(given, decoded),
        }
        for name, library in (("aiokafka", aiokafka), ("kafka-python", kafka_python)):
            calls[f"read, {name}"] = partial(columns, library.DefaultRecordBatch, batch)
            calls[f"objects, {name}"] = partial(objects, library.DefaultRecordBatch, batch)
            calls[f"write, {name}"] = partial(built, library.DefaultRecordBatchBuilder, rows)
        found += [
            Contender(
                name=f"{shape}: {name}",
                run=partial(timed, call, options.records, options.seconds),
            )
            for name, call in sorted(calls.items())
        ]
    return found


def targets(options: argparse.Namespace) -> list[Target]:
    """Returns the promises, which hold for large batches."""
    if options.records < 1000:
        return []
    return [
        Target(contender=f"{shape}: {way}, gateway", metric="us_per_1000", at_most=GOAL_US)
        for shape in ("values", "keys")
        for way in ("read", "write")
    ]


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    comparison = compare(
        f"Kafka's record batches of {options.records:,} records of {VALUE_BYTES} B",
        contenders(options),
        rounds=options.rounds,
        warm_ups=options.warm_ups,
        targets=targets(options),
    )
    return report(comparison, options)


def main() -> int:
    """Command line."""
    parser = arguments("Measure reading and writing Kafka's record batches.", seconds=0.3)
    parser.add_argument("--records", type=number(1, 1_000_000), default=1_000, help="in a batch")
    return guarded(partial(run, parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
