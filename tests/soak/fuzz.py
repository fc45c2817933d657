"""`./run soak fuzz`: bad input to every decoder, then to every port of a cluster of processes.

Decoders get their inputs by number: what is found is printed with the seed and the number, and
`--only NAME --first NUMBER --inputs 1` gives it again.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from semel.client import connect
from tests.fuzz.assault import GROWTH_BYTES_MAX, VICTIM, Assault
from tests.fuzz.engine import run_targets
from tests.fuzz.stored_targets import stored_targets
from tests.fuzz.targets import Target
from tests.fuzz.wire_targets import wire_targets
from tests.fuzz.witness import HEALTHY, Healthy, problems_of, read_everything, verified
from tests.kit.cluster import Cluster

_STEP = 2_000


def main(arguments: list[str]) -> int:
    """Exit status 0 if every input got one clear error or a right answer."""
    parser = argparse.ArgumentParser(prog="./run soak fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each decoder")
    parser.add_argument("--requests", type=int, default=20_000, help="to the cluster")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of the inputs")
    parser.add_argument("--only", metavar="NAME", help="of one decoder, or `cluster`")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    options = parser.parse_args(arguments)
    targets = [*wire_targets(), *stored_targets()]
    if options.only not in (None, "cluster", *(target.name for target in targets)):
        parser.error(f"the decoders are {', '.join(target.name for target in targets)}")
    found = 0
    for target in targets:
        if options.only in (None, target.name):
            found += _decoder(target, options.seed, options.first, options.inputs)
    if options.only in (None, "cluster"):
        found += _cluster(options.seed, options.requests, options.brokers)
    print(f"{found} findings", flush=True)
    return 1 if found else 0


def _decoder(target: Target, seed: int, first: int, inputs: int) -> int:
    began = time.monotonic()
    done = refused = 0
    found: list[object] = []
    while done < inputs and len(found) < 10:
        share = min(_STEP, inputs - done)
        outcome = run_targets([target], seed=seed, first=first + done, inputs=share)
        done += outcome.inputs[target.name]
        refused += outcome.refused[target.name]
        found += outcome.findings
    took = time.monotonic() - began
    print(f"{target.name:22} {done:8} inputs, {refused:8} refused, {took:6.1f} s", flush=True)
    for finding in found:
        print(finding, flush=True)
    return len(found)


def _cluster(seed: int, requests: int, brokers: int) -> int:
    flags = ["--metrics-port", "0"]
    with (
        tempfile.TemporaryDirectory(prefix="semel-fuzz-") as directory,
        Cluster(Path(directory), brokers=brokers, broker_flags=flags) as cluster,
    ):
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic(HEALTHY, queues=2)
        before = {node.data: node.resident_bytes() for node in cluster.nodes}
        assault = Assault(cluster, seed)
        with Healthy(cluster.bootstrap) as healthy:
            asyncio.run(assault.run(requests))
        found = problems_of(cluster) + assault.tally.bugs
        if healthy.error:
            found.append(healthy.error)
        if sorted(healthy.read) != sorted(healthy.sent):
            found.append(f"healthy: {len(healthy.sent)} sent, {len(healthy.read)} read")
        found += verified(cluster.bootstrap, [HEALTHY, VICTIM])
        messages = read_everything(cluster.bootstrap, VICTIM)
        for node in cluster.nodes:
            grown = node.resident_bytes() - before[node.data]
            print(f"{node.kind} {node.id} grew by {grown >> 20} MiB")
            if grown > GROWTH_BYTES_MAX:
                found.append(f"{node.kind} {node.id} grew by {grown >> 20} MiB")
        tally = assault.tally
        print(f"sent {dict(tally.sent)}, stored {tally.stored} batches, {messages} messages")
        print(f"answers {dict(tally.answers)}")
        print(f"healthy: {len(healthy.sent)} messages, slowest {healthy.slowest_s:.3f} s")
        for problem in found:
            print(problem[:6000])
        return len(found)
