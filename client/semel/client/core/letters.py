"""Headers of copies of messages that are retried, given up as dead letters, or brought back.

How it works. A copy keeps key, value, timestamp and the user's own headers. Delivery adds headers
named `semel-…`, which each further copy *replaces*: a message that fails a hundred times is no
larger than one that failed once.

| header | on | what |
|---|---|---|
| `semel-origin-topic`, `-queue`, `-offset` | all | where the message was stored first |
| `semel-source-offset` | all | its offset in the queue that it was copied out of |
| `semel-group` | all | the consumer group that could not process it |
| `semel-attempts` | retries, dead letters | number of failed attempts |
| `semel-reason` | retries, dead letters | the caller's words, at most 1,024 bytes of them |
| `semel-failed-us` | retries, dead letters | wall time of the last failure, µs since the epoch |
| `semel-cause` | dead letters | `rejected`, or `exhausted` after the last retry |
| `semel-redriven` | brought back | TOPIC/QUEUE/OFFSET of the dead letter |

A copy of a message whose batch carries a trace context (`core/batch_context.py`) has it in its own
headers.

Not here: copying (`dead_letters/relay.py`), when (`dead_letters/retrying.py`,
`dead_letters/redrive.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

Headers = list[tuple[str, bytes]]

PREFIX: Final = "semel-"
ORIGIN_TOPIC: Final = "semel-origin-topic"
ORIGIN_QUEUE: Final = "semel-origin-queue"
ORIGIN_OFFSET: Final = "semel-origin-offset"
SOURCE_OFFSET: Final = "semel-source-offset"
GROUP: Final = "semel-group"
ATTEMPTS: Final = "semel-attempts"
REASON: Final = "semel-reason"
FAILED_US: Final = "semel-failed-us"
CAUSE: Final = "semel-cause"
REDRIVEN: Final = "semel-redriven"
REJECTED: Final = "rejected"
EXHAUSTED: Final = "exhausted"
REASON_BYTES_MAX: Final = 1_024
_NUMBER_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = len(str(_NUMBER_MAX))
_TOPIC_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]")
_GROUP_CHARACTERS_MAX: Final = 200


class Origin(NamedTuple):
    """Where a message was stored first."""

    topic: str
    queue: int
    offset: int


class Letter(NamedTuple):
    """The contents of a copy's headers."""

    origin: Origin | None
    """None if the message is no copy."""
    source_offset: int
    group: str
    attempts: int
    """Number of failures so far."""
    reason: str
    failed_us: int
    cause: str
    redriven: str


def read(headers: Iterable[tuple[str, bytes]]) -> Letter:
    """Reads the headers, which any producer may have written. A missing text is empty; a number
    that is missing, malformed or does not fit into 64 bits is 0."""
    found = {name: value for name, value in headers if name.startswith(PREFIX)}

    def text(name: str) -> str:
        return found.get(name, b"").decode(errors="replace")

    def number(name: str) -> int:
        value = found.get(name, b"")
        if len(value) > _DIGITS_MAX or not value.isdigit():
            return 0
        return int(value) if int(value) <= _NUMBER_MAX else 0

    topic = text(ORIGIN_TOPIC)
    origin = Origin(topic, number(ORIGIN_QUEUE), number(ORIGIN_OFFSET)) if topic else None
    return Letter(
        origin=origin,
        source_offset=number(SOURCE_OFFSET),
        group=text(GROUP),
        attempts=number(ATTEMPTS),
        reason=text(REASON),
        failed_us=number(FAILED_US),
        cause=text(CAUSE),
        redriven=text(REDRIVEN),
    )


def own(headers: Iterable[tuple[str, bytes]]) -> Headers:
    """Returns the user's own headers, without those of delivery."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


def failed(
    headers: Iterable[tuple[str, bytes]],
    *,
    origin: Origin,
    source_offset: int,
    group: str,
    attempts: int,
    reason: str,
    failed_us: int,
    cause: str = "",
) -> Headers:
    """Returns the headers of the copy that goes to a retry or dead-letter topic."""
    added = [
        (ORIGIN_TOPIC, origin.topic.encode()),
        (ORIGIN_QUEUE, b"%d" % origin.queue),
        (ORIGIN_OFFSET, b"%d" % origin.offset),
        (SOURCE_OFFSET, b"%d" % source_offset),
        (GROUP, group.encode()),
        (ATTEMPTS, b"%d" % attempts),
        (REASON, _cut(reason)),
        (FAILED_US, b"%d" % failed_us),
    ]
    if cause:
        added.append((CAUSE, cause.encode()))
    return own(headers) + added


def redriven(headers: Iterable[tuple[str, bytes]], *, source: Origin) -> Headers:
    """Returns the headers of the copy of a dead letter that goes back. Its attempts start at 0."""
    letter = read(headers)
    assert letter.origin is not None
    return [
        *own(headers),
        (ORIGIN_TOPIC, letter.origin.topic.encode()),
        (ORIGIN_QUEUE, b"%d" % letter.origin.queue),
        (ORIGIN_OFFSET, b"%d" % letter.origin.offset),
        (SOURCE_OFFSET, b"%d" % source.offset),
        (GROUP, letter.group.encode()),
        (REDRIVEN, f"{source.topic}/{source.queue}/{source.offset}".encode()),
    ]


def _cut(reason: str) -> bytes:
    """Cuts a text to at most REASON_BYTES_MAX bytes, at a character's end."""
    whole = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return whole.decode(errors="ignore").encode()


def retry_topic(group: str, step: int) -> str:
    """Returns the topic of a group's retries after their `step`-th failure, counted from 1."""
    return f"{_topic_part(group)}.retry-{step}"


def dead_letter_topic(group: str) -> str:
    """Returns a group's dead-letter topic, unless its policy names another one."""
    return f"{_topic_part(group)}.dead-letters"


def redriven_topic(dead_letters: str) -> str:
    """Returns the topic that remembers which dead letters were brought back."""
    return f"{dead_letters}.redriven"


def _topic_part(group: str) -> str:
    """Returns a group's name as part of a topic's; different groups never share one."""
    plain = _TOPIC_CHARACTERS.sub("_", group)[:_GROUP_CHARACTERS_MAX]
    if plain == group:
        return plain
    return f"{plain}-{hashlib.sha256(group.encode()).hexdigest()[:12]}"
