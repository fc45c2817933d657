"""`./run soak fuzz`: bad input to every decoder, then to every port of clusters of processes: one
without TLS, where everybody may do everything, and one with TLS and rules.

Decoders get their inputs by number: what is found is printed with the seed and the number, and
`--only NAME --first NUMBER --inputs 1` gives it again.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.engine import run_targets
from tests.fuzz.kafka_record_targets import kafka_record_targets
from tests.fuzz.kafka_request_targets import kafka_request_targets
from tests.fuzz.login_targets import login_targets
from tests.fuzz.siege import Report, Siege
from tests.fuzz.stored_targets import stored_targets
from tests.fuzz.targets import Target
from tests.fuzz.wire_targets import wire_targets
from tests.kit.cluster import Cluster
from tests.kit.ruled_cluster import METRICS, RuledCluster

_STEP = 2_000
_START_S = 120.0
_CLUSTERS = ("cluster", "secure")


def main(arguments: list[str]) -> int:
    """Exit status 0 if every input got one clear error or a right answer."""
    parser = argparse.ArgumentParser(prog="./run soak fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each decoder")
    parser.add_argument("--requests", type=int, default=20_000, help="to each cluster")
    parser.add_argument("--minutes", type=float, help="at most so long at each cluster")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of the inputs")
    parser.add_argument("--only", metavar="NAME", help="one decoder, `cluster`, or `secure`")
    parser.add_argument("--brokers", type=int, default=3, choices=(1, 3))
    parser.add_argument(
        "--controllers", type=int, default=1, choices=(1, 3), help="of the cluster with TLS"
    )
    options = parser.parse_args(arguments)
    targets = [*wire_targets(), *stored_targets(), *login_targets(), *kafka_record_targets()]
    targets += kafka_request_targets()
    if options.only not in (None, *_CLUSTERS, *(target.name for target in targets)):
        parser.error(f"the decoders are {', '.join(target.name for target in targets)}")
    found = 0
    for target in targets:
        if options.only in (None, target.name):
            found += _decoder(target, options.seed, options.first, options.inputs)
    for kind in _CLUSTERS:
        if options.only in (None, kind):
            print(f"{kind}:", flush=True)
            ends_s = time.monotonic() + 60 * (options.minutes or float("inf"))
            counts = (options.seed, options.requests, options.brokers)
            if kind == "secure":
                found += _secure(*counts, options.controllers, ends_s)
            else:
                found += _cluster(*counts, ends_s)
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


def _cluster(seed: int, requests: int, brokers: int, ends_s: float) -> int:
    """A cluster that everybody may use."""
    with tempfile.TemporaryDirectory(prefix="semel-fuzz-") as directory:
        cluster = Cluster(Path(directory), brokers=brokers, broker_flags=METRICS)
        with _running(cluster):
            return _shown(Siege(cluster, seed, ends_s=ends_s).plain(requests))


def _secure(seed: int, requests: int, brokers: int, controllers: int, ends_s: float) -> int:
    """A cluster with TLS and rules."""
    with tempfile.TemporaryDirectory(prefix="semel-fuzz-") as directory:
        cluster = RuledCluster(Path(directory), brokers=brokers, controllers=controllers)
        with _running(cluster):
            return _shown(Siege(cluster, seed, ends_s=ends_s).ruled(requests))


@contextlib.contextmanager
def _running(cluster: Cluster) -> Iterator[None]:
    """Starts a cluster on a machine that may be busy, and stops it."""
    try:
        cluster.start(_START_S)
        yield
    finally:
        cluster.stop()


def _shown(report: Report) -> int:
    print(f"sent {dict(report.tally.sent)}, stored {report.tally.stored} batches")
    print(f"answers {dict(report.tally.answers)}, {report.denials} denials in audit logs")
    rate = report.inputs / max(report.took_s, 1e-9)
    print(f"{report.inputs} inputs in {report.took_s:.1f} s: {rate:.0f} a second")
    print(f"healthy: {report.healthy} messages, slowest {report.slowest_s:.3f} s")
    for problem in report.found:
        print(problem[:6000], flush=True)
    return len(report.found)
