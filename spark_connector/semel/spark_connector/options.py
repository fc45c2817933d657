"""The options of a read: names, defaults, checks. Pure.

How it works. Spark passes options as strings under lower-cased names. `parse_options` turns them
into one frozen `ReadOptions` on the driver, so that executors never look at raw options, and look
at their own environment for nothing but who they are (`client_options.py`). An unknown name is an
error that suggests the nearest known one. Whether a read is a batch or a stream becomes known after
its options are parsed, so `for_batch` and `for_stream` refuse the options that have no meaning
there and fill in the default start.

Names and meanings are those of Spark's Kafka connector where it has the option; `docs/spark.md` has
the table.

Invariants
1. Exactly one of subscribe, subscribePattern and assign is given; a read of the tier may have none.
2. JSON by queue names exactly the subscribed topics, and exactly the assigned queues; only the
   cluster knows the queues of a subscription (`offsets.py`).

Not here: parsing of a single option's text (`option_values.py`), the cluster and the identity
(`client_options.py`), the check of offsets against the cluster (`offsets.py`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from semel.protos.errors import InvalidRequest
from semel.spark_connector import option_values as values
from semel.spark_connector.client_options import (
    CLIENT_OPTIONS,
    ClientOptions,
    parse_client_options,
)
from semel.spark_connector.option_values import EARLIEST, LATEST, QueueNumbers

DEFAULT_TIMEOUT_MS: Final = 20_000
DEFAULT_TRIGGER_DELAY_MS: Final = 15 * 60_000

_EVERYWHERE: Final = (
    *CLIENT_OPTIONS,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "readFrom",
    "timeoutMs",
)
BATCH_ONLY: Final = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "manifest",
    "pushDownFilters",
)
CLUSTER_ONLY: Final = (*CLIENT_OPTIONS, "readFrom")
"""Options that have no meaning in a read of the tier."""
STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "groupIdForLag",
)
KNOWN_OPTIONS: Final = (*_EVERYWHERE, *BATCH_ONLY, *STREAM_ONLY)

_FAMILIAR: Final = {
    # Names that users of Kafka's connector, and of ours, often try first.
    "kafka.bootstrap.servers": "bootstrap",
    "bootstrap.servers": "bootstrap",
    "topic": "subscribe",
    "topics": "subscribe",
    "kafka.group.id": "groupIdForLag",
    "groupid": "groupIdForLag",
    "groupidprefix": "groupIdForLag",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Which topics and queues are read: names, a pattern of names, or queues of names."""

    names: tuple[str, ...] = ()
    """Distinct names; empty with a pattern."""
    pattern: str = ""
    queues: Mapping[str, frozenset[int]] | None = None
    """Queues to read, by name; None for all queues."""

    @property
    def any_given(self) -> bool:
        """The options choose topics; a read of the tier may leave that out, and takes all."""
        return bool(self.names or self.pattern)

    def chosen(self, existing: list[str]) -> list[str]:
        """The names to read; with a pattern the existing names that match, in their order."""
        if not self.pattern:
            return list(self.names)
        return [name for name in existing if re.fullmatch(self.pattern, name)]


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """A place in every queue: EARLIEST, LATEST, or an offset for each."""

    each: int | QueueNumbers


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first message at or after a time, in milliseconds since the epoch: one, or one each."""

    each: int | QueueNumbers


Asked = AtOffsets | AtTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read."""

    client: ClientOptions
    topics: Topics
    manifest: str = ""
    """URL of a tier, or of a manifest or pointer in it; empty for a read of the cluster."""
    starting: Asked | None = None
    """None means earliest for a batch and latest for a stream."""
    ending: Asked = AtOffsets(LATEST)
    late_start: str = "error"
    """Reaction to a starting time after the newest message: `error` or `latest`."""
    fail_on_data_loss: bool = True
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    include_headers: bool = False
    push_down_filters: bool = False
    read_from: str = "master"
    """`master` or `any`."""
    trigger_rows_max: int | None = None
    trigger_rows_min: int | None = None
    trigger_delay_ms_max: int = DEFAULT_TRIGGER_DELAY_MS
    """How long a trigger waits for `trigger_rows_min` at most."""
    trigger_bytes_max: int | None = None
    lag_group: str = ""
    """Group under whose name progress is published; empty for none."""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    """Time-out for connecting, and for the next batch of a queue."""
    given: frozenset[str] = frozenset()
    """Names of the options that were given."""

    def for_batch(self) -> ReadOptions:
        """The options of a batch read. Raises InvalidRequest for options of streams only."""
        self._refuse(STREAM_ONLY, "streaming", "batch")
        return replace(self, starting=self.starting or AtOffsets(EARLIEST))

    def for_stream(self) -> ReadOptions:
        """The options of a stream. Raises InvalidRequest for options of batch reads only."""
        self._refuse(BATCH_ONLY, "batch", "streaming")
        return replace(self, starting=self.starting or AtOffsets(LATEST))

    def _refuse(self, names: tuple[str, ...], there: str, here: str) -> None:
        for name in names:
            if name in self.given:
                raise InvalidRequest(
                    f"option {name!r} is for {there} reads and has no meaning in a {here} one"
                )


