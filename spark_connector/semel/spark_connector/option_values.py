"""Parsing of single option values: numbers, sizes, durations, JSON of offsets. Pure.

How it works. Every function takes an option's name and its text. It returns a value, or raises
InvalidRequest in one line that names the option, the allowed values and the given text. The JSON
forms are those of Kafka's connector:

    offsets and times   {"topic": {"0": 23, "1": -2}}       by topic and queue
    queues              {"topic": [0, 1]}

Not here: the list of options (`options.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from semel.protos.errors import InvalidRequest

LATEST: Final = -1
EARLIEST: Final = -2

QueueNumbers = Mapping[str, Mapping[int, int]]
"""Topic, queue → offset, LATEST, EARLIEST, or a time in milliseconds since the epoch."""

_DURATIONS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SIZES: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOST: Final = 1 << 62


def whole_number(name: str, text: str, least: int, most: int = _MOST) -> int:
    """A decimal number."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidRequest(
            f"option {name!r} must be a whole number from {least} to {most}, not {text!r}"
        )
    return value


def duration_ms(name: str, text: str) -> int:
    """`15m`, `30s`, `500ms`, `1h`, `2d`; a bare number is milliseconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    unit = _DURATIONS_MS.get(found[2] or "ms") if found else None
    if found is None or unit is None or int(found[1]) * unit > _MOST:
        raise InvalidRequest(
            f"option {name!r} must be a time like 500ms, 30s, 15m or 1h, not {text!r}"
        )
    return int(found[1]) * unit


def size_bytes(name: str, text: str) -> int:
    """`64m`, `1g`, `512k`; a bare number is bytes. At least one byte."""
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    value = int(found[1]) * _SIZES[found[2] or "b"] if found else 0
    if not 1 <= value <= _MOST:
        raise InvalidRequest(f"option {name!r} must be a size like 512k, 64m or 1g, not {text!r}")
    return value


def boolean(name: str, text: str) -> bool:
    """`true` or `false`, in any case."""
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise InvalidRequest(f"option {name!r} must be true or false, not {text!r}")


def one_of(name: str, text: str, words: tuple[str, ...]) -> str:
    """One of `words`, in any case."""
    word = text.strip().lower()
    if word not in words:
        raise InvalidRequest(f"option {name!r} must be {' or '.join(words)}, not {text!r}")
    return word


def pattern(name: str, text: str) -> str:
    """A regular expression that must match the whole name of a topic."""
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequest(f"option {name!r} is no regular expression: {error}") from None
    if not text.strip():
        raise InvalidRequest(f"option {name!r} is empty")
    return text


def names(name: str, text: str) -> tuple[str, ...]:
    """At least one name, separated by commas; a repeated name counts once."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise InvalidRequest(f"option {name!r} is empty; give one topic or several with commas")
    return tuple(dict.fromkeys(found))


def assignment(name: str, text: str) -> dict[str, frozenset[int]]:
    """Queues by topic, from JSON."""
    form = '{"topic": [0, 1]}'
    found: dict[str, frozenset[int]] = {}
    for topic, queues in _json_object(name, text, f"JSON like {form}").items():
        if not isinstance(queues, list) or not queues:
            raise InvalidRequest(f"option {name!r} must give topic {topic!r} a list of queues")
        for queue in queues:
            if isinstance(queue, bool) or not isinstance(queue, int) or queue < 0:
                raise InvalidRequest(
                    f"option {name!r}: {queue!r} is not a queue of topic {topic!r}"
                )
        found[topic] = frozenset(queues)
    if not found:
        raise InvalidRequest(f"option {name!r} names no topic; give JSON like {form}")
    return found


def offsets(name: str, text: str, *, is_start: bool) -> int | dict[str, dict[int, int]]:
    """LATEST, EARLIEST (a start only), or offsets by topic and queue."""
    match text.strip().lower():
        case "latest":
            return LATEST
        case "earliest" if is_start:
            return EARLIEST
        case "earliest":
            raise InvalidRequest(f"option {name!r} cannot be earliest; give latest or JSON")
    words = "earliest, latest" if is_start else "latest"
    form = f'{words} or JSON like {{"topic": {{"0": 23}}}}'
    return _by_queue(name, text, form, "an offset", EARLIEST if is_start else LATEST)


def times(name: str, text: str) -> dict[str, dict[int, int]]:
    """Milliseconds since the epoch, by topic and queue."""
    form = 'JSON like {"topic": {"0": 1700000000000}}, in milliseconds'
    return _by_queue(name, text, form, "a time in milliseconds", 0)


def _by_queue(name: str, text: str, form: str, what: str, least: int) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, queues in _json_object(name, text, form).items():
        if not isinstance(queues, dict) or not queues:
            raise InvalidRequest(f"option {name!r} must give topic {topic!r} an object of queues")
        numbers = found.setdefault(topic, {})
        for queue, value in queues.items():
            if not queue.isascii() or not queue.isdigit():
                raise InvalidRequest(
                    f"option {name!r}: {queue!r} is not a queue of topic {topic!r}"
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidRequest(
                    f"option {name!r}: {value!r} is not {what} for queue {queue} of topic {topic!r}"
                )
            if int(queue) in numbers:
                raise InvalidRequest(
                    f"option {name!r} names queue {queue} of topic {topic!r} twice"
                )
            numbers[int(queue)] = value
    return found


def _json_object(name: str, text: str, form: str) -> dict[str, object]:
    try:
        found = json.loads(text, object_pairs_hook=lambda pairs: _without_twins(name, pairs))
    except ValueError:
        raise InvalidRequest(f"option {name!r} must be {form}, not {text!r}") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"option {name!r} must be {form}, not {text!r}")
    return found


def _without_twins(name: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twin = next(key for key in keys if keys.count(key) > 1)
        raise InvalidRequest(f"option {name!r} names {twin!r} twice")
    return found
