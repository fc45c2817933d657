"""The client with Arrow and without it, beside each other on one cluster.

How it works. Every round starts a process of each kind in turn. It sends the same messages in
several ways, and reads a topic that was filled once. Of each way the messages a second and the CPU
of the client's process are measured; the nodes share the cores with it, so CPU is the figure to
compare. `--beside TREE` adds the client of another tree, such as a work tree of an earlier commit.

    python -m benchmarks.without_arrow [--messages 200k] [--beside TREE]

Not here: sizes and the import (`python -m tools.release try`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.consume import fill
from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    number,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import connect
from tests.kit.cluster import Cluster
from tools.source_tree import ROOT

READ_TOPIC = "without-arrow-read"
MESSAGE_BYTES = 200
PARTS = ("protos", "tier", "client")

CLIENT = """
import json, sys, time
bootstrap, read_topic, count, size, arrow = json.loads(sys.argv[1])
if not arrow:
    sys.modules["pyarrow"] = None  # an import of it fails
import numpy as np
from semel.client import connect
assert ("pyarrow" in sys.modules) and (sys.modules["pyarrow"] is not None) == arrow

CALL = 4_096
rng = np.random.default_rng(5)
even = [rng.bytes(size) for _ in range(CALL)]
uneven = [rng.bytes(int(rng.integers(1, 2 * size))) for _ in range(CALL)]
keys = [b"%d" % number for number in rng.integers(0, 1_000_000, CALL)]
found = {}

def measured(name, messages, work):
    began, cpu = time.perf_counter(), time.process_time()
    work()
    found[name + "_msg_s"] = messages / (time.perf_counter() - began)
    found[name + "_cpu_us"] = (time.process_time() - cpu) / messages * 1e6

with connect(bootstrap) as client:
    name = "without-arrow-%d" % time.time_ns()
    client.admin.create_topic(name, queues=4)
    calls = -(-count // CALL)
    def bulk(values, keys=None, **options):
        def work():
            with client.producer(**options) as producer:
                for _ in range(calls):
                    producer.send_many(name, values, keys=keys)
                producer.flush(300)
        return work
    def single():
        with client.producer() as producer:
            for _ in range(calls):
                for value in even:
                    producer.send(name, value)
            producer.flush(300)
    def poll():
        got = 0
        with client.reader(read_topic, end="latest") as reader:
            while not reader.finished:
                got += sum([len(message.value) > 0 for message in reader.poll(2_000, 5.0)])
        assert got == calls * CALL, got
    bulk(even)()  # connections
    measured("lists", calls * CALL, bulk(even))
    measured("keyed", calls * CALL, bulk(even, keys))
    measured("uneven_keyed", calls * CALL, bulk(uneven, keys))
    measured("zstd", calls * CALL, bulk(even, compression="zstd"))
    measured("send", calls * CALL, single)
    measured("poll", calls * CALL, poll)
    client.admin.delete_topic(name)
print(json.dumps(found))
"""


def run(bootstrap: str, count: int, *, arrow: bool, tree: Path = ROOT) -> Mapping[str, float]:
    """The figures of one process with the client of `tree`."""
    settings = json.dumps([bootstrap, READ_TOPIC, count, MESSAGE_BYTES, arrow])
    path = os.pathsep.join(str(tree / part) for part in PARTS)
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, settings],
        env=os.environ | {"PYTHONPATH": path},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    """Command line."""
    parser = arguments("Measure the client with Arrow and without.", seconds=1.0)
    parser.add_argument(
        "--messages", type=number(4_096, 1 << 26), default=200_000, help="of each way"
    )
    parser.add_argument("--beside", type=Path, help="a tree whose client is measured, too")
    options = parser.parse_args()
    count = options.messages
    require_disk(parser, options.data, 40 * count * MESSAGE_BYTES * (options.rounds + 2))
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        fill(client, READ_TOPIC, MESSAGE_BYTES, count)
        place = cluster.bootstrap
        contenders = [
            Contender(name="with Arrow", run=lambda: run(place, count, arrow=True)),
            Contender(name="without", run=lambda: run(place, count, arrow=False)),
        ]
        if options.beside is not None:
            tree = options.beside.resolve()
            contenders.append(
                Contender(name="beside", run=lambda: run(place, count, arrow=True, tree=tree))
            )
        comparison = compare(
            f"A client without Arrow: {count:,} messages of {MESSAGE_BYTES} B each way",
            contenders,
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(contender="without", metric=f"{way}_cpu_us", at_most=bound, of="with Arrow")
                for way, bound in (("lists", 1.5), ("send", 1.2), ("poll", 1.2))
            ],
        )
    for way in ("lists", "keyed", "uneven_keyed", "zstd", "send", "poll"):
        for metric in (f"{way}_cpu_us", f"{way}_msg_s"):
            ratios = [f"without {comparison.ratio('without', metric, 'with Arrow'):.2f}"]
            if options.beside is not None:
                ratios.append(
                    f"with, of beside {comparison.ratio('with Arrow', metric, 'beside'):.2f}"
                )
            print(f"{metric}: {', '.join(ratios)}")
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