def parse_options(options: Mapping[str, str], environment: Mapping[str, str]) -> ReadOptions:
    """Parses the options of one read. Raises InvalidRequest in one line."""
    given = _by_known_name(options)
    client = parse_client_options(given, environment)
    topics = _topics(given)

    def number(name: str) -> int | None:
        return values.whole_number(name, given[name], 1) if name in given else None

    found = ReadOptions(
        client=client,
        topics=topics,
        manifest=given.get("manifest", "").strip(),
        starting=_place(given, "starting", topics),
        ending=_place(given, "ending", topics) or AtOffsets(LATEST),
        late_start=values.one_of(
            "startingOffsetsByTimestampStrategy",
            given.get("startingOffsetsByTimestampStrategy", "error"),
            ("error", "latest"),
        ),
        fail_on_data_loss=values.boolean("failOnDataLoss", given.get("failOnDataLoss", "true")),
        partitions_min=number("minPartitions"),
        records_per_partition_max=number("maxRecordsPerPartition"),
        include_headers=values.boolean("includeHeaders", given.get("includeHeaders", "false")),
        push_down_filters=values.boolean("pushDownFilters", given.get("pushDownFilters", "false")),
        read_from=values.one_of("readFrom", given.get("readFrom", "master"), ("master", "any")),
        trigger_rows_max=number("maxOffsetsPerTrigger"),
        trigger_rows_min=number("minOffsetsPerTrigger"),
        trigger_delay_ms_max=(
            values.duration_ms("maxTriggerDelay", given["maxTriggerDelay"])
            if "maxTriggerDelay" in given
            else DEFAULT_TRIGGER_DELAY_MS
        ),
        trigger_bytes_max=(
            values.size_bytes("maxBytesPerTrigger", given["maxBytesPerTrigger"])
            if "maxBytesPerTrigger" in given
            else None
        ),
        lag_group=given.get("groupIdForLag", "").strip(),
        timeout_ms=values.whole_number(
            "timeoutMs", given.get("timeoutMs", str(DEFAULT_TIMEOUT_MS)), 1, 3_600_000
        ),
        given=frozenset(given),
    )
    _require_together(found)
    return found


