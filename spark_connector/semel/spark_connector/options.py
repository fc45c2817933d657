"""What a user may ask of the data source: names, defaults, checks. Pure.

How it works. Spark hands options over as strings under lower-cased names. `parse_options` turns
them into one frozen `ReadOptions` on the driver, so that executors never look at raw options or at
their own environment. A name that is not known is an error that names the nearest known one.

    option                   default           meaning
    bootstrap                SEMEL_BOOTSTRAP   controllers, HOST:PORT[,HOST:PORT]
    subscribe                (required)        topics, separated by commas
    startingOffsets          earliest          earliest, latest, or JSON
    endingOffsets            latest            latest, or JSON
    maxRecordsPerPartition   (none)            a larger range becomes several partitions
    includeHeaders           true              whether the default schema has the column headers
    timeoutMs                20000             how long a silent cluster is waited for

Offsets as JSON are `{"topic": {"0": 23, "1": -2}}`: every queue of every subscribed topic, where −2
means earliest and −1 latest.

Not here: offsets against what the cluster has (`offsets.py`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from semel.protos.errors import InvalidRequest

LATEST: Final = -1
EARLIEST: Final = -2

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:7070"
DEFAULT_TIMEOUT_MS: Final = 20_000

KNOWN_OPTIONS: Final = (
    "bootstrap",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerPartition",
    "includeHeaders",
    "timeoutMs",
)

QueueOffsets = Mapping[str, Mapping[int, int]]
"""Topic, queue → offset, LATEST or EARLIEST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """One batch read, as asked for."""

    bootstrap: str
    topics: tuple[str, ...]
    """At least one, none twice."""
    starting: int | QueueOffsets = EARLIEST
    """EARLIEST or LATEST for all queues, or an offset for each."""
    ending: int | QueueOffsets = LATEST
    """LATEST for all queues, or an offset for each; never EARLIEST."""
    records_per_partition_max: int | None = None
    include_headers: bool = True
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    """Both for connecting and for the next batch of a queue."""


def parse_options(options: Mapping[str, str], environment: Mapping[str, str]) -> ReadOptions:
    """The options of one read. Raises InvalidRequest in one line."""
    given = _by_known_name(options)
    topics = _topics(given.get("subscribe"))
    per_partition = given.get("maxRecordsPerPartition")
    bootstrap = given.get("bootstrap") or environment.get("SEMEL_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    return ReadOptions(
        bootstrap=bootstrap,
        topics=topics,
        starting=_offsets("startingOffsets", given.get("startingOffsets", "earliest"), topics),
        ending=_offsets("endingOffsets", given.get("endingOffsets", "latest"), topics),
        records_per_partition_max=(
            None
            if per_partition is None
            else _whole_number("maxRecordsPerPartition", per_partition, 1, 1 << 62)
        ),
        include_headers=_boolean("includeHeaders", given.get("includeHeaders", "true")),
        timeout_ms=_whole_number(
            "timeoutMs", given.get("timeoutMs", str(DEFAULT_TIMEOUT_MS)), 1, 3_600_000
        ),
    )


def _by_known_name(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their proper names; Spark gives names in lower case."""
    known = {name.lower(): name for name in KNOWN_OPTIONS}
    found = {}
    for name, value in options.items():
        proper = known.get(name.lower())
        if proper is None:
            raise InvalidRequest(f"unknown option {name!r} of format semel; {_nearest(name)}")
        found[proper] = value
    return found


def _nearest(name: str) -> str:
    """A hint at what may have been meant."""
    if name.lower() == "path":
        return "give the topic as option 'subscribe', not to load()"
    lower = {known.lower(): known for known in KNOWN_OPTIONS}
    # Words of the Kafka connector first, whose users come with them.
    familiar = {"kafka.bootstrap.servers": "bootstrap", "topic": "subscribe", "topics": "subscribe"}
    if name.lower() in familiar:
        return f"did you mean {familiar[name.lower()]!r}?"
    near = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.4)
    if near:
        return f"did you mean {lower[near[0]]!r}?"
    return f"known are {', '.join(KNOWN_OPTIONS)}"


def _topics(text: str | None) -> tuple[str, ...]:
    topics = [part.strip() for part in (text or "").split(",")]
    topics = [topic for topic in topics if topic]
    if not topics:
        raise InvalidRequest("option 'subscribe' is missing; give one topic or several with commas")
    return tuple(dict.fromkeys(topics))


def _whole_number(name: str, text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidRequest(
            f"option {name!r} must be a whole number from {least} to {most}, not {text!r}"
        )
    return value


def _boolean(name: str, text: str) -> bool:
    match text.lower():
        case "true":
            return True
        case "false":
            return False
    raise InvalidRequest(f"option {name!r} must be true or false, not {text!r}")


def _offsets(name: str, text: str, topics: tuple[str, ...]) -> int | QueueOffsets:
    """A word for all queues, or an offset for each queue of each topic."""
    is_start = name == "startingOffsets"
    match text.strip().lower():
        case "latest":
            return LATEST
        case "earliest" if is_start:
            return EARLIEST
        case "earliest":
            raise InvalidRequest(f"option {name!r} cannot be earliest; give latest or JSON")
    words = "earliest, latest" if is_start else "latest"
    try:
        given = json.loads(text)
    except ValueError:
        raise InvalidRequest(
            f'option {name!r} must be {words} or JSON like {{"topic": {{"0": 23}}}}, not {text!r}'
        ) from None
    if not isinstance(given, dict):
        raise InvalidRequest(f'option {name!r} must be a JSON object {{"topic": {{"0": 23}}}}')
    _require_same_topics(name, set(given), topics)
    return {topic: _queue_offsets(name, topic, given[topic], is_start) for topic in topics}


def _require_same_topics(name: str, given: set[str], topics: tuple[str, ...]) -> None:
    if unknown := sorted(given - set(topics)):
        raise InvalidRequest(f"option {name!r} names topic {unknown[0]!r}, which is not subscribed")
    if missing := sorted(set(topics) - given):
        raise InvalidRequest(f"option {name!r} says nothing of topic {missing[0]!r}")


def _queue_offsets(name: str, topic: str, given: object, is_start: bool) -> dict[int, int]:
    least = EARLIEST if is_start else LATEST
    if not isinstance(given, dict) or not given:
        raise InvalidRequest(f"option {name!r} must give topic {topic!r} an object of queues")
    found: dict[int, int] = {}
    for queue, offset in given.items():
        if not queue.isascii() or not queue.isdigit():
            raise InvalidRequest(f"option {name!r}: {queue!r} is not a queue of topic {topic!r}")
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < least:
            raise InvalidRequest(
                f"option {name!r}: {offset!r} is not an offset for queue {queue} of topic {topic!r}"
            )
        if int(queue) in found:
            raise InvalidRequest(f"option {name!r} names queue {queue} of topic {topic!r} twice")
        found[int(queue)] = offset
    return found
