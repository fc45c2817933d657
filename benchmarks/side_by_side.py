"""The same workloads on Semel and on other brokers, in turn in one run: medians, ratios, a picture.

How it works. One round of every contender after the other (A B A B …): each `--peer`, Semel, the
raw floors. A round starts its system anew, warms it up, runs all workloads and ends it, so that
never two are there at once. Peers come first, so that one that does not start is known at once. A
peer's script is called with `--only WORKLOADS --runs 1 --scale F --durability D` and prints a JSON
object a workload and variant. Sizes, counts and replicas are the same on all sides; a client is a
process of its own; CPU is user plus system time of all nodes and the client for a million messages.

Ratios are medians of the ratios of the rounds. A goal is judged where its peer was measured.

    ./run bench side_by_side                                          Semel and the raw floors
    ./run bench side_by_side --workloads W1,W3 --scale 0.02 --rounds 1
    ./run bench side_by_side --peer 'python3 peers/peer_kafka.py' --json out.json --picture out.svg
    ./run bench side_by_side --peer 'python3 peers/peer_nats.py' --workloads W3 --durability fsync

Give it the machine alone. A peer's downloads are kept in $PEERS_CACHE, or ~/.cache/peers.

Not here: Semel's workloads (`workloads.py`), running a peer (`peer.py`), goals (`goals.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.commands import Help, add_peer_silence, check_files, guarded, some_of, strict_json
from benchmarks.figures import WORKLOADS, by_workload, flat, table_lines
from benchmarks.goals import MAIN_METRICS, Ratio, ratios, set_targets
from benchmarks.harness import (
    Comparison,
    Contender,
    arguments,
    compare,
    decimal,
    machine,
    require_disk,
    temporary_directory,
)
from benchmarks.peer import Peer, PeerError
from benchmarks.picture import draw
from benchmarks.raw_floors import RawFloors
from benchmarks.workloads import Semel, disk_bytes

PEER_BYTES, PEER_FIXED_BYTES = 26 << 30, 4 << 30
"""Disk space that a peer's script may need: at scale 1, and at any scale."""
HEADS = {
    "msg_s": "messages/s",
    "cpu_s_per_million": "CPU s/M",
    "cpu_s_per_million_no_consumer": "CPU s/M",
    "rss_mib": "MiB",
}


def parse(argv: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Parses the command line; ends with one line when it is invalid."""
    parser = arguments(__doc__.partition("\nGive it")[0], rounds=3)
    parser.formatter_class = Help
    parser.set_defaults(warm_ups=0)
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="COMMAND",
        help="runs a peer; may be given several times",
    )
    parser.add_argument(
        "--workloads",
        type=some_of("workload", WORKLOADS),
        default=[*WORKLOADS],
        metavar="W1,W3",
        help="some of them, comma-separated",
    )
    parser.add_argument(
        "--scale", type=decimal(0.0001, 100), default=1.0, help="factor on counts of messages"
    )
    parser.add_argument(
        "--durability",
        choices=["default", "fsync", "default,fsync"],
        default="default",
        metavar="default|fsync|default,fsync",
        help="of the peers; Semel always syncs on a majority",
    )
    add_peer_silence(parser)
    parser.add_argument("--picture", type=Path, default=None, help="draw ratios to this .svg file")
    options = parser.parse_args(argv)
    check_files(parser, options)
    need = disk_bytes(options.workloads, options.scale)
    if options.peer:
        need = max(need, PEER_FIXED_BYTES + int(PEER_BYTES * options.scale))
    require_disk(parser, options.data, need)
    return parser, options


def measure(options: argparse.Namespace) -> dict[str, Comparison]:
    """Runs all rounds; returns them by workload. Raises `commands.STOPS_THE_RUN`."""
    with temporary_directory(options.data) as data:
        peers = [
            Peer(
                command,
                workloads=options.workloads,
                scale=options.scale,
                durability=options.durability,
                silence_s=options.peer_silence,
                data=data,
            )
            for command in options.peer
        ]
        contenders = [Contender(name=peer.name, run=flat(peer.run)) for peer in peers]
        if len({each.name for each in contenders}) < len(contenders):
            raise PeerError("the same --peer twice says nothing; name each once")
        semel = Semel(options.workloads, options.scale, data)
        floors = RawFloors(options.workloads, options.seconds, data)
        contenders.append(Contender(name="semel", run=flat(semel.run)))
        contenders.append(Contender(name="floor", run=flat(floors.run)))
        everything = compare(
            "Side by side", contenders, rounds=options.rounds, warm_ups=options.warm_ups
        )
    tables = by_workload(everything)
    for workload, table in tables.items():
        set_targets(workload, table)
    return tables


def render(table: Comparison, found: list[Ratio]) -> str:
    """A workload's medians with spread, one line per contender; then ratios and goals."""
    metrics = [
        metric
        for metric in MAIN_METRICS
        if any(table.values(contender, metric) for contender in table.rounds)
    ]
    lines = [table.title, *table_lines(table, metrics, HEADS)]
    for ratio in found:
        lines.append(
            f"  {ratio.contender} / {ratio.of}, {HEADS.get(ratio.metric, ratio.metric)}: "
            f"{ratio.median:.2f} ({min(ratio.times):.2f} to {max(ratio.times):.2f})"
        )
    for target, value, holds in table.judged():
        lines.append(f"  {'kept  ' if holds else 'MISSED'} {target.describe()}: {value:.2f}")
    return "\n".join(lines)


def as_json(
    tables: Mapping[str, Comparison], found: Mapping[str, list[Ratio]], options: argparse.Namespace
) -> str:
    """All figures, for machines; missing figures are null."""
    document = {
        "title": "Side by side",
        "machine": machine(),
        "rounds": options.rounds,
        "scale": options.scale,
        "durability": options.durability,
        "peers": options.peer,
        "workloads": {
            name: {
                **{key: part for key, part in table.as_json().items() if key != "machine"},
                "ratios": [
                    {
                        "contender": ratio.contender,
                        "of": ratio.of,
                        "metric": ratio.metric,
                        "median": ratio.median,
                        "runs": ratio.times,
                    }
                    for ratio in found[name]
                ],
            }
            for name, table in tables.items()
        },
    }
    return strict_json(document)


def publish(tables: Mapping[str, Comparison], options: argparse.Namespace) -> int:
    """Prints, writes the files that were asked for, and returns the exit status."""
    found = {name: list(ratios(name, table)) for name, table in tables.items()}
    for name, table in tables.items():
        print(render(table, found[name]), flush=True)
    if options.json is not None:
        options.json.write_text(as_json(tables, found, options))
    if options.picture is not None:
        subtitle = (
            f"{options.rounds} rounds in turn, scale {options.scale:g}; bars are medians of the "
            "rounds' ratios, lines the least and the most; right of the middle Semel is better"
        )
        groups = [(table.title, found[name]) for name, table in tables.items()]
        options.picture.write_text(draw("Semel beside others", subtitle, groups))
    missed = any(not holds for table in tables.values() for _, _, holds in table.judged())
    return 1 if missed and options.check else 0


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    _, options = parse(argv)
    return guarded(lambda: publish(measure(options), options))


if __name__ == "__main__":
    sys.exit(main())