def _require_together(found: ReadOptions) -> None:
    """Checks that combinations of options make sense."""
    if "manifest" in found.given:
        if not found.manifest:
            raise InvalidRequest("option 'manifest' is empty; give the URL of a tier")
        if strange := [name for name in CLUSTER_ONLY if name in found.given]:
            raise InvalidRequest(
                f"option {strange[0]!r} has no meaning with 'manifest': no cluster is asked"
            )
    least, most = found.trigger_rows_min, found.trigger_rows_max
    if least is not None and most is not None and least > most:
        raise InvalidRequest(
            f"minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}"
        )
    if "maxTriggerDelay" in found.given and least is None:
        raise InvalidRequest("option 'maxTriggerDelay' has no meaning without minOffsetsPerTrigger")
    if "groupIdForLag" in found.given and not found.lag_group:
        raise InvalidRequest("option 'groupIdForLag' is empty; give the name of a group")
    if "startingOffsetsByTimestampStrategy" in found.given and not isinstance(
        found.starting, AtTimes
    ):
        raise InvalidRequest(
            "option 'startingOffsetsByTimestampStrategy' has no meaning without startingTimestamp"
            " or startingOffsetsByTimestamp"
        )


def _by_known_name(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their proper names; Spark gives names in lower case."""
    known = {name.lower(): name for name in KNOWN_OPTIONS}
    found = {}
    for name, value in options.items():
        proper = known.get(name.lower())
        if proper is None:
            raise InvalidRequest(f"unknown option {name!r} of format semel; {nearest(name)}")
        found[proper] = value
    return found


def nearest(name: str, known: tuple[str, ...] = KNOWN_OPTIONS) -> str:
    """A hint at the option that an unknown name may have meant."""
    word = name.lower()
    if word == "path":
        return "give the topic as option 'subscribe', not to load()"
    if word in _FAMILIAR:
        return f"did you mean {_FAMILIAR[word]!r}?"
    if word.startswith("kafka."):
        return "there are no options of an underlying client; see docs/spark.md, coming from Kafka"
    lower = {option.lower(): option for option in known}
    near = difflib.get_close_matches(word, list(lower), n=1, cutoff=0.4)
    if near:
        return f"did you mean {lower[near[0]]!r}?"
    return f"known are {', '.join(known)}"


def _topics(given: Mapping[str, str]) -> Topics:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if not ways:
        if "manifest" in given:
            return Topics()
        raise InvalidRequest(
            "option 'subscribe' is missing; give one topic or several with commas"
            " (or subscribePattern, or assign)"
        )
    if len(ways) > 1:
        raise InvalidRequest(f"options {ways[0]!r} and {ways[1]!r} exclude each other; give one")
    text = given[ways[0]]
    match ways[0]:
        case "subscribe":
            return Topics(names=values.names("subscribe", text))
        case "subscribePattern":
            return Topics(pattern=values.pattern("subscribePattern", text))
    queues = values.assignment("assign", text)
    return Topics(names=tuple(queues), queues=queues)


def _place(given: Mapping[str, str], side: str, topics: Topics) -> Asked | None:
    """The start or end of the read, by the first option given of: one time, times, offsets."""
    everywhere, by_queue, by_offset = (
        f"{side}Timestamp",
        f"{side}OffsetsByTimestamp",
        f"{side}Offsets",
    )
    if everywhere in given:
        return AtTimes(values.whole_number(everywhere, given[everywhere], 0))
    if by_queue in given:
        times = values.times(by_queue, given[by_queue])
        _require_same_queues(by_queue, times, topics)
        return AtTimes(times)
    if by_offset in given:
        offsets = values.offsets(by_offset, given[by_offset], is_start=side == "starting")
        if not isinstance(offsets, int):
            _require_same_queues(by_offset, offsets, topics)
        return AtOffsets(offsets)
    return None


def _require_same_queues(name: str, asked: QueueNumbers, topics: Topics) -> None:
    if topics.pattern:
        return
    if unknown := sorted(set(asked) - set(topics.names)):
        raise InvalidRequest(f"option {name!r} names topic {unknown[0]!r}, which is not subscribed")
    if missing := sorted(set(topics.names) - set(asked)):
        raise InvalidRequest(f"option {name!r} says nothing of topic {missing[0]!r}")
    for topic, queues in (topics.queues or {}).items():
        if set(asked[topic]) != queues:
            raise InvalidRequest(
                f"option {name!r} must name the assigned queues of topic {topic!r}:"
                f" {', '.join(map(str, sorted(queues)))}"
            )
