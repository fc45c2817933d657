"""Tests of Kafka's clients by those who wrote them, each suite on a real cluster with two
gateways: `./run soak kafka-clients`.

How it works. Each suite is run as it is, and what did not pass is compared with the reasons in
`kafka_reasons.py`: a test that fails without one makes the run fail. The table in
docs/kafka-judges.md is what this prints.

    kafka-python   the integration tests in its source distribution, from PyPI
    franz-go       those tests of its package kgo that talk to a broker, from the Go module proxy;
                   with --chaos, its own connections die all the time
    sarama         its functional tests, from there too, with Toxiproxy before the gateways
    kcat           the program, if there is one on the PATH (Debian: apt-get install kcat)

aiokafka's source distribution has no tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.kit.kafka_gateway import await_acquainted
from tests.kit.maven import Missing
from tests.kit.verdicts import Outcome, Verdict, Verdicts
from tests.soak import kafka_franz, kafka_kcat, kafka_python, kafka_sarama
from tests.soak.kafka_reasons import REASONS
from tests.soak.kafka_run import two_gateways
from tests.soak.kafka_suites import Judged

SUITES: Final = {
    "kafka-python": kafka_python.run,
    "franz-go": kafka_franz.run,
    "sarama": kafka_sarama.run,
    "kcat": kafka_kcat.run,
}


def main(arguments: list[str]) -> int:
    """Runs all suites, or those that are named; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="./run soak kafka-clients",
        description=(__doc__ or "").partition("\n\n")[0],
    )
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"some of {', '.join(SUITES)} [all]"
    )
    parser.add_argument("--only", default="", metavar="PART", help="tests whose name has this")
    parser.add_argument("--chaos", action="store_true", help="franz-go's connections die, too")
    parser.add_argument(
        "--records", type=int, default=50_000, help="of each larger test of franz-go [50000]"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    verdicts = Verdicts()
    mistakes: list[str] = []
    began = time.monotonic()
    for name in options.suites or SUITES:
        with tempfile.TemporaryDirectory(prefix=f"semel-{name}-") as directory:
            mistakes += _judge(name, options, Path(directory), verdicts)
    print(verdicts.table(REASONS))
    # A part of the tests says nothing about reasons that are of no use.
    surprises = verdicts.surprises({} if options.only else REASONS)
    if options.only:
        surprises = [each for each in surprises if " failed" in each]
    for surprise in surprises:
        print(f"surprise: {surprise}")
    for mistake in mistakes[:10]:
        print(f"a gateway said: {mistake}")
    print(f"{time.monotonic() - began:.0f} s, {len(surprises)} surprises, {len(mistakes)} mistakes")
    return 1 if surprises or mistakes else 0


def _judge(name: str, options: argparse.Namespace, scratch: Path, verdicts: Verdicts) -> list[str]:
    """Runs a suite on a cluster of its own, adds what it finds, and returns the mistakes that the
    gateways said they made."""
    advertised = kafka_sarama.ADVERTISED if name == "sarama" else ("", "")
    with two_gateways(scratch, advertised=advertised) as served:
        if name != "sarama":  # whose clients have no way to the gateways yet
            await_acquainted(*served.gateways)
        place = scratch / "judge"
        place.mkdir()
        judged = Judged(
            gateways=served.gateways,
            place=place,
            only=options.only,
            chaos=options.chaos,
            records=options.records,
        )
        try:
            for verdict in SUITES[name](judged):
                verdicts.add(verdict)
        except Missing as error:
            print(f"error: {error}", file=sys.stderr)
            verdicts.add(Verdict(name, "the whole suite", Outcome.LEFT_OUT, str(error)))
        admin = served.client.admin
        for topic in admin.list_topics():
            if not admin.verify(topic.name).ok:
                verdicts.add(Verdict("semel verify", topic.name, Outcome.FAILED, "see its output"))
    return [
        line
        for log in (scratch / "one.log", scratch / "two.log")
        for line in log.read_text(errors="replace").splitlines()
        if "Traceback" in line or "request failed" in line
    ]
