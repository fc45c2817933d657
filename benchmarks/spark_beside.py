"""Spark over Semel beside Spark over another broker, in turn in one run: read, sink, stream.

How it works. One round of the peer's script, then one of `spark_read`, `spark_write` and
`spark_stream`, and so on (A B A B …). Both sides warm each job up once and give medians of three
runs a round; sizes of rows, cores and kinds of queries are the same. The peer's read asks for the
value alone, which its connector cannot make use of; a Python source is not told which columns a
query needs, so Semel's read stands here twice: with all columns, and with a schema that says so.

    python -m benchmarks.spark_beside --peer 'python3 peers/peer_spark.py'

Not here: the two sides' own measurements. A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.commands import Help, add_peer_silence, guarded
from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    decimal,
    progress,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.peer import Peer, PeerError

ROOT = Path(__file__).resolve().parent.parent
RUNS = ("--rounds", "3", "--warm-ups", "1")
"""Rounds of each of Semel's benchmarks within one round, as in the peer's script."""
RUN_S = 1_800
DISK_BYTES = 16 << 30
READ_ROWS, SINK_ROWS = 5_000_000, 1_500_000
PEER_FIGURES: Mapping[str, tuple[str, str, str]] = {
    "read_rows_s": ("W7 batch read", "", "rows_s"),
    "sink_rows_s": ("W7 sink", "", "rows_s"),
    "sink_tuned_rows_s": ("W7 sink, larger batches", "", "rows_s"),
    "trigger_p50_ms": ("W7 micro-batch", "noop", "trigger_p50_ms"),
    "to_sink_p50_ms": ("W7 micro-batch", "foreachBatch", "latency_p50_ms"),
}
"""Workload, variant and metric of each figure in the peer's own words."""


def peer_round(peer: Peer) -> Mapping[str, float]:
    """Runs one round of the peer. Raises PeerError."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for cell, figures in peer.run().items():
        found[cell.workload, cell.variant] = figures
    try:
        return {
            name: found[workload, variant][metric]
            for name, (workload, variant, metric) in PEER_FIGURES.items()
        }
    except KeyError as error:
        raise PeerError(f"{peer.name} gave no figure {error}; is it a peer of Spark's?") from None


def semel_round(data: Path, scale: float) -> Mapping[str, float]:
    """Runs Semel's benchmarks once, each in its own process. Raises SubprocessError."""
    read = measured("spark_read", data, "--messages", str(int(READ_ROWS * scale)))
    write = measured("spark_write", data, "--messages", str(int(SINK_ROWS * scale)))
    stream = measured("spark_stream", data)["semel"]
    return {
        "read_rows_s": read["all columns"]["rows_s"],
        "read_value_rows_s": read["value alone"]["rows_s"],
        "from_memory_rows_s": read["from memory"]["rows_s"],
        "worker_mb": read["all columns"]["worker_mb"],
        "sink_rows_s": write["semel"]["rows_s"],
        "trigger_p50_ms": stream["trigger_p50_s"] * 1e3,
        "to_sink_p50_ms": stream["to_sink_p50_s"] * 1e3,
    }


def measured(name: str, data: Path, *given: str) -> dict[str, dict[str, float]]:
    """Runs one benchmark; returns the medians by contender and metric."""
    progress(f"  semel: {name} …")
    out = data / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", *RUNS, *given]
    subprocess.run(
        [*command, "--json", str(out), "--data", str(data)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=RUN_S,
        check=True,
    )
    document: dict[str, Any] = json.loads(out.read_text())
    return {
        contender: {metric: figures["median"] for metric, figures in metrics.items()}
        for contender, metrics in document["contenders"].items()
    }


def targets(peer: str) -> list[Target]:
    """The targets of Semel's connector beside Kafka's."""
    return [
        Target(
            contender="semel", metric=metric, of=peer, of_metric=of, at_least=least, at_most=most
        )
        for metric, of, least, most in (
            ("read_rows_s", "read_rows_s", 4, None),
            ("read_value_rows_s", "read_rows_s", 4, None),
            ("sink_rows_s", "sink_tuned_rows_s", 1.5, None),
            ("trigger_p50_ms", "trigger_p50_ms", None, 1.2),
            ("to_sink_p50_ms", "to_sink_p50_ms", None, 1.2),
        )
    ]


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    with temporary_directory(options.data) as data:
        peer = Peer(
            options.peer,
            workloads=["W7"],
            scale=options.scale,
            durability="default",
            silence_s=options.peer_silence,
            data=data,
        )
        comparison = compare(
            "Spark over Semel and over another broker, local[2], rows of 132 B",
            [
                Contender(name=peer.name, run=lambda: peer_round(peer)),
                Contender(name="semel", run=lambda: semel_round(data, options.scale)),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=targets(peer.name),
        )
    return report(comparison, options)


def main() -> int:
    """Command line."""
    parser = arguments(__doc__, rounds=3)
    parser.formatter_class = Help
    parser.set_defaults(warm_ups=0)
    parser.add_argument("--peer", required=True, metavar="COMMAND", help="runs the peer")
    parser.add_argument(
        "--scale", type=decimal(0.001, 100), default=1.0, help="factor on counts of rows"
    )
    add_peer_silence(parser)
    options = parser.parse_args()
    require_disk(parser, options.data, int(DISK_BYTES * options.scale) + (2 << 30))
    return guarded(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
