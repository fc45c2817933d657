"""Feature levels: what a program speaks, how it says so, and what two programs make of it.

How it works. Levels are numbered through for the whole of Semel. A *program* speaks a range of
them, which its code decides. A *log* of a broker group, and the controllers' *metadata*, are at one
of them, the active level: it stands in the log or in the metadata, decides which kinds of records
and rules may appear there, and rises only when an operator says so.

Every call carries the caller's levels in its metadata (`semel-levels-bin`), and is checked before
its handler sees it; who asks for a stream is told the other side's levels before it may send the
first byte. A caller that says nothing is of a time before levels were told: it may speak up to
`UNTOLD_MAX`, and nobody can say what it lacks.

Format. The metadata's value is a serialized `Levels` (`v1/common.proto`).

Not here: raising a level (`broker/replica/feature_levels.py`, `controller/epoch.py`), the
handshake.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.v1.common_pb2 import Levels

LEVELS_KEY: Final = "semel-levels-bin"

SPLIT_LEVEL: Final = 2
"""From here on a log may hold splits of queues."""
TRANSACTION_LEVEL: Final = 3
"""From here on a log may hold transactions."""
MOVE_LEVEL: Final = 4
"""From here on a log may hold queues that come from other groups, or go there."""
DELAY_LEVEL: Final = 5
"""From here on a log may hold batches with a delivery time."""
METADATA_LEVEL: Final = 6
"""From here on a log may hold commits with metadata. All programs of this level tell their levels;
an older one halts at the entry that names it."""

LEVEL_MIN: Final = 0
"""The lowest level that this program speaks; a log that never needed one is at 0."""
LEVEL_MAX: Final = 6
"""The highest level whose rules this program knows: of logs and of metadata alike."""
UNTOLD_MAX: Final = 5
"""The highest level of any program that does not tell its levels."""

_FEATURES: Final = {
    SPLIT_LEVEL: "splits of queues",
    TRANSACTION_LEVEL: "transactions",
    MOVE_LEVEL: "moves of queues",
    DELAY_LEVEL: "delayed messages",
    METADATA_LEVEL: "commits with metadata",
}


@functools.cache
def program_version() -> str:
    """Version of this program, for people."""
    return importlib.metadata.version("semel")


@functools.lru_cache(maxsize=256)
def own_levels(level_max: int = LEVEL_MAX, active: int = 0) -> Levels:
    """What this program says of itself; `level_max` is lower where it plays an older one.

    The same object for the same arguments: not to be changed.
    """
    return Levels(
        min=min(LEVEL_MIN, level_max), max=level_max, version=program_version(), active=active
    )


def levels_metadata(levels: Levels) -> tuple[tuple[str, bytes], ...]:
    """The same as metadata of a call or of an answer."""
    return ((LEVELS_KEY, levels.SerializeToString()),)


def told_levels(metadata: Iterable[tuple[str, str | bytes]] | None) -> Levels | None:
    """What the other side says of itself; None when it is older than this.

    Raises InvalidRequest.
    """
    for key, value in metadata or ():
        if key == LEVELS_KEY:
            return _decoded(value if isinstance(value, bytes) else value.encode())
    return None


@functools.lru_cache(maxsize=256)
def _decoded(value: bytes) -> Levels:
    try:
        return Levels.FromString(value)
    except DecodeError:
        raise InvalidRequest(f"the metadata {LEVELS_KEY} is no Levels message") from None


def untold_levels() -> Levels:
    """What can be said of a program that does not tell."""
    return Levels(min=0, max=UNTOLD_MAX, version="")


def check_levels(own: Levels, own_name: str, other: Levels, other_name: str) -> None:
    """Raises UnsupportedVersion unless both programs speak a level in common."""
    if max(own.min, other.min) <= min(own.max, other.max):
        return
    older = own_name if own.max < other.max else other_name
    raise UnsupportedVersion(
        f"{_program(other_name, other)}, {_program(own_name, own)}: they have no feature level in"
        f" common; upgrade {older}"
    )


def check_member(peer: str, told: Levels, level: int) -> None:
    """Raises UnsupportedVersion unless a peer knows the rules of a log at `level`."""
    if told.max < level:
        raise UnsupportedVersion(
            f"{_program(peer, told)}, and the group's log is at level {level}: upgrade {peer}",
            level=level,
        )


def lacking(level: int, active: int, where: str) -> UnsupportedVersion:
    """What needs `level` is asked of a log that is at a lower one."""
    return UnsupportedVersion(
        f"{where} is at feature level {active}, and {_FEATURES.get(level, 'this')} need"
        f" level {level}: upgrade every node, then say `semel cluster upgrade`",
        level=level,
    )


def _program(name: str, levels: Levels) -> str:
    if not levels.version:
        return f"{name} is older than feature levels that are told (at most {levels.max})"
    return f"{name} runs Semel {levels.version} with feature levels {levels.min} to {levels.max}"
