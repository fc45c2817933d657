"""What soaks of the Kafka gateway share: a command line, and a cluster with two gateways."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from semel.client import Client, connect
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, consume
from tests.kit.numbered import Findings, NumberedJudge


class Served(NamedTuple):
    """A cluster, a client of it, and its gateways."""

    cluster: Cluster
    client: Client
    gateways: list[KafkaGatewayProcess]

    @property
    def addresses(self) -> str:
        """The gateways', as clients take them."""
        return ",".join(gateway.address for gateway in self.gateways)

    def open_queues(self, topic: str) -> list[int]:
        """The queues of a topic that are its partitions, in their order."""
        queues = self.client.admin.describe_topic(topic).queues
        return [each.queue for each in queues if not each.sealed]

    def judge(self, topic: str, acked: Mapping[int, Sequence[int]]) -> Findings:
        """Reads a topic of numbered messages by librdkafka, and compares it with how many of each
        life and partition were acknowledged."""
        queues = self.client.admin.describe_topic(topic).queues
        count = sum(queue.log_end_offset for queue in queues)
        partitions = sum(not queue.sealed for queue in queues)
        found: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        for message in consume(self.addresses, topic, partitions, count):
            found[message.partition()][message.offset()] = message.value()
        judge = NumberedJudge()
        for partition, stored in enumerate(found):
            assert sorted(stored) == list(range(len(stored))), "offsets have gaps"
            judge.take(partition, [stored[offset] for offset in range(len(stored))])
        return judge.judge(acked)


@contextlib.contextmanager
def two_gateways(
    scratch: Path,
    *,
    logs: bool = True,
    program: str = "semel.console",
    advertised: tuple[str, str] = ("", ""),
) -> Iterator[Served]:
    """A cluster with two gateways, whose words go to `scratch`, or with `logs=False` to the
    terminal. `program` and what is advertised are as of `KafkaGatewayProcess`."""
    one_log, two_log = (scratch / f"{name}.log" if logs else None for name in ("one", "two"))
    with (
        Cluster(scratch / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
        contextlib.ExitStack() as stack,
    ):
        gateways = [
            stack.enter_context(
                KafkaGatewayProcess(cluster.bootstrap, log=log, program=program, advertise=address)
            )
            for log, address in zip((one_log, two_log), advertised, strict=True)
        ]
        yield Served(cluster, client, gateways)


def chosen(prog: str, description: str, arguments: list[str], names: Sequence[str]) -> list[str]:
    """Returns the tests that a command line names: some of `names`, or none at all. Ends the
    program for a name that is none."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"some of {', '.join(names)}")
    tests: list[str] = parser.parse_args(arguments).tests
    if unknown := set(tests) - set(names):
        parser.error(f"there is no test {', '.join(sorted(unknown))}")
    return tests
