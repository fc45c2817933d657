"""A topic's settings under Kafka's names: reading them, and what a change of them means. Pure.

How it works. A topic has a value for each name in `NAMES`, as Kafka's tools show it. A change gives
a new value for each, and what differs becomes the arguments of Semel's own call.

`cleanup.policy` is *compact*, *delete*, or both. Semel has retention and compaction, each on or
off, and a compacted topic of Kafka that does not delete knows no retention. So the policy is
*delete* as well where a compacted topic has a retention, and a topic that becomes compacted loses
it, unless the same change says what it is.

Not here: requests (`topic_admin.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from semel.client.admin.descriptions import DEFAULT_RETENTION_MS, TopicSettings
from semel.client.admin.topic_settings import Compaction
from semel.protos.batch import MESSAGE_BYTES_MAX
from semel.protos.errors import InvalidRequest

POLICY: Final = "cleanup.policy"
LAG: Final = "min.compaction.lag.ms"
TOMBSTONES: Final = "delete.retention.ms"
RETENTIONS: Final = {"retention.ms": "retention_ms", "retention.bytes": "retention_bytes"}
_PLAIN: Final = {**RETENTIONS, "max.message.bytes": "message_bytes_max"}
"""Names of numbers, and the argument that each is."""
DEFAULTS: Final = {
    POLICY: "delete",
    "retention.ms": str(DEFAULT_RETENTION_MS),
    "retention.bytes": "-1",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
    LAG: str(Compaction().lag_ms),
    TOMBSTONES: str(Compaction().tombstone_ms),
}
NAMES: Final = tuple(DEFAULTS)


class Operation(IntEnum):
    """A way to change a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """A change of one setting."""

    name: str
    operation: int
    value: str | None


def configs_of(settings: TopicSettings) -> dict[str, str]:
    """Returns a topic's value for each name."""
    compaction = settings.compaction or Compaction()
    limited = settings.retention_ms != -1 or settings.retention_bytes != -1
    policies = ["compact"] if settings.compaction is not None else ["delete"]
    if settings.compaction is not None and limited:
        policies.append("delete")
    return {
        POLICY: ",".join(policies),
        **{name: str(getattr(settings, field)) for name, field in _PLAIN.items()},
        LAG: str(compaction.lag_ms),
        TOMBSTONES: str(compaction.tombstone_ms),
    }


def altered(configs: Mapping[str, str], changes: Iterable[Alteration]) -> dict[str, str]:
    """Returns the values after a change of some. Raises InvalidRequest."""
    found = dict(configs)
    named: set[str] = set()
    for name, operation, value in changes:
        _check_name(name)
        if name in named:
            raise InvalidRequest(f"{name} is named twice")
        named.add(name)
        if operation == Operation.DELETE:
            found[name] = DEFAULTS[name]
        elif value is None:
            raise InvalidRequest(f"{name} needs a value")
        elif operation == Operation.SET:
            found[name] = value
        elif operation in (Operation.APPEND, Operation.SUBTRACT) and name == POLICY:
            before, given = _policies(found[name]), _policies(value)
            found[name] = ",".join(
                sorted(before | given if operation == Operation.APPEND else before - given)
            )
        else:
            raise InvalidRequest(f"{name} is no list: set it, or delete it")
    return _without_retention(found, named, was_compact="compact" in _policies(configs[POLICY]))


def replaced(configs: Mapping[str, str], given: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the values where those that are not given become their defaults. Raises
    InvalidRequest."""
    for name in given:
        _check_name(name)
    found = DEFAULTS | {name: value for name, value in given.items() if value is not None}
    named = {name for name, value in given.items() if value is not None}
    return _without_retention(found, named, was_compact="compact" in _policies(configs[POLICY]))


def _without_retention(
    configs: dict[str, str], named: set[str], *, was_compact: bool
) -> dict[str, str]:
    if _policies(configs[POLICY]) == {"compact"} and (POLICY in named or not was_compact):
        configs |= {name: "-1" for name in RETENTIONS if name not in named}
    return configs


def arguments(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """Returns what differs, as arguments of `alter_topic`. Raises InvalidRequest."""
    changed = {name for name in NAMES if before[name] != after[name]}
    found: dict[str, Any] = {
        field: _number(name, after[name]) for name, field in _PLAIN.items() if name in changed
    }
    compacts = "compact" in _policies(after[POLICY])
    was_compact = "compact" in _policies(before[POLICY])
    if compacts and (changed & {LAG, TOMBSTONES} or not was_compact):
        found["compaction"] = _compaction(after)
    elif was_compact and not compacts:
        found["compaction"] = "off"
    elif not compacts:
        _check_compacted(changed)
    return found


def creation(given: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns the arguments of `create_topic`. Raises InvalidRequest."""
    for name in given:
        _check_name(name)
    values = {name: value or "" for name, value in given.items()}
    found: dict[str, Any] = {
        field: _number(name, values[name]) for name, field in _PLAIN.items() if name in values
    }
    if "compact" in _policies(values.get(POLICY, DEFAULTS[POLICY])):
        found["compaction"] = _compaction(DEFAULTS | values)
    else:
        _check_compacted(values.keys())
    return found


def _check_name(name: str) -> None:
    if name not in DEFAULTS:
        raise InvalidRequest(f"topics have no setting {name!r}; known are {', '.join(NAMES)}")


def _check_compacted(names: Iterable[str]) -> None:
    for name in (LAG, TOMBSTONES):
        if name in names:
            raise InvalidRequest(f"{name} is for topics whose {POLICY} is compact")


def _policies(text: str) -> set[str]:
    names = {each.strip() for each in text.split(",")}
    if not names <= {"delete", "compact"}:
        raise InvalidRequest(f"{POLICY} must be delete or compact, not {text!r}")
    return names


def _compaction(configs: Mapping[str, str]) -> Compaction:
    return Compaction(
        tombstone_ms=_number(TOMBSTONES, configs[TOMBSTONES]), lag_ms=_number(LAG, configs[LAG])
    )


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"{name} must be a number, not {text!r}") from None
